#!/usr/bin/env bash
# What a plan says on paper is what processes take: states and bytes sent to the byte, temporaries within 5 %. On the CPU
# that is `show --stage=plan`, on the stand-in for a GPU's driver (tests/fake_cuda) `show --cluster`.
. tests/e2e/support.sh
. tests/dist/mpi.sh
[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: counts are those without sanitizers"; exit 77; }
: "${KVASIR_FAKE_CUDA:?the stand-in for the driver}"

mlp=(models/mlp.kv -D d=64 -D hidden=64 -D vocab=64)
lm=(models/lm.kv -D preset=small -D layers=1 -D d=64 -D vocab=96 -D ffn=96)
induction=(models/induction.kv -D vocab=64 -D d=32)

# held NAME, sent: of the last training run.
held() { sed -n "s/.*bytes held:.*$1 \([0-9]*\).*/\1/p" "$work/out" | head -1; }
sent() { sed -n 's/.*bytes sent in a step: \([0-9]*\).*/\1/p' "$work/out" | head -1; }

# compare MESH PARAMETERS MOMENTS TEMPORARIES SENT: these, planned, with the last run.
compare() {
  [ -n "$5" ] && [ "$2" -gt 0 ] && [ "$4" -gt 0 ] && [ "$5" -gt 0 ] || fail "$1: the plan says nothing: $*"
  [ "$(held parameters) $(held moments) $(sent)" = "$2 $3 $5" ] || fail "$1: planned parameters, moments, sent: $2 $3 $5"
  local t
  t=$(held temporaries)
  [ $((t * 100)) -ge $(($4 * 95)) ] && [ $((t * 100)) -le $(($4 * 105)) ] || fail "$1: temporaries of $t bytes, planned $4"
}

# train MESH BATCH ROWS DATA OPTIONS...: two steps in two processes.
train() {
  local mesh=$1 batch=$2 rows=$3 data=$4
  shift 4
  ranks 2 "$KVASIR" train "$@" --mesh "$mesh" --batch "$batch" --micro-batch "$rows" --data "$data:length=16" --steps 2 \
    --profile --eval-every 0 --threads 1 || fail "$mesh: exit code $?"
}

# On the CPU, in one program.
planned() { sed -n '/^program train_step/,$p' "$work/out" | sed -n "s/^  $1  *\([0-9]*\) bytes.*/\1/p" | head -1; }
on_cpu() { # on_cpu MESH ROWS DATA MODEL...
  local mesh=$1 rows=$2 data=$3 batch=$2 numbers
  shift 3
  [[ $mesh != data* ]] || batch=$((2 * rows))
  expect 0 show "$@" --train --stage=plan --mesh "$mesh" --pin B="$rows" --pin T=16
  numbers=("$(planned parameters)" "$(planned 'optimiser moments')" "$(planned 'temporaries, peak')" "$(planned 'sent by each process')")
  train "$mesh" "$batch" "$rows" "$data" "$@"
  compare "$mesh ${1##*/}" "${numbers[@]}"
}
for mesh in data=2,zero=3 tensor=2 sequence=2; do
  on_cpu "$mesh" 8 ngram "${mlp[@]}"
  on_cpu "$mesh" 8 random "${lm[@]}"
  on_cpu "$mesh" 8 induction "${induction[@]}"
done

# On a GPU, in one program and in two: products in bfloat16, by the library.
export KVASIR_CUDA_LIBRARY=$KVASIR_FAKE_CUDA KVASIR_CUBLASLT_LIBRARY=$KVASIR_FAKE_CUDA FAKE_CUDA_CAPABILITY=80
on_gpu() { # on_gpu MESH BATCH ROWS DATA MODEL...
  local mesh=$1 batch=$2 rows=$3 data=$4 numbers
  shift 4
  expect 0 show "$@" --cluster a100x2x1 --mesh "$mesh" --batch "$batch" --pin B="$rows" --pin T=16 --format=json
  read -r -a numbers < <(python3 -c 'import json, sys
p = json.load(open(sys.argv[1]))
print(*(p["bytes"][k] for k in ("parameters", "moments", "temporaries")), p["sent"])' "$work/out")
  train "$mesh" "$batch" "$rows" "$data" "$@" --device cuda --precision bf16
  compare "$mesh ${1##*/} on a GPU" "${numbers[@]}"
}
on_gpu data=2,zero=3 16 4 ngram "${mlp[@]}"
on_gpu sequence=2 4 4 random "${lm[@]}"
on_gpu tensor=2 4 2 induction "${induction[@]}"

# The command that the search prints is one that runs.
expect 0 show "${mlp[@]}" --cluster a100x2x1 --batch 8 --pin T=16
command=$(sed -n 's/^mpirun -n 2 kvasir //p' "$work/out")
read -r -a words <<<"$command"
[ ${#words[@]} -gt 5 ] || fail "no command: $command"
ranks 2 "$KVASIR" "${words[@]}" --steps 1 --eval-every 0 --threads 1 || fail "exit code $? of: $command"
says "step 1/1"
