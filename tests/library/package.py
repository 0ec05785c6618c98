"""The Python package: package.py LINE.onnx BATCHED.onnx FOLDER. Models: y = x @ w + b, of one row, of any number."""

import contextlib
import copy
import os
import pathlib
import pickle
import sys
import threading
import warnings

import numpy as np

import kvasir

one_row, line, folder = sys.argv[1:]
draw = np.random.default_rng(1)
x = draw.random((5, 3), dtype=np.float32)


@contextlib.contextmanager
def fails(kind, *texts):
    try:
        yield
    except kind as error:
        for text in texts:
            assert text in str(error), (text, str(error))
    else:
        raise AssertionError(f"{kind.__name__} with {texts} is missing")


def kv(inputs, outputs, body):
    return f"model m ({inputs}) => ({outputs}) {{ {body} }}\n".encode()


def test_load():
    model = kvasir.load(line)
    assert model.inputs[0].name == "x" and model.inputs[0].type == "tensor(float)", model.inputs
    assert model.inputs[0].shape == ["B", 3] and model.outputs[0].shape == ["B", 2]
    y = model(x)
    assert y.shape == (5, 2) and y.dtype == np.float32
    assert np.array_equal(model(x=x), y) and np.array_equal(model(x.tolist()), y)
    assert np.array_equal(kvasir.load(pathlib.Path(line).read_bytes())(x), y)
    assert np.array_equal(kvasir.load(line, pins={"B": 5}, threads=1, spin=False, cache="off")(x), y)
    assert np.allclose(kvasir.load(line, precision="bf16")(x), y, atol=0.05)
    assert model(x[:0]).shape == (0, 2)
    text = b"model m <twice = false, parts = [1]> (float[B] x) => (float[B] y) {"
    text += b" y = x  if twice { y = y + x }  for i in 0 : 3 { if contains(parts, i) { y = y + 10 } } }"
    for defines, expected in (({"twice": True}, 14), ({"twice": False}, 12), ({"parts": [0, 2]}, 22)):
        assert kvasir.load(text, defines=defines)(np.float32([2])) == expected, defines
    kept = model(x)
    model(x + 1)
    assert np.array_equal(kept, y), "results belong to the caller"
    twin = copy.copy(model)
    del model
    assert np.array_equal(twin(x[:2]), y[:2]), "a copy shares the session"


def test_memory():
    model = kvasir.load(line)
    y = model(x)
    wide = np.zeros((5, 6), np.float32)
    wide[:, ::2] = x
    assert np.array_equal(model(wide[:, ::2]), y)
    assert np.array_equal(model(np.asfortranarray(x)), y)
    assert np.array_equal(model(x.astype(">f4")), y)
    shifted = np.frombuffer(b"-" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    assert np.array_equal(model(shifted), y)
    assert np.array_equal(np.from_dlpack(model(x)), y)


def test_repeated():
    model = kvasir.load(line)
    columns = np.ascontiguousarray(x.T)
    fixed = x.copy()
    fixed.flags.writeable = False
    for value in (x, x, x + 1, x[:2], x[:2], x[:0], x[:0], fixed, fixed, columns.T, columns.T, x.astype(">f4"), x.tolist(), x):
        expected = kvasir.load(line)(np.array(value, np.float32))
        assert np.array_equal(model(value), expected), value
    for values in ([], [x, x]):
        with fails(TypeError, f"{len(values)} inputs"):
            model.run(values)
        assert model(x).shape == (5, 2)
    with fails(kvasir.Error, "must be float"):
        model(x.astype(np.float64))
    assert np.array_equal(model(x), model(x))
    chosen = kvasir.load(kv("float[N] x", "int64[1, K] places", "places = ai.onnx.NonZero(x)"))
    for value, places in (([0, 1, 0], [[1]]), ([1, 1, 0], [[0, 1]]), ([0, 0, 0], [[]]), ([1, 0, 1], [[0, 2]])):
        assert chosen(np.array(value, np.float32)).tolist() == places


class Capsule:
    """A tensor of another library: nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack():
    model = kvasir.load(line)
    assert np.array_equal(model(Capsule(x.copy())), model(x))
    wide = np.zeros((5, 6), np.float32)
    wide[:, ::2] = x
    for strided in np.asfortranarray(x), wide[:, ::2], x[::-1], wide[:0, ::2], wide[:1, ::2]:
        assert np.array_equal(model(Capsule(strided)), model(strided)), strided.strides
    owner = Capsule(np.zeros((1000, 3), np.float32))
    before = sys.getrefcount(owner.array)
    for _ in range(10):
        model(owner)
    assert sys.getrefcount(owner.array) == before, "capsules are given back"


def test_several():
    model = kvasir.load(kv("float[N] a, int32[N] b", "float[N] c, int32[N] d", "c = a + a  d = b * b"))
    c, d = model([1.5, 2], b=np.array([3, -4], np.int32))
    assert c.tolist() == [3, 4] and d.tolist() == [9, 16] and d.dtype == np.int32
    for wrong, text in [(([1.0],), "'b' is missing"), (([1.0], [1], [1]), "3 inputs"), ]:
        with fails(TypeError, text):
            model(*wrong)
    with fails(TypeError, "no input 'e'", "a, b"):
        model([1.0], e=[1])
    with fails(TypeError, "given twice"):
        model([1.0], a=[1.0])
    with fails(TypeError, "according to the rule"):
        model([1.0], [1.5])
    with fails(kvasir.Error, "'b' must be int32["):
        model([1.0], np.array([1]))


def test_numbers():
    """Lists become the input's type if it has their kind and values."""
    for name, low, high in (("int8", -2**7, 2**7 - 1), ("uint8", 0, 2**8 - 1), ("int32", -2**31, 2**31 - 1),
                            ("uint32", 0, 2**32 - 1), ("int64", -2**63, 2**63 - 1), ("uint64", 0, 2**64 - 1)):
        model = kvasir.load(kv(f"{name}[N] a", f"{name}[N] y", "y = ai.onnx.Identity(a)"))
        for value in low, high:
            y = model([value])
            assert y.dtype == name and y.tolist() == [value]
        assert model([]).shape == (0,) and model(range(3)).tolist() == [0, 1, 2]
        for value in low - 1, high + 1:
            if -2**63 <= value < 2**64:
                with fails(TypeError, "'a'", "beyond", name):
                    model([value])
        with fails(TypeError, "'a'", "float64", name):
            model([1.5])


def test_types():
    names = {"bool": "bool", "uint8": "uint8", "int16": "int16", "uint64": "uint64", "float16": "float16", "double": "float64"}
    for onnx, numpy in names.items():
        value = np.array([[0, 1], [1, 0]], numpy)
        y = kvasir.load(kv(f"{onnx}[2, N] a", f"{onnx}[N, 2] y", "y = kv.transpose <perm = [1, 0]> (a)"))(value)
        assert y.dtype == value.dtype and np.array_equal(y, value.T), onnx
    scalar = kvasir.load(kv("float a", "float y", "y = a + a"))(2.5)
    assert scalar.shape == () and scalar == 5
    model = kvasir.load(kv("float[N] a", "bfloat16[N] y", "y = kv.cast <to = bfloat16> (a)"))
    try:
        import ml_dtypes
        assert model([1.0]).dtype == ml_dtypes.bfloat16
    except ImportError:
        with fails(TypeError, "bfloat16", "ml_dtypes"):
            model([1.0])
    with fails(TypeError, "'x'", "no type <U1"):
        kvasir.load(line)(np.array([["a"]]))


def test_shapes_of_data():
    model = kvasir.load(kv("float[N] x", "int64[1, K] places", "places = ai.onnx.NonZero(x)"))
    assert model([0, 1, 0, 2]).tolist() == [[1, 3]]
    assert model([0, 0]).shape == (1, 0)


def test_errors():
    with fails(kvasir.Error, "no/such") as _:
        kvasir.load("no/such.onnx")
    with fails(kvasir.Error, "model:1:", "nothing"):
        kvasir.load(kv("float[2] x", "float[2] y", "y = nothing"))
    with fails(TypeError, "path or bytes, found int"):
        kvasir.load(3)
    with fails(TypeError, "colour"):
        kvasir.load(line, colour="red")
    with fails(kvasir.Error, "abacus"):
        kvasir.load(line, device="abacus")
    with fails(kvasir.Error, "f7"):
        kvasir.load(line, precision="f7")
    for option, value in ("threads", 2**32), ("threads", np.int64(2**40)), ("seed", 2**64), ("seed", -1):
        with fails(ValueError, option, str(value)):
            kvasir.load(line, **{option: value})
    assert kvasir.load(line, threads=np.int8(1), seed=2**64 - 1)
    for options in {"model": "no\0file"}, {"model": line, "cache": "a\0b"}, {"model": line, "pins": {"B\0": 1}}:
        with fails(ValueError, "null character"):
            kvasir.load(**options)
    try:
        kvasir.load(line)(np.zeros((2, 9), np.float32))
    except kvasir.Error as error:
        assert error.status == "invalid"
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kvasir.Error and again.status == "invalid" and str(again) == str(error)
    with fails(kvasir.Error, "index"):
        kvasir.load(kv("float[3] x, int64[1] i", "float[1] y", "y = kv.gather(x, i)"), check_indices=True)([1, 2, 3], [7])


w = np.array([[1, -1], [0.5, 2], [-2, 0.25]], np.float32)


def batch(rows=16):
    x = draw.random((rows, 3), dtype=np.float32)
    return x, x @ w


def test_train():
    seen = []
    t = kvasir.train(one_row, [batch() for _ in range(10)], steps=1000, rate=lambda step: 0.05 if step < 500 else 0.01,
                     loss="mse", progress=lambda step, values: seen.append((step, values["loss"])))
    assert t.steps == 1000 and [s for s, _ in seen] == list(range(1, 1001)) and seen[-1][1] < 1e-3 < seen[0][1]
    assert [p.name for p in t.train_inputs] == ["x", "target"] and t.values[0] == "loss"
    a, b = batch()
    assert t.evaluate({"x": a, "target": b})["loss"] < 1e-3
    assert np.allclose(t(a), b, atol=0.1)
    path = os.path.join(folder, "t.safetensors")
    t.save(path)
    assert np.allclose(kvasir.load(line, weights=path)(a), t(a), atol=1e-6)
    other = kvasir.trainer(one_row, loss="mse")
    assert not np.allclose(other(a), t(a), atol=0.01)
    other.load(path)
    assert np.array_equal(other(a), t(a)) and other.steps == 1000
    assert other.step((a, b), 0.01) == t.step((a, b), 0.01), "moments are saved, too"


def test_schedule():
    """A loaded run goes on in the model's schedule."""
    text = kv("float[B, 3] x", "float[B, 2] y", "param float[3, 2] w ~ normal(1)  y = x @ w")
    text += b"train m (float[B, 2] target) { error = y - target  loss = kv.reduce_mean <keepdims = false> (error * error) "
    text += b"optimizer = SGD <lr = 0.1>  schedule = warmup(20)  steps = 20  batch = 16 }"
    whole, path, data = kvasir.trainer(text), os.path.join(folder, "s.safetensors"), [batch() for _ in range(10)]
    for i, rows in enumerate(data):
        if i == 5:
            whole.save(path)
        whole.step(rows)
    rest = kvasir.trainer(text, seed=1)
    rest.load(path)
    for rows in data[5:]:
        rest.step(rows)
    assert rest.steps == 10 and np.array_equal(rest.parameters()["w"], whole.parameters()["w"])


def test_steps():
    assert kvasir.train(one_row, (batch() for _ in range(7)), loss="mse").steps == 7
    assert kvasir.train(one_row, (batch() for _ in range(7)), steps=5, loss="mse").steps == 5
    assert kvasir.train(one_row, (batch() for _ in range(7)), steps=9, loss="mse").steps == 7
    stream = iter([batch() for _ in range(7)])
    assert kvasir.train(one_row, stream, steps=5, loss="mse").steps == 5 and len(list(stream)) == 2, "no batch is lost"
    assert kvasir.train(one_row, [batch()], steps=9, loss="mse").steps == 9
    assert kvasir.train(one_row, [], steps=9, loss="mse").steps == 0
    assert kvasir.train(one_row, [batch()], steps=9, loss="mse", progress=lambda s, v: s < 3).steps == 3


def test_labels():
    t = kvasir.trainer(line, loss="cross_entropy")
    two = t.evaluate((x[:2], np.array([1, 0])))["loss"]
    assert np.isclose(t.evaluate((x[:3], np.array([1, 0, -1])))["loss"] * 3, two * 2), "-1 adds no loss"
    for label in 2, -2, -100:
        for use in t.evaluate, t.step:
            with fails(kvasir.Error, f"row 1: 'labels' has the value {label}; the model takes 0 to 1 or -1"):
                use((x[:3], np.array([1, label, 0])))
    assert t.steps == 0
    tokens = kvasir.trainer(kv("int32[B, T] tokens", "float[B, T, 4] y", "param float[10, 4] e ~ normal(1)  y = kv.gather(e, tokens)"),
                            loss="mse")
    with fails(kvasir.Error, "row 1: 'tokens' has the value 10"):
        tokens.step(([[1, 2], [3, 10]], np.zeros((2, 2, 4), np.float32)))


def test_training_mode():
    norm = b'''<ir_version: 8, opset_import: ["" : 17]>
        norm (float[N, 2] x) => (float[N, 2] y) <float[2] one = {1.0, 1.0}, float[2] zero = {0.0, 0.0}, float[2] var = {1.0, 1.0}>
        { y = BatchNormalization <training_mode = 1, momentum = 0.5> (x, one, zero, zero, var) }'''
    rows = np.float32([[1, 5], [3, 5]])
    assert np.allclose(kvasir.load(norm)(rows), [[-1, 0], [1, 0]], atol=1e-4)
    assert np.allclose(kvasir.load(norm, inference=True)(rows), rows, atol=1e-4)
    scaled = norm.replace(b"zero, zero, var", b"zero, mean, var").replace(b"float[2] var", b"float[2] mean = {0.0, 0.0}, float[2] var")
    t = kvasir.trainer(scaled, loss="mse")
    assert list(t.parameters()) == ["one", "zero"], t.parameters()
    t.step((rows, np.float32([[-1, 0], [1, 0]])), rate=0.0)
    assert np.allclose(t(rows), (rows - [1, 2.5]) / np.sqrt([1, 0.5]), atol=1e-4), "running statistics follow"


def test_parameters():
    t = kvasir.trainer(one_row, loss="mse", train="b")
    assert list(t.parameters()) == ["b"]
    t.set_parameters({"b": np.array([7, 8], np.float32)})
    assert t.parameters()["b"].tolist() == [7, 8]
    base = t([[0, 0, 0]])
    assert base.tolist() == [[7, 8]]
    with fails(KeyError, "'c'"):
        t.set_parameters({"b": np.zeros(2, np.float32), "c": np.zeros(2, np.float32)})
    for wrong, found in (np.zeros(3, np.float32), "float[3]"), (np.zeros(2), "double[2]"), ([[1, 2]], "float[1, 2]"):
        with fails(ValueError, "'b' is float[2], found " + found):
            t.set_parameters({"b": wrong})
    with fails(TypeError, "parameter 'b'", "<U1"):
        t.set_parameters({"b": ["7", "8"]})
    for value in [5, 6], np.array([5, 6], ">f4"), Capsule(np.array([5, 6, 7, 8], np.float32)[:2]), np.array([7, 8], np.float32):
        t.set_parameters({"b": value})
        assert t.parameters()["b"].tolist() == list(getattr(value, "array", value))
    with fails(kvasir.Error, "learning rate"):
        t.step(batch(), -1.0)
    a, b = batch()
    with fails(kvasir.Error, "not finite"):
        t.step((a, b * np.nan), 0.1)
    assert t.parameters()["b"].tolist() == [7, 8] and t.steps == 0
    with fails(kvasir.Error, "no train block"):
        kvasir.trainer(one_row)
    with fails(kvasir.Error, "matches"):
        kvasir.trainer(one_row, loss="mse", train="zzz")


def use(rt):
    """What programs do with ONNX Runtime."""
    options = rt.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = rt.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = rt.InferenceSession(line, sess_options=options, providers=["CPUExecutionProvider"])
    entries = [(i.name, i.shape, i.type) for i in session.get_inputs() + session.get_outputs()]
    meta = session.get_modelmeta()
    entries += [session.get_providers(), meta.producer_name, meta.graph_name, meta.domain, meta.description, meta.version,
                meta.graph_description, meta.custom_metadata_map]
    results = session.run(None, {"x": x}), session.run(["y"], {"x": x}, rt.RunOptions())
    return entries, results


def test_inference_session():
    entries, results = use(kvasir)
    assert entries[0] == ("x", ["B", 3], "tensor(float)"), entries
    assert all(np.allclose(r[0], kvasir.load(line)(x)) for r in results)
    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is not here: not compared with it")
        return
    theirs, their_results = use(onnxruntime)
    assert theirs == entries, (theirs, entries)
    assert all(np.allclose(a[0], b[0], atol=1e-6) for a, b in zip(results, their_results))
    from onnxruntime.datasets import get_example
    for name in "sigmoid.onnx", "mul_1.onnx":
        mine, theirs = [rt.InferenceSession(get_example(name), providers=["CPUExecutionProvider"]) for rt in (kvasir, onnxruntime)]
        feed = {i.name: draw.random(i.shape, dtype=np.float32) for i in theirs.get_inputs()}
        assert [(i.name, i.shape, i.type) for i in mine.get_inputs()] == [(i.name, i.shape, i.type) for i in theirs.get_inputs()]
        for a, b in zip(mine.run(None, feed), theirs.run(None, feed)):
            assert np.allclose(a, b, atol=1e-6), name


def test_session_refuses():
    session = kvasir.InferenceSession(line)
    with fails(ValueError, "no output 'z'", "y"):
        session.run(["z"], {"x": x})
    with fails(ValueError, "no input 'z'"):
        session.run(None, {"x": x, "z": x})
    with fails(ValueError, "'x' is missing"):
        session.run(None, {})
    with fails(AttributeError, "io_binding"):
        session.io_binding()
    with fails(ValueError, "TPUExecutionProvider"):
        kvasir.InferenceSession(line, providers=["TPUExecutionProvider"])
    with fails(ValueError, "arena"):
        kvasir.InferenceSession(line, providers=[("CPUExecutionProvider", {"arena": 1})])
    with fails(TypeError, "colour"):
        kvasir.InferenceSession(line, colour="red")
    options = kvasir.SessionOptions()
    with fails(AttributeError, "enable_profiling"):
        options.enable_profiling = True
    with fails(ValueError, "session.colour"):
        options.add_session_config_entry("session.colour", "red")
    options.add_free_dimension_override_by_name("B", 5)
    pinned = kvasir.InferenceSession(line, options, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert pinned.get_inputs()[0].shape == [5, 3]
    assert pinned.get_providers() in (["CPUExecutionProvider"], ["CUDAExecutionProvider"])
    assert kvasir.get_available_providers()[-1] == "CPUExecutionProvider"


def test_threads():
    """Four threads with a model and a training run each, and on one model together."""
    many = draw.random((3000, 3), dtype=np.float32)  # long enough for calls to run at the same time
    shared, expected, wrong, losses = kvasir.load(line, threads=1), kvasir.load(line)(many), [], []

    compiled = threading.Barrier(4)

    def work():
        own = kvasir.load(line, threads=1, cache="off")
        tuned = kvasir.trainer(line, loss="mse", threads=1, cache="off")
        compiled.wait()
        for _ in range(50):
            if not (np.array_equal(own(many), expected) and np.array_equal(shared(many), expected)):
                wrong.append(1)
            loss = tuned.step((many, 2 * expected), 0.01)["loss"]
        losses.append(loss)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len(losses) == 4 and len(set(losses)) == 1, losses


def test_global_scope():
    """Functions of libm are found by code that calls them, however the host was linked."""
    y = kvasir.load(kv("double[N] x", "double[N] y", "y = kv.tanh(kv.exp(x))"))([0.5, 1])
    assert np.allclose(y, np.tanh(np.exp([0.5, 1])))


warnings.simplefilter("error")
names = [name for name in dir() if name.startswith("test_")]
for name in names:
    globals()[name]()
print(len(names), "tests")
