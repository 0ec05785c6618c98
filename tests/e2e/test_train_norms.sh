#!/usr/bin/env bash
# ONNX models in training mode: batch normalisation with the statistics of its batch in training steps, whose running
# statistics follow, and with these elsewhere; dropout in training steps alone.
. "$(dirname "$0")/support.sh"

cat >"$work/norm.onnxtxt" <<'TXT'
<ir_version: 8, opset_import: ["" : 17]>
norm (float[N, 3, 2] x) => (float[N, 3, 2] y)
  <float[3] scale = {1.0, 2.0, 0.5}, float[3] bias = {0.0, 0.5, -1.0}, float[3] mean = {0.0, 1.0, 2.0},
   float[3] var = {1.0, 2.0, 3.0}>
{
  y, mean_of_batch, var_of_batch = BatchNormalization <training_mode = 1, momentum = 0.75> (x, scale, bias, mean, var)
}
TXT
python3 - "$work" <<'PY'
import random, struct, sys
def npy(name, shape, data):
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': %r, }" % (shape,)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(f"{sys.argv[1]}/{name}.npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(data)}f", *data))
draw = random.Random(1)
npy("x", (8, 3, 2), [draw.gauss(i // 2 % 3, 1 + i // 2 % 3) for i in range(48)])
npy("target", (8, 3, 2), [draw.gauss(0, 1) for _ in range(48)])
PY
cat >"$work/check.py" <<'PY'
"""check.py FOLDER CHECKPOINT UPDATES [OUTPUT]: running statistics after so many updates by all rows; what they give."""
import json, math, struct, sys
folder, checkpoint, updates = sys.argv[1], sys.argv[2], int(sys.argv[3])
def npy(name):
    raw = open(name, "rb").read()
    return struct.unpack("<48f", raw[-192:])
raw = open(checkpoint, "rb").read()
size, = struct.unpack_from("<Q", raw)
header = json.loads(raw[8:8 + size])
def tensor(name):
    first, end = header[name]["data_offsets"]
    return struct.unpack(f"<{(end - first) // 4}f", raw[8 + size + first:8 + size + end])
x, close = npy(folder + "/x.npy"), lambda a, b: abs(a - b) < 1e-5
for c in range(3):
    of_channel = [x[n * 6 + c * 2 + k] for n in range(8) for k in range(2)]
    mean, var = [0.0, 1.0, 2.0][c], [1.0, 2.0, 3.0][c]
    m = sum(of_channel) / 16
    v = sum((e - m) ** 2 for e in of_channel) / 16
    for _ in range(updates): mean, var = 0.75 * mean + 0.25 * m, 0.75 * var + 0.25 * v
    assert close(tensor("mean")[c], mean) and close(tensor("var")[c], var), (c, tensor("mean"), mean, tensor("var"), var)
    if len(sys.argv) < 5: continue
    for n in range(8):
        for k in range(2):
            want = (x[n * 6 + c * 2 + k] - mean) / math.sqrt(var + 1e-5) * tensor("scale")[c] + tensor("bias")[c]
            assert close(npy(sys.argv[4])[n * 6 + c * 2 + k], want), (n, c, k)
PY

model=$work/norm.onnxtxt
tune=(--train '*' --loss mse --optimizer sgd --lr 0.1 --data "npy:x=$work/x.npy,target=$work/target.npy,eval=0"
  --eval-every 0)
expect 0 train "$model" "${tune[@]}" --batch 8 --steps 3 --checkpoint "$work/run"
says "trains scale float[3]"
[ "$(grep -c '^trains' "$work/out")" = 2 ] || fail "running statistics are trained"
checkpoint=$work/run/step-0000000003.safetensors
mkdir "$work/a" "$work/b"
expect 0 run "$model" --inference --weights "$checkpoint" --input "$work/x.npy" --output "$work/a"
python3 "$work/check.py" "$work" "$checkpoint" 3 "$work/a/y.npy" || fail "running statistics"

# Without --inference the model is what ONNX says: by the statistics of the batch.
expect 0 run "$model" --weights "$checkpoint" --input "$work/x.npy" --output "$work/b"
cmp -s "$work/a/y.npy" "$work/b/y.npy" && fail "training mode has running statistics"
expect 0 export "$model" --inference --weights "$checkpoint" -o "$work/tuned.onnx"
expect 0 run "$work/tuned.onnx" --input "$work/x.npy" --output "$work/b"
cmp "$work/a/y.npy" "$work/b/y.npy" || fail "the exported model differs"

# A run that continues has the same bits; each micro-batch moves the statistics once.
expect 0 train "$model" "${tune[@]}" --batch 8 --steps 2 --checkpoint "$work/two"
expect 0 train "$model" "${tune[@]}" --batch 8 --steps 3 --checkpoint "$work/two" --resume
cmp "$checkpoint" "$work/two/step-0000000003.safetensors" || fail "a resumed run differs"
expect 0 train "$model" "${tune[@]}" --batch 8 --accumulate 2 --steps 2 --checkpoint "$work/four"
python3 "$work/check.py" "$work" "$work/four/step-0000000002.safetensors" 4 || fail "statistics by micro-batches"

# Frozen statistics stay, and are those of training, too.
expect 0 train "$model" "${tune[@]}" --freeze mean --freeze var --batch 8 --steps 2 --checkpoint "$work/frozen"
expect 0 show "$model" --train='*' --freeze mean --freeze var --loss mse
grep -q 'reduce_mean.*axes = \[0, 2\]' "$work/out" && fail "frozen statistics are those of the batch"
expect 1 show "$model" --train='*' --loss mse --mesh data=2 --pin N=4
says "the forward pass writes state 'mean'"

# The same in a .kv model, whose statistics are parameters for inference.
cat >"$work/norm.kv" <<'KV'
model norm (float[B, 3, 2] x) => (float[B, 3, 2] y) {
  param float[3] scale ~ constant(1)
  param float[3] bias ~ zeros
  param float[3] mean ~ zeros
  param float[3] var ~ constant(1)
  y = kv.batch_norm <training = true, momentum = 0.75> (x, scale, bias, mean, var)
}
KV
expect 0 train "$work/norm.kv" "${tune[@]:2}" --batch 8 --steps 1 --checkpoint "$work/kv"
[ "$(grep -c '^trains' "$work/out")" = 2 ] || fail "running statistics of a .kv model are trained"
expect 0 run "$work/norm.kv" --weights "$work/kv/step-0000000001.safetensors" --input "$work/x.npy"
expect 0 show "$work/norm.kv" --train --loss mse --pin B=4
says 'state float[3] "mean" : buffer'

# Dropout is an operator of training where nobody reads its mask.
drop() { # drop OUTPUT: a model whose output is that one of dropout
  cat <<TXT
<ir_version: 8, opset_import: ["" : 17]>
drop (float[N, 4] x) => ($1)
  <float[4, 4] w = {1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0}, float ratio = {0.25},
   bool mode = {1}>
{
  h = MatMul (x, w)
  y, mask = Dropout (h, ratio, mode)
}
TXT
}
drop "float[N, 4] y" >"$work/drop.onnxtxt"
drop "float[N, 4] y, bool[N, 4] mask" >"$work/mask.onnxtxt"
expect 0 show "$work/drop.onnxtxt" --train=w --loss mse --pin N=4
[ "$(grep -c random_uniform "$work/out")" -eq 1 ] || fail "expected one random node, in train_step"
expect 0 show "$work/drop.onnxtxt"
[ "$(grep -c random_uniform "$work/out")" -eq 1 ] || fail "the model itself draws"
mkdir "$work/c"
expect 0 run "$work/drop.onnxtxt" --inference --pin N=4 --output "$work/c"
expect 0 run "$work/mask.onnxtxt" --inference --pin N=4 --output "$work/c"
python3 - "$work/c/mask.npy" <<'PY' || fail "a mask that is read is all true"
import sys
assert 0 < sum(open(sys.argv[1], "rb").read()[-16:]) < 16
PY
