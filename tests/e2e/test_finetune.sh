#!/usr/bin/env bash
# Fine-tuning an imported ONNX model: the last layer of light SqueezeNet learns ten classes with all else frozen, and
# the trained weights go to inference and to ONNX. The light models' filters are all one number, behind which images
# differ by brightness alone, so filters and biases start from random numbers here; they stay frozen.
. "$(dirname "$0")/support.sh"
. "$(dirname "$0")/suite.sh"
model=$suite/light/light_squeezenet.onnx
steps=200
if [ -n "${KVASIR_SANITIZED:-}" ]; then
  steps=20
  echo "SKIP: $steps steps under the sanitizers, of which nothing is learnt"
fi

# [N, 3, 224, 224]: class by colour; brightness and noise vary.
python3 - "$work" <<'PY'
import array, random, sys
folder, n, pixels = sys.argv[1], 200, 224 * 224
draw = random.Random(1)

def npy(name, kind, shape, data):
    head = "{'descr': '<%s', 'fortran_order': False, 'shape': %r, }" % (kind, shape)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(f"{folder}/{name}.npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        data.tofile(f)

colours = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1), (-1, 0, 0), (0, -1, 0), (0, 0, -1)]
noise = [draw.gauss(0, 0.3) for _ in range(2 * pixels)]
images, labels = array.array("f"), array.array("q")
for i in range(n):
    for channel in range(3):
        level, at = 2 * colours[i % 10][channel] * draw.uniform(0.8, 1.2), draw.randrange(pixels)
        images.extend([level + e for e in noise[at:at + pixels]])
    labels.append(i % 10)
npy("images", "f4", (n, 3, 224, 224), images)
npy("labels", "i8", (n,), labels)
npy("one", "f4", (1, 3, 224, 224), images[7 * 3 * pixels:8 * 3 * pixels])
PY

tune=(--loss cross_entropy --train 'conv10_*' --init '*_w_0=he' --init '*_b_0=normal(1)' --init 'conv10_w_0=normal(0.01)'
  --init 'conv10_b_0=constant(10)')
expect 0 train "$model" "${tune[@]}" --data "npy:data_0=$work/images.npy,labels=$work/labels.npy,eval=0.3" --lr 1e-3 \
  --batch 10 --steps $steps --eval-every $((steps / 2)) --eval-batches 6 --metrics "$work/m.jsonl" --checkpoint "$work/run"
says "trains conv10_w_0 float[1000, 512, 1, 1]"
[ "$(grep -c '^trains' "$work/out")" = 2 ] || fail "more than two parameters train"
python3 - "$work" $steps <<'PY' || fail "accuracy"
import json, struct, sys
evals = [json.loads(l) for l in open(sys.argv[1] + "/m.jsonl") if '"step"' in l]
evals = [e for e in evals if e["event"] != "step"]
steps = int(sys.argv[2])
assert evals and (steps < 200 or evals[-1]["metrics"]["accuracy"] > 0.95), evals
# Moments belong to the trained layer alone; the frozen filters are saved as well, since they have new values.
raw = open(sys.argv[1] + "/run/step-%010d.safetensors" % steps, "rb").read()
names = set(json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]]))
assert {n for n in names if n.endswith(".m")} == {"conv10_w_0.m", "conv10_b_0.m"}, names
assert "conv1_w_0" in names
PY

# Image 7 is of class 7, by the trained weights and by the file exported with them.
weights=$(printf "$work/run/step-%010d.safetensors" $steps)
answer() { # answer FILE: position of the greatest float
  python3 -c 'import array, sys
a = array.array("f"); a.frombytes(open(sys.argv[1], "rb").read()[-4000:]); print(a.index(max(a)))' "$1"
}
mkdir "$work/a" "$work/b"
expect 0 run "$model" --weights "$weights" --input "$work/one.npy" --output "$work/a"
[ $steps -lt 200 ] || [ "$(answer "$work/a/softmaxout_1.npy")" = 7 ] ||
  fail "run --weights answers $(answer "$work/a/softmaxout_1.npy")"
expect 0 export "$model" --weights "$weights" -o "$work/tuned.onnx"
expect 0 run "$work/tuned.onnx" --input "$work/one.npy" --output "$work/b"
cmp "$work/a/softmaxout_1.npy" "$work/b/softmaxout_1.npy" || fail "the exported model differs"

# --batch is the extent of a symbolic batch, whatever the model calls it.
printf 'main (float[rows, 4] x) => (float[rows, 3] y) {\n  param float[4, 3] w ~ normal(1)\n  y = x @ w\n}\n' >"$work/linear.kv"
python3 - "$work" <<'PY'
import struct, sys
def npy(name, kind, shape, data):
    head = "{'descr': '<%s', 'fortran_order': False, 'shape': %r, }" % (kind, shape)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    open(f"{sys.argv[1]}/{name}.npy", "wb").write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data)
npy("rows", "f4", (40, 4), struct.pack("<160f", *(i % 7 for i in range(160))))
npy("good", "i8", (40,), struct.pack("<40q", *([0, 1, 2, -1] * 10)))
npy("bad", "i8", (40,), struct.pack("<40q", *([0, 1, 2, 3] * 10)))
PY
small=(train "$work/linear.kv" --loss cross_entropy --train w --steps 4 --batch 8)
expect 0 "${small[@]}" --data "npy:x=$work/rows.npy,labels=$work/good.npy,eval=0" --eval-every 0

# Labels that are no classes are named before their step.
expect 1 "${small[@]}" --data "npy:x=$work/rows.npy,labels=$work/bad.npy,eval=0" --eval-every 0
says "bad.npy: error: row "
says "'labels' has the value 3; the model takes 0 to 2 or -1, which is ignored"

# What cannot work says so.
expect 1 train "$model" --loss cross_entropy --train 'classifier*' --steps 1
says "--train: no parameter's name matches 'classifier*'; there are: con"
expect 1 train "$model" --train 'conv10*' --steps 1
says "no train block"
expect 2 train "$model" --loss squared --train 'conv10*' --steps 1
says "--loss: expected cross_entropy or mse, found 'squared'"
expect 1 train models/mlp.kv --loss mse --steps 1
says "the model has a train block with a loss of its own"
cat >"$work/positive.onnxtxt" <<'TXT'
<ir_version: 10, opset_import: ["" : 13]>
positive (float[N, 3] x) => (float[M, 3] y) <float[3] w = {1, 2, 3}, float zero = {0}, int64[1] columns = {1}>
{
  sums = ReduceSum <keepdims = 0> (x, columns)
  chosen = Greater (sums, zero)
  rows = Compress <axis = 0> (x, chosen)
  y = Mul (rows, w)
}
TXT
for loss in mse cross_entropy; do
  expect 1 train "$work/positive.onnxtxt" --loss "$loss" --train w --steps 1
  says "--loss: axis 0 of the model's first output depends on data; expected an extent that inputs tell"
done
expect 1 run models/lm.kv -D preset=small --weights "$weights" --pin B=1 --pin T=4
says "there is no tensor for these parameters of 'lm': 'embed', "

# A checkpoint of more than the model has is another one's; all of it is named, but for the state of the training.
lm=(models/lm.kv -D vocab=257 -D d=16 -D ffn=16 -D heads=2)
shapes=(--pin B=1 --pin T=4)
expect 0 train "${lm[@]}" -D layers=2 --data random --batch 2 --steps 1 --eval-every 0 --checkpoint "$work/two"
two="$work/two/step-0000000001.safetensors"
expect 0 run "${lm[@]}" -D layers=2 --weights "$two" "${shapes[@]}"
expect 1 run "${lm[@]}" -D layers=1 --weights "$two" "${shapes[@]}"
says "error: there are tensors that belong to no parameter or constant of 'lm': 'attention.1.k.current', "
says "'swiglu.1.gate', 'swiglu.1.up'; is the model the one that was trained, with the same -D?"
grep -qE "\.[mv]'|train\." "$work/out" && fail "the state of the training is named as surplus"
expect 1 run "${lm[@]}" -D layers=2 -D shift=false --weights "$two" "${shapes[@]}"
says "belong to no parameter or constant of 'lm': 'attention.0.k.current'"

# A checkpoint with a wrong bit is damaged; without its metadata it is weights of another program, which have no sum.
python3 - "$two" "$work/bit.safetensors" "$work/other.safetensors" <<'PY'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-3] ^= 1
open(sys.argv[2], "wb").write(data)
open(sys.argv[3], "wb").write(data.replace(b"kvasir.", b"others."))
PY
expect 1 run "${lm[@]}" -D layers=2 --weights "$work/bit.safetensors" "${shapes[@]}"
says "bit.safetensors: error: damaged checkpoint: its sum is "
expect 0 run "${lm[@]}" -D layers=2 --weights "$work/other.safetensors" "${shapes[@]}"

# Weights of another program may have more than an ONNX model, but not than a .kv model.
expect 0 train models/mlp.kv --steps 1 --batch 1 --eval-every 0 --checkpoint "$work/mlp"
expect 0 export models/mlp.kv -o "$work/mlp.onnx"
python3 - "$work/mlp/step-0000000001.safetensors" "$work/more.safetensors" <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read().replace(b"kvasir.", b"others.")
n, = struct.unpack_from("<Q", data)
header, body = json.loads(data[8:8 + n]), data[8 + n:]
header["batches"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(body), len(body) + 4]}
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body + bytes(4))
PY
expect 0 run "$work/mlp.onnx" --weights "$work/more.safetensors" "${shapes[@]}"
expect 1 run models/mlp.kv --weights "$work/more.safetensors" "${shapes[@]}"
says "belong to no parameter or constant of 'mlp': 'batches'"
