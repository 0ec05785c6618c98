#!/usr/bin/env bash
# Sourced after tests/e2e/support.sh: launchers of MPI on this machine.
launchers=()
for launcher in mpirun.openmpi mpirun.mpich; do
  command -v "$launcher" >/dev/null && launchers+=("$launcher")
done
[ ${#launchers[@]} -gt 0 ] || { echo "SKIP: neither Open MPI nor MPICH is installed"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none # containers forbid it, at the price of a warning
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # neither library frees what it took
export OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1 # ranks that wait leave the cores to the others

# ranks N COMMAND...: N processes of the command by $launcher; both streams are in $work/out afterwards.
ranks() {
  local n=$1
  shift
  timeout 60 "${launcher:-${launchers[0]}}" -n "$n" "$@" >"$work/out" 2>&1 </dev/null
}
