#!/usr/bin/env bash
# Meshes whose processes have stages of a model (--mesh pipeline=P): the bits of one process with the same
# micro-batches, with data=N as well, for documents, groups of query heads, windows of the shift, dropout, clipping and a
# parameter of two stages; what cannot be cut. test_stages.sh has checkpoints, bytes and failures.
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
if [ -z "$sanitized" ]; then
  wide=("${lm[@]}" -D kv_heads=2 -D separator=3 -D window=3 -D shift_q=true -D gate=gate --steps 10 --micro-batch 4)
  one wide "${wide[@]}"
  mesh wide-4 4 data=2,pipeline=2 "${wide[@]}"
  same wide wide-4
fi

# One matrix for embedding and logits, which the first and the last stage have; random numbers by micro-batch; rows of so
# many vectors that sums have several accumulators, in loops as large as dropout makes them.
tied=("${lm[@]}" -D d=256 -D ffn=480 -D tied=true -D dropout=0.2 --steps 4)
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
for launcher in "${repeat[@]}"; do
  rm -rf "$work"/large-4*
  mesh large-4 4 pipeline=4 "${large[@]}"
  same large large-4
done
launcher=${launchers[0]}

# What cannot be cut is named.
cannot() { # cannot TEXT OPTIONS...
  expect 1 show "${@:2}" --train --stage=plan
  says "$1"
}
cannot "pipeline=9: 'mlp' cannot be cut into so many stages" models/mlp.kv --mesh pipeline=9
expect 2 show models/lm.kv --mesh pipeline=32 --train --stage=plan
says "pipeline=P with 1 to 31 stages"
cannot "plans of a cluster have no axis pipeline" models/lm.kv -D preset=small --cluster h100x2x1 --mesh pipeline=2
