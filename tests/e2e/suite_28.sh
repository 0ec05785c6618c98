# Sourced after support.sh by scripts that need the official ONNX suite of the newest opset: its folder (holds node/ and
# simple/) in $suite, or the test is skipped.
suite=${KVASIR_ONNX_SUITE_28:-}
archive=../shared/onnx-suite-1.23.2.tar.xz
if [ -z "$suite" ] && [ -f "$archive" ]; then
  tar xJf "$archive" -C "$work"
  suite=$work/suite123
fi
if [ ! -d "$suite/node" ]; then
  echo "SKIP: no ONNX suite: set KVASIR_ONNX_SUITE_28 to its folder"
  exit 77
fi
