#!/usr/bin/env bash
# Meshes whose processes divide the rows of every sequence (--mesh sequence=S): the losses of one process within 1e-5,
# since sums have another order; with data=N, zero=Z and tensor=M, documents, groups of query heads, windows of the shift,
# and cuts of a sequence behind every row; checkpoints that go on with any mesh; the bytes of a shift's halo and of a
# step; and models that cannot be divided so.
. tests/e2e/support.sh
. tests/dist/mpi.sh
launcher=${launchers[0]}

small=(models/lm.kv -D preset=small -D layers=1 -D vocab=64 -D d=32 -D ffn=48)
lm=("${small[@]}" --data induction:length=12 --threads 1 --batch 4 --eval-every 10 --eval-batches 3)

# Documents, two query heads to a key, a shift over three rows.
grouped=("${lm[@]}" -D kv_heads=2 -D separator=3 -D window=2 --steps 50 --eval-every 25)
one grouped "${grouped[@]}"
mesh grouped-2 2 sequence=2 "${grouped[@]}"
near grouped grouped-2 50
# With slices of parameters, and with data and parts of the state: as one process with a micro-batch for each.
one short "${grouped[@]}" --steps 8
mesh both 4 sequence=2,tensor=2 "${grouped[@]}" --steps 8
near short both 8
one parts "${grouped[@]}" --steps 6 --micro-batch 2
mesh parts-4 4 data=2,sequence=2,zero=3 "${grouped[@]}" --steps 6
near parts parts-4 6
# A run goes on with another mesh and with none.
mesh moved 2 sequence=2 "${grouped[@]}" --steps 4
mesh moved 2 tensor=2 "${grouped[@]}" --steps 6 --resume
one moved "${grouped[@]}" --steps 8 --resume
near short moved 8

# Random tokens of eight, one of which ends a document: cuts behind rows 4, then 2, 4 and 6, of 8; 1, 2, 3 and 4 of 5. A
# shift that reaches back more rows than a process has needs all rows.
cuts() { # cuts LENGTH PARTS WINDOW
  local name=cuts-$1-$2-$3 lm=(models/lm.kv -D preset=small -D layers=1 -D vocab=8 -D d=16 -D ffn=16 -D heads=2 -D kv_heads=1
    -D separator=3 -D window="$3" --data "random:length=$1" --threads 1 --batch 4 --eval-every 9 --eval-batches 1 --steps 4)
  one "$name" "${lm[@]}"
  mesh "$name-mesh" "$2" "sequence=$2" "${lm[@]}"
  near "$name" "$name-mesh" 4
}
cuts 8 2 3
if [ -z "$sanitized" ]; then
  cuts 8 4 2
  cuts 4 2 3
  cuts 5 5 1
  # One sequence is one document; sigmoid gates, a shift over four rows, shifted queries, one matrix for the vocabulary.
  other=("${lm[@]}" -D gate=gate -D window=3 -D shift_q=true -D qk_norm=true -D tied=true --steps 5)
  one other "${other[@]}"
  mesh other-3 3 sequence=3 "${other[@]}"
  near other other-3 5
  # Metrics need all rows.
  induction=(models/induction.kv -D vocab=64 -D d=16 -D ffn=32 -D window=2 --data induction:length=12,pool=16 --batch 4 --threads 1
    --steps 5 --eval-every 3 --eval-batches 2)
  one induction "${induction[@]}"
  mesh induction-4 4 sequence=4 "${induction[@]}"
  near induction induction-4 5
  # Rows that a model does not shift.
  mlp=(models/mlp.kv -D d=16 -D hidden=32 -D vocab=64 --threads 1 --steps 5 --eval-every 3 --eval-batches 3)
  one mlp "${mlp[@]}"
  mesh mlp-2 2 sequence=2 "${mlp[@]}"
  near mlp mlp-2 5
fi

# The halo of a shift over W rows: W - 1 of them, two key heads of 8 floats, for each of 4 sequences; keys and values, there
# and back.
halo() { # halo WINDOW
  local bytes=$(($1 * 2 * 8 * 4 * 4))
  expect 0 show "${small[@]}" -D kv_heads=2 -D window="$1" --train --stage=plan --mesh sequence=2 --pin B=4 --pin T=12
  sed -n '/^program train_step/,$p' "$work/out" >"$work/step"
  for side in last first; do
    [ "$(grep -c "neighbour .* $bytes bytes; each process but the $side sends $bytes\$" "$work/step")" -eq 2 ] ||
      fail "window $1: expected two halos of $bytes bytes from all but the $side"
  done
}
halo 1
halo 2
# What process 0 sends is what the plan says, to the byte.
planned=$(sed -n 's/^  sent by each process  *\([0-9]*\) bytes.*/\1/p' "$work/step" | head -1)
[ -n "$planned" ] || fail "the plan names nothing that is sent"
mesh sent 2 sequence=2 "${lm[@]}" -D kv_heads=2 -D window=2 --steps 2 --profile
says "bytes sent in a step: $planned"

cannot() { # cannot TEXT OPTIONS...
  expect 1 show "${@:2}" --train --stage=plan
  says "$1"
}
cannot "axis 1 of input 'tokens' is T: expected a number that 2 divides" models/lm.kv --mesh sequence=2
cannot "axis 1 of input 'tokens' is 9: expected a number that 2 divides" models/lm.kv --mesh sequence=2 --pin T=9
