#!/usr/bin/env bash
# kvasir train with checkpoints: runs that were stopped, killed or limited continue with the same bits on 1, 2 and 3
# threads; steps of several micro-batches are the same however they are asked for; refusals are explained and lose nothing.
. "$(dirname "$0")/support.sh"
cd "$work"
model=$OLDPWD/models/mlp.kv
size=(-D d=16 -D hidden=32 -D vocab=64 --batch 8 --eval-every 20 --eval-batches 2)
data=ngram:pairs=40,length=32
step() { printf '%s/step-%010d.safetensors' "$1" "$2"; }
same() { cmp "$1" "$2" || fail "$3"; }
bits() { sed 's/"seconds": [^,]*//' "$1"; }
train() { expect "$1" train "$model" "${size[@]}" --data "$data" --checkpoint-every 10 "${@:2}"; }

# The same bits on any number of threads, and after an end by --steps.
train 0 --steps 60 --checkpoint whole --metrics whole.jsonl --threads 1 --schedule cosine --warmup 7
[ "$(ls whole | tr '\n' ' ')" = "$(for n in 40 50 60; do basename "$(step . $n)"; done | tr '\n' ' ')" ] || fail "--keep 3"
for threads in 2 3; do
  train 0 --steps 60 --checkpoint "t$threads" --threads $threads --schedule cosine --warmup 7
  same "$(step whole 60)" "$(step t$threads 60)" "1 and $threads threads differ"
done

# Killed again and again, metrics included.
for i in 1 2 3 4 5 6 7 8; do
  "$KVASIR" train "$model" "${size[@]}" --data "$data" --steps 60 --schedule cosine --warmup 7 --checkpoint killed --resume \
    --checkpoint-every 3 --metrics killed.jsonl --threads $((i % 3 + 1)) >"$work/out" 2>&1 &
  pid=$!
  sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
  kill -9 $pid 2>/dev/null || true
  wait $pid 2>/dev/null || true
done
train 0 --steps 60 --schedule cosine --warmup 7 --checkpoint killed --resume --metrics killed.jsonl
same "$(step whole 60)" "$(step killed 60)" "a killed run differs"
same <(bits whole.jsonl) <(bits killed.jsonl) "the metrics of a killed run differ"

# Repeated at its end, also with metrics that cannot be cut.
train 0 --steps 60 --schedule cosine --warmup 7 --checkpoint killed --resume --metrics killed.jsonl
same <(bits whole.jsonl) <(bits killed.jsonl) "the metrics of a run that is repeated differ"
train 0 --steps 60 --schedule cosine --warmup 7 --checkpoint killed --resume --metrics /dev/null

# SIGTERM and the time limit save at the step they end at.
"$KVASIR" train "$model" "${size[@]}" --data "$data" --steps 10000000 --checkpoint term --keep 1 >"$work/out" 2>&1 &
pid=$!
until [ -e term ]; do sleep 0.05; done
sleep 0.3
# The folder has one trainer: the second is refused by the first one's name.
train 1 --steps 10 --checkpoint term --resume
says "another trainer saves its checkpoints in this folder: process $pid on $(uname -n) since 20"
train 0 --steps 0 --checkpoint term --resume
kill -TERM $pid
code=0
wait $pid || code=$?
[ "$code" -eq 4 ] || fail "SIGTERM: exit code $code"
[ "$(ls term | wc -l)" -eq 1 ] || fail "SIGTERM saves"
train 4 --steps 10000000 --checkpoint limit --time-limit 0.3s --checkpoint-every 0
[ "$(ls limit | wc -l)" -eq 1 ] || fail "--time-limit saves"
# An evaluation can be interrupted.
train 4 --steps 3 --eval-batches 1000000000 --eval-every 1 --checkpoint evaluating --time-limit 0.5s --metrics evaluating.jsonl
says "interrupted after step 1, saved in evaluating"
[ "$(ls evaluating)" = step-0000000001.safetensors ] || fail "an interrupted evaluation saves"
# It is made up for, also behind the last step, and is in the metrics once.
train 0 --steps 3 --eval-every 1 --checkpoint evaluated --metrics evaluated.jsonl --keep-best
train 0 --steps 3 --eval-every 1 --checkpoint evaluating --metrics evaluating.jsonl --keep-best --resume
same <(bits evaluated.jsonl) <(bits evaluating.jsonl) "the metrics behind an interrupted evaluation differ"
rm evaluating/* evaluating.jsonl
train 4 --steps 1 --eval-batches 1000000000 --checkpoint evaluating --time-limit 0.5s --keep-best
[ "$(ls evaluating)" = step-0000000001.safetensors ] || fail "an interrupted last evaluation saves: $(ls evaluating)"
train 0 --steps 1 --checkpoint evaluating --keep-best --resume
says "step 1/1  eval loss"
[ "$(ls evaluating | tr '\n' ' ')" = "best.safetensors step-0000000001.safetensors " ] || fail "no best state: $(ls evaluating)"
train 4 --steps 0 --eval-batches 1000000000 --time-limit 0.5s
says "interrupted in the evaluation"

# 4 batches of 8 are a batch of 32 in micro-batches of 8; one micro-batch of 32 is the same up to rounding.
data+=,all=1
rest=(--steps 20 --eval-every 0)
train 0 "${rest[@]}" --batch 8 --accumulate 4 --checkpoint four --metrics four.jsonl --threads 1
train 0 "${rest[@]}" --batch 32 --micro-batch 8 --checkpoint passes --threads 2
train 0 "${rest[@]}" --batch 16 --accumulate 2 --micro-batch 8 --checkpoint two --threads 3
same "$(step four 20)" "$(step passes 20)" "4 x 8 and 32 in micro-batches of 8 differ"
same "$(step four 20)" "$(step two 20)" "4 x 8 and 2 x 16 in micro-batches of 8 differ"
train 0 "${rest[@]}" --batch 32 --metrics one.jsonl
python3 - four.jsonl one.jsonl <<'PY' || fail "accumulated gradients differ from those of one batch"
import json, sys
a, b = ([json.loads(l)["loss"] for l in open(f)] for f in sys.argv[1:])
assert len(a) == len(b) == 20 and a != b and a[0] > a[-1] + 0.1, (a, b)
assert all(abs(x - y) < 1e-4 * x for x, y in zip(a, b)), list(zip(a, b))
PY
data=${data%,all=1}
train 1 --steps 5 --batch 32 --micro-batch 5
says "a batch of 32 rows cannot be cut into micro-batches of 5"

# Refusals. Nothing is overwritten.
before=$(sha256sum whole/* | sha256sum)
train 1 --steps 60 --checkpoint whole
says "give --resume to go on from it, or another folder"
train 1 --steps 80 --checkpoint whole --resume -D hidden=48
says "a checkpoint of another model: its tensor 'dense.w' is float[32, 32], and this model's is float[32, 48]"
train 2 --steps 80 --resume
says "--resume needs a checkpoint"
train 1 --steps 80 --resume=nowhere.safetensors
says "nowhere.safetensors"
mkdir damaged
head -c 3000 "$(step whole 60)" >"$(step damaged 60)"
cp "$(step whole 50)" damaged
train 1 --steps 80 --checkpoint damaged --resume="$(step damaged 60)"
says "cut off"
says "nothing was changed; --resume=FILE takes another checkpoint"
train 1 --steps 60 --schedule cosine --warmup 7 --checkpoint damaged --resume="$(step damaged 50)"
says "has checkpoints up to step 60, and this run goes on from step 50; move those after it away"

# A folder's damaged files are passed over, with a warning; they are in nobody's way. Of a folder that is only read they
# stay as they are.
train 0 --steps 60 --schedule cosine --warmup 7 --checkpoint reader --resume=damaged
says "step-0000000060.safetensors: warning: "
says "resumed at step 50 from damaged/step-0000000050.safetensors"
same "$(step whole 60)" "$(step reader 60)" "a run from a folder with a damaged checkpoint differs"
[ -e "$(step damaged 60)" ] || fail "a folder that is only read was changed"
: >"$(step damaged 55)"
train 0 --steps 60 --schedule cosine --warmup 7 --checkpoint damaged --resume --keep 1
says "warning: the damaged checkpoint of step 55 got the suffix .damaged"
says "resumed at step 50"
same "$(step whole 60)" "$(step damaged 60)" "a run past damaged checkpoints differs"
[ "$(ls damaged | tr '\n' ' ')" = "step-0000000055.safetensors.damaged step-0000000060.safetensors step-0000000060.safetensors.damaged " ] ||
  fail "past damaged checkpoints: $(ls damaged)"
cp "$(step whole 50)" damaged # for the next one
mkdir none
head -c 3000 "$(step whole 60)" >"$(step none 60)"
train 1 --steps 80 --checkpoint none --resume
says "no checkpoint in none is whole"
[ "$(ls none)" = step-0000000060.safetensors ] || fail "without a whole checkpoint: $(ls none)"
train 0 --steps 60 --schedule cosine --warmup 7 --checkpoint other --resume="$(step damaged 50)"
same "$(step whole 60)" "$(step other 60)" "a run from a named checkpoint differs"
train 0 --steps 61 --batch 16 --lr 0.5 --checkpoint changed --resume="$(step whole 60)"
says "batch: was 8 when this was saved, is 16 now"
says "learning rate: was "
[ "$before" = "$(sha256sum whole/* | sha256sum)" ] || fail "a refused run changed checkpoints"

# A file size limit stands for a full disk: the run goes on, its end is an error, no piece is left.
code=0
(ulimit -f 20; "$KVASIR" train "$model" "${size[@]}" --data "$data" --steps 25 --checkpoint full --checkpoint-every 10) >"$work/out" 2>&1 ||
  code=$?
[ "$code" -ne 0 ] || fail "full disk: exit code 0"
says "cannot write it: File too large"
says "no checkpoint of step 10; the run goes on"
says "step 25/25"
[ -z "$(ls full)" ] || fail "full disk: $(ls full)"

# Not finite: the first value is named, the state before the step is saved and goes on with a lower rate.
train 1 --steps 60 --lr 1e30 --checkpoint nan
says "at step "
says "the first "
says "which step "
says "the state before that step is saved in nan"
python3 - nan/* <<'PY' || fail "a checkpoint with NaN"
import json, math, struct, sys
data = open(sorted(sys.argv[1:])[-1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
for name, t in header.items():
    if name == "__metadata__" or t["dtype"] != "F32": continue
    begin, end = t["data_offsets"]
    values = struct.unpack(f"<{(end - begin) // 4}f", data[8 + n + begin:8 + n + end])
    assert not any(math.isnan(v) for v in values), name
PY

# A loss that is finite with a gradient that is not, in one pass and in several: the root of zero.
cat >root.kv <<'KV'
model root (int32[B, T] tokens) => (float[B, T, 8] logits) {
  param float[8, 8] w ~ zeros
  logits = kv.gather(kv.sqrt(w), tokens)
}
train root (int32[B, T] targets) {
  loss = kv.reduce_mean <keepdims = false> (kv.cross_entropy <ignore_index = -1> (logits, targets))
  optimizer = SGD <lr = 0.1, weight_decay = 0.1>
  clip = 1.0
  steps = 3
  batch = 4
  data = random <length = 5>
}
KV
for passes in 1 2; do
  expect 1 train root.kv --accumulate $passes
  says "the loss is finite, the norm of its gradient is not at step 1"
  says "the first "
  says "which step "
done

# Weight decay and clipping of the train block can be set, not invented.
expect 1 train "$model" "${size[@]}" --steps 2 --clip 1
says "the model was compiled without clipping"
# So is what only another schedule reads.
expect 1 train "$model" "${size[@]}" --steps 2 --warmup 1
says "--warmup: the schedule is constant"
expect 1 train "$model" "${size[@]}" --steps 2 --schedule warmup --warmup 1 --final-lr 0.1
says "--final-lr: the schedule is warmup"
sed 's/AdamW <lr = 1e-2>/AdamW <lr = 1e-2, weight_decay = 0.1>\n  clip = 1.0/' "$model" >decay.kv
grep -q "clip = 1.0" decay.kv || fail "the model does not clip"
set_to() { # set_to WEIGHT_DECAY CLIP: in the train block of set.kv
  sed "s/weight_decay = 0.1/weight_decay = $1/; s/clip = 1.0/clip = $2/" decay.kv >set.kv
}
set_to 0.4 0.5
few=("${size[@]}" --steps 10 --metrics)
expect 0 train decay.kv "${few[@]}" a.jsonl --weight-decay 0.4 --clip 0.5
expect 0 train set.kv "${few[@]}" b.jsonl
expect 0 train decay.kv "${few[@]}" c.jsonl
same <(bits a.jsonl) <(bits b.jsonl) "options and train block differ"
! cmp -s <(bits a.jsonl) <(bits c.jsonl) || fail "weight decay and clipping change nothing"
set_to 0 0
expect 0 train decay.kv "${few[@]}" a.jsonl --weight-decay 0 --clip 0
expect 0 train set.kv "${few[@]}" b.jsonl
same <(sed 's/"grad_norm": [^,}]*//' a.jsonl | bits /dev/stdin | tr -d ', ') <(bits b.jsonl | tr -d ', ') \
  "without weight decay and clipping the model is another"

# A subnormal number is a number, also in a checkpoint.
expect 0 train decay.kv "${size[@]}" --steps 2 --weight-decay 1e-310 --checkpoint subnormal
expect 0 train decay.kv "${size[@]}" --steps 4 --weight-decay 1e-310 --checkpoint subnormal --resume
says "resumed at step 2"
# No clipping is 0 in messages, too.
expect 0 train decay.kv "${size[@]}" --steps 2 --clip 0 --checkpoint unclipped
expect 0 train decay.kv "${size[@]}" --steps 3 --checkpoint unclipped --resume
says "clipping: was 0 when this was saved, is 1 now"
expect 2 train decay.kv "${size[@]}" --steps 2 --weight-decay 1e-400
says "expected a finite number that is not negative"

# What files have no type for is refused before the first step, unless nothing is saved.
sed 's/^def dense.*/&\n  param uint4[outputs] q ~ zeros frozen/; s/return x @ w + b/return x @ w + b + kv.cast <to = float> (q)/' "$model" >packed.kv
expect 1 train packed.kv "${size[@]}" --steps 20 --checkpoint packed
says "checkpoints are safetensors files, which cannot hold"
says "of type uint4"
! grep -q "^.* step " "$work/out" || fail "a step was run"
[ ! -e packed ] || fail "a refused run makes a folder"
expect 0 train packed.kv "${size[@]}" --steps 2

# Variants save in folders of their own, and each goes on from its own. One that does not load is reported first.
variants=(--variant one --variant two:hidden=48)
train 0 --steps 10 "${variants[@]}" --checkpoint both
train 0 --steps 20 "${variants[@]}" --checkpoint both --resume
says "one        resumed at step 10 from both-0/"
says "two        resumed at step 10 from both-1/"
train 0 --steps 20 --checkpoint two.own -D hidden=48
python3 - "$(step both-1 20)" "$(step two.own 20)" <<'PY' || fail "a resumed variant differs"
import json, struct, sys
def tensors(path):
    data = open(path, "rb").read()
    return data[8 + struct.unpack("<Q", data[:8])[0]:]
assert tensors(sys.argv[1]) == tensors(sys.argv[2])
PY
train 2 --steps 20 "${variants[@]}" --checkpoint both --resume=both-0
train 1 --steps 10000000 --variant one --variant two:hiden=48 --checkpoint late
says "hiden"
[ ! -e late-0 ] || fail "the first variant trains before the second one is checked"
touch file
train 1 --steps 10000000 --report file/report.html --checkpoint late
says "file: error: cannot make the folder: File exists"
[ ! -e late ] || fail "a report that cannot be written is noticed late"
