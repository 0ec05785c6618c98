#!/usr/bin/env bash
# Whole programs on the simulated GPU: training and inference agree with the CPU; findings, missing devices and kernels
# without code are told.
. "$(dirname "$0")/support.sh"

# compare TOLERANCE FILE FILE: losses and metrics of two runs, step by step, and that something was learnt.
compare() {
  python3 - "$@" <<'PY' || fail "the devices' curves differ: $*"
import json, sys
tolerance = float(sys.argv[1])
a, b = ([json.loads(line) for line in open(path)] for path in sys.argv[2:4])
assert len(a) == len(b) >= 8, (len(a), len(b))
for x, y in zip(a, b):
    assert x["event"] == y["event"] and x["step"] == y["step"], (x, y)
    assert abs(x["loss"] - y["loss"]) <= tolerance, (x, y)
    assert abs(x["metrics"]["accuracy"] - y["metrics"]["accuracy"]) <= 0.02, (x, y)
assert len({x["loss"] for x in b}) > 5, b
PY
}

# Training, with evaluations; both architectures; findings would fail the run.
size=(-D d=16 -D heads=2 -D ffn=32 -D vocab=64 -D pool=24 -D length=32 -D lr=1e-2)
train() { # train NAME ARGUMENTS...
  expect 0 train models/induction.kv "${size[@]}" --batch 4 --steps 8 --eval-every 4 --eval-batches 2 \
    --metrics "$work/$1.jsonl" "${@:2}"
}
train cpu --device cpu
train ptxsim --device ptxsim
says "step 8/8"
compare 1e-3 "$work/cpu.jsonl" "$work/ptxsim.jsonl"
train sm_90a --device ptxsim --target sm_90a --threads 1
compare 1e-3 "$work/cpu.jsonl" "$work/sm_90a.jsonl"
train library --device ptxsim --gemm library
compare 1e-3 "$work/cpu.jsonl" "$work/library.jsonl"
grep '^train .*K current' "$work/out" >"$work/shifts" || fail "no shift scalars"

# Inference: parameters, constants, inputs with and without a symbol.
values() { # values FILE FILE: the same numbers, nearly
  python3 - "$@" <<'PY' || fail "the devices' outputs differ: $*"
import struct, sys
def read(path):
    data = open(path, "rb").read()
    start = 10 + struct.unpack_from("<H", data, 8)[0]
    return data[:start], struct.unpack("<%df" % ((len(data) - start) // 4), data[start:])
(ha, a), (hb, b) = map(read, sys.argv[1:])
assert ha == hb and len(a) > 100 and max(a) - min(a) > 0.1
assert all(abs(x - y) <= 1e-4 * max(1, abs(x)) for x, y in zip(a, b))
PY
}
for device in cpu ptxsim; do
  mkdir "$work/$device"
  expect 0 run models/lm.kv -D vocab=33 -D d=64 -D heads=4 -D ffn=48 -D kv_heads=2 -D layers=1 --pin B=2 --pin T=9 \
    --device "$device" -o "$work/$device"
  says "logits: float[2, 9, 33]"
done
values "$work/cpu/logits.npy" "$work/ptxsim/logits.npy"
expect 0 run tests/data/shift_concat.onnx -i tests/data/shift_concat_x.npy --device ptxsim -o "$work/ptxsim"
output=$(sed -n 's/^\([^:]*\): .*/\1/p' "$work/out" | head -1)
values tests/data/shift_concat_y.npy "$work/ptxsim/$output.npy"

# What cannot be: a device that is missing or unknown, code for another device, an architecture that is not there.
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --device abacus
says "there are: cpu, ptxsim, cuda"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --gemm library
says "the CPU's code is always generated"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --device ptxsim --gemm guessed
says "expected library or generated"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --target sm_80
says "which device cpu cannot run"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --device ptxsim --target sm_11
says "sm_90a"

# Kernels without code: all of them, by name.
cat >"$work/wide.kv" <<'KV'
model wide (double[8] x) => (double[8] y, double[4, 2] z) {
  y = kv.mod <fmod = true> (x, x + 2)
  z = kv.reshape <shape = [4, 2]> (kv.tanh(y + 1))
}
KV
expect 1 run "$work/wide.kv" --device ptxsim
says "rem of double has no code for sm_80"
expect 0 run "$work/wide.kv"
