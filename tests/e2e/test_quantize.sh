#!/usr/bin/env bash
# Weights in 8 and 4 bits: the model computes nearly the same with them, they stay packed in memory, and every verb that
# takes weights takes these; ONNX files that hold them give the same bits; what does not fit is refused by name.
. "$(dirname "$0")/support.sh"
. "$(dirname "$0")/sentence.sh"

expect 0 export models/lm.kv "${size[@]}" --weights "$weights" -o "$work/lm.onnx"

loss() { # loss FILE: of the model with these weights
  expect 0 train models/lm.kv "${size[@]}" --weights "$1" --data "tokens:$work/text.tok,length=48" --steps 0
  sed -n 's/.*eval loss \([0-9.e-]*\).*/\1/p' "$work/out"
}
float=$(loss "$weights")

check() { # check PERCENT OPTION...: the file has at most so many percent of the parameters' bytes
  local file="$work/q.safetensors"
  expect 0 quantize models/lm.kv "${size[@]}" --weights "$weights" "${@:2}" -o "$file"
  awk -v at_most="$1" 'match($0, /\(([0-9.]+) %\)/) { n++; bad = substr($0, RSTART + 1) + 0 > at_most }
    END { exit bad || n != 1 }' "$work/out" || fail "quantize ${*:2}: $(cat "$work/out")"
  awk -v a="$float" -v b="$(loss "$file")" 'BEGIN { exit b == "" || b - a > 0.02 || a - b > 0.02 }' ||
    fail "${*:2}: the loss is $(loss "$file") after $float"
  expect 0 generate models/lm.kv "${size[@]}" --weights "$file" --prompt 'the cat ' --tokens 40
  grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/out" || fail "${*:2}: generate forgot the sentence"
}
check 52 --bits 8
check 51 --bits 8 --symmetric --block 128
check 43 --bits 4
check 43 --bits 4 --symmetric

# With --math int8, too, whatever the threads, and in an executable, which has the tokens of the tool.
int8=("${size[@]}" --weights "$work/q.safetensors" --math int8 --prompt 'the cat ' --tokens 40)
for threads in 1 3; do
  expect 0 generate models/lm.kv "${int8[@]}" --threads "$threads"
  grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/out" || fail "int8, $threads threads: $(cat "$work/out")"
done
expect 0 build models/lm.kv "${size[@]}" --from "$work/q.safetensors" --generate --exe --math int8 -o "$work/writer"
"$work/writer" --prompt 'the cat ' --tokens 40 >"$work/out" || fail "the executable fails"
grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/out" || fail "an int8 executable: $(cat "$work/out")"

# Where the CPU multiplies bytes, the option has other results, and the executable has those of the tool.
cat >"$work/product.kv" <<'KV'
model product (float[M, 256] x) => (float[M, 64] y) {
  param float[256, 64] w ~ normal(1)
  y = x @ w
}
KV
python3 - "$work/product.safetensors" <<'PY'
import json, struct, sys
n = 256 * 64
header = json.dumps({"w": {"dtype": "F32", "shape": [256, 64], "data_offsets": [0, 4 * n]}}).encode()
data = struct.pack("<%df" % n, *[(i * 37 % 255 - 127) / 64 for i in range(n)])
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + data)
PY
expect 0 quantize "$work/product.kv" --weights "$work/product.safetensors" --bits 4 -o "$work/p.safetensors"
expect 0 export "$work/product.kv" --weights "$work/p.safetensors" -o "$work/product.onnx"
mkdir "$work/exact" "$work/int8" "$work/exe"
for math in exact int8; do expect 0 run "$work/product.onnx" --pin M=3 --seed 5 --math $math -o "$work/$math"; done
expect 0 build "$work/product.onnx" --pin M=3 --exe --math int8 -o "$work/product"
"$work/product" --seed 5 -o "$work/exe" >/dev/null || fail "the executable fails"
cmp "$work/int8/y.npy" "$work/exe/y.npy" || fail "int8: an executable computes otherwise"
if grep -qwE 'avx512_vnni|avx_vnni|asimddp' /proc/cpuinfo; then
  ! cmp -s "$work/int8/y.npy" "$work/exact/y.npy" || fail "--math int8 computes as exact does"
fi

# The same model as ONNX, from weights and as initialisers in blocks: the same bits in one run.
expect 0 quantize "$work/lm.onnx" --bits 4 -o "$work/q.safetensors"
expect 0 export "$work/lm.onnx" --weights "$work/q.safetensors" -o "$work/q.onnx"
[ "$(stat -c %s "$work/q.onnx")" -lt $(($(stat -c %s "$work/lm.onnx") * 6 / 10)) ] || fail "the ONNX file is large"
mkdir "$work/a" "$work/b"
expect 0 run "$work/lm.onnx" --weights "$work/q.safetensors" --pin B=4 --pin T=15 -o "$work/a"
expect 0 run "$work/q.onnx" --pin B=4 --pin T=15 -o "$work/b"
cmp -s "$work/a/logits.npy" "$work/b/logits.npy" || fail "ONNX with blocks gives other bits"

# A product by a transposed matrix wants blocks along the matrix's rows, of a .kv model and of an ONNX file. The matrix has
# numbers that codes of 8 bits hold: the same result to rounding.
cat >"$work/turned.kv" <<'KV'
model turned (float[3, 64] x) => (float[3, 5] y) {
  param float[5, 64] w ~ normal(1)
  y = x @ kv.transpose <perm = [1, 0]> (w)
}
KV
python3 - "$work/turned.safetensors" <<'PY'
import json, struct, sys
data = struct.pack("<320f", *[(i * 37 % 255 - 127 if i % 32 else 127) / 64 for i in range(320)])
header = json.dumps({"w": {"dtype": "F32", "shape": [5, 64], "data_offsets": [0, len(data)]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + data)
PY
expect 0 export "$work/turned.kv" --weights "$work/turned.safetensors" -o "$work/turned.onnx"
expect 0 run "$work/turned.onnx" -o "$work/a"
for model in "$work/turned.kv --weights $work/turned.safetensors" "$work/turned.onnx"; do
  # shellcheck disable=SC2086
  expect 0 quantize $model --symmetric -o "$work/turned-8.safetensors"
  expect 0 run "${model%% *}" --weights "$work/turned-8.safetensors" -o "$work/b"
  python3 - "$work/a/y.npy" "$work/b/y.npy" <<'PY' || fail "$model: other numbers in 8 bits"
import struct, sys
a, b = (struct.unpack("<15f", open(path, "rb").read()[-60:]) for path in sys.argv[1:])
assert any(a) and max(abs(x - y) for x, y in zip(a, b)) < 1e-4, (a, b)
PY
done

refused() { # refused CODE MESSAGE ARGUMENT...
  expect "$1" "${@:3}"
  grep -qF -- "$2" "$work/out" || fail "'${*:3}' says: $(cat "$work/out")"
}
refused 2 'a model is missing' quantize
refused 2 '-o FILE is missing' quantize models/lm.kv
refused 2 '--bits is 8 or 4' quantize models/lm.kv --bits 5 -o x
refused 2 '--block is 32 or 128' quantize models/lm.kv --block 64 -o x
refused 1 'has no value: give --weights' quantize models/lm.kv "${size[@]}" -o "$work/x"
refused 1 'does not fit the model' generate models/lm.kv "${size[@]}" -D ffn=64 --weights "$work/q.safetensors" --prompt x

# Training leaves quantised weights as they are, and says so.
step=(train models/lm.kv "${size[@]}" --weights "$work/q4.safetensors" --data "tokens:$work/text.tok,length=48" --steps 1)
expect 0 quantize models/lm.kv "${size[@]}" --weights "$weights" --bits 4 -o "$work/q4.safetensors"
expect 0 "${step[@]}"
grep -qE 'q4.safetensors: warning: [1-9][0-9]* weights are quantised and do not train' "$work/out" || fail "no warning"
expect 0 "${step[@]}" --steps 0
! grep -q 'do not train' "$work/out" || fail "an evaluation warns"
