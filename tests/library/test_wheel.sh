#!/usr/bin/env bash
# The wheel: installs in a new virtual environment and runs, trains and infers there, without this tree and without LLVM;
# building it again gives the same bytes.
. "$(dirname "$0")/../e2e/support.sh"
[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: wheels have no sanitizers"; exit 77; }
. "$(dirname "$0")/python.sh"
unset KVASIR_LIBRARY
build=$(dirname "$KVASIR")
if ! (cd "$build" && ninja -t query kvasir_standalone) >/dev/null 2>&1; then
  echo "SKIP: the build has no kvasir_standalone: Ninja and static libraries of LLVM, protobuf-c, zlib and zstd (libzstd-dev)"
  exit 77
fi

mkdir "$work/a" "$work/b"
for folder in a b; do
  tools/python/build-wheel --build "$build" -o "$work/$folder" >"$work/out" 2>&1 || fail "build-wheel"
done
wheel=$(echo "$work"/a/*.whl)
cmp "$wheel" "$work/b/$(basename "$wheel")" || fail "the second wheel differs"
[[ $(basename "$wheel") == kvasir-*-py3-none-manylinux_2_*.whl ]] || fail "the wheel's name: $wheel"
[ "$(stat -c %s "$wheel")" -lt 40000000 ] || fail "the wheel has $(stat -c %s "$wheel") bytes"

"$python" -m venv "$work/venv" >"$work/out" 2>&1 || fail "venv"
"$work/venv/bin/pip" --disable-pip-version-check install --no-index --no-deps "$wheel" >"$work/out" 2>&1 || fail "pip"
# NumPy is that of the Python that the test has: there may be no network.
"$python" -c 'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))' \
  >"$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/numpy.pth"
library=$(echo "$work"/venv/lib/python*/site-packages/kvasir/libkvasir.so.0)
ldd "$library" | grep -vE 'linux-vdso|ld-linux|libc\.so|libm\.so' && fail "the wheel's library needs more than libc and libm"

printf 'model line (float[B, 3] x) => (float[B, 2] y) {\n  param float[3, 2] w ~ normal(1)\n  y = x @ w\n}\n' >"$work/line.kv"
expect 0 export "$work/line.kv" -o "$work/line.onnx"
cat >"$work/use.py" <<'PY'
import numpy as np, kvasir
assert "site-packages" in kvasir.__file__ and kvasir.__version__
x = np.ones((4, 3), np.float32)
assert np.array_equal(kvasir.InferenceSession("line.onnx").run(None, {"x": x})[0], kvasir.load("line.onnx")(x))
t = kvasir.train("line.onnx", [(x, np.ones((4, 2), np.float32))], steps=100, rate=0.1, loss="mse")
assert abs(t(x) - 1).max() < 0.1
PY
(cd "$work" && "$work/venv/bin/python" use.py) >"$work/out" 2>&1 || fail "the package in the virtual environment"
