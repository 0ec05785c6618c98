#!/usr/bin/env bash
# Training on a mesh of processes: the bits of one process with as many micro-batches; checkpoints that go on in other
# numbers of processes; who reports, and what a process that fails or does something else leads to.
. tests/e2e/support.sh
. tests/dist/mpi.sh

sed 's/(kv.relu(x))/(kv.dropout <ratio = 0.25> (kv.relu(x)))/; s/^  steps = 300/  clip = 0.5\n&/' models/mlp.kv >"$work/dropout.kv"
[ "$(grep -c 'kv.dropout\|clip =' "$work/dropout.kv")" -eq 3 ] || fail "the model has no dropout or no clipping"
small=(-D d=16 -D hidden=32 -D vocab=64 --threads 1 --steps 6 --eval-every 3 --eval-batches 3)
lm=(models/lm.kv -D preset=small -D vocab=64 -D d=32 -D separator=3 --data random:length=12 --threads 1 --steps 3
  --eval-every 3 --eval-batches 2)

one mlp-1 models/mlp.kv "${small[@]}" --batch 8 --accumulate 2
[ "$(wc -l <"$work/mlp-1.jsonl")" -eq 8 ] || fail "expected 6 steps and 2 evaluations"
for launcher in "${repeat[@]}"; do
  rm -rf "$work/mlp-2"
  mesh mlp-2 2 data=2 models/mlp.kv "${small[@]}" --batch 16 --rank-logs "$work/logs"
  same mlp-1 mlp-2
done
launcher=${launchers[0]}
[ "$(grep -ac 'step 6/6  eval' "$work/out")" -eq 1 ] || fail "more than one process reports"
grep -q 'step 6/6  eval' "$work/logs/rank-1.log" || fail "no log of rank 1"
one dropout-1 "$work/dropout.kv" "${small[@]}" --batch 4 --accumulate 3
mesh dropout-3 3 data=3 "$work/dropout.kv" "${small[@]}" --batch 12
same dropout-1 dropout-3
one lm-1 "${lm[@]}" --batch 2 --accumulate 2
mesh lm-2 2 data=2 "${lm[@]}" --batch 4
same lm-1 lm-2

# Several micro-batches in each process: the sums have another order.
mesh mlp-4 2 data=2 models/mlp.kv "${small[@]}" --batch 16 --micro-batch 4
one mlp-5 models/mlp.kv "${small[@]}" --batch 16 --micro-batch 4
near mlp-4 mlp-5 8 all

# A run goes on, on the same mesh and on another, with the same bits.
for step in 2 4; do
  mesh "from-$step" 2 data=2 models/mlp.kv "${small[@]}" --batch 16 --steps "$step"
  mesh "from-$step" 2 data=2 models/mlp.kv "${small[@]}" --batch 16 --resume
  cmp "$work/from-$step"/*.safetensors "$work"/mlp-1/*.safetensors || fail "a run that goes on from $step has other bits"
done
mesh other 2 data=2 models/mlp.kv "${small[@]}" --batch 16 --steps 3
expect 0 train models/mlp.kv "${small[@]}" --batch 8 --accumulate 2 --checkpoint "$work/other" --resume --keep 1
cmp "$work"/other/*.safetensors "$work"/mlp-1/*.safetensors || fail "one process goes on from two with other bits"

# A trainer has its mesh inside.
if command -v cc >/dev/null; then
  expect 0 build models/mlp.kv -D d=16 -D hidden=32 -D vocab=64 --train --exe --mesh data=2 -o "$work/trainer"
  ! ldd "$work/trainer" | grep -v 'libc\.so\|libm\.so\|linux-vdso\|ld-linux' || fail "the trainer needs more than libc and libm"
  ranks 2 "$work/trainer" "${small[@]:6}" --metrics "$work/trained.jsonl" --checkpoint "$work/trained" || fail "the trainer: exit code $?"
  one tool models/mlp.kv "${small[@]}" --micro-batch 16
  same trained tool
  code=0
  KVASIR_MPI_LIBRARY=/absent "$work/trainer" --steps 1 >"$work/out" 2>&1 || code=$?
  [ "$code" -eq 3 ] || fail "a trainer without MPI: exit code $code"
  says "install Open MPI or MPICH"
fi

# Numbers of processes that do not fit.
expect 1 train models/mlp.kv --mesh data=2
says "start them with mpirun -n 2"
WORLD_SIZE=2 RANK=0 expect 1 train models/mlp.kv --mesh data=2
says "found RANK and WORLD_SIZE=2 of another launcher"
for bad in tensor data data=0 data=x data=2, data=2,data=2; do
  expect 2 train models/mlp.kv --mesh "$bad"
  says "expected data=N"
done
refused() { # refused TEXT COMMAND...: the run fails in all processes, with the text
  local text=$1
  shift
  ! ranks "$@" || fail "expected a failure that says: $text"
  says "$text"
}
refused "the mesh has 2 processes, and 3 were started" 3 "$KVASIR" train models/mlp.kv --mesh data=2
refused "expected a multiple of 2" 2 "$KVASIR" train models/mlp.kv --batch 7 --mesh data=2
refused "--shard and --mesh" 2 "$KVASIR" train models/mlp.kv --shard 0/2 --mesh data=2
refused "no data source is called" 2 "$KVASIR" train models/mlp.kv --data absent --mesh data=2
[ "$(grep -c 'no data source' "$work/out")" -eq 1 ] || fail "an error that all have is said more than once"
ranks 2 "$KVASIR" train models/mlp.kv "${small[@]}" || fail "two runs: exit code $?"
says "a mesh (data=2) divides it"
expect 1 opt models/mlp.kv --passes=shard
says "inside of pass train"

# Processes that do not do the same.
differ() { # differ TEXT OPTION...: of rank 1 alone
  refused "process 1 of 2" 1 "$KVASIR" train models/mlp.kv "${small[@]}" --mesh data=2 : -n 1 \
    "$KVASIR" train models/mlp.kv "${small[@]}" --mesh data=2 "${@:2}"
  says "$1"
}
differ "--seed: 5, there 0" --seed 5
differ "the data: " --data induction:length=48
differ "the model: " -D layers=2
differ "--steps: 7, there 6" --steps 7
cp "$KVASIR" "$work/other-kvasir"
printf x >>"$work/other-kvasir"
refused "the program: " 1 "$KVASIR" train models/mlp.kv "${small[@]}" --mesh data=2 : -n 1 \
  "$work/other-kvasir" train models/mlp.kv "${small[@]}" --mesh data=2

# A loss that is not finite is found in the process that has it, and ends all; the state before it is saved.
refused "the loss is" 2 "$KVASIR" train models/mlp.kv "${small[@]}" --mesh data=2 --lr 1e30 --checkpoint "$work/infinite"
says "process "
says "is saved in"

# A process that is killed ends the run; one that is told to end ends it in order.
long=(models/mlp.kv "${small[@]}" --batch 16 --steps 1000000000 --checkpoint-every 20 --mesh data=2)
start() { # start NAME: in the background; $rank is the process of rank 1
  ranks 2 "$KVASIR" train "${long[@]}" --checkpoint "$work/$1" --metrics "$work/$1.jsonl" &
  run=$!
  for ((i = 0; i < 600; i++)); do
    rank=$(pgrep -f -- "--checkpoint $work/$1 " | while read -r p; do
      tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx 'OMPI_COMM_WORLD_RANK=1\|PMI_RANK=1' && echo "$p"
    done) || true
    [ -z "$rank" ] || [ -z "$(ls "$work/$1" 2>/dev/null)" ] || break
    sleep 0.1
  done
  [ -n "$rank" ] || fail "$1: no process of rank 1"
}
start killed
kill -9 "$rank"
begin=$SECONDS code=0
wait "$run" || code=$?
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a rank was killed: exit code $code"
[ $((SECONDS - begin)) -le 30 ] || fail "the others lived for $((SECONDS - begin)) s"
says "ignal"
start ended
kill -TERM "$rank"
code=0
wait "$run" || code=$?
[ "$code" -eq 4 ] || fail "a rank was told to end: exit code $code"
says "interrupted after step"
step=$(sed -n 's/.*interrupted after step \([0-9]*\).*/\1/p' "$work/out")
ls "$work"/ended/*"$step.safetensors" >/dev/null || fail "the state of step $step is not saved"
step=$(ls "$work"/killed | sed -n 's/step-0*\([0-9]*\).safetensors/\1/p' | tail -1)
mesh killed 2 data=2 models/mlp.kv "${small[@]}" --batch 16 --steps $((step + 2)) --resume
one never models/mlp.kv "${small[@]}" --batch 8 --accumulate 2 --steps $((step + 2))
cmp "$work"/killed/*.safetensors "$work"/never/*.safetensors || fail "a run that was killed goes on with other bits"

# The operators with their bytes.
expect 0 show models/mlp.kv --train --stage=plan --mesh data=4 --pin B=2 --pin T=8
says "each process sends"
says "sent by each process"
expect 0 show models/mlp.kv --train --stage=plan --pin B=2 --pin T=8
! grep -q "each process" "$work/out" || fail "one process sends nothing"
