#!/usr/bin/env bash
# Meshes whose processes have stages of a model (--mesh pipeline=P): the bits of one process with the same
# micro-batches, with data=N as well, for documents, groups of query heads, windows of the shift, dropout, clipping and a
# parameter of two stages; checkpoints that go on with any mesh; what a process holds and sends; what cannot be cut.
. tests/e2e/support.sh
. tests/dist/mpi.sh

lm=(models/lm.kv -D preset=small -D layers=2 -D vocab=64 -D d=32 -D ffn=48 --data induction:length=12 --threads 1 --batch 8
  --micro-batch 2 --eval-every 10 --eval-batches 3)

# The induction model.
launcher=${launchers[${#launchers[@]}-1]}
induction=(models/induction.kv -D vocab=64 -D d=16 -D ffn=32 --data induction:length=12,pool=16 --batch 8 --micro-batch 2
  --threads 1 --steps 50 --eval-every 25 --eval-batches 2)
one induction "${induction[@]}"
mesh induction-2 2 pipeline=2 "${induction[@]}"
same induction induction-2

# Documents, two query heads to a key, windows of 2 and 3, with the axis data.
launcher=${launchers[0]}
grouped=("${lm[@]}" -D kv_heads=2 -D separator=3 -D window=2 --steps 50 --eval-every 25)
one grouped "${grouped[@]}"
mesh grouped-4 4 pipeline=4 "${grouped[@]}"
same grouped grouped-4
wide=("${lm[@]}" -D kv_heads=2 -D separator=3 -D window=3 -D shift_q=true -D gate='"gate"' --steps 10 --micro-batch 4)
one wide "${wide[@]}"
mesh wide-4 4 data=2,pipeline=2 "${wide[@]}"
same wide wide-4

# One matrix for embedding and logits, which the first and the last stage have; random numbers by micro-batch.
tied=("${lm[@]}" -D tied=true -D dropout=0.2 --steps 10)
one tied "${tied[@]}"
mesh tied-3 3 pipeline=3 "${tied[@]}"
same tied tied-3
# Fewer micro-batches than stages; the norm of the gradients clips nothing, or all.
few=("${lm[@]}" --micro-batch 8 --clip 0.05 --steps 4)
one few "${few[@]}"
mesh few-4 4 pipeline=4 "${few[@]}"
same few few-4

# Products in 16 bits; messages larger than what a library sends without a receiver.
bf16=("${lm[@]}" --precision bf16 --steps 4)
one bf16 "${bf16[@]}"
mesh bf16-2 2 pipeline=2 "${bf16[@]}"
tolerance=1e-3 near bf16 bf16-2 4
large=("${lm[@]}" -D layers=4 -D d=64 --batch 128 --micro-batch 32 --eval-every 0 --steps 3)
one large "${large[@]}"
for launcher in "${launchers[@]}"; do
  rm -rf "$work"/large-4*
  mesh large-4 4 pipeline=4 "${large[@]}"
  same large large-4
done
launcher=${launchers[0]}

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
if wait "$mpi"; then fail "a run goes on without a stage"; fi

# What cannot be cut is named.
cannot() { # cannot TEXT OPTIONS...
  expect 1 show "${@:2}" --train --stage=plan
  says "$1"
}
cannot "pipeline=9: 'mlp' cannot be cut into so many stages" models/mlp.kv --mesh pipeline=9
cannot "pipeline=P with 1 to 31 stages" models/lm.kv --mesh pipeline=32
cannot "plans of a cluster have no axis pipeline" models/lm.kv -D preset=small --cluster h100x2x1 --mesh pipeline=2
