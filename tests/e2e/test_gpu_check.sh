#!/usr/bin/env bash
# The archive of tools/gpu-check: it is built, unpacks anywhere and needs nothing but a C library. On the stand-in for a
# driver everything agrees; a kernel that hangs, one that faults and a wrong value each cost one case, and are named; a
# run goes on behind what an earlier one has done. Here it holds a few of its cases.
. "$(dirname "$0")/support.sh"
: "${KVASIR_FAKE_CUDA:?the stand-in for the driver}"

printf '%s\n' '#!/bin/sh' 'for a; do case $a in *.ptx) in=$a ;; esac; last=$a; done' \
  '{ printf "\177ELF"; cat "$in"; printf "\0"; } >"$last"' >"$work/ptxas" # machine code of the stand-in
chmod +x "$work/ptxas"
# Sanitizers see the checker with fewer products; the kernels are the same.
product=(--only "product with one a")
[ -z "${KVASIR_SANITIZED:-}" ] || product=()
only=(--only kv.kv_shift_grads --only "gemm bias relu" --only swiglu "${product[@]}" --only induction
  --only "attention causal 70, heads of 64" --only "library gemm 4096" --only "tiny model" --only "launch of")
XZ_OPT=-0 KVASIR_PTXAS=$work/ptxas KVASIR_BUILD=$(cd "$(dirname "$KVASIR")" && pwd) \
  tools/gpu-check "${only[@]}" -o "$work/check.tar.xz" >"$work/out" 2>&1 || fail "no archive"
says "machine code: $work/ptxas"
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
  (cd "$work" && env -i PATH=/usr/bin:/bin "${fake[@]}" "$there/run.sh" "$@") >"$work/out" 2>&1 || code=$?
  [ "$code" -eq "$expected" ] || fail "run.sh $*: exit code $code, expected $expected"
}
short=(--only kv. --only gemm --only swiglu --only product --only attention) # without training, which takes longest
# agree FOLDER: the names of those that agree, sorted.
agree() { grep -v '"training"' "$work/$1/results.jsonl" | grep '"result": "agrees"' | sed 's/.*"kind"/"kind"/; s/, "result.*//' | sort; }

fake=()
check 3 -o none A --no-times
says "no NVIDIA driver"
if [ -z "${KVASIR_SANITIZED:-}" ]; then # the stand-in for a driver is the same simulator
  check 0 -o simulated A --no-times --device ptxsim --only kv.kv_shift
  grep -q '^operator: [1-9][0-9]* agree, 0 wrong' "$work/out" || fail "no operator was checked"
fi

# Everything agrees, by machine code and by PTX.
fake=("KVASIR_CUDA_LIBRARY=$KVASIR_FAKE_CUDA" "KVASIR_CUBLASLT_LIBRARY=$KVASIR_FAKE_CUDA")
check 0 -o good A --no-times
for name in "attention causal 70, heads of 64" ${product:+"product with one a for the batch"}; do
  says "| shape | $name | sm_90a | ptxas | agrees"
  says "| shape | $name | sm_90a | driver | agrees"
done
says "| kernel | library gemm 4096 | sm_90a | ptxas | agrees"
says "| training | induction | sm_90a | ptxas | agrees"
grep -q '"registers": 32, "threads": [0-9]*, "local": 0' "$work/good/results.jsonl" || fail "no facts of kernels"
grep -q 'machine code for sm_90a' "$work/good/compiler.txt" || fail "no log of the compiler"
grep -q '"refused"' "$work/good/results.jsonl" && fail "the driver took PTX for machine code"

# Faults: every other case is there, the three are named, and the run ends.
fake+=("FAKE_CUDA_INJECT=hang=gemm bias relu 4096, sm_90a, cubin;fault=attention causal 70, heads of 64, sm_90a, cubin;wrong=swiglu 16384 x 4096, sm_90a, ptx")
check 1 -o bad A --no-times --limit 10 "${short[@]}"
for line in "HANGS: kernel, gemm bias relu 4096, sm_90a, ptxas: no result after 10 s" \
  "FAILED: shape, attention causal 70, heads of 64, sm_90a, ptxas: " "WRONG: kernel, swiglu 16384 x 4096, sm_90a, driver"; do
  says "$line"
  grep -qF -- "$line" "$work/bad/report.md" || fail "the report does not say: $line"
done
says "ILLEGAL_ADDRESS"
agree good | grep -vE '"sm_90a", "code": "cubin", "name": "(gemm bias relu 4096|attention causal 70, heads of 64)"|"sm_90a", "code": "ptx", "name": "swiglu' >"$work/expected"
agree bad | diff "$work/expected" - >"$work/out" || fail "cases are missing beside the faults"
[ "$(wc -l <"$work/expected")" -gt 15 ] || fail "too few cases"

# A run that was killed: the case that had started counts as dead, and the others follow.
mkdir "$work/resumed"
awk '/"started"/ && ++n == 6 { print; exit } { print }' "$work/good/results.jsonl" >"$work/resumed/results.jsonl"
fake=("${fake[@]:0:2}")
check 1 -o resumed A --no-times "${short[@]}"
says "an earlier run of the checker ended in it"
agree resumed >"$work/list"
[ "$(agree good | wc -l)" -eq "$(($(wc -l <"$work/list") + 1))" ] || fail "not all cases but one were checked"
sed -i 's/"hash": "./"hash": "/' "$work/resumed/results.jsonl"
check 1 -o resumed A --no-times
says "results of another archive"
check 4 -o late A --no-times --budget 0.001
says "run the same command again"
grep -q '"started"' "$work/late/results.jsonl" && fail "a case began without time"

# Other GPUs; times of a kernel and of training steps, with a profile.
fake+=("FAKE_CUDA_CAPABILITY=80")
check 0 -o old A --no-times --only swiglu
says "kernel: 2 agree, 0 wrong, 0 failed, 0 hang, 0 died, 2 for other GPUs"
check 0 -o times A --only "launch of"
grep -Eq '^\| time \| launch of 32 x 64 \| sm_80 \| ptxas \| agrees \| 0 \| - \| [0-9.]+ \| [0-9.]+ TB/s' "$work/out" || fail "no time"
check 0 -o times C --only "a tiny model"
grep -Eq '^\| steps \| step of a tiny model \| sm_80 \| driver \| agrees \| - \| - \| [0-9.]+ \| [0-9.]+ TFLOP/s' "$work/out" || fail "no rate of steps"
python3 - "$work/times/results.jsonl" <<'PY' || fail "the rate is not that of 6 N + 6 L C T operations a token"
import json, sys
steps = [r for r in map(json.loads, open(sys.argv[1])) if "tflops" in r and r["kind"] == "steps"]
n = 4 * 32 * 32 + 3 * 32 * 64 + 96 * 32  # parameters that multiply
assert steps and all(abs(r["tflops"] * r["ms"] * 1e9 / (64 * 6 * (n + 32 * 32)) - 1) < 1e-3 for r in steps), steps
PY
grep -Eq '^\| [a-z_0-9]+ \| .* \| [0-9]+ \| [0-9.]+ \| [0-9.]+ % \|' "$work/times/profiles.md" || fail "no profile"

# A wrong expectation: the first run with library products, which is for sm_80.
python3 - "$there/cases.bin" <<'PY'
import struct, sys
name = b"induction, library products"
data = bytearray(open(sys.argv[1], "rb").read())
at = data.index(name)
length, = struct.unpack_from("<q", data, data.index(struct.pack("<d", 2e-2), at) - 8)  # bytes, before the tolerance
struct.pack_into("<d", data, data.index(struct.pack("<d", 2e-2), at) + 8, 99.0)
assert length == 10 * 8, length
open(sys.argv[1], "wb").write(data)
PY
check 1 -o wrong A --no-times --only induction
says "| training | induction | sm_80 | ptxas | agrees"
says "| training | induction, library products | sm_80 | ptxas | WRONG"
