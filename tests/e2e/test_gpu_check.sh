#!/usr/bin/env bash
# The archive of tools/gpu-check: it is built, unpacks anywhere, needs nothing but a C library, agrees with itself on the
# simulator and on the stand-in for a driver, and tells when results are wrong or no GPU is there.
. "$(dirname "$0")/support.sh"
: "${KVASIR_FAKE_CUDA:?the stand-in for the driver}"

XZ_OPT=-0 KVASIR_BUILD=$(cd "$(dirname "$KVASIR")" && pwd) tools/gpu-check -o "$work/check.tar.xz" >"$work/out" 2>&1 || fail "no archive"
says "artefacts"
mkdir "$work/there"
tar -C "$work/there" -xJf "$work/check.tar.xz"
there=$work/there/kvasir-gpu-check
libraries=$(ldd "$there/kva_gpu_check" | grep -vE 'linux-vdso|ld-linux|libc\.so|libm\.so' || true)
case $libraries in
"" | *libasan*) ;; # built with sanitizers it needs theirs
*) fail "the checker needs more than libc: $libraries" ;;
esac

# check CODE ARGUMENTS...: in an empty environment but for what stands before.
check() {
  local expected=$1 code=0
  shift
  (cd "$work" && env -i PATH=/usr/bin:/bin "${fake[@]}" "$there/run.sh" --no-times "$@") >"$work/out" 2>&1 || code=$?
  [ "$code" -eq "$expected" ] || fail "run.sh $*: exit code $code, expected $expected"
}
fake=()
check 0 --device ptxsim --only kv.kv_shift
says "operator: "
grep -q '^operator: [1-9][0-9]* passed, 0 failed' "$work/out" || fail "no operator was checked"
check 3 --only kv.kv_shift
fake=("KVASIR_CUDA_LIBRARY=$KVASIR_FAKE_CUDA" "KVASIR_CUBLASLT_LIBRARY=$KVASIR_FAKE_CUDA")
check 0 --only gemm
grep -q '^| kernel | library gemm 4096 | sm_90a | agrees' "$work/out" || fail "no kernel was checked"
fake+=("FAKE_CUDA_CAPABILITY=80")
check 0 --only "gemm 4096"
says "kernel: 2 passed, 0 failed, 2 for other GPUs"

# Training steps are timed, here on the stand-in: a row with a rate.
fake=("KVASIR_CUDA_LIBRARY=$KVASIR_FAKE_CUDA" "KVASIR_CUBLASLT_LIBRARY=$KVASIR_FAKE_CUDA")
(cd "$work" && env -i PATH=/usr/bin:/bin "${fake[@]}" "$there/kva_gpu_check" "$there/cases.bin" --only "a tiny model") >"$work/out" 2>&1 ||
  fail "steps are not timed"
grep -Eq '^\| step of a tiny model, bf16 \| sm_80 \| [0-9.]+ \| [0-9.]+ TFLOP/s' "$work/out" || fail "no rate of steps"
says "steps: 1 passed, 0 failed"

# A wrong expectation: the last case's curve.
python3 - "$there/cases.bin" <<'PY'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    f.seek(-16, 2)
    f.write(struct.pack("<d", 99.0))
PY
check 1 --only induction
says "| training | induction | sm_80 | agrees"
says "| training | induction, library products | sm_80 | WRONG"
