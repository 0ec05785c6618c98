#!/usr/bin/env bash
# Sourced by the scripts of this folder: the tool in $KVASIR, a folder $work of the test's own, checks.
set -euo pipefail
: "${KVASIR:?the tool to test}"
work=$(mktemp -d)
# Nothing of the user's is read or written. What runs again is compiled once, by all scripts of one tools/check: an entry
# is found by all of its code.
export KVASIR_CACHE=${KVASIR_TEST_CACHE:-$work/compiled}
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  [ ! -s "$work/out" ] || head -40 "$work/out" >&2
  exit 1
}

# expect CODE ARGUMENTS...: runs the tool; its output (both streams) is in $work/out afterwards.
expect() {
  local expected=$1 code=0
  shift
  "$KVASIR" "$@" >"$work/out" 2>&1 </dev/null || code=$?
  [ "$code" -eq "$expected" ] || fail "kvasir $*: exit code $code, expected $expected"
}

# in_part INDEX: whether this run's share holds it, by $KVASIR_PART, as in tests/support/part.h.
in_part() {
  local part=${KVASIR_PART:-1/1}
  [ $(($1 % ${part#*/} + 1)) -eq "${part%/*}" ]
}

# says TEXT: the last output has it.
says() { grep -qF -- "$1" "$work/out" || fail "the output does not say: $1"; }

# relu_case FOLDER: a case for conform, y = relu(x) of two numbers.
relu_case() {
  mkdir -p "$1/test_data_set_0"
  printf '%s\n' 'model m (float[2] x) => (float[2] y) { y = kv.relu(x) }' >"$work/relu.kv"
  expect 0 export "$work/relu.kv" -o "$1/model.onnx"
  python3 - "$1/test_data_set_0" <<'PY'
import struct, sys
for name, values in (("input_0", (-1, 2)), ("output_0", (0, 2))): # TensorProto: dims, data_type, raw_data
    open(f"{sys.argv[1]}/{name}.pb", "wb").write(b"\x08\x02\x10\x01\x4a\x08" + struct.pack("<2f", *values))
PY
}
