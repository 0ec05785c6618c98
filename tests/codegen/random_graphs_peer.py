"""Random graphs in Kvasir and in ONNX Runtime: python3 tests/codegen/random_graphs_peer.py FOLDER

FOLDER has what test_random_graphs keeps in $KVA_TEST_FILES. Needs pip's numpy, ml_dtypes and onnxruntime, the package of
tools/python and $KVASIR_LIBRARY. Each graph runs in a process of its own, without ONNX Runtime's optimisations. What
that refuses is counted by its reason. Results may be off by what a chain of operators may be, relative to the largest of
the output; beyond that a graph differs, and the exit code is 1.
"""
import collections
import json
import os
import pathlib
import re
import sys
import zlib

import ml_dtypes
import numpy
import onnxruntime

import kvasir

# 16 units of the last place for an operator, four times that for a result, as in tests/support/graph_check.c; 40 operators.
UNITS = 4 * 16 * 40
ELEMENTS = {"float": "f4", "double": "f8", "float16": "f2", "bool": "?"}


def values(port):
    """Floats in (-1, 1), integers of 0 to 2, which may be indices; the same for the same name."""
    random = numpy.random.default_rng(zlib.crc32(port.name.encode()))
    kind = re.fullmatch(r"tensor\((.*)\)", port.type)[1]
    if kind in ("float", "double", "float16"):
        return random.uniform(-1, 1, port.shape).astype(ELEMENTS[kind])
    if kind.startswith(("bfloat", "float8", "float4")):
        raise ValueError(f"inputs of {kind} have no array in numpy")
    return random.integers(0, 2 if kind == "bool" else 3, port.shape).astype(ELEMENTS.get(kind, kind))


def is_near(a, b, unit):
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind not in "fV":
        return numpy.array_equal(a, b)
    x, y = a.astype("f8"), b.astype("f8")
    finite = numpy.isfinite(x) & numpy.isfinite(y)
    if not numpy.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    x, y = x[finite], y[finite]
    bound = UNITS * unit * numpy.abs(y).max(initial=1)
    return bool((numpy.abs(x - y) <= bound).all())


def reason(error):
    """Without names and numbers of one graph: which operator it is, or which exception."""
    text = str(error).splitlines()[0]
    found = re.search(r"implementation for (\w+)|running (\w+) node|(Type Error|Type \S+ of input)|(inputs of \w+)", text)
    return found[0] if found else text[:120]


def run(path):
    """(verdict, reason)."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        peer = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = {port.name: values(port) for port in peer.get_inputs()}
        expected = peer.run(None, inputs)
    except Exception as error:  # whatever keeps ONNX Runtime from running it
        return "not compared", reason(error)
    try:
        found = kvasir.InferenceSession(str(path)).run(None, inputs)
    except kvasir.Error as error:
        return "refused", str(error)
    floats = [v.dtype for v in [*inputs.values(), *expected] if v.dtype.kind in "fV"]
    unit = max((float(ml_dtypes.finfo(t).eps) for t in floats), default=0)  # of the coarsest: casts mix them
    wrong = [k for k, (a, b) in enumerate(zip(found, expected)) if not is_near(numpy.asarray(a), b, unit)]
    return ("differs", f"outputs {wrong}") if wrong else ("agrees", "")


def isolated(path):
    """run in a process of its own, as a runtime may crash."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(run(path)).encode()[:4096])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return tuple(json.loads(text)) if status == 0 else ("crash", f"exit code {status}")


def main():
    verdicts, reasons = collections.Counter(), collections.Counter()
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx"), key=lambda p: int(p.stem)):
        verdict, reason = isolated(path)
        verdicts[verdict] += 1
        if verdict == "not compared":
            reasons[reason] += 1
        elif verdict != "agrees":
            print(f"{path.name}: {verdict}: {reason}", flush=True)
    for reason, count in reasons.most_common():
        print(f"not compared, {count}: {reason}")
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    return bool(verdicts["differs"] or verdicts["crash"])


if __name__ == "__main__":
    sys.exit(main())
