#!/usr/bin/env bash
# A rank of a run with sharded checkpoints is killed: the others end with a message, and the run goes on, on its mesh with the
# bits of one that nothing disturbed, and on another. A selection; KVASIR_KILLED_RUNS=all takes all 50 moments.
. tests/e2e/support.sh
. tests/dist/mpi.sh
if [ -n "${KVASIR_SANITIZED:-}" ]; then
  echo "SKIP: what a killed process leaves is the same without sanitizers; dist.checkpoint reads and writes with them"
  exit 77
fi

export LAUNCHER=${launchers[0]} WORK=$work
export OPTIONS="$(realpath models/mlp.kv) -D d=64 -D hidden=64 -D vocab=64 --threads 1 --batch 16 --eval-every 0 --keep 0"
moments=(1 9) # every ninth: kinds of moments, meshes and ranks all occur
[ "${KVASIR_KILLED_RUNS:-}" != all ] || moments=(0 1)
KVASIR=$(realpath "$KVASIR") python3 tests/dist/killed.py "${moments[@]}" >"$work/out" 2>&1 || fail "killed runs"
cat "$work/out"
