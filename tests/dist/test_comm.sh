#!/usr/bin/env bash
# Collectives in 1 to 8 processes, and under the second MPI of this machine, whose handles differ, in 2 and 3; and what
# happens when a process leaves the others.
. tests/e2e/support.sh
. tests/dist/mpi.sh
: "${KVASIR_COMM:?the program of comm.c}"

counts=(1 2 3 5 8)
[ -z "${KVASIR_SANITIZED:-}" ] || counts=(1 2 5) # each process has a shadow of its own
for launcher in "${launchers[@]}"; do
  for n in "${counts[@]}"; do
    ranks "$n" "$KVASIR_COMM" "$n" || fail "$launcher: $n processes: exit code $?"
    says "$n processes"
  done
  counts=(2 3)
  for mode in leave fail; do
    attempts=1
    [[ $launcher != *openmpi ]] || attempts=3 # it says itself that what ranks wrote may be lost when one aborts
    for ((attempt = 1; attempt <= attempts; attempt++)); do
      code=0
      ranks 3 "$KVASIR_COMM" 3 $mode || code=$?
      [ "$code" -ne 0 ] || fail "$launcher: a process that does '$mode' goes unnoticed"
      ! grep -q "process 2 of 3" "$work/out" || break
      echo "$launcher, $mode: attempt $attempt ends with code $code and without the rank's message"
    done
    says "process 2 of 3"
    says "the other processes"
  done
done

# A process that cannot join ends the others, which wait for it. This library is Open MPI's, but for one function.
library=$(ldconfig -p | sed -n 's/.*libmpi.so.40 .*=> //p' | head -1)
if [ -z "${KVASIR_SANITIZED:-}" ] && [[ " ${launchers[*]} " == *openmpi* ]] && [ -n "$library" ] && command -v cc >/dev/null; then
  launcher=mpirun.openmpi
  cat >"$work/mpi.c" <<'END'
int PMPI_Comm_size(void *comm, int *size);
int PMPI_Comm_rank(void *comm, int *rank);
int MPI_Comm_size(void *comm, int *size);
int MPI_Comm_size(void *comm, int *size) {
  int rank = 0;
  (void)PMPI_Comm_rank(comm, &rank);
  return rank ? 1 : PMPI_Comm_size(comm, size);
}
END
  cc -shared -fPIC -o "$work/libmpi.so" "$work/mpi.c" "$library"
  code=0
  KVASIR_MPI_LIBRARY=$work/libmpi.so ranks 2 "$KVASIR_COMM" 2 leave || code=$?
  [ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a process that cannot join: exit code $code"
  says "MPI_Comm_size failed"
  says "ends the other processes"
fi

# Without a launcher a process is alone; without a library the message says what to install.
"$KVASIR_COMM" 1 >"$work/out" 2>&1 || fail "alone: exit code $?"
code=0
KVASIR_MPI_LIBRARY=/absent/libmpi.so "$KVASIR_COMM" 1 >"$work/out" 2>&1 || code=$?
[ "$code" -eq 3 ] || fail "no MPI: exit code $code"
says "install Open MPI or MPICH"
code=0
KVASIR_MPI_LIBRARY=libm.so.6 "$KVASIR_COMM" 1 >"$work/out" 2>&1 || code=$?
[ "$code" -eq 3 ] || fail "a library that is no MPI: exit code $code"
says "has no function MPI_"
