#!/usr/bin/env bash
# A model for another machine: an aarch64 object, linked with a runtime for it, runs under qemu and gives the numbers of
# this machine.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"

need_aarch64
mkdir "$work/runtime" "$work/here" "$work/there"
for_aarch64 "$work/runtime/rt" runtime/*.c runtime/base/*.c runtime/cuda/*.c
for_aarch64 "$work/runtime/main" runtime/exe/*.c
aarch64-linux-gnu-ar rcs "$work/runtime/libkvasir-rt.a" "$work"/runtime/rt-*.o
aarch64-linux-gnu-ar rcs "$work/runtime/libkvasir-main.a" "$work"/runtime/main-*.o

tokens "$work/tokens" 1 20
for model in mlp lm; do
  expect 0 build models/$model.kv --target aarch64-linux-gnu --exe --runtime "$work/runtime" -o "$work/$model"
  file=$(od -An -tu2 -j18 -N2 "$work/$model" | tr -d ' ')
  [ "$file" = 183 ] || fail "$model is not for aarch64"
  on_aarch64 max "$work/$model" -i "$work/tokens.npy" -o "$work/there" --threads 2 >"$work/out" ||
    fail "$model under qemu"
  expect 0 run models/$model.kv -i "$work/tokens.npy" -o "$work/here"
  close "$work/here/logits.npy" "$work/there/logits.npy" 2e-5 || fail "$model: other numbers on aarch64"
done

expect 0 build models/mlp.kv --target neoverse-n1 --exe --runtime "$work/runtime" -o "$work/newer"
on_aarch64 neoverse-n1 "$work/newer" -i "$work/tokens.npy" >"$work/out" || fail "neoverse-n1 under qemu"
on_aarch64 cortex-a72 "$work/newer" -i "$work/tokens.npy" >"$work/out" 2>"$work/err" && fail "an older CPU runs it"
grep -F "which has no dotprod" "$work/err" >/dev/null || fail "no reason for an older CPU"

# An exclusive or of three operands is one instruction on a CPU that has those of SHA-3.
echo 'model parity (int32[8] a, int32[8] b, int32[8] c) => (int32[8] y) { y = kv.bit_xor(kv.bit_xor(a, b), c) }' >"$work/parity.kv"
expect 0 build "$work/parity.kv" --target apple-m1 --exe --runtime "$work/runtime" -o "$work/parity"
on_aarch64 max "$work/parity" >"$work/out" || fail "apple-m1 under qemu"
on_aarch64 neoverse-n1 "$work/parity" >"$work/out" 2>"$work/err" && fail "a CPU without SHA-3 runs it"
grep -F "which has no sha3" "$work/err" >/dev/null || fail "no reason for a CPU without SHA-3"

# Angles of any size: their reduction is code of the model.
cat >"$work/angles.kv" <<'KV'
model angles (float[8] x) => (float[8] s, float[8] c) {
  s = kv.sin (x)
  c = kv.cos (x)
}
KV
python3 -c 'import struct, sys
header = repr({"descr": "<f4", "fortran_order": False, "shape": (8,)}).encode()
header += b" " * (-(len(header) + 11) % 64) + b"\n"
sys.stdout.buffer.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header +
                        struct.pack("<8f", 0.5, -3, 1e15, 1e16, -1e22, 1e30, -3.4e38, 16367173 * 2.0 ** 72))' >"$work/x.npy"
expect 0 build "$work/angles.kv" --target aarch64-linux-gnu --exe --runtime "$work/runtime" -o "$work/angles"
on_aarch64 max "$work/angles" -i "$work/x.npy" -o "$work/there" >"$work/out" || fail "angles under qemu"
expect 0 run "$work/angles.kv" -i "$work/x.npy" -o "$work/here"
for name in s c; do close "$work/here/$name.npy" "$work/there/$name.npy" 2e-7 || fail "angles: other numbers on aarch64"; done
