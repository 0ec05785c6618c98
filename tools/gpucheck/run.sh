#!/bin/sh
# ./run.sh [-o DIR] [A|B|C|D]... [OPTIONS OF kva_gpu_check]: checks and times Kvasir's GPU code on this machine. Needs a
# driver and a C library, nothing else; more is used where it is there: cuBLASLt, compute-sanitizer (A), ncu (C), python3
# with torch (D). Without letters all phases run, one after the other; each ends within 8 minutes, and what it had no
# time for is done when it is started again with the same DIR (kvasir-gpu-results).
#
#   A  the machine and its ceilings; values of all kernels, operators, a training run
#   B  times of kernels
#   C  training steps of 1.5B, by kernel, a loss curve, counters
#   D  what PyTorch and its libraries take
here=$(cd "$(dirname "$0")" && pwd)
out=kvasir-gpu-results phases= code=0
while [ $# -gt 0 ]; do
  case $1 in
  -o) out=$2 && shift ;;
  A | B | C | D) phases="$phases $1" ;;
  *) break ;;
  esac
  shift
done
mkdir -p "$out" || exit 2
export KVASIR_CUDA_LOG="$out/compiler.txt"
# cuBLASLt may come with the Python that has torch.
[ -n "${VIRTUAL_ENV:-}" ] || VIRTUAL_ENV=$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)
export VIRTUAL_ENV

# check PHASE SECONDS OPTIONS...: the exit code of the worst one stays.
check() {
  phase=$1 seconds=$2
  shift 2
  "$here/kva_gpu_check" "$here/cases.bin" -o "$out" --phase "$phase" --budget "$seconds" "$@"
  result=$?
  [ $result -le $code ] || code=$result
}

# The kernels that a tool looks at are run in one process, their names as arguments of kva_gpu_check.
direct() { KVASIR_CUDA_GRAPHS=off "$@" 2>&1; }
has() { command -v "$1" >/dev/null 2>&1; }

environment() {
  [ ! -s "$out/environment.txt" ] || return 0
  {
    date -u
    uname -srm
    nvidia-smi
    nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,ECC
    for tool in compute-sanitizer ncu python3; do command -v $tool || echo "no $tool"; done
    ls -d /usr/local/cuda* 2>/dev/null
  } >"$out/environment.txt" 2>&1
}

sanitize() {
  [ ! -s "$out/sanitizer.txt" ] || return 0
  has compute-sanitizer || { echo "no compute-sanitizer" >"$out/sanitizer.txt" && return 0; }
  for tool in memcheck racecheck; do
    echo "== $tool"
    direct timeout 60 compute-sanitizer --tool $tool --print-limit 20 "$here/kva_gpu_check" "$here/cases.bin" --direct \
      --phase A --no-times --only "product NN bfloat16 -> bfloat16" --only "product TN bfloat16 -> float" \
      --only "product with one b" --only "attention causal 257, heads of 128" \
      --only "attention gradients causal 257, heads of 64" --only "attention documents 257" --only "shift rope" \
      --only "rms norm gradients" --only "softmax 4096" --only "swiglu"
  done >"$out/sanitizer.txt"
}

counters() {
  [ ! -s "$out/ncu.txt" ] || return 0
  has ncu || { echo "no ncu" >"$out/ncu.txt" && return 0; }
  for name in "gemm 8192" "gemm TN" "attention causal 4096" "attention gradients causal 4096" "shift rope" \
    "rms norm gradients" "softmax 8192 x 8192" "swiglu"; do
    echo "== $name"
    direct timeout 25 ncu --launch-skip 2 --launch-count 2 --section SpeedOfLight --section ComputeWorkloadAnalysis \
      --section MemoryWorkloadAnalysis --section SchedulerStats --section WarpStateStats --section Occupancy \
      --section LaunchStats "$here/kva_gpu_check" "$here/cases.bin" --direct --only "$name" --phase B
  done >"$out/ncu.txt"
}

peers() {
  has python3 && python3 -c 'import torch' 2>/dev/null || { echo "no python3 with torch" >>"$out/peers.jsonl" && return 0; }
  timeout 470 python3 "$here/peer.py" "$out/peers.jsonl" "$out/report.md"
}

for phase in ${phases:-A B C D}; do
  case $phase in
  A)
    environment
    check A 300 "$@"
    [ $code -gt 1 ] || case " $* " in *" --no-times "*) ;; *) sanitize ;; esac
    ;;
  B) check B 440 "$@" ;;
  C)
    check C 250 "$@"
    [ $code -gt 1 ] || case " $* " in *" --no-times "*) ;; *) counters ;; esac
    ;;
  D) peers ;;
  esac
done
exit $code
