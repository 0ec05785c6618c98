#!/usr/bin/env bash
# kvasir diff names the node whose compiled code is wrong, and kvasir reduce leaves the few nodes that show it. The tool
# in $KVASIR_BROKEN has wrong code for relu, and a wrong pass (tests/broken/).
. "$(dirname "$0")/support.sh"
. "$(dirname "$0")/broken.sh"

# 100 nodes, of which one is a relu; a product every tenth, so that there are several kernels.
node() {
  case $1 in
  31) echo "v$1 = kv.relu(v$(($1 - 2)))" ;;
  *0) echo "v$1 = kv.tanh(kv.matmul <transpose_b = 1> (v$(($1 - 1)), z0))" ;;
  5) printf '%s\n' 'v5 = kv.sin(v4)' 'z0 = kv.matmul <transpose_a = 1> (v4, v5)' ;;
  *) echo "v$1 = kv.sin(kv.add(v$(($1 - 1)), v$(($1 / 2))))" ;;
  esac
}
make_chain 52 'float[N, 8] y, float[8, 8] z' 'y = kv.mul(kv.add(v52, v31), 2.0)' 'z = kv.exp(z0)'
run=("$model" --pin N=5 --seed 3)

# The right tool agrees with the reference, in pieces of any size, with the same number of values.
expect 0 diff "${run[@]}"
says ", 0 beyond the tolerance"
values=$(sed -n 's/ values compared.*//p' "$work/out")
[ "$values" -ge 100 ] || fail "only $values values are compared"

# Masked loads of 16-bit elements that are not side by side, with an extent that is not known to the compiler.
python3 - "$work/x.npy" <<'PY'
import struct
import sys

header = b"{'descr': '<f2', 'fortran_order': False, 'shape': (1, 5), }".ljust(117) + b"\n"
with open(sys.argv[1], "wb") as f:
    f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<5e", -1, 2, -3, 4, -5))
PY
expect 0 diff "$(dirname "$0")/gather_halves.kv" -i "x=$work/x.npy"
says ", 0 beyond the tolerance"

# Wrong code of one node: its place, its values, and it alone as a model. What comes later reads right values.
(
  break_tool kernel
  expect 1 diff "${run[@]}" -o "$work/found"
  says "model.kv:$(grep -n kv.relu "$model" | cut -d: -f1):"
  says "value 'v31' of kv.relu: element"
  says "smallest part that shows it: 1 node: kv.relu"
  says "$values values compared, 1 beyond the tolerance"
  grep -q 'kv.relu' "$work/found/model.kv"
  expect 1 diff "$work/found/model.kv" --input "$work/found/input0.npy"
  says "1 values compared, 1 beyond the tolerance"

  expect 0 reduce "${run[@]}" -o "$work/small"
  says "the model differs from the reference"
  nodes=$(sed -n 's/smallest part that shows it: \([0-9]*\) node.*/\1/p' "$work/out")
  [ "$nodes" -le 3 ] || fail "reduce leaves $nodes nodes"
  grep -q 'kv.relu' "$work/small/model.kv"
  trials=$(sed -n 's/ trials$//p' "$work/out")
  [ "$trials" -le 40 ] || fail "reduce takes $trials trials"

  # The command has the options that decide what is compiled, and what is an error.
  options=(--math int8 --threads 1 --rtol 2e-05 -o "$work/options")
  expect 1 diff "$work/small/model.kv" --input "$work/small/input0.npy" "${options[@]}"
  says "/options/input0.npy --math int8 --threads 1 --rtol 2e-05"
  expect 0 reduce "${run[@]}" "${options[@]}"
  says "/options/input0.npy --math int8 --threads 1 --rtol 2e-05"
)
expect 0 diff "$work/found/model.kv" --input "$work/found/input0.npy"
for read in "$work/small/model.kv" "$work/found/model.kv --input $work/small/input0.npy"; do
  for verb in reduce diff; do
    # shellcheck disable=SC2086
    expect 2 $verb $read -o "$work/small"
    says "which is read; write elsewhere"
  done
done
expect 1 reduce "$work/small/model.kv" --input "$work/small/input0.npy" -o "$work/none"
says "the model agrees"
[ ! -e "$work/none" ] || fail "reduce writes a model that does not fail"

# A model that does not compile: the message stays.
(
  break_tool ir
  expect 0 reduce "${run[@]}" -o "$work/refused"
  says "the model is refused: kv.mul: result 0"
  says "smallest part that shows it: 1 node: kv.mul"
  grep -q 'kv.mul' "$work/refused/model.kv"
)

# Values of another runtime: those that have a file. Names of files that are of no value are an error.
chain=$work/chain.kv
printf 'main (float[N, 4] x) => (float[N, 4] y) {\n  a = kv.sin(x)\n  b = kv.exp(a)\n  y = kv.neg(b)\n}\n' >"$chain"
sed 's/ => (/ => (float[N, 4] b, /' "$chain" >"$work/more.kv"
mkdir "$work/values" "$work/empty"
expect 0 run "$work/more.kv" --pin N=3 --output "$work/values"
rm "$work/values/y.npy"
expect 0 diff "$chain" --pin N=3 --against "$work/values"
says "3 values compared, 0 beyond the tolerance; 1 of them from"
expect 1 diff "$chain" --pin N=3 --seed 1 --against "$work/values"
says "chain.kv:3:7: error: value 'b' of kv.exp: element"
says "1 beyond the tolerance; 1 of them from"
expect 1 diff "$chain" --pin N=3 --against "$work/empty"
says "no file in $work/empty has the name of a value"

# Files have no types of 4 bits and no names of those of 8; the model says what they are.
for type in int4 float4e2m1 float8e4m3fn; do
  printf 'main (%s[N] x) => (%s[N] t, float[N] y) {\n  y = kv.cast <to = float> (x)\n  t = kv.cast <to = %s> (y)\n}\n' \
    $type $type $type >"$work/narrow.kv"
  expect 0 run "$work/narrow.kv" --pin N=3 -o "$work/$type"
  expect 0 run "$work/narrow.kv" -i "x=$work/$type/t.npy" -o "$work/again"
  cmp -s "$work/$type/t.npy" "$work/again/t.npy" || fail "$type: other elements from a file"
  expect 0 diff "$work/narrow.kv" --pin N=3 --against "$work/$type"
  says "2 of them from"
done

# Symbols that no value of a piece has as an extent; states; sizes that data decides.
cat >"$work/symbols.kv" <<'END'
main (float[N, M] x) => (float[S] y) {
  flat = kv.reshape <shape = [N*M]> (x)
  twice = kv.concat <axis = 0> (flat, flat)
  count = kv.cast <to = int64> (kv.reduce_sum <axes = [0], keepdims = 0> (kv.cast <to = int64> (kv.less (0.0, flat))))
  kv.bind <symbol = S> (count)
  half = kv.slice <starts = [0], shape = [S], steps = [1]> (twice)
  back = kv.reshape <shape = [2*N, M]> (twice)
  y = kv.add (half, kv.reduce_max <axes = [0, 1], keepdims = 0> (back))
}
END
for piece in 2 16; do
  expect 0 diff "$work/symbols.kv" --pin N=3 --pin M=4 --piece "$piece"
  says ", 0 beyond the tolerance"
done
expect 0 diff models/induction.kv --pin B=2 --pin T=9 --piece 5
expect 2 diff
expect 2 reduce "$model"
