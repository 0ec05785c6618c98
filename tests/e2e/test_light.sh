#!/usr/bin/env bash
# The nine light models of the ONNX test suite: all supported, and compiled they give the recorded outputs.
. "$(dirname "$0")/support.sh"

. "$(dirname "$0")/suite.sh"

for model in "$suite"/light/light_*.onnx; do
  expect 0 check "$model"
  says "everything is supported"
done
expect 0 conform "$suite/light"
says "9 passed, 0 failed, 0 skipped"
