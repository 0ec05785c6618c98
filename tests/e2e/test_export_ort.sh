#!/usr/bin/env bash
# Exported files in ONNX Runtime: the numbers that Kvasir computes for the model itself, up to 1e-5, and the ONNX checker
# accepts the files. An exported decode step gives token by token the text of kvasir generate. The Python for it is $KVASIR_PYTHON, else that of the benchmarks, else python3.
. "$(dirname "$0")/support.sh"

[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: exports run under sanitizers elsewhere; what another program makes of them is the same"; exit 77; }
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

form=() # options of export
# check MODEL "SYMBOL=N ..." OPTIONS...
check() {
  local model=$1 symbols=$2 inputs=()
  shift 2
  rm -rf "$work/in" "$work/results"
  mkdir "$work/in" "$work/results"
  expect 0 export "$model" "$@" "${form[@]}" --seed 3 -o "$work/model.onnx"
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

form=(--opset 27) # shifts as CausalConvWithState
check models/lm.kv "B=2 T=13" -D preset=small -D vocab=60
form=()

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

# Shifts of signed numbers, which ONNX does not have.
cat >"$work/shifts.kv" <<'KV'
model shifts (int32[T] x) => (int32[T] left, int32[T] right) {
  left = kv.bit_shift(kv.sub(x, 25), kv.min(x, 31))
  right = kv.bit_shift <left = false> (kv.sub(x, 25), kv.min(x, 4))
}
KV
check "$work/shifts.kv" "T=60"

# A zero point for all scales, which ONNX does not have.
cat >"$work/middle.kv" <<'KV'
model middle (int32[4, 6] x, float[2, 6] s) => (float[4, 6] y) {
  y = kv.dequantize <axis = 0, block = 2> (kv.cast <to = uint8> (x), s, kv.cast <to = uint8> (8))
}
KV
check "$work/middle.kv" ""

# Opset 21 does not sort bfloat16.
cat >"$work/largest.kv" <<'KV'
model largest (float[T] x) => (int64[3] y) { y = kv.top_k <count = 3> (kv.cast <to = bfloat16> (x)) }
KV
check "$work/largest.kv" "T=20"

# Remainders of large numbers with the sign of the divisor, which ONNX does not have of floats.
cat >"$work/remainders.kv" <<'KV'
model remainders (float[T] x) => (float[T] up, float[T] down) {
  up = kv.mod(kv.mul(x, 1.0e6), 3.1)
  down = kv.mod(kv.mul(x, 1.0e6), -3.1)
}
KV
check "$work/remainders.kv" "T=60"

# Decoding: a prompt in two chunks, then token by token, with what was an output as the next input.
cat >"$work/decode.py" <<'PY'
"""decode.py MODEL PROMPT TOKENS: the bytes that the model finds most probable after the prompt."""
import sys
import numpy as np
import onnx
import onnxruntime

onnx.checker.check_model(onnx.load(sys.argv[1]), full_check=True)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 3
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
sizes = {"B": 1, "T": 0, "capacity": 100}
types = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}
state = {x.name: np.zeros([sizes.get(d, d) for d in x.shape], types[x.type]) for x in session.get_inputs()}
names = [x.name for x in session.get_outputs()]

def step(tokens):
    state["tokens"] = np.array([tokens], np.int32)
    results = dict(zip(names, session.run(None, state)))
    state["position"] += len(tokens)
    state.update({name[len("next_"):]: value for name, value in results.items() if name.startswith("next_")})
    return int(results["logits"][0, -1].argmax())

prompt, text = list(sys.argv[2].encode()), []
step(prompt[:3])
token = step(prompt[3:])
for _ in range(int(sys.argv[3])):
    text.append(token)
    token = step([token])
print((sys.argv[2].encode() + bytes(text)).decode())
PY
. "$(dirname "$0")/sentence.sh"
if "$python" -c 'import onnx' 2>/dev/null; then
  for separator in -1 46; do
    for opset in 24 27; do
      trained=("${size[@]}" -D separator=$separator --weights "$weights")
      expect 0 export models/lm.kv "${trained[@]}" --decode --opset $opset -o "$work/decode.onnx"
      "$python" "$work/decode.py" "$work/decode.onnx" 'the cat ' 40 >"$work/found" || fail "decode: does not run"
      expect 0 generate models/lm.kv "${trained[@]}" --prompt 'the cat ' --tokens 40
      cmp -s "$work/out" "$work/found" || fail "decode, separator $separator, opset $opset: $(cat "$work/found")"
    done
  done
else
  echo "not checked: decoding, no onnx package"
fi

# ONNX models read, written and read by others: the checker takes them, and ONNX Runtime computes what it computed before.
cat >"$work/again.py" <<'PY'
"""again.py FOLDER: writes the models. again.py FOLDER NAME: compares NAME.onnx and NAME-again.onnx."""
import sys
import numpy as np
import onnx
import onnx.parser
import onnxruntime

models = {
    "loop": """(int64 M, float[2] x) => (float[?, 2] y) {
        y = Loop (M, "") <body = b (int64 i, bool c) => (bool d, float[2] r) { d = Identity (c) n = Cast <to = 1> (i) r = Mul (x, n) }>
    }""",
    "integers": "(uint8[2, 3] x, uint8[3, 2] w, uint8 p, uint8 q) => (int32[2, 2] y) { y = MatMulInteger (x, w, p, q) }",
    # ONNX Runtime does not reshape a zero point of 4 bits.
    "narrow": """(float[4] x) => (float[4] y) <float[1] s = {0.5}, float[1] three = {3}> {
        z = Cast <to = 22> (three) q = Cast <to = 22> (x) y = DequantizeLinear (q, s, z)
    }""",
    "centre": "(float[N] x) => (float[1] y) <int64[1] s = {1}> { y = CenterCropPad (x, s) }",
    # The shape inference of opset 21 counts the window that would begin in the padding.
    "windows": """(float[1, 1, 7, 5] x) => (float[1, 1, M, N] y, float[1, 1, M, N] z) {
        y = AveragePool <ceil_mode = 1, kernel_shape = [2, 3], pads = [1, 0, 1, 1], strides = [2, 2]> (x)
        z = MaxPool <ceil_mode = 1, kernel_shape = [2, 3], pads = [1, 0, 1, 1], strides = [2, 2]> (x)
    }""",
    "counted": """(float[1, 1, 8, 2] x) => (float[1, 1, M, N] y) {
        y = AveragePool <ceil_mode = 1, count_include_pad = 1, kernel_shape = [3, 1], pads = [2, 0, 2, 0], strides = [2, 2]> (x)
    }""",
    # Pads as large as a kernel, which would end with the last window, are refused by ONNX Runtime.
    "dilated": """(float[1, 1, 8, 2] x) => (float[1, 1, M, N] y) {
        y = MaxPool <ceil_mode = 1, kernel_shape = [3, 1], dilations = [2, 1], pads = [2, 0, 2, 0], strides = [2, 2]> (x)
    }""",
    # Sizes that a run computes.
    "kept": "(float[N] x) => (int64[1, M] y) <float four = {4}> { c = Greater (x, four) y = NonZero (c) }",
    "asked": "(float x, int64[2] shape) => (float[A, B] y) { y = Expand (x, shape) }",
    "emptied": """(float[2, 0] x, int64[2] shape) => (float[A, B] y) <int64[2] most = {3, 0}> {
        s = Min (shape, most) y = Reshape <allowzero = 1> (x, s)
    }""",
}

def run(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}
    feeds = {}
    for x in session.get_inputs():
        shape = [5 if isinstance(d, str) else d for d in x.shape]
        feeds[x.name] = np.arange(3, 3 + np.prod(shape), dtype=types[x.type]).reshape(shape)
    return session.run(None, feeds)

folder = sys.argv[1]
if len(sys.argv) == 2:
    for name, text in models.items():
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {name} {text}')
        onnx.helper.set_model_props(model, {"classes": f"of {name}", "empty": ""})
        onnx.save(model, f"{folder}/{name}.onnx")
        print(name)
    sys.exit()
path = f"{folder}/{sys.argv[2]}"
again = onnx.load(f"{path}-again.onnx")
onnx.checker.check_model(again, full_check=sys.argv[2] != "dilated") # its shape inference counts a window too many
assert {p.key: p.value for p in again.metadata_props} == {"classes": f"of {sys.argv[2]}", "empty": ""}, again.metadata_props
for a, b in zip(run(f"{path}.onnx"), run(f"{path}-again.onnx"), strict=True):
    assert a.dtype == b.dtype and np.array_equal(a, b), (a, b)
PY
if "$python" -c 'import onnx' 2>/dev/null; then
  for name in $("$python" "$work/again.py" "$work"); do
    expect 0 export "$work/$name.onnx" -o "$work/$name-again.onnx"
    "$python" "$work/again.py" "$work" "$name" || fail "$name: not the same again"
  done
fi
