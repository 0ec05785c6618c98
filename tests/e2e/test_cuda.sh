#!/usr/bin/env bash
# The tool with device cuda: without a driver it says what is missing; with the stand-in for the driver
# (tests/fake_cuda) training, inference and conformance agree with the CPU.
. "$(dirname "$0")/support.sh"
: "${KVASIR_FAKE_CUDA:?the stand-in for the driver}"

# No driver, no GPU.
export KVASIR_CUDA_LIBRARY=/nowhere/libcuda.so.1
expect 3 run models/mlp.kv --pin B=1 --pin T=4 --device cuda
says "install the driver"
says "device ptxsim runs the same code"
expect 3 train models/induction.kv --device cuda
expect 3 conform tests/data --device cuda
expect 0 doctor
says "/nowhere/libcuda.so.1"
export KVASIR_CUDA_LIBRARY=$KVASIR_FAKE_CUDA KVASIR_CUBLASLT_LIBRARY=$KVASIR_FAKE_CUDA
FAKE_CUDA_DEVICES=0 expect 3 run models/mlp.kv --pin B=1 --pin T=4 --device cuda
says "finds no NVIDIA GPU"
FAKE_CUDA_CAPABILITY=75 expect 3 run models/mlp.kv --pin B=1 --pin T=4 --device cuda
says "compute capability 7.5"

# What the machine offers.
expect 0 doctor
says "Simulated GPU 0"
says "sm_90a"
"$KVASIR" doctor --json >"$work/doctor.json"
python3 - "$work/doctor.json" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
assert d["cuda"]["driver"] == "12.4" and d["cuda"]["ptx"] == "8.4", d
assert d["cuda"]["devices"][0]["target"] == "sm_90a" and d["cuda"]["devices"][0]["memory"] == 1 << 30, d
assert d["cublaslt"]["version"] == 120401, d
PY

# cuBLASLt of an activated Python environment; without cuBLASLt in it, as if there were none.
site=$work/env/lib/python3.13/site-packages/nvidia/cu13/lib
mkdir -p "$site"
ln -s "$KVASIR_FAKE_CUDA" "$site/libcublasLt.so.13"
KVASIR_CUBLASLT_LIBRARY="" VIRTUAL_ENV=$work/env expect 0 doctor
says "$site/libcublasLt.so.13"
KVASIR_CACHE=off KVASIR_CUBLASLT_LIBRARY="" VIRTUAL_ENV=$work expect 0 doctor # no other line has that folder
grep -qF "$work" "$work/out" && fail "cuBLASLt of nowhere"

# nvJitLink of that environment, which test_jit_linker.sh uses.
touch "$site/libnvJitLink.so.13"
VIRTUAL_ENV=$work/env expect 0 doctor
says "nvJitLink    $site/libnvJitLink.so.13"
VIRTUAL_ENV=$work/env expect 0 doctor --json
says "\"nvjitlink\": {\"path\": \"$site/libnvJitLink.so.13\"}"

# The GPU's memory is the limit; what is free of it now is worth a warning. The weights take 2.4 MiB.
wide=(models/mlp.kv -D d=1 -D layers=2 -D hidden=800 -D vocab=2 --pin B=1 --pin T=1 --device cuda)
export FAKE_CUDA_MEMORY=4
FAKE_CUDA_FREE=2 expect 0 run "${wide[@]}"
says "bytes, the memory of the GPU, of which 2097152 are free now"
FAKE_CUDA_FREE=3 expect 0 run "${wide[@]}"
grep -q "are free now" "$work/out" && fail "3 MiB are enough"
FAKE_CUDA_MEMORY=2 expect 3 run "${wide[@]}"
says "program 'main' does not fit 2097152 bytes, the memory of the GPU: parameters"
says "float[800, 800] dense.1.w (2560000 bytes)"
unset FAKE_CUDA_MEMORY

# Local memory is a warning; the compiler's messages go to a file.
FAKE_CUDA_LOCAL_BYTES=64 KVASIR_CUDA_LOG=$work/log expect 0 run models/mlp.kv --pin B=1 --pin T=4 --device cuda
grep -q "local memory" "$work/out" && fail "64 bytes of local memory pass"
grep -q '^PTX for sm_90a, [1-9][0-9]* bytes' "$work/log" || fail "no log of the driver's compiler"
FAKE_CUDA_LOCAL_BYTES=72 expect 0 run models/mlp.kv --pin B=1 --pin T=4 --device cuda
says "keep values in local memory, which is slow; the most, 72 bytes a thread"

# Without clusters, blocks that share a row are those of a cooperative launch, as many as run at once.
echo 'f (float[6, 86016] x) => (float[6, 86016] y) { y = kv.softmax <axis = -1> (x) }' >"$work/long.kv"
long=(run "$work/long.kv" --target sm_80 --device)
export FAKE_CUDA_CAPABILITY=80
mkdir "$work/simulated" "$work/few" "$work/many"
expect 0 "${long[@]}" ptxsim -o "$work/simulated"
FAKE_CUDA_OCCUPANCY=1 expect 0 "${long[@]}" cuda -o "$work/few" # 4 of 12 parts
FAKE_CUDA_OCCUPANCY=3 expect 0 "${long[@]}" cuda -o "$work/many"
for place in few many; do
  cmp "$work/$place/y.npy" "$work/simulated/y.npy" || fail "other bits with $place blocks"
done
FAKE_CUDA_OCCUPANCY=0 expect 1 "${long[@]}" cuda
says "2 blocks share a row and run at once; this GPU has room for 0"
FAKE_CUDA_COOPERATIVE=0 expect 1 "${long[@]}" cuda
says "its driver has no cooperative launches"
unset FAKE_CUDA_CAPABILITY

# Training: recorded runs, library products and generated ones.
size=(-D d=16 -D heads=2 -D ffn=32 -D vocab=64 -D pool=24 -D length=32 -D lr=1e-2)
train() { # train NAME ARGUMENTS...
  expect 0 train models/induction.kv "${size[@]}" --batch 4 --steps 5 --eval-every 4 --eval-batches 1 \
    --metrics "$work/$1.jsonl" "${@:2}"
}
compare() { # compare NAME NAME
  python3 - "$work/$1.jsonl" "$work/$2.jsonl" <<'PY' || fail "the devices' curves differ: $*"
import json, sys
a, b = ([json.loads(line) for line in open(path) if '"loss"' in line] for path in sys.argv[1:3])
assert len(a) == len(b) >= 5, (len(a), len(b))
for x, y in zip(a, b):
    assert x["step"] == y["step"] and abs(x["loss"] - y["loss"]) <= 1e-3, (x, y)
PY
}
train cpu
train cuda --device cuda
compare cpu cuda
KVASIR_CUDA_GRAPHS=off train generated --device cuda --gemm generated --target sm_80
compare cpu generated

# Language models: caches stay on the device, and texts and losses are the CPU's.
lm=(models/lm.kv -D vocab=257 -D d=32 -D heads=2 -D ffn=48)
texts=(generate "${lm[@]}" --prompt "a text" --n 2 --tokens 8 --temperature 0.8)
expect 0 "${texts[@]}"
cp "$work/out" "$work/texts"
expect 0 "${texts[@]}" --device cuda
cmp "$work/out" "$work/texts" || fail "other texts on device cuda"
head -c 150 README.md >"$work/text.txt"
loss() { # loss ARGUMENTS...
  expect 0 eval "${lm[@]}" --data "$work/text.txt" --json "$@"
  grep -o '"loss": [0-9.]\{6\}' "$work/out"
}
on_cpu=$(loss) && on_gpu=$(loss --device cuda) && [ "$on_cpu" = "$on_gpu" ] || fail "another loss on device cuda"

# An executable with code for several GPUs takes what suits this one, and machine code before PTX.
if command -v cc >/dev/null; then
  printf '%s\n' '#!/bin/sh' 'for a; do case $a in *.ptx) in=$a ;; esac; last=$a; done' \
    '{ printf "\177ELF"; cat "$in"; printf "\0"; } >"$last"' >"$work/ptxas"
  printf '%s\n' '#!/bin/sh' 'for a; do last=$a; done' 'printf "\177ELF of a newer toolkit" >"$last"' >"$work/newer"
  chmod +x "$work/ptxas" "$work/newer"
  mkdir "$work/cpu" "$work/gpu"
  mlp=(models/mlp.kv -D vocab=32)
  expect 0 run "${mlp[@]}" --pin B=2 --pin T=5 -o "$work/cpu"
  KVASIR_PTXAS=$work/ptxas expect 0 build "${mlp[@]}" --cubin --target sm_80,sm_90a --exe -o "$work/cubin"
  KVASIR_PTXAS=$work/newer expect 0 build "${mlp[@]}" --cubin --target sm_80,sm_90a --exe -o "$work/refused"
  expect 0 build "${mlp[@]}" --target sm_80,sm_90a --exe -o "$work/ptx"
  expect 0 build "${mlp[@]}" --target sm_80,sm_90a --exe -o "$work/apart" --weights "$work/apart.safetensors"
  # The stand-in may be built with a sanitizer, which executables are not (and leaks are not found there).
  sanitizer=$(ldd "$KVASIR_FAKE_CUDA" | awk '/libasan/ { print $3 }')
  ran() { # ran PROGRAM CAPABILITY WHAT_IS_LOADED...
    FAKE_CUDA_CAPABILITY=$2 FAKE_CUDA_SHOW_MODULES=1 LD_PRELOAD=$sanitizer ASAN_OPTIONS=detect_leaks=0 "$work/$1" --pin B=2 --pin T=5 -o "$work/gpu" \
      >"$work/out" 2>&1 || fail "$1 on capability $2"
    [ "$(grep '^fake driver' "$work/out" | cut -d: -f2 | tr -d '\n')" = "${*:3}" ] || fail "$1 on capability $2 loads other code"
    python3 - "$work/cpu/logits.npy" "$work/gpu/logits.npy" <<'PY' || fail "$1 gives other numbers"
import array, sys
a, b = (array.array("f", open(path, "rb").read()[128:]) for path in sys.argv[1:3])
assert len(a) == len(b) == 320 and max(abs(x - y) for x, y in zip(a, b)) < 2e-5
PY
  }
  ran cubin 90 " machine code for sm_90a"
  ran cubin 80 " machine code for sm_80"
  ran cubin 89 " machine code for sm_80"
  ran cubin 100 " PTX for sm_80"
  ran refused 90 " machine code for no architecture PTX for sm_90a"
  ran ptx 90 " PTX for sm_90a"
  ran ptx 86 " PTX for sm_80"
  ran apart 90 " PTX for sm_90a"
  ran apart 80 " PTX for sm_80"

  expect 0 build models/mlp.kv -D vocab=32 --train --target sm_80,sm_90a --pin B=4 --pin T=16 --exe -o "$work/trainer"
  few=(--batch 4 --steps 3 --eval-every 0 --data ngram:pairs=40,length=16)
  LD_PRELOAD=$sanitizer ASAN_OPTIONS=detect_leaks=0 "$work/trainer" "${few[@]}" --metrics "$work/there.jsonl" >"$work/out" 2>&1 || fail "a trainer on the GPU"
  expect 0 train models/mlp.kv -D vocab=32 "${few[@]}" --metrics "$work/here.jsonl"
  python3 - "$work/here.jsonl" "$work/there.jsonl" <<'PY' || fail "a trainer on the GPU learns something else"
import json, sys
a, b = ([json.loads(line)["loss"] for line in open(path)] for path in sys.argv[1:3])
assert len(a) == len(b) == 3 and all(abs(x - y) < 1e-4 for x, y in zip(a, b)), (a, b)
PY
fi

# Inference, and a model that brings its own files.
expect 0 run models/lm.kv -D vocab=33 -D d=64 -D heads=4 -D ffn=48 -D kv_heads=2 -D layers=1 --pin B=2 --pin T=9 \
  --device cuda --repeat 3
says "logits: float[2, 9, 33]"
KVASIR_CUBLASLT_LIBRARY=/nowhere/lt.so expect 0 run models/mlp.kv --pin B=1 --pin T=4 --device cuda
says "matrix products are generated"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --device cuda --target sm_11
says "sm_90a"
