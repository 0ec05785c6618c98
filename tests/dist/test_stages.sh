#!/usr/bin/env bash
# Runs on meshes of stages (--mesh pipeline=P): checkpoints that go on with any mesh and in one process; a trainer; what a
# process holds and sends; a loss that is not finite; a rank that is killed.
. tests/e2e/support.sh
. tests/dist/mpi.sh
launcher=${launchers[0]}

lm=(models/lm.kv -D preset=small -D layers=2 -D vocab=64 -D d=32 -D ffn=48 --data induction:length=12 --threads 1 --batch 8
  --micro-batch 2 --eval-every 10 --eval-batches 3)
grouped=("${lm[@]}" -D kv_heads=2 -D separator=3 -D window=2 --eval-every 25)

# A run goes on with other stages, with none, in parts, and where processes divide parameters or rows as well.
one whole "${grouped[@]}" --steps 24
mesh moved 2 pipeline=2 "${grouped[@]}" --steps 5
mesh moved 2 pipeline=2 "${grouped[@]}" --steps 8 --resume
mesh moved 3 pipeline=3 "${grouped[@]}" --steps 11 --resume
one moved "${grouped[@]}" --steps 14 --resume
mesh moved 4 data=2,zero=1,pipeline=2 "${grouped[@]}" --steps 17 --resume
mesh moved 4 pipeline=2,sequence=2 "${grouped[@]}" --steps 19 --resume
mesh moved 4 pipeline=2,tensor=2 "${grouped[@]}" --steps 21 --resume
mesh moved 8 data=2,zero=3,pipeline=2,tensor=2 "${grouped[@]}" --steps 24 --resume
near whole moved 24
# ... with the bits of one process as long as sums have its order.
cmp <(losses whole | head -14) <(losses moved | head -14) || fail "stages go on with other bits"
# What is saved is read by everything that reads a checkpoint.
expect 0 export "${grouped[@]:0:11}" -D kv_heads=2 -D separator=3 -D window=2 --weights "$work/moved/step-0000000024" -o "$work/lm.onnx"

# Whoever lacks a file of a stage says so.
cp -r "$work/moved/step-0000000024" "$work/less"
rm "$work/less/shard-00002-of-00008.safetensors"
expect 1 train "${grouped[@]}" --resume="$work/less"
says "shard-00002-of-00008.safetensors: error: damaged checkpoint: this file of it is missing"
cp "$work/moved/step-0000000024/shard-00000-of-00008.safetensors" "$work/less/shard-00002-of-00008.safetensors"
expect 1 train "${grouped[@]}" --resume="$work/less"
says "damaged checkpoint: several stages have"

# A trainer has its stages inside.
if command -v cc >/dev/null; then
  expect 0 build models/mlp.kv -D d=16 -D hidden=32 -D vocab=64 -D layers=2 --train --exe --mesh pipeline=2 -o "$work/trainer"
  mlp=(--threads 1 --steps 6 --eval-every 3 --eval-batches 3)
  one mlp models/mlp.kv -D d=16 -D hidden=32 -D vocab=64 -D layers=2 "${mlp[@]}"
  ranks 2 "$work/trainer" "${mlp[@]}" --metrics "$work/trainer.jsonl" || fail "the trainer: exit code $?"
  near mlp trainer 6
fi

# What process 0 has and sends is what the plan says, to the byte.
expect 0 show "${lm[@]:0:11}" -D tied=true --train --stage=plan --mesh pipeline=2 --pin B=2 --pin T=12
says "20.0 % with m = 4"
read -r parameters up moved < <(sed -n 's/.*stage 0: \([0-9]*\) parameters.* sends \([0-9]*\) forward, 0 back.*; of a step sends \([0-9]*\) .*/\1 \2 \3/p' "$work/out")
mesh sent 2 pipeline=2 "${lm[@]}" -D tied=true --steps 2 --profile
says "bytes sent in a step: $((4 * up + moved))"
says "bytes held: parameters $((4 * parameters)),"

# A loss that is not finite ends all after the same step.
if ranks 2 "$KVASIR" train "${lm[@]}" --mesh pipeline=2 --steps 50 --lr 1e30 --clip 0; then fail "a loss of infinity trains"; fi
says "at step"

# A rank that is killed ends the others.
timeout 60 "$launcher" -n 2 "$KVASIR" train "${lm[@]}" --mesh pipeline=2 --steps 1000000 --rank-logs "$work/ranks" >"$work/out" 2>&1 </dev/null &
mpi=$!
for _ in $(seq 100); do
  [ ! -s "$work/ranks/rank-1.log" ] || break
  sleep 0.1
done
victim=$(pgrep -f -- "--rank-logs $work/ranks" | tail -1)
kill -9 "$victim"
code=0
wait "$mpi" || code=$?
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a run goes on without a stage"
