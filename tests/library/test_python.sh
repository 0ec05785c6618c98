#!/usr/bin/env bash
# The Python package on the library of this build: models, memory, training, ONNX Runtime's interface (compared with
# ONNX Runtime itself where that is installed), threads.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/python.sh"

cat >"$work/line.kv" <<'KV'
model line (float[B, 3] x) => (float[B, 2] y) {
  param float[3, 2] w ~ normal(1)
  param float[2] b ~ zeros
  y = x @ w + b
}
KV
expect 0 export "$work/line.kv" -o "$work/line.onnx"
expect 0 export "$work/line.kv" --pin B=1 -o "$work/one.onnx"
run_python tests/library/package.py "$work/one.onnx" "$work/line.onnx" "$work" >"$work/out" 2>&1 || fail "package.py"
grep -q '^1[0-9] tests$' "$work/out" || fail "not all tests ran"
