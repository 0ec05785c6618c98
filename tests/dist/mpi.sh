#!/usr/bin/env bash
# Sourced after tests/e2e/support.sh: launchers of MPI on this machine, and runs to compare.
launchers=()
for launcher in mpirun.openmpi mpirun.mpich; do
  command -v "$launcher" >/dev/null && launchers+=("$launcher")
done
[ ${#launchers[@]} -gt 0 ] || { echo "SKIP: neither Open MPI nor MPICH is installed"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none # containers forbid it, at the price of a warning
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # neither library frees what it took
export OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader # shared memory; looking for networks is a third of a start
export OMPI_MCA_mpi_yield_when_idle=1 # ranks that wait leave the cores to the others, and sleep: yield.c
# Sanitizers see each kind of mesh once; what is left out where this is set differs in numbers alone. Runs that every
# launcher starts have one there; test_comm.sh checks messages with all.
sanitized=${KVASIR_SANITIZED:-} repeat=("${launchers[@]}")
[ -z "$sanitized" ] || repeat=("${launchers[0]}")
openmpi=() mpich=()
if [ -n "${KVASIR_YIELD:-}" ]; then
  openmpi=(-x LD_PRELOAD="$KVASIR_YIELD")
  mpich=(-genv LD_PRELOAD "$KVASIR_YIELD")
  ASAN_OPTIONS=$ASAN_OPTIONS:verify_asan_link_order=0
fi

# ranks N COMMAND...: N processes of the command by $launcher; both streams are in $work/out afterwards.
ranks() {
  local n=$1 program=${launcher:-${launchers[0]}} options=()
  shift
  [[ $program != *openmpi ]] || options=("${openmpi[@]}")
  [[ $program != *mpich ]] || options=("${mpich[@]}")
  timeout 60 "$program" "${options[@]}" -n "$n" "$@" >"$work/out" 2>&1 </dev/null
}

# one NAME OPTIONS...: a run of one process, with $work/NAME.jsonl and checkpoints in $work/NAME.
one() {
  expect 0 train "${@:2}" --metrics "$work/$1.jsonl" --checkpoint "$work/$1" --keep 1
}
# mesh NAME PROCESSES AXES OPTIONS...: the same on a mesh.
mesh() {
  ranks "$2" "$KVASIR" train "${@:4}" --mesh "$3" --metrics "$work/$1.jsonl" --checkpoint "$work/$1" --keep "${keep:-1}" ||
    fail "$1: exit code $?"
}
# same NAME NAME: both runs say and learn the same; the time that they took is not compared.
result() { sed 's/"seconds": *[^,]*,//' "$work/$1.jsonl"; }
same() {
  cmp <(result "$1") <(result "$2") || fail "$1 and $2 report other numbers"
  same_state "$1" "$2"
}
# same_state NAME NAME: the only checkpoints of both runs, files or folders, have the same bits.
same_state() {
  local a b
  a=$(echo "$work/$1"/step-*) b=$(echo "$work/$2"/step-*)
  if [ -f "$a" ] && [ -f "$b" ]; then
    cmp "$a" "$b" || fail "$1 and $2 learn other parameters"
  else
    python3 tests/dist/whole.py "$a" "$b" || fail "$1 and $2 learn other parameters"
  fi
}
# losses NAME [all]: of steps alone, since a run that goes on evaluates more often; all: of evaluations, too.
losses() {
  local event='"step", '
  [ "${2:-}" != all ] || event=
  sed -n 's/.*'"$event"'"loss": \([^,]*\),.*/\1/p' "$work/$1.jsonl"
}
# near NAME NAME COUNT [all]: both runs have that many losses, within $tolerance of each other.
tolerance=1e-5
near() {
  paste <(losses "$1" "${4:-}") <(losses "$2" "${4:-}") |
    awk -v count="$3" -v most="$tolerance" '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) exit 1; n++ } END { exit n != count }' ||
    fail "losses of $1 and $2 differ"
}
