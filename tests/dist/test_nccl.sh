#!/usr/bin/env bash
# Exchange in the memory of GPUs, by stand-ins for the driver and for NCCL (tests/fake_cuda): every collective to the
# bit, training with the bits of exchange through the host, and what happens where NCCL is missing or refuses.
. tests/e2e/support.sh
. tests/dist/mpi.sh
: "${KVASIR_COMM:?the program of comm.c}" "${KVASIR_FAKE_CUDA:?the stand-in for the driver}"
export KVASIR_CUDA_LIBRARY=$KVASIR_FAKE_CUDA KVASIR_CUBLASLT_LIBRARY=$KVASIR_FAKE_CUDA KVASIR_NCCL_LIBRARY=$KVASIR_FAKE_CUDA
export FAKE_CUDA_CAPABILITY=80 FAKE_CUDA_DEVICES=4 KVASIR_CUDA_TUNE=0

fair() { ! grep "fake_cuda:" "$work/out" || fail "$1: the stand-in complains"; }

for n in 1 2 3; do
  ranks "$n" "$KVASIR_COMM" "$n" device || fail "$n processes: exit code $?"
  says "$n processes"
  fair "$n processes"
done
launcher=${launchers[-1]} ranks 2 "$KVASIR_COMM" 2 device || fail "${launchers[-1]}: exit code $?"

mlp=(models/mlp.kv -D d=16 -D hidden=32 -D vocab=64 --data ngram:length=12 --device cuda --threads 1 --steps 2 --eval-every 2
  --eval-batches 2 --batch 4 --profile)
# same_bits PROCESSES AXES OPTIONS...: by NCCL and through the host.
same_bits() {
  rm -rf "$work/host" "$work/nccl"
  KVASIR_NCCL_LIBRARY=off mesh host "$1" "$2" "${@:3}"
  local sent
  sent=$(sed -n 's/.*bytes sent in a step: //p' "$work/out")
  mesh nccl "$1" "$2" "${@:3}"
  ! grep "through the memory of the host" "$work/out" || fail "$2: NCCL does not start"
  says "bytes sent in a step: $sent"
  says "exchange: "
  fair "$2"
  same host nccl
}
same_bits 2 data=2 "${mlp[@]}" --gemm generated
same_bits 2 data=2,zero=3 "${mlp[@]}" --gemm library --precision bf16
same_bits 2 sequence=2 "${mlp[@]}" --gemm library
[ -n "${KVASIR_SANITIZED:-}" ] || same_bits 4 data=2,tensor=2,zero=1 "${mlp[@]}" --gemm library

# Two ranks on one GPU: NCCL refuses, and so does a library that is none; the host exchanges then.
for cause in "ncclCommInitRank: invalid usage" "has no function nccl"; do
  rm -rf "$work/refused"
  if [[ $cause = ncclComm* ]]; then export FAKE_CUDA_DEVICES=1; else export KVASIR_NCCL_LIBRARY=libm.so.6; fi
  mesh refused 2 sequence=2 "${mlp[@]}" --gemm library
  says "through the memory of the host"
  says "$cause"
  [ "$(grep -c "through the memory" "$work/out")" -eq 1 ] || fail "more than one process says so"
  rm -rf "$work/host"
  KVASIR_NCCL_LIBRARY=off mesh host 2 sequence=2 "${mlp[@]}" --gemm library
  same host refused
done

KVASIR_NCCL_LIBRARY=$KVASIR_FAKE_CUDA expect 0 doctor
says "NCCL         21803, $KVASIR_FAKE_CUDA"
KVASIR_NCCL_LIBRARY=off expect 0 doctor
says "NCCL         none"
