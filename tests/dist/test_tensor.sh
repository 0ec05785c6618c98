#!/usr/bin/env bash
# Meshes whose processes divide parameters (--mesh tensor=M): the losses of one process within 1e-5, since sums have
# another order; with data=N and zero=Z, documents, groups of query heads and windows of the shift; checkpoints that go
# on with any mesh; what a process holds and sends; and models that cannot be divided so.
. tests/e2e/support.sh
. tests/dist/mpi.sh
launcher=${launchers[0]}

lm=(models/lm.kv -D preset=small -D layers=1 -D vocab=64 -D d=32 -D ffn=48 --data induction:length=12 --threads 1 --batch 4
  --eval-every 10 --eval-batches 3)

# Documents, two query heads to a key, a window of 2; vocabulary, heads and the feed-forward layer in halves.
grouped=("${lm[@]}" -D kv_heads=2 -D separator=3 -D window=2 --steps 50 --eval-every 25)
one grouped "${grouped[@]}"
mesh grouped-2 2 tensor=2 "${grouped[@]}"
near grouped grouped-2 50
# With data, in parts of slices: as one process with a micro-batch for each.
one parts "${grouped[@]}" --micro-batch 2
mesh parts-4 4 data=2,tensor=2,zero=3 "${grouped[@]}"
near parts parts-4 50
# Each process has one head; sigmoid gates, a window of 3, shifted queries, one matrix for the vocabulary.
other=("${lm[@]}" -D gate=gate -D window=3 -D shift_q=true -D qk_norm=true -D tied=true --steps 10)
one other "${other[@]}"
mesh other-4 4 tensor=4 "${other[@]}"
near other other-4 10

# Outputs and metrics that need all columns are gathered.
mlp=(models/mlp.kv -D d=16 -D hidden=32 -D vocab=64 -D layers=2 --threads 1 --steps 6 --eval-every 3 --eval-batches 3)
one mlp "${mlp[@]}"
mesh mlp-2 2 tensor=2 "${mlp[@]}"
near mlp mlp-2 6
induction=(models/induction.kv -D vocab=64 -D d=16 -D ffn=32 --data induction:length=12,pool=16 --batch 4 --threads 1 --steps 6
  --eval-every 3 --eval-batches 2)
one induction "${induction[@]}"
mesh induction-2 2 tensor=2 "${induction[@]}"
near induction induction-2 6
# The learned shifts are those of the heads of all processes.
shifts() { sed -n 's/.*"event": "shift", \(.*"k_current": [0-9]*\.[0-9]\{4\}\).*/\1/p' "$work/$1.jsonl"; }
[ "$(shifts induction | wc -l)" -eq 2 ] && cmp <(shifts induction) <(shifts induction-2) || fail "shifts of induction-2"

# A run goes on with another mesh and with none.
mesh moved 4 data=2,tensor=2,zero=1 "${grouped[@]}" --steps 10
mesh moved 2 tensor=2 "${grouped[@]}" --micro-batch 2 --steps 25 --resume
mesh moved 2 data=2,zero=3 "${grouped[@]}" --steps 30 --resume
one moved "${grouped[@]}" --micro-batch 2 --resume
near parts moved 50

# A trainer has its mesh inside.
if command -v cc >/dev/null; then
  expect 0 build models/mlp.kv -D d=16 -D hidden=32 -D vocab=64 -D layers=2 --train --exe --mesh tensor=2 -o "$work/trainer"
  ranks 2 "$work/trainer" "${mlp[@]:9}" --metrics "$work/trainer.jsonl" || fail "the trainer: exit code $?"
  near mlp trainer 6
fi

# What a process sends is what the plan says, to the byte.
expect 0 show "${lm[@]:0:11}" --train --stage=plan --mesh tensor=2 --pin B=4 --pin T=12
says "all_gather"
planned=$(sed -n '/^program train_step/,$p' "$work/out" | sed -n 's/^  sent by each process  *\([0-9]*\) bytes.*/\1/p' | head -1)
mesh sent 2 tensor=2 "${lm[@]}" --steps 2 --profile
[ -n "$planned" ] || fail "the plan names nothing that is sent"
says "bytes sent in a step: $planned"

# What cannot be divided so is named.
cannot() { # cannot TEXT OPTIONS...
  expect 1 show "${@:2}" --train --stage=plan
  says "$1"
}
cannot "parameter 'embed' cannot be divided among 2 processes" models/lm.kv -D vocab=65 --mesh tensor=2
cannot "parameter 'attention.0.k.current' cannot be divided among 4 processes" models/lm.kv -D kv_heads=2 --mesh tensor=4
cannot "parameter 'attention.0.wk' cannot be divided among 4 processes" models/lm.kv -D kv_heads=2 -D shift=false --mesh tensor=4
cannot "no parameter of 'gpt2' says how" models/gpt2.kv --mesh tensor=2
expect 2 show models/lm.kv --mesh tensor=2,zero=1 --train --stage=plan
says "zero divides states among the processes of data=N"
