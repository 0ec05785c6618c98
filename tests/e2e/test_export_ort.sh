#!/usr/bin/env bash
# Exported files in ONNX Runtime: the numbers that Kvasir computes for the model itself, up to 1e-5, and the ONNX checker
# accepts the files. The Python for it is $KVASIR_PYTHON, else that of the benchmarks, else python3.
. "$(dirname "$0")/support.sh"

python=
for candidate in ${KVASIR_PYTHON:-build/bench-venv/bin/python python3}; do
  if "$candidate" -c 'import numpy, onnxruntime' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "SKIP: no Python with numpy and onnxruntime (set KVASIR_PYTHON to one)"
  exit 77
fi

cat >"$work/ort.py" <<'PY'
"""ort.py inputs MODEL FOLDER NAME=VALUE...: writes a .npy file for every input, its symbols as given.
ort.py compare MODEL FOLDER RESULTS: runs the model on them and compares with the .npy files in RESULTS."""
import sys
import numpy as np
import onnxruntime

model, folder = sys.argv[2:4]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
if sys.argv[1] == "inputs":
    sizes = {name: int(value) for name, value in (a.split("=") for a in sys.argv[4:])}
    random = np.random.default_rng(1)
    for x in session.get_inputs():
        shape = [sizes[d] if isinstance(d, str) else d for d in x.shape]
        if x.type == "tensor(float)":
            values = random.standard_normal(shape).astype(np.float32)
        elif x.type == "tensor(bool)":
            values = random.random(shape) < 0.7
        else:
            values = random.integers(0, 50, shape).astype({"tensor(int32)": np.int32, "tensor(int64)": np.int64}[x.type])
        np.save(f"{folder}/{x.name}.npy", values)
    sys.exit()
try:
    import onnx
    onnx.checker.check_model(onnx.load(model), full_check=True)
except ImportError:
    print("not checked: no onnx package")
results = session.run(None, {x.name: np.load(f"{folder}/{x.name}.npy") for x in session.get_inputs()})
for output, found in zip(session.get_outputs(), results):
    expected = np.load(f"{sys.argv[4]}/{output.name}.npy")
    assert found.shape == expected.shape and found.dtype == expected.dtype, (output.name, found.shape, expected.shape)
    assert np.isfinite(expected).all(), output.name
    worst = np.abs(found.astype(np.float64) - expected).max()
    assert worst <= 1e-5, f"{output.name}: difference {worst}"
PY

# check MODEL "SYMBOL=N ..." OPTIONS...
check() {
  local model=$1 symbols=$2 inputs=()
  shift 2
  rm -rf "$work/in" "$work/results"
  mkdir "$work/in" "$work/results"
  expect 0 export "$model" "$@" --seed 3 -o "$work/model.onnx"
  # shellcheck disable=SC2086
  "$python" "$work/ort.py" inputs "$work/model.onnx" "$work/in" $symbols || fail "$model $*: does not load"
  for file in "$work"/in/*.npy; do inputs+=(-i "$(basename "$file" .npy)=$file"); done
  expect 0 run "$model" "$@" --seed 3 "${inputs[@]}" -o "$work/results"
  "$python" "$work/ort.py" compare "$work/model.onnx" "$work/in" "$work/results" || fail "$model $*"
}

check models/lm.kv "B=2 T=13" -D preset=small -D vocab=500
check models/lm.kv "B=1 T=9" -D d=64 -D ffn=96 -D vocab=61 -D kv_heads=2
check models/induction.kv "B=2 T=13" -D gate=gate -D window=3 -D shift_q=true
check models/lm.kv "B=2 T=29" -D preset=small -D vocab=60 -D separator=7 -D window=3
check models/mlp.kv "B=2 T=7"

# Operators that become functions, with operands left out and attributes that are expressions; functions of one name that
# differ.
cat >"$work/functions.kv" <<'KV'
model functions (
    float[B, 4, T, 8] q, float[B, 2, S, 8] k, float[4] slopes, bool[T, S] mask, int64[B, 4, T] targets
) => (float[B, 4, T, 8] y, float[B, 4, T, 8] z, float[B, 4, T] loss, float[B, 4, T, 8] n) {
  y = kv.attention <causal = true, softcap = 5.0, scale = 0.1, offset = S - T> (q, k, k, , slopes)
  z, lse = kv.attention <window = 3> (q, k, k, mask)
  loss, sum = kv.cross_entropy <ignore_index = 3> (q, kv.min(targets, 7))
  n = kv.rms_norm <axis = 2, eps = 0.3> (kv.layer_norm(kv.silu(q), kv.reduce_sum <axes = [0, 1, 2]> (q)), q)
}
KV
check "$work/functions.kv" "B=2 T=5 S=9"
