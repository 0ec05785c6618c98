#!/usr/bin/env bash
# Control flow and sizes that depend on data, as a user runs them: on the CPU, on the simulated GPU, on device cuda with
# the stand-in for its driver, and from an executable. Roots by Newton's method and the places of those below 1;
# branches of different shapes; rows of a loop that data ends; Compress and Unique of what came out.
. "$(dirname "$0")/support.sh"
: "${KVASIR_FAKE_CUDA:?the stand-in for the driver}"
export KVASIR_CUDA_LIBRARY=$KVASIR_FAKE_CUDA KVASIR_CUBLASLT_LIBRARY=$KVASIR_FAKE_CUDA

cat >"$work/roots.kv" <<'KV'
model roots (float[N] a, float tolerance) => (float[N] x, int64[1, K] small) {
  x = Loop <body = newton (int64 i, bool going, float[N] v) => (bool more, float[N] next) {
    next = 0.5 * (v + a / v)
    more = tolerance < ReduceMax <keepdims = 0> (Abs(next - v))
  }> (50, true, a)
  small = NonZero(x < 1)
}
KV
cat >"$work/shapes.kv" <<'KV'
model shapes (float[N] a, int64 n) => (float[M] y, float[S, N] rows, float[K] large, float[U] values, int64[U] counts) {
  y = If <then_branch = some () => (float[2] t) {
      t = Slice(a, [0], [2])
    }, else_branch = twice () => (float[D] e) {
      e = Concat <axis = 0> (a, a)
    }> (n < 3)
  last, rows = Loop <body = halve (int64 i, bool going, float[N] v) => (bool more, float[N] next, float[N] row) {
    next = v / 2
    row = Identity(v)
    more = ReduceSum <keepdims = 0> (next) > 20
  }> (n, true, a)
  large = Compress(y, y > 5)
  values, first, inverse, counts = Unique(Floor(rows / 10))
}
KV
python3 - "$work" <<'PY' || fail "inputs"
import struct, sys
open(sys.argv[1] + "/a", "wb").write(struct.pack("<4f", 0.25, 4, 9, 0.04))
open(sys.argv[1] + "/b", "wb").write(struct.pack("<4f", 16, 4, 9, 25))
open(sys.argv[1] + "/tolerance", "wb").write(struct.pack("<f", 1e-6))
open(sys.argv[1] + "/two", "wb").write(struct.pack("<q", 2))
open(sys.argv[1] + "/many", "wb").write(struct.pack("<q", 100))
PY

check() {
  says "[0.5, 2, 3, 0.2]"
  says "small: int64[1, 2]"
  says "[0, 3]"
}
for device in cpu ptxsim cuda; do
  expect 0 run "$work/roots.kv" --pin N=4 -i a="$work/a" -i tolerance="$work/tolerance" --device $device
  check
  expect 0 run "$work/roots.kv" --pin N=4 -i a="$work/b" -i tolerance="$work/tolerance" --device $device
  says "[4, 2, 3, 5]"
  says "small: int64[1, 0]" # nothing is left: a size of 0
  expect 0 run "$work/shapes.kv" --pin N=4 -i a="$work/b" -i n="$work/two" --device $device
  says "y: float[2]"
  says "[16, 4]"
  says "rows: float[2, 4]"
  says "large: float[1]"
  says "counts: int64[3]" # 16 4 9 25 8 2 4.5 12.5 in tens
  says "[5, 2, 1]"
  expect 0 run "$work/shapes.kv" --pin N=4 -i a="$work/b" -i n="$work/many" --device $device
  says "y: float[8]"
  says "rows: float[2, 4]" # 54, 27, 13.5
  says "large: float[6]"
done

expect 0 build "$work/roots.kv" --exe -o "$work/roots"
"$work/roots" --pin N=4 -i a="$work/a" -i tolerance="$work/tolerance" >"$work/out" 2>&1 || fail "the executable"
check
