# Sourced after support.sh by scripts that need the light models of the ONNX test suite: their folder's parent in $suite,
# or the test is skipped.
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
