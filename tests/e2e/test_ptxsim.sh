#!/usr/bin/env bash
# Inference on the simulated GPU agrees with the CPU; devices and targets that are not there are told. Training:
# test_ptxsim_train.sh.
. "$(dirname "$0")/support.sh"

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
expect 2 run models/mlp.kv --pin B=1 --pin T=4 --device abacus
says "expected cpu, cuda or ptxsim"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --gemm library
says "gemm library is for GPUs"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --device ptxsim --gemm bf16x3
says "gemm bf16x3 is for CPUs with AMX"
expect 2 run models/mlp.kv --pin B=1 --pin T=4 --device ptxsim --gemm guessed
says "expected library, generated or bf16x3"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --target sm_80
says "which device cpu cannot run"
expect 1 run models/mlp.kv --pin B=1 --pin T=4 --device ptxsim --target sm_11
says "sm_90a"

# fmod of double, which has no instruction: the same bits.
cat >"$work/wide.kv" <<'KV'
model wide (double[8] x) => (double[8] y, double[4, 2] z) {
  y = kv.mod <fmod = true> (x, x + 2)
  z = kv.reshape <shape = [4, 2]> (kv.mod <fmod = true> (x * 1e30, x + 1))
}
KV
for device in cpu ptxsim; do
  mkdir "$work/wide-$device"
  expect 0 run "$work/wide.kv" --device "$device" -o "$work/wide-$device"
done
for y in y z; do
  cmp "$work/wide-cpu/$y.npy" "$work/wide-ptxsim/$y.npy" || fail "fmod differs: $y"
done
