#!/usr/bin/env bash
# kvasir run: tensors in, tensors out, with .npy files made and read by Python's standard library.
. "$(dirname "$0")/support.sh"

cat >"$work/npy.py" <<'PY'
"""npy.py write FILE TYPE SHAPE VALUES... | npy.py expect FILE TYPE SHAPE VALUES..."""
import ast, struct, sys
verb, path, kind, shape, values = sys.argv[1], sys.argv[2], sys.argv[3], ast.literal_eval(sys.argv[4]), sys.argv[5:]
code = {"<f4": "f", "<f8": "d", "<i4": "i", "<i8": "q", "|b1": "?"}[kind]
if verb == "write":
    header = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    numbers = [float(v) if code in "fd" else int(v) for v in values]
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<%d%s" % (len(numbers), code), *numbers))
else:
    data = open(path, "rb").read()
    length, = struct.unpack_from("<H", data, 8)
    header = ast.literal_eval(data[10:10 + length].decode())
    assert header["descr"] == kind and tuple(header["shape"]) == shape and not header["fortran_order"], header
    found = struct.unpack_from("<%d%s" % (len(values), code), data, 10 + length)
    assert len(data) == 10 + length + struct.calcsize("<%d%s" % (len(values), code)), "file size"
    assert all(a == float(b) or abs(a - float(b)) <= 1e-6 * max(1, abs(float(b))) for a, b in zip(found, values)), found
PY
npy() { python3 -B "$work/npy.py" "$@" || fail "npy $*"; }

# Two inputs with a symbol, by name and in order; results by hand.
cat >"$work/sum.kv" <<'KV'
model sums (float[N, 3] a, float[3] b) => (float[N, 3] y, float[N] s, bool[N, 3] big) {
  y = a + b
  s = kv.reduce_sum <axes = [1], keepdims = false> (a * b)
  big = y > 10
}
KV
npy write "$work/a.npy" '<f4' '(2, 3)' 1 2 3 4 5 6
npy write "$work/b.npy" '<f4' '(3,)' 10 -20 0.5
mkdir "$work/o"
expect 0 run "$work/sum.kv" --input b="$work/b.npy" --input a="$work/a.npy" --output "$work/o"
says "y: float[2, 3]"
npy expect "$work/o/y.npy" '<f4' '(2, 3)' 11 -18 3.5 14 -15 6.5
npy expect "$work/o/s.npy" '<f4' '(2,)' -28.5 -57
npy expect "$work/o/big.npy" '|b1' '(2, 3)' 1 0 0 1 0 0
expect 0 run "$work/sum.kv" -i "$work/a.npy" -i "$work/b.npy" -o "$work/o2" --threads 1 --repeat 3
times=$(sed -nE 's/^3 runs: median (.*) ms, half of them in (.*) to (.*) ms, the fastest in (.*) ms$/\4 \2 \1 \3/p' "$work/out")
[ "$(tr ' ' '\n' <<<"$times" | grep -c .)" = 4 ] || fail "--repeat prints no times of 3 runs"
tr ' ' '\n' <<<"$times" | sort -gc || fail "times of --repeat are not in order: $times"
cmp -s "$work/o/s.npy" "$work/o2/s.npy" || fail "inputs in order give something else than by name"

# A path may have a '=' in it; what precedes it is a name only where the model has that input.
mkdir "$work/lr=0.1"
cp "$work/a.npy" "$work/b.npy" "$work/lr=0.1"
expect 0 run "$work/sum.kv" -i "$work/lr=0.1/a.npy" -i b="$work/lr=0.1/b.npy" -o "$work/o2"
cmp -s "$work/o/s.npy" "$work/o2/s.npy" || fail "a folder with '=' in its name gives something else"
expect 1 run "$work/sum.kv" -i "c=$work/a.npy"
says "the model has no input 'c'"
expect 2 profile "$work/sum.kv" -i "$work/lr=0.1/a.npy" -i "$work/b.npy" -o "$work/lr=0.1/a.npy"
says "which is read; write elsewhere"

# An output does not take the place of an input's file.
mkdir "$work/o3"
cp "$work/a.npy" "$work/o3/y.npy"
expect 1 run "$work/sum.kv" -i a="$work/o3/y.npy" -i b="$work/b.npy" -o "$work/o3"
says "output 'y' would replace $work/o3/y.npy, which is read; write elsewhere"
cmp -s "$work/a.npy" "$work/o3/y.npy" || fail "an output has replaced an input"

# Another length with the same model; a symbol that two inputs give differently is refused.
npy write "$work/long.npy" '<f4' '(4, 3)' 1 2 3 4 5 6 7 8 9 10 11 12
expect 0 run "$work/sum.kv" -i "$work/long.npy" -i "$work/b.npy"
says "s: float[4]"
npy write "$work/wrong.npy" '<f4' '(4,)' 1 2 3 4
expect 1 run "$work/sum.kv" -i "$work/a.npy" -i "$work/wrong.npy"
says "dimension 0 of input 'b' must be 3, found 4"

# NaN has no sign in what is printed.
npy write "$work/inf.npy" '<f4' '(2, 3)' inf -inf -nan 1 2 3
expect 0 run "$work/sum.kv" -i "$work/inf.npy" -i "$work/b.npy"
says "y: float[2, 3]  min -inf  max inf  mean nan  1 NaN  [inf, -inf, nan, 11, -18, 3.5]"
npy write "$work/nan.npy" '<f4' '(2, 3)' nan nan nan nan nan nan
expect 0 run "$work/sum.kv" -i "$work/nan.npy" -i "$work/b.npy"
says "y: float[2, 3]  mean nan  6 NaN  [nan, nan, nan, nan, nan, nan]"

# A pin that is no extent is one mistake, not also an unknown symbol.
expect 1 run tests/fuzz/corpus/onnx/symbolic.onnx --pin N=2.0
says "pin N=2.0: expected a number that is not negative"
! grep -q "no such symbol" "$work/out" || fail "a wrong pin is called an unknown symbol: $(cat "$work/out")"

# A symbol that is no identifier has the name of the file as well as the one that messages and headers give it.
echo 'model rows (float[batch_size, 3] x) => (float[batch_size, 3] y) { y = kv.neg(x) }' >"$work/rows.kv"
expect 0 export "$work/rows.kv" -o "$work/rows.onnx"
LC_ALL=C sed 's/batch_size/batch-size/g' "$work/rows.onnx" >"$work/dash.onnx"
for name in batch-size batch_size; do
  expect 0 run "$work/dash.onnx" --pin $name=4
  says "float[4, 3]"
done
expect 1 run "$work/dash.onnx" --pin batch.size=4
says "pin batch.size: the model has no such symbol; it has: batch_size"

# Extents that are assumed to be equal are checked before a step runs, also those that a step computes.
cat >"$work/assume.kv" <<'KV'
model assume (float[N, 3] a, float[M] b, int64 n) => (float[N, 3] y, float[C] z) {
  table = kv.assume <shape = [N], user = "the table"> (b)
  y = a + kv.reshape <shape = [N, 1]> (table)
  kv.bind <symbol = C> (n)
  z = kv.assume <shape = [C]> (b)
}
KV
npy write "$work/two.npy" '<f4' '(2,)' 10 20
npy write "$work/n2.npy" '<i8' '()' 2
npy write "$work/n3.npy" '<i8' '()' 3
expect 0 run "$work/assume.kv" -i "$work/a.npy" -i "$work/two.npy" -i "$work/n2.npy" -o "$work/o2"
npy expect "$work/o2/y.npy" '<f4' '(2, 3)' 11 12 13 24 25 26
npy expect "$work/o2/z.npy" '<f4' '(2,)' 10 20
expect 1 run "$work/assume.kv" -i "$work/a.npy" -i "$work/b.npy" -i "$work/n3.npy"
says "extent 0 of the table is M = 3 here, but must be N = 2"
expect 1 run "$work/assume.kv" -i "$work/a.npy" -i "$work/two.npy" -i "$work/n3.npy"
says "is M = 2 here, but must be C = 3"
expect 1 run "$work/assume.kv" -i "$work/a.npy" -i "$work/b.npy" -i "$work/n3.npy" --device ptxsim
says "extent 0 of the table is M = 3 here, but must be N = 2"

# Indices that are data: clamped, or with --check-indices named, on the CPU and a simulated GPU, in loops too.
cat >"$work/pick.kv" <<'KV'
model pick (float[N, 3] x, int64[M] i, int64[K, 2] j, int64[N] t) => (float[M, 3] y, float[K] z, float[N] l) {
  y = kv.gather (x, i + 1)
  z = kv.gather_nd (x, j)
  l, lse = kv.cross_entropy <ignore_index = -100> (x, t)
}
KV
npy write "$work/x.npy" '<f4' '(4, 3)' 0 1 2 3 4 5 6 7 8 9 10 11
npy write "$work/i.npy" '<i8' '(3,)' -1 -5 2
npy write "$work/i_bad.npy" '<i8' '(3,)' -1 3 -6
npy write "$work/j.npy" '<i8' '(2, 2)' 0 -1 3 2
npy write "$work/j_bad.npy" '<i8' '(2, 2)' 0 1 3 3
npy write "$work/t.npy" '<i8' '(4,)' 0 2 -100 1
npy write "$work/t_bad.npy" '<i8' '(4,)' 0 2 -100 -1
pick() { expect "$1" run "$work/pick.kv" -i "$work/x.npy" -i "$work/$2.npy" -i "$work/$3.npy" -i "$work/$4.npy" -o "$work/o" "${@:5}"; }
for device in cpu ptxsim; do
  pick 0 i j t --check-indices --device "$device"
  npy expect "$work/o/y.npy" '<f4' '(3, 3)' 0 1 2 0 1 2 9 10 11
  pick 1 i_bad j t --check-indices --device "$device"
  says "kv.gather y: index 4 at [1] is out of range for axis 0 of extent 4: expected -4 to 3; 2 indices are"
  pick 1 i j_bad t --check-indices --device "$device"
  says "kv.gather_nd z: index 3 at [1, 1] is out of range for axis 1 of extent 3: expected -3 to 2"
  pick 1 i j t_bad --check-indices --device "$device"
  says "kv.cross_entropy l: index -1 at [3] is out of range for axis 1 of extent 3: expected 0 to 2 or -100"
done
if "$KVASIR" run "$work/pick.kv" -i "$work/x.npy" -i "$work/i_bad.npy" -i "$work/j.npy" -i "$work/t.npy" -o "$work/o" >"$work/out" 2>&1; then
  npy expect "$work/o/y.npy" '<f4' '(3, 3)' 0 1 2 9 10 11 0 1 2
else
  says "is out of range" # a debug build always checks
fi

# Slices backward from before the first element, and forward from behind the last one.
mkdir "$work/slice"
npy write "$work/four.npy" '<f4' '(4,)' 1 2 3 4
npy write "$work/one.npy" '<f4' '(1,)' 7
npy write "$work/twelve.npy" '<f4' '(12,)' 0 1 2 3 4 5 6 7 8 9 10 11
expect 0 run tests/data/slice_neg.onnx -i "$work/four.npy" -o "$work/slice"
npy expect "$work/slice/y.npy" '<f4' '(1,)' 1
expect 0 run tests/data/slice_sym_1.onnx -i "$work/one.npy" -o "$work/slice"
npy expect "$work/slice/y.npy" '<f4' '(0,)'
expect 0 run tests/data/slice_sym_past.onnx -i "$work/four.npy" -o "$work/slice"
npy expect "$work/slice/y.npy" '<f4' '(0,)'
expect 0 run tests/data/slice_sym_past.onnx -i "$work/twelve.npy" -o "$work/slice"
npy expect "$work/slice/y.npy" '<f4' '(3,)' 9 10 11

# Angles of any size, on the CPU and a simulated GPU; 16367173 * 2^72 is the float that is nearest to a multiple of pi/2.
cat >"$work/angles.kv" <<'KV'
model angles (float[N] x, double[N] d) => (float[N] s, float[N] c, float[N] t, double[N] u) {
  s = kv.sin (x)
  c = kv.cos (x)
  t = kv.tan (x)
  u = kv.sin (d)
}
KV
angles=(0.5 -3 1e15 1e16 -1e22 1e30 -3.4e38 77291789194529019661184401408)
doubles=(0.5 -3 1e15 1e16 -1e22 1e100 -1.7e308 5.319372648326541e+255)
read -r -a sines < <(python3 -c 'import math, struct, sys
f = [struct.unpack("<f", struct.pack("<f", float(x)))[0] for x in sys.argv[1:]]
print(*map(math.sin, f), *map(math.cos, f), *map(math.tan, f))' "${angles[@]}")
read -r -a wide < <(python3 -c 'import math, sys; print(*(math.sin(float(x)) for x in sys.argv[1:]))' "${doubles[@]}")
npy write "$work/x.npy" '<f4' '(8,)' "${angles[@]}"
npy write "$work/d.npy" '<f8' '(8,)' "${doubles[@]}"
for device in cpu ptxsim; do
  expect 0 run "$work/angles.kv" -i "$work/x.npy" -i "$work/d.npy" -o "$work/o" --device "$device"
  npy expect "$work/o/s.npy" '<f4' '(8,)' "${sines[@]:0:8}"
  npy expect "$work/o/c.npy" '<f4' '(8,)' "${sines[@]:8:8}"
  npy expect "$work/o/t.npy" '<f4' '(8,)' "${sines[@]:16:8}"
  npy expect "$work/o/u.npy" '<f8' '(8,)' "${wide[@]}"
done

# A cast to half and back in one kernel.
npy write "$work/wide.npy" '<f4' '(6,)' 1.2345678 70000 -70000 65519 1e-8 1
expect 0 run tests/data/cast_f16_roundtrip.onnx -i "$work/wide.npy" -o "$work/o"
npy expect "$work/o/y.npy" '<f4' '(6,)' 1.234375 inf -inf 65504 0 1

# Random inputs need pinned symbols; the same seed gives the same bits, whatever the threads.
expect 1 run "$work/sum.kv"
says "--pin"
for i in 1 2; do
  mkdir "$work/r$i"
  expect 0 run models/lm.kv -D preset=small --pin B=2 --pin T=16 --seed 5 --threads "$i" -o "$work/r$i"
  says "logits: float[2, 16, 8000]"
done
cmp -s "$work/r1/logits.npy" "$work/r2/logits.npy" || fail "1 and 2 threads give different bits"
mkdir "$work/r3"
expect 0 run models/lm.kv -D preset=small --pin B=2 --pin T=16 --seed 6 -o "$work/r3"
! cmp -s "$work/r1/logits.npy" "$work/r3/logits.npy" || fail "another seed gives the same bits"

# The folder for outputs is made with those above it, before a model is compiled, or named as what is in the way.
expect 0 run models/mlp.kv --pin B=1 --pin T=2 -o "$work/new/below"
[ -n "$(ls "$work/new/below")" ] || fail "no output in a folder below a new one"
expect 0 opt models/mlp.kv --passes=dce -o "$work/files/below/mlp.kv"
expect 0 export models/mlp.kv -o "$work/onnx/below/mlp.onnx"
[ -s "$work/files/below/mlp.kv" ] && [ -s "$work/onnx/below/mlp.onnx" ] || fail "no file in a folder below a new one"
expect 1 run "$work/missing.kv" -o "$work/sum.kv"
says "sum.kv: error: cannot make the folder: File exists"

# An input from a TensorProto; types of ml_dtypes go out and come in again.
printf '\010\002\020\001\112\010\000\000\200\077\000\000\000\300' >"$work/pair.pb" # float[2] {1, -2}
printf 'main (float[N] x) => (bfloat16[N] y, float8e4m3fn[N] z) {\n  y = kv.cast <to = bfloat16> (x)\n  z = kv.cast <to = float8e4m3fn> (x)\n}\n' >"$work/narrow.kv"
expect 0 run "$work/narrow.kv" -i "$work/pair.pb" -o "$work/narrow"
says "[1, -2]"
grep -q V2 "$work/narrow/y.npy"
grep -q V1 "$work/narrow/z.npy"
printf 'main (bfloat16[N] y, float8e4m3fn[N] z) => (float[N] a, float[N] b) {\n  a = kv.cast <to = float> (y)\n  b = kv.cast <to = float> (z)\n}\n' >"$work/wide.kv"
expect 0 run "$work/wide.kv" -i "$work/narrow/y.npy" -i "$work/narrow/z.npy" -o "$work/wide"
[ "$(grep -c 'min -2  max 1' "$work/out")" = 2 ] || fail "what was written in types of ml_dtypes is read as something else"
expect 0 run "$work/narrow.kv" -i "$work/pair.pb" -o "$work/proto" --pb
[ ! -e "$work/proto/y.npy" ] || fail "--pb writes .npy files, too"
expect 0 run "$work/wide.kv" -i "$work/proto/y.pb" -i "$work/proto/z.pb"
[ "$(grep -c 'min -2  max 1' "$work/out")" = 2 ] || fail "tensors of ONNX are read as something else than was written"
expect 2 run "$work/narrow.kv" --pb
says "give --output"
printf 'main (uint8[N] z) => (uint8[N] y) {\n  y = kv.add(z, z)\n}\n' >"$work/bytes.kv"
expect 1 run "$work/bytes.kv" -i "$work/narrow/z.npy"
says "which is any type of package ml_dtypes, where none is expected"

# The weights of a file are in memory once: the process takes little beside them.
if [ -z "${KVASIR_SANITIZED:-}" ]; then
  expect 0 export models/mlp.kv -D d=2000 -D hidden=4000 --pin B=1 --pin T=1 -o "$work/large.onnx"
  printf '\010\001\010\001\020\006\050\007' >"$work/token.pb" # int32[1, 1] {7}
  most=$(($(stat -c %s "$work/large.onnx") / 1024 + 110000))
  peak=$(python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$KVASIR" run "$work/large.onnx" -i "$work/token.pb")
  [ "$peak" -le "$most" ] || fail "a run takes $peak kB of memory, at most $most are expected"
fi
