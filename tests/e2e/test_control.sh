#!/usr/bin/env bash
# A loop that data ends and a size that depends on data, as a user runs them: on the CPU, on the simulated GPU, and from
# an executable; roots by Newton's method, and the places of those below 1.
. "$(dirname "$0")/support.sh"

cat >"$work/roots.kv" <<'KV'
model roots (float[N] a, float tolerance) => (float[N] x, int64[1, K] small) {
  x = Loop <body = newton (int64 i, bool going, float[N] v) => (bool more, float[N] next) {
    next = 0.5 * (v + a / v)
    more = tolerance < ReduceMax <keepdims = 0> (Abs(next - v))
  }> (50, true, a)
  small = NonZero(x < 1)
}
KV
python3 - "$work" <<'PY' || fail "inputs"
import struct, sys
open(sys.argv[1] + "/a", "wb").write(struct.pack("<4f", 0.25, 4, 9, 0.04))
open(sys.argv[1] + "/b", "wb").write(struct.pack("<4f", 16, 4, 9, 25))
open(sys.argv[1] + "/tolerance", "wb").write(struct.pack("<f", 1e-6))
PY

check() {
  says "[0.5, 2, 3, 0.2]"
  says "small: int64[1, 2]"
  says "[0, 3]"
}
for device in cpu ptxsim; do
  expect 0 run "$work/roots.kv" --pin N=4 -i a="$work/a" -i tolerance="$work/tolerance" --device $device
  check
  expect 0 run "$work/roots.kv" --pin N=4 -i a="$work/b" -i tolerance="$work/tolerance" --device $device
  says "[4, 2, 3, 5]"
  says "small: int64[1, 0]" # nothing is left: a size of 0
done

expect 0 build "$work/roots.kv" --exe -o "$work/roots"
"$work/roots" --pin N=4 -i a="$work/a" -i tolerance="$work/tolerance" >"$work/out" 2>&1 || fail "the executable"
check
