#!/usr/bin/env bash
# The operators' cases of kvasir ops --verify on aarch64: compiled ahead of time for it, linked to one program for each
# target, run under qemu, and compared with what the reference gives in double, within each operator's tolerance. Every
# operator that has code, in every type; then sums of products of bytes by the instructions of newer CPUs.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"

if [ -n "${KVASIR_SANITIZED:-}" ]; then
  echo "SKIP: what runs on aarch64 is the same code, and has no sanitizers"
  exit 77
fi
need_aarch64

mkdir "$work/objects"
for_aarch64 "$work/objects/checker" tools/gpucheck/{check,worker,record,kernels,oracle,training}.c runtime/*.c \
  runtime/base/*.c runtime/cuda/*.c

# link TARGET OPTIONS OF kva_gpu_pack...: $work/TARGET has the program and its cases; their number is in $cases.
link() {
  local folder=$work/$1
  mkdir "$folder"
  "$(dirname "$KVASIR")/tools/gpucheck/kva_gpu_pack" --cpu "$@" >"$work/out" || fail "cases for $1"
  cases=$(sed -n 's/^\([0-9]*\) cases, .*/\1/p' "$work/out")
  for_aarch64 "$folder/table" "$folder/table.c"
  find "$folder" "$work/objects" -name '*.o' >"$folder/list"
  aarch64-linux-gnu-gcc -o "$folder/check" @"$folder/list" -lm -lpthread -ldl || fail "linking for $1"
}

# run TARGET CPU: the cases for TARGET on the CPU that qemu calls so.
run() { on_aarch64 "$2" "$work/$1/check" "$work/$1/cases.bin" --device cpu --direct >"$work/out" 2>&1; }
# agree TARGET CPU
agree() {
  run "$@" || fail "$1 on $2"
  says "operator: $cases agree, 0 wrong, 0 failed, 0 hang, 0 died"
  echo "$1 on $2: $cases cases agree"
}

# Every third case, and the first of each operator in each type: this part's share of them.
baseline() {
  local part=${KVASIR_PART:-1/1}
  link aarch64-linux-gnu --every 3 --share "$part" "$work/aarch64-linux-gnu"
  [ "$cases" -gt $((2400 / ${part#*/})) ] || fail "only $cases cases"
  agree aarch64-linux-gnu cortex-a72
}

# Products of bytes. Code for a CPU takes instructions that those before it lack.
bytes() {
  local texts=("kv.matmul <to=int32" "kv.conv <to=int32" "; to=int32>")
  ulimit -c 0
  link neoverse-n1 "$work/neoverse-n1" "${texts[@]}"
  [ "$cases" -gt 25 ] || fail "only $cases cases of bytes"
  agree neoverse-n1 neoverse-n1
  (run neoverse-n1 cortex-a72) && fail "code for neoverse-n1 runs on cortex-a72"
  link neoverse-v1 "$work/neoverse-v1" "${texts[@]}"
  agree neoverse-v1 max
  (run neoverse-v1 neoverse-n1) && fail "code for neoverse-v1 runs on neoverse-n1"

  # One expected number is wrong, an extreme sum.
  python3 - "$work/neoverse-v1/cases.bin" <<'PY'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
data[data.index(struct.pack("<q", 2000 * 255 * -128))] ^= 1
open(sys.argv[1], "wb").write(data)
PY
  run neoverse-v1 max && fail "a wrong number is not seen"
  says "operator: $((cases - 1)) agree, 1 wrong, 0 failed"
}

baseline
if in_part 1; then bytes; fi
