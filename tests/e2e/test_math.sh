#!/usr/bin/env bash
# --math relaxed: convolutions by Winograd's transforms agree with the reference, and are none without the option.
. "$(dirname "$0")/support.sh"
cat >"$work/conv.kv" <<'KV'
main (float[B, 32, 18, 23] x) => (float[B, 48, 16, 23] y) {
  i = kv.iota <shape = [9216], dtype = float> ()
  j = kv.iota <shape = [13824], dtype = float> ()
  w = kv.reshape <shape = [32, 32, 3, 3]> (kv.sin(i * 0.7))
  v = kv.reshape <shape = [48, 32, 3, 3]> (kv.sin(j * 1.3))
  a = kv.relu(kv.conv <pads = [1, 1, 1, 1]> (x, w)) + x
  y = kv.sigmoid(kv.conv <pads = [0, 1, 0, 1]> (a, v) * 0.02)
}
KV

expect 0 run "$work/conv.kv" --pin B=3 -o "$work/exact"
# Errors are some 1e-5 of the largest result.
expect 0 diff "$work/conv.kv" --math relaxed --pin B=3 --rtol 2e-5
says ", 0 beyond the tolerance"
python3 - "$work/x.npy" <<'PY'
import struct, sys
header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 32, 18, 23), }".ljust(117) + b"\n"
with open(sys.argv[1], "wb") as f:
    f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    f.write(struct.pack("<26496f", *((i * 37 % 101 - 50) / 25 for i in range(26496))))
PY
expect 0 diff "$work/conv.kv" --math relaxed -i "x=$work/x.npy"
says ", 0 beyond the tolerance"
expect 0 profile "$work/conv.kv" --pin B=3 --repeat 3 --math relaxed
[ "$(grep -c winograd_sums "$work/out")" = 2 ] || fail "not both convolutions are transformed"
expect 0 profile "$work/conv.kv" --pin B=3 --repeat 3 --math exact
! grep -q winograd "$work/out" || fail "--math exact transforms"

# The same bits whatever the threads, and in an executable; others than those of exact sums.
expect 0 run "$work/conv.kv" --pin B=3 --math relaxed --threads 1 -o "$work/one"
expect 0 run "$work/conv.kv" --pin B=3 --math relaxed --threads 3 -o "$work/three"
cmp "$work/one/y.npy" "$work/three/y.npy" || fail "results depend on the threads"
! cmp -s "$work/one/y.npy" "$work/exact/y.npy" || fail "--math relaxed computes as exact does"
expect 0 build "$work/conv.kv" --exe --math relaxed -o "$work/conv"
expect 0 run "$work/conv.kv" --math relaxed -i "x=$work/x.npy" -o "$work/run"
mkdir "$work/exe"
"$work/conv" --input "x=$work/x.npy" -o "$work/exe" >/dev/null
cmp "$work/run/y.npy" "$work/exe/y.npy" || fail "an executable computes otherwise"

expect 2 run "$work/conv.kv" --math fast
says "--math: expected exact, relaxed or int8, found 'fast'"
expect 2 ops --verify --math relaxed
says "--math"
expect 0 ops --help
! grep -qE -- '--(gemm|math)' "$work/out" || fail "ops offers options of models, which it refuses"
