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

# Training: recorded runs, library products and generated ones.
size=(-D d=16 -D heads=2 -D ffn=32 -D vocab=64 -D pool=24 -D length=32 -D lr=1e-2)
train() { # train NAME ARGUMENTS...
  expect 0 train models/induction.kv "${size[@]}" --batch 4 --steps 5 --eval-every 4 --eval-batches 1 \
    --metrics "$work/$1.jsonl" "${@:2}"
}
compare() { # compare NAME NAME
  python3 - "$work/$1.jsonl" "$work/$2.jsonl" <<'PY' || fail "the devices' curves differ: $*"
import json, sys
a, b = ([json.loads(line) for line in open(path)] for path in sys.argv[1:3])
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

# Inference, and a model that brings its own files.
expect 0 run models/lm.kv -D vocab=33 -D d=64 -D heads=4 -D ffn=48 -D kv_heads=2 -D layers=1 --pin B=2 --pin T=9 \
  --device cuda --repeat 3
says "logits: float[2, 9, 33]"
KVASIR_CUBLASLT_LIBRARY=/nowhere/lt.so expect 0 run models/mlp.kv --pin B=1 --pin T=4 --device cuda
says "matrix products are generated"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --device cuda --target sm_11
says "sm_90a"
