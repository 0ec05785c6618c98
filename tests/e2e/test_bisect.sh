#!/usr/bin/env bash
# A pass that is wrong is found: by the verifier of a debug build, which names it, or by tools/bisect, which names the
# change. The tool in $KVASIR_BROKEN has such a pass (tests/broken/).
. "$(dirname "$0")/support.sh"
. "$(dirname "$0")/broken.sh"

# 40 neutral elements for simplify to remove, and among them two products with 2.
node() {
  case $1 in
  17 | 31) echo "v$1 = kv.mul(v$(($1 - 1)), 2.0)" ;;
  *) echo "v$1 = kv.relu(kv.add(v$(($1 - 1)), 0.0))" ;;
  esac
}
make_chain 40 'float[N, 8] y' 'y = kv.mul(v40, 1.0)'
mkdir "$work/right" "$work/also" "$work/unbroken" "$work/found"
run=(run "$model" --pin N=3 --seed 7)

# The switch is not in the tool that people get.
KVA_BREAK=result expect 0 "${run[@]}" --output "$work/right"
KVA_BREAK=ir expect 0 "${run[@]}" --output "$work/also"
cmp -s "$work/right/y.npy" "$work/also/y.npy" || fail "KVA_BREAK changes the right tool"

# A broken IR: the verifier names the pass, without being asked.
(
  break_tool ir
  expect 1 "${run[@]}"
  says "module 'main' does not verify after pass 'simplify'"
  unset KVA_BREAK
  expect 0 "${run[@]}" --output "$work/unbroken" # without the switch it is right
)
cmp "$work/right/y.npy" "$work/unbroken/y.npy"

# A wrong result that verifies: bisect names the first of the two changes, in at most 12 runs.
cat >"$work/check" <<END
#!/usr/bin/env bash
KVA_BREAK=\$1 "$KVASIR_BROKEN" ${run[*]} --output "$work/found" "\$2" && cmp "$work/right/y.npy" "$work/found/y.npy"
END
chmod +x "$work/check"
found() { # found BREAK TEXT: what bisect says in the end
  tools/bisect "$work/check" "$1" {} >"$work/out" || fail "bisect finds nothing for $1"
  says "$2"
  runs=$(sed -n 's/^\([0-9]*\) runs: .*/\1/p' "$work/out")
  [ "$runs" -le 12 ] || fail "bisect takes $runs runs"
}
found result 'is the first bad one: simplify: kv.mul "v17" by x * 2 is x + 3'
found ir 'is the first bad one: simplify: kv.mul "v17" by a wrong type'

# A command that does not fail, one that fails without changes, and wrong usage.
code=0
tools/bisect true >"$work/out" || code=$?
[ "$code" -eq 1 ] || fail "bisect of a command that succeeds: $code"
code=0
tools/bisect false >"$work/out" || code=$?
[ "$code" -eq 1 ] || fail "bisect of a command that always fails: $code"
says "without any change"
code=0
tools/bisect 2>"$work/out" || code=$?
[ "$code" -eq 2 ] || fail "bisect without a command: $code"

# Whatever the limit, the model compiles to the same results: all that is left out may be left out.
for limit in 0 1 5 20 50; do
  expect 0 run models/mlp.kv --pin B=2 --pin T=5 --seed 3 --bisect-limit="$limit"
  expect 0 run models/induction.kv --pin B=2 --pin T=9 --seed 3 --bisect-limit="$limit" --verify-each
done
