"""Random ONNX nodes in Kvasir and in ONNX Runtime.

    KVASIR_LIBRARY=build/release/libkvasir.so PYTHONPATH=tools/python python3 tests/onnx/random_nodes.py --count 2000

Modules random_nodes_*.py beside this one draw nodes: attributes, shapes, types and operands at random, within what the
standard allows. A node is the whole model; its operands are inputs or constants, its extents numbers or symbols. Nodes
run in a forked process, as a runtime may crash. Verdicts: agrees, differs, refused (by Kvasir alone), crash (Kvasir's),
not compared (ONNX Runtime does not run it). Exit code 1: one differs or crashes. --keep FOLDER writes such models and
their operands. `--only Conv --seed 17 --count 1 --print` shows one.
"""
import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import signal
import sys
import warnings
import zlib

import numpy
import onnx
import onnx.helper
import onnx.numpy_helper

NUMBER = r"[-+]?\d+(\.\d+)?(e[-+]\d+)?|\b(inf|nan)\b"  # in a reason: what one node has, not its class
GENERATORS = {}  # name -> function(Draw) -> Node


@dataclasses.dataclass
class Node:
    """op_type(operands), None for one left out. constants: which operands are initializers, else drawn."""

    op: str
    operands: list
    attributes: dict = dataclasses.field(default_factory=dict)
    opset: int = 23
    domain: str = ""
    outputs: int = 1
    wants: list = None  # which outputs have names; None: all
    constants: dict = dataclasses.field(default_factory=dict)  # operand -> whether it is an initializer
    symbolic: bool = True  # whether its extents may be symbols
    dims: dict = None  # operand -> names of its symbols, None for a number; without it every symbol is another
    defined: object = None  # function(output, array): the array without what the standard leaves open
    units: float = 64  # how many units of the last place of its largest element a float result may be off
    each: bool = False  # whether they are units of every element instead
    steps: int = 0  # how much an integer result may be off
    expected: list = None  # results by NumPy, where no peer runs it


def generator(*names):
    """Registers a function that draws nodes; the names are for --only."""
    def register(function):
        for name in names:
            GENERATORS[name] = function
        return function
    return register


class Draw:
    """Draws from one seed. `name`: under which a generator was registered, so that one serves many operators."""

    def __init__(self, seed, name):
        self.random = numpy.random.default_rng(seed)
        self.name = name

    def int(self, low, high):
        """Both ends included."""
        return int(self.random.integers(low, high, endpoint=True))

    def pick(self, *values):
        return values[self.int(0, len(values) - 1)]

    def chance(self, p=0.5):
        return bool(self.random.random() < p)

    def shape(self, low_rank=1, high_rank=4, low=1, high=6):
        return [self.int(low, high) for _ in range(self.int(low_rank, high_rank))]

    def floats(self, shape, low=-3, high=3, dtype="float32"):
        return self.random.uniform(low, high, shape).astype(dtype)

    def ints(self, shape, low, high, dtype="int64"):
        return self.random.integers(low, high, shape, endpoint=True).astype(dtype)

    def tensor(self, shape, dtype, low=-3, high=3):
        """Of any element type of numpy."""
        kind = numpy.dtype(dtype).kind
        if kind == "b":
            return self.random.integers(0, 1, shape, endpoint=True).astype(bool)
        if kind in "iu":
            return self.ints(shape, 0 if kind == "u" else int(low), int(high), dtype)
        return self.floats(shape, low, high, dtype)

    def broadcast(self, shape):
        """A shape that broadcasts to this one."""
        shape = [1 if self.chance(0.25) else n for n in shape]
        return shape[self.int(0, len(shape)):] if self.chance(0.3) else shape


def model_of(node, draw):
    """(model, feeds)"""
    feeds, inputs, constants, names = {}, [], [], []
    symbols = node.symbolic and draw.chance(0.4)
    for i, value in enumerate(node.operands):
        if value is None:
            names.append("")
            continue
        names.append(f"i{i}")
        constant = node.constants.get(i)
        if constant is None:
            constant = draw.chance(0.3) and not (node.dims and i in node.dims)
        if constant:
            constants.append(onnx.numpy_helper.from_array(value, names[-1]))
            continue
        feeds[names[-1]] = value
        # 1 stays a number: what broadcasts is decided at compile time
        own = node.dims.get(i) if node.dims else [n != 1 and f"i{i}_{d}" for d, n in enumerate(value.shape)]
        dims = [symbols and name or n for name, n in zip(own or [None] * value.ndim, value.shape)]
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        inputs.append(onnx.helper.make_tensor_value_info(names[-1], kind, dims))
    wants = node.wants or [True] * node.outputs
    results = [f"o{i}" if w else "" for i, w in enumerate(wants)]
    made = onnx.helper.make_node(node.op, names, results, "n", domain=node.domain, **node.attributes)
    outputs = [onnx.ValueInfoProto(name=name) for name in results if name]
    graph = onnx.helper.make_graph([made], "g", inputs, outputs, constants)
    opsets = [onnx.helper.make_opsetid("", node.opset if not node.domain else 23)]
    if node.domain:
        opsets.append(onnx.helper.make_opsetid(node.domain, node.opset))
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model, feeds


def is_near(a, b, node):
    a, b = numpy.asarray(a), numpy.asarray(b)
    if a.dtype != b.dtype:
        return f"type {a.dtype}, expected {b.dtype}"
    if a.shape != b.shape:
        return f"shape {list(a.shape)}, expected {list(b.shape)}"
    if a.dtype.kind in "OUSb":
        return "" if numpy.array_equal(a, b) else "elements"
    if a.dtype.kind in "iu":
        off = int(numpy.abs(a.astype("O") - b.astype("O")).max(initial=0)) if a.size else 0
        return "" if off <= node.steps else f"integers off by {off}"
    x, y = a.astype("f8"), b.astype("f8")
    finite = numpy.isfinite(x) & numpy.isfinite(y)
    if not numpy.array_equal(x[~finite], y[~finite], equal_nan=True):
        return "infinities or NaNs"
    x, y = x[finite], y[finite]
    unit = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}.get(a.dtype.name, 2.0**-7)
    size = numpy.abs(y) if node.each else numpy.maximum(1, numpy.abs(y).max(initial=0))
    least = {"float16": 2.0**-24, "float32": 2.0**-126, "float64": 2.0**-1022}.get(a.dtype.name, 2.0**-126)
    wrong = numpy.abs(x - y) > numpy.maximum(node.units * unit * size, least if node.units else 0)
    if not wrong.any():
        return ""
    i = numpy.flatnonzero(wrong)[0]
    return f"{x[i]:.8g}, expected {y[i]:.8g}"


def reason(error):
    """The first line."""
    return str(error).strip().splitlines()[0][:200]


def reference(model, feeds):
    """Results of the evaluator that ONNX comes with, or None."""
    import onnx.reference
    try:
        return onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # it raises what its Python happens to
        return None


def judge(node, model, feeds, before=lambda: None):
    """(verdict, reason); before() is called when the peer has run."""
    import onnxruntime
    import kvasir
    data = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    expected = refusal = None
    try:
        peer = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        expected = peer.run(None, feeds)
    except Exception as error:  # whatever keeps ONNX Runtime from running it
        refusal = reason(error)
    before()
    try:
        found = kvasir.InferenceSession(data).run(None, feeds)
    except kvasir.Error as error:
        return ("both refuse", refusal) if expected is None else ("refused", reason(error))
    against = ""
    if expected is None and node.expected is not None:
        expected, against = node.expected, " (against NumPy)"
    if expected is None:
        expected, against = reference(model, feeds), " (against onnx.reference)"
    if expected is None:
        return "not compared", refusal
    numbers = [i for i in range(node.outputs) if not node.wants or node.wants[i]]
    for i, a, b in zip(numbers, found, expected):
        if isinstance(b, list) or b is None:
            continue
        if node.defined:
            a, b = node.defined(i, a), node.defined(i, b)
        wrong = is_near(a, b, node)
        if wrong:
            return "differs", f"output {i}: {wrong}{against}"
    return "agrees", ""


def draw_node(name, seed):
    draw = Draw([seed, zlib.crc32(name.encode())], name)
    node = GENERATORS[name](draw)
    model, feeds = model_of(node, draw)
    return node, model, feeds


def work(judge, cases, pipe, limit):
    """In the forked process: a line before Kvasir runs a node, and one with the verdict."""
    def say(*line):
        os.write(pipe, (json.dumps(line) + "\n").encode())

    for name, seed in cases:
        signal.alarm(limit)
        try:
            verdict = judge(*draw_node(name, seed), before=lambda: say(name, seed))
        except Exception as error:
            verdict = "generator", f"{type(error).__name__}: {error}"[:200]
        say(name, seed, *verdict)


def isolated(judge, cases, limit=120):
    """Verdicts of the cases; a crash or a hang costs the node alone."""
    cases = list(cases)
    while cases:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            work(judge, cases, writing, limit)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            lines = [json.loads(line) for line in pipe]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done = [tuple(line) for line in lines if len(line) == 4]
        yield from done
        if status:
            name, seed = cases[len(done)]
            ours = lines and lines[-1] == [name, seed]
            yield name, seed, *(("crash", f"exit code {status}") if ours else ("not compared", "ONNX Runtime crashes"))
            done.append(None)
        elif len(done) < len(cases):
            raise RuntimeError("a worker ended early")
        cases = cases[len(done):]


def show(name, seed):
    _, model, feeds = draw_node(name, seed)
    import onnx.printer
    print(onnx.printer.to_text(model))
    for key, value in feeds.items():
        print(key, value.dtype, list(value.shape), value.reshape(-1)[:40].tolist())


def keep(folder, name, seed):
    _, model, feeds = draw_node(name, seed)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / f"{name}-{seed}.onnx")
    numpy.savez(folder / f"{name}-{seed}.npz", **feeds)


def load_generators():
    import importlib
    here = pathlib.Path(__file__).parent
    sys.modules["random_nodes"] = sys.modules[__name__]
    sys.path.insert(0, str(here))
    for path in sorted(here.glob("random_nodes_*.py")):
        importlib.import_module(path.stem)


def main(judge, text):
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="nodes of each generator")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="regular expression of names of generators")
    parser.add_argument("--keep", help="folder for models that differ")
    parser.add_argument("--print", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    load_generators()
    names = [n for n in GENERATORS if not arguments.only or any(re.fullmatch(o, n) for o in arguments.only)]
    if arguments.print:
        for name in names:
            show(name, arguments.seed)
    totals = collections.Counter()
    for name in names:
        cases = [(name, arguments.seed + i) for i in range(arguments.count)]
        verdicts, reasons, examples = collections.Counter(), collections.defaultdict(list), {}
        for _, seed, verdict, why in isolated(judge, cases):
            verdicts[verdict] += 1
            if verdict != "agrees":
                kind = verdict, re.sub(NUMBER, "#", why)
                reasons[kind].append(seed)
                examples.setdefault(kind, why)
            if verdict in ("differs", "crash") and arguments.keep:
                keep(arguments.keep, name, seed)
        print(f"{name}: " + ", ".join(f"{n} {v}" for v, n in sorted(verdicts.items())), flush=True)
        for (verdict, why), seeds in sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1]))):
            some = ", ".join(map(str, seeds[:4]))
            print(f"    {verdict}: {examples[verdict, why]}  [{len(seeds)}: {some}]", flush=True)
        totals += verdicts
    print("all: " + ", ".join(f"{n} {v}" for v, n in sorted(totals.items())))
    return bool(totals["differs"] or totals["crash"] or totals["generator"])


if __name__ == "__main__":
    sys.exit(main(judge, __doc__))
