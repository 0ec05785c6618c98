#!/usr/bin/env bash
# The nine light models of the ONNX test suite: all supported, and compiled they give the recorded outputs.
. "$(dirname "$0")/support.sh"

suite=${KVASIR_ONNX_SUITE:-}
archive=../shared/onnx-suite-1.22.0.tar.xz
if [ -z "$suite" ] && [ -f "$archive" ]; then
  tar xJf "$archive" -C "$work" data/light
  suite=$work/data
elif [ -z "$suite" ]; then
  # The onnx wheel of that version carries the same data.
  suite=$(python3 -c 'import onnx, os
if onnx.__version__ == "1.22.0": print(os.path.join(os.path.dirname(onnx.__file__), "backend/test/data"))' 2>/dev/null || true)
fi
if [ ! -d "$suite/light" ]; then
  echo "SKIP: no ONNX suite: set KVASIR_ONNX_SUITE to its folder, or install the Python package onnx 1.22.0"
  exit 77
fi

for model in "$suite"/light/light_*.onnx; do
  expect 0 check "$model"
  says "everything is supported"
done
expect 0 conform "$suite/light"
says "9 passed, 0 failed, 0 skipped"
