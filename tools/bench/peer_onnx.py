"""ONNX models in ONNX Runtime, all graph optimisations on.

Usage: peer_onnx.py THREADS model|relaxed|int8:FILE[:NAME=N,...]...
"""
import sys

import numpy
import onnxruntime

from peer_serve import serve


def values(k, shape, element):
    """Input number k, with the values of kernels.c."""
    i = numpy.arange(numpy.prod(shape), dtype=numpy.uint32) + numpy.uint32(1000003 * k)
    h = i * numpy.uint32(2654435761)
    if element == "tensor(int64)":
        return (h >> numpy.uint32(31)).astype(numpy.int64).reshape(shape)
    return ((h >> numpy.uint32(16)).astype(numpy.float32) / 65536 - 0.5).astype(numpy.float32).reshape(shape)


def prepare(text):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(sys.argv[1])
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    _, path, *pins = text.split(":")
    sizes = {name: int(size) for pin in pins for name, size in [part.split("=") for part in pin.split(",")]}
    for name, size in sizes.items():  # as known to ONNX Runtime as to Kvasir
        options.add_free_dimension_override_by_name(name, size)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {v.name: values(k, [sizes.get(d, d) for d in v.shape], v.type) for k, v in enumerate(session.get_inputs())}
    first = session.run(None, inputs)[0]
    return lambda: session.run(None, inputs), float(numpy.abs(first.astype(numpy.float64)).mean())


if __name__ == "__main__":
    serve("onnxruntime " + onnxruntime.__version__, sys.argv[2:], prepare)
