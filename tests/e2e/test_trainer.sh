#!/usr/bin/env bash
# kvasir build --train --exe: the executable documents itself, needs libc and libm alone, and gives the bits of kvasir
# train, resumed too; examples/train.c trains by the C API.
. "$(dirname "$0")/support.sh"
command -v cc >/dev/null || { echo "SKIP: no C compiler to link with"; exit 77; }
small=(-D d=16 -D hidden=32 -D vocab=64)
expect 0 build models/mlp.kv "${small[@]}" --train --exe -o "$work/trainer"
ldd "$work/trainer" | grep -vE 'linux-vdso|ld-linux|libc\.so|libm\.so' && fail "the trainer needs more than libc and libm"

"$work/trainer" --help >"$work/out" || fail "--help"
for word in --data --steps --batch --accumulate --micro-batch --lr --schedule --warmup --final-lr --seed --threads \
  --eval-every --eval-batches --checkpoint --checkpoint-every --keep --resume --metrics --report --time-limit --shard \
  "third token of a pair" "computed in f32" "300 steps of 32 sequences" "micro-batches of 32 sequences"; do says "$word"; done
code=0
"$work/trainer" --stepz 3 >"$work/out" 2>&1 || code=$?
[ "$code" -eq 2 ] || fail "exit code $code of a wrong option"
says "trainer: unknown option '--stepz'"

# Values out of range: the same answers from kvasir train, before it reads the model, and from the trainer.
out_of_range() { # out_of_range OPTION EXPECTED VALUE...
  local option=$1 expected=$2 value
  shift 2
  for value in "$@"; do
    expect 2 train "$work/absent.kv" "$option" "$value"
    says "kvasir train: $option: expected $expected, found '$value'"
    code=0
    "$work/trainer" "$option" "$value" >"$work/out" 2>&1 || code=$?
    [ "$code" -eq 2 ] || fail "$option $value: exit code $code of the trainer"
    says "trainer: $option: expected $expected, found '$value'"
  done
}
out_of_range --lr "a finite number above 0" nan -nan inf -1 0 -0 1e999 ''
for option in --final-lr --weight-decay --clip; do
  out_of_range "$option" "a finite number that is not negative" nan inf -0.5 many
done
for option in --batch --accumulate --micro-batch; do
  out_of_range "$option" "an integer from 1 to 2147483647" 0 -1 2147483648 9223372036854775807 1.5
done
for option in --steps --warmup --seed --eval-every --eval-batches --checkpoint-every --keep; do
  out_of_range "$option" "an integer that is not negative" -1 nan 9223372036854775808
done
out_of_range --time-limit "a time like 90s, 30m or 8h" 3d -1 0 '' nan 8hh
out_of_range --schedule "constant, warmup, cosine or linear" step '' constan constantt 'constant|warmup'
out_of_range --shard "R/W with R below W, as 0/4" 2/2 2 1/ -1/2 0/0 1/2x
for wrong in "--precision q" "--loss q" "--labels q" "--loss mse --optimizer q" "--init q" "--init w=normal" "--gemm q"; do
  # shellcheck disable=SC2086
  expect 2 train "$work/absent.kv" $wrong
done
out_of_range --threads "an integer from 0 to 2147483647" -1 4294967296

run=(--data ngram:pairs=40,length=48 --steps 40 --eval-every 15 --eval-batches 2 --checkpoint-every 10)
bits() { sed 's/"seconds": [^,]*//' "$1"; }
expect 0 train models/mlp.kv "${small[@]}" "${run[@]}" --checkpoint "$work/a" --metrics "$work/a.jsonl"
"$work/trainer" "${run[@]}" --checkpoint "$work/b" --metrics "$work/b.jsonl" --report "$work/b.html" >"$work/out" 2>&1 ||
  fail "the trainer"
says "step 40/40"
says "report: "
grep -q "</html>" "$work/b.html" || fail "the report is cut off"
last=step-0000000040.safetensors
cmp "$work/a/$last" "$work/b/$last" || fail "the trainer's bits differ from those of kvasir train"

# The train block's source may be a text; its length is the trainer's all the same.
sed 's|data = ngram.*|data = "ngram:pairs=40,length=48;random"|' models/mlp.kv >"$work/text.kv"
expect 0 build "$work/text.kv" "${small[@]}" --train --exe -o "$work/text"
"$work/text" --steps 1 --eval-every 0 >"$work/out" 2>&1 || fail "the trainer of a text"
"$work/text" --steps 1 --eval-every 0 --data ngram:length=24 >"$work/out" 2>&1 && fail "another length than the trainer's"
says "length=24 is given, but the program takes sequences of 48"
cmp <(bits "$work/a.jsonl") <(bits "$work/b.jsonl") || fail "the trainer's metrics differ"
mkdir "$work/c"
cp "$work/b/step-0000000030.safetensors" "$work/c"
"$work/trainer" "${run[@]}" --checkpoint "$work/c" --resume --threads 3 >"$work/out" 2>&1 || fail "--resume"
says "resumed at step 30 from"
cmp "$work/a/$last" "$work/c/$last" || fail "a resumed trainer differs"

# --steps 0 evaluates and neither learns nor saves: at the start, and at a checkpoint, whose evaluation it repeats.
for trainer in "$work/trainer" "$KVASIR train models/mlp.kv ${small[*]}"; do
  rm -rf "$work/zero" "$work/zero.jsonl"
  $trainer "${run[@]}" --steps 0 --checkpoint "$work/zero" --metrics "$work/zero.jsonl" --report "$work/zero.html" \
    >"$work/out" 2>&1 || fail "--steps 0"
  says "step 0/0  eval loss"
  [ -z "$(ls "$work/zero")" ] || fail "--steps 0 saves a checkpoint"
  grep -q "</html>" "$work/zero.html" || fail "the report of --steps 0"
  $trainer "${run[@]}" --steps 0 --resume="$work/a/$last" --metrics "$work/zero.jsonl" >"$work/out" 2>&1 || fail "--steps 0 --resume"
  python3 - "$work/a.jsonl" "$work/zero.jsonl" <<'PY' || fail "--steps 0 evaluates something else"
import json, sys
run, zero = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
assert [e["step"] for e in zero] == [0, 40] and zero[0]["loss"] > zero[1]["loss"], zero
assert all(e["event"] == "eval" for e in zero), zero
assert zero[1]["loss"] == [e for e in run if e["step"] == 40][-1]["loss"], (zero, run[-1])
PY
done

# What a run reads it does not replace: data of the command line and of the train block, and what it goes on from.
expect 0 data README.md -o "$work/own.tok"
sed 's#data = ngram.*#data = "tokens:own.tok,length=8"#' models/mlp.kv >"$work/own.kv"
expect 0 build "$work/own.kv" -D vocab=257 --train --exe -o "$work/own"
keeps() { # keeps FILE OPTION COMMAND...
  local code=0
  cp "$work/$1" "$work/before"
  (cd "$work" && "${@:3}" "$2" "$1") >"$work/out" 2>&1 || code=$?
  [ "$code" -ne 0 ] || fail "${*:3} $2 $1: exit code 0"
  says "$2 $1 would replace"
  cmp -s "$work/before" "$work/$1" || fail "${*:3} $2 $1 changes the file"
}
for option in --metrics --report; do
  keeps own.tok $option "$work/own" --steps 1
  keeps own.tok $option "$work/own" --data tokens:own.tok,length=8 --steps 1
  keeps own.tok $option "$(realpath "$KVASIR")" train own.kv -D vocab=257 --steps 1
  keeps b/$last $option "$work/trainer" "${run[@]}" --resume="b/$last"
done

# The seed of a resumed run is the checkpoint's.
cp "$work/b/step-0000000030.safetensors" "$work/seed.safetensors"
"$work/trainer" "${run[@]}" --checkpoint "$work/s" --resume="$work/seed.safetensors" --seed 5 >"$work/out" 2>&1 || fail "--seed"
says "--seed 5 has no effect"
cmp "$work/a/$last" "$work/s/$last" || fail "--seed changes a resumed run"

# A shard reads its part: two halves of one micro-batch each are the micro-batches of the whole batch.
loss() { python3 -c 'import json, sys; print(json.loads(next(open(sys.argv[1])))["loss"])' "$1"; }
one=(--data ngram:pairs=40,length=48,all=1 --steps 1 --eval-every 0)
for part in 0 1; do
  "$work/trainer" "${one[@]}" --shard $part/2 --metrics "$work/part$part.jsonl" >"$work/out" 2>&1 || fail "--shard $part/2"
done
"$work/trainer" "${one[@]}" --batch 64 --metrics "$work/both.jsonl" >"$work/out" 2>&1
python3 -c 'import sys; a, b, both = map(float, sys.argv[1:]); assert a != b and abs((a + b) / 2 - both) < 1e-12 * both' \
  "$(loss "$work/part0.jsonl")" "$(loss "$work/part1.jsonl")" "$(loss "$work/both.jsonl")" || fail "shards differ from the batch"
# A run that goes on with another part is told.
part=(--data ngram:pairs=40,length=48,all=1 --eval-every 0 --checkpoint "$work/part")
"$work/trainer" "${part[@]}" --steps 1 --shard 0/2 >"$work/out" 2>&1 || fail "--shard 0/2 --checkpoint"
"$work/trainer" "${part[@]}" --steps 2 --shard 0/2 --resume >"$work/out" 2>&1 || fail "--shard 0/2 --resume"
! grep -q warning "$work/out" || fail "the same shard is warned of"
"$work/trainer" "${part[@]}" --steps 3 --shard 1/2 --resume >"$work/out" 2>&1 || fail "--shard 1/2 --resume"
says "data: was "

# Compiled for micro-batches of 32: larger batches take several, and only multiples do.
"$work/trainer" "${run[@]}" --batch 64 --checkpoint "$work/d" >"$work/out" 2>&1 || fail "--batch 64"
expect 0 train models/mlp.kv "${small[@]}" "${run[@]}" --batch 32 --accumulate 2 --checkpoint "$work/e"
cmp "$work/d/$last" "$work/e/$last" || fail "64 on the trainer differs from 2 x 32"
code=0
"$work/trainer" "${run[@]}" --batch 40 >"$work/out" 2>&1 || code=$?
[ "$code" -eq 1 ] || fail "--batch 40: exit code $code"
says "a batch of 40 rows cannot be cut into micro-batches of 32, which the model was compiled for"

# Precision and fine-tuning are chosen when the trainer is built; the bits are those of kvasir train with the options.
short=(--data ngram:pairs=40,length=48 --steps 12 --eval-every 0)
twin() { # twin NAME OPTION...: --weights of kvasir train is --from of kvasir build
  local name=$1
  shift
  expect 0 build models/mlp.kv "${small[@]}" "${@/#--weights=/--from=}" --train --exe -o "$work/$name"
  "$work/$name" "${short[@]}" --checkpoint "$work/$name.own" >"$work/out" 2>&1 || fail "$name"
  expect 0 train models/mlp.kv "${small[@]}" "$@" "${short[@]}" --checkpoint "$work/$name.tool"
  cmp "$work/$name.own/step-0000000012.safetensors" "$work/$name.tool/step-0000000012.safetensors" ||
    fail "$name: the trainer's bits differ"
  "$work/$name" --help >"$work/out"
}
twin bf16 --precision bf16
says "Products are computed in bf16, with parameters, moments and sums in f32."
twin f32
says "Products are computed in f32."
cmp -s "$work/bf16.own/step-0000000012.safetensors" "$work/f32.own/step-0000000012.safetensors" && fail "bf16 computes in float"
twin tuned "--weights=$work/a/$last" --train='dense_2.*' --freeze '*.b' --init 'dense_2.w=normal(0.1)'
says ", of which 2048 train"
twin updates "--weights=$work/a/$last" --lora 'dense*w' --rank 2 --alpha 4
says ", of which 320 train"
expect 2 build models/mlp.kv --freeze embed -c -o "$work/no.o"
says "--train"
expect 1 build models/mlp.kv --train=nothing -c -o "$work/no.o"
says "no parameter's name matches 'nothing'"

# A model without a train block.
printf '%s\n' 'model net <n = 4> (float[B, n] x) => (float[B, 3] y) {' '  param float[n, 3] w ~ normal(0.5)' \
  '  y = kv.softmax(x @ w)' '}' >"$work/net.kv"
python3 - "$work" <<'PY'
import array, random, sys
def npy(name, kind, shape, data):
    head = "{'descr': '<%s', 'fortran_order': False, 'shape': %r, }" % (kind, shape)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(f"{sys.argv[1]}/{name}.npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        data.tofile(f)
draw = random.Random(1)
x = array.array("f", [draw.gauss(0, 1) for _ in range(64 * 4)])
npy("x", "f4", (64, 4), x)
npy("labels", "i8", (64,), array.array("q", [max(range(3), key=lambda c: x[4 * i + c]) for i in range(64)]))
npy("bad", "i8", (64,), array.array("q", [3] * 64))
PY
expect 1 build "$work/net.kv" --train --exe -o "$work/no"
says "give --loss"
expect 0 build "$work/net.kv" --train --loss cross_entropy --weight-decay 0.01 --exe -o "$work/net"
"$work/net" --help >"$work/out"
says "give --steps"
fit=(--data "npy:x=$work/x.npy,labels=$work/labels.npy,eval=0.1" --steps 100 --lr 0.05 --batch 8 --eval-every 0)
"$work/net" "${fit[@]}" --checkpoint "$work/net.own" >"$work/out" 2>&1 || fail "a trainer with a loss from the command line"
expect 0 train "$work/net.kv" --loss cross_entropy --weight-decay 0.01 "${fit[@]}" --checkpoint "$work/net.tool"
python3 - "$work" <<'PY' || fail "the trainer learns something else than kvasir train"
import json, struct, sys
def weights(name):
    raw = open(f"{sys.argv[1]}/{name}/step-0000000100.safetensors", "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    at = json.loads(raw[8:8 + size])["w"]["data_offsets"]
    return struct.unpack("<12f", raw[8 + size + at[0]:8 + size + at[1]])
a, b = weights("net.own"), weights("net.tool")
assert max(abs(x - y) for x, y in zip(a, b)) < 1e-4 and min(a[0], a[4], a[8]) > 1, (a, b)
PY

# Such a loss clips, too: a step of SGD from zero, of rate 1, is as long as the greatest norm.
clipped=(--train --loss cross_entropy --optimizer sgd --init w=zeros)
once=(--data "npy:x=$work/x.npy,labels=$work/labels.npy,eval=0" --steps 1 --lr 1 --batch 8 --eval-every 0)
expect 0 train "$work/net.kv" "${clipped[@]:1}" --clip 0.01 "${once[@]}" --checkpoint "$work/clip.tool"
says "grad_norm"
expect 0 build "$work/net.kv" "${clipped[@]}" --clip 0.5 --exe -o "$work/clips"
"$work/clips" "${once[@]}" --clip 0.01 --checkpoint "$work/clip.own" >"$work/out" 2>&1 || fail "a trainer that clips"
python3 - "$work" <<'PY' || fail "--loss does not clip"
import json, math, struct, sys
for name in "clip.tool", "clip.own":
    raw = open(f"{sys.argv[1]}/{name}/step-0000000001.safetensors", "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    at = json.loads(raw[8:8 + size])["w"]["data_offsets"]
    w = struct.unpack("<12f", raw[8 + size + at[0]:8 + size + at[1]])
    assert abs(math.hypot(*w) - 0.01) < 1e-5, (name, w)
PY
for unread in "--clip 1" "--weight-decay 0.1"; do
  # shellcheck disable=SC2086
  expect 2 build models/mlp.kv --train $unread -c -o "$work/no.o"
  says "are for --loss"
done

# A model that fixes its batch takes larger ones in micro-batches of that.
cat >"$work/fixed.onnxtxt" <<'ONNX'
<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 4] x) => (float[4, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
  y = MatMul(x, w)
}
ONNX
eight=(--loss cross_entropy "${once[@]}")
expect 0 train "$work/fixed.onnxtxt" "${eight[@]}" --checkpoint "$work/fixed.own"
expect 0 train "$work/fixed.onnxtxt" "${eight[@]}" --micro-batch 4 --checkpoint "$work/fixed.told"
cmp "$work/fixed.own/step-0000000001.safetensors" "$work/fixed.told/step-0000000001.safetensors" ||
  fail "a fixed batch is another micro-batch"
expect 1 train "$work/fixed.onnxtxt" "${eight[@]}" --batch 6
says "a batch of 6 rows cannot be cut into micro-batches of 4"

# What is exported has the file's names: it trains on by them, also from the checkpoint.
expect 0 export "$work/fixed.onnxtxt" --weights "$work/fixed.own/step-0000000001.safetensors" -o "$work/tuned.onnx"
expect 0 train "$work/tuned.onnx" "${eight[@]}" --train w --weights "$work/fixed.own/step-0000000001.safetensors"
says "trains w float[4, 3]"

# A weight that both branches read is one tensor there, with its name: other weights reach it.
cat >"$work/either.onnxtxt" <<'ONNX'
<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 4] x, bool b) => (float[4, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
  y = If (b) <then_branch = t () => (float[4, 3] p) { p = MatMul(x, w) }, else_branch = e () => (float[4, 3] q) {
    m = Neg(x)
    q = MatMul(m, w)
  }>
}
ONNX
expect 0 export "$work/either.onnxtxt" -o "$work/either.onnx"
! grep -qa const_ "$work/either.onnx" || fail "a weight of two branches lost its name"
for model in either.onnxtxt either.onnx; do
  expect 0 run "$work/$model" --weights "$work/fixed.own/step-0000000001.safetensors" --seed 1 -o "$work/of.$model"
done
cmp "$work/of.either.onnxtxt/y.npy" "$work/of.either.onnx/y.npy" || fail "the exported model takes no weights"

# Nor need the batch be called B, in a trainer either.
sed 's/\[4, 4\] x/[batch, 4] x/; s/\[4, 3\] y/[batch, 3] y/' "$work/fixed.onnxtxt" >"$work/named.onnxtxt"
expect 0 build "$work/named.onnxtxt" --train --loss cross_entropy --exe -o "$work/named"
"$work/named" "${once[@]}" --batch 6 >"$work/out" 2>&1 || fail "a trainer with a batch of another name"
says "step 1/1"

! "$work/net" --data "npy:x=$work/x.npy,labels=$work/bad.npy,eval=0" --eval-every 0 --steps 1 >"$work/out" 2>&1 || fail "labels that are no classes"
says "'labels' has the value 3; the model takes 0 to 2"

# Trained values in an executable for inference; a checkpoint is never written over.
expect 0 build models/mlp.kv "${small[@]}" --from "$work/a/$last" --exe -o "$work/mlp"
mkdir "$work/i" "$work/j"
"$work/mlp" --pin B=2 --pin T=7 -o "$work/i" >"$work/out" || fail "an executable with trained values"
expect 0 run models/mlp.kv "${small[@]}" --weights "$work/a/$last" --pin B=2 --pin T=7 -o "$work/j"
cmp "$work/i/logits.npy" "$work/j/logits.npy" || fail "an executable with trained values differs from kvasir run"
expect 1 build models/mlp.kv "${small[@]}" --weights "$work/a/$last" --exe -o "$work/no"
says "--from FILE"
cmp "$work/a/$last" "$work/b/$last" || fail "--weights wrote over a checkpoint"

# The C API.
[ "$(wc -l <examples/train.c)" -le 60 ] || fail "examples/train.c is long"
expect 0 build models/mlp.kv --train -c -o "$work/mlp.o"
cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -I "$work" -I . examples/train.c "$work/mlp.o" \
  "$(dirname "$KVASIR")/libkvasir-rt.a" -lm -lpthread -o "$work/train" >"$work/out" 2>&1 || fail "building examples/train.c"
"$work/train" "$work/train.safetensors" >"$work/out" 2>&1 || fail "examples/train.c"
says "step 60: loss 0.0"
says "loaded again"
