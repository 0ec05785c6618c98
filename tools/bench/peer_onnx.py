"""ONNX models in ONNX Runtime, all graph optimisations on.

Usage: peer_onnx.py THREADS model:FILE...
"""
import sys

import numpy
import onnxruntime

from peer_serve import serve


def values(k, shape):
    """Input number k, with the values of kernels.c."""
    i = numpy.arange(numpy.prod(shape), dtype=numpy.uint32) + numpy.uint32(1000003 * k)
    h = i * numpy.uint32(2654435761)
    return ((h >> numpy.uint32(16)).astype(numpy.float32) / 65536 - 0.5).astype(numpy.float32).reshape(shape)


def prepare(text):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(sys.argv[1])
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(text.split(":", 1)[1], options, providers=["CPUExecutionProvider"])
    inputs = {v.name: values(k, v.shape) for k, v in enumerate(session.get_inputs())}
    first = session.run(None, inputs)[0]
    return lambda: session.run(None, inputs), float(numpy.abs(first.astype(numpy.float64)).mean())


if __name__ == "__main__":
    serve("onnxruntime " + onnxruntime.__version__, sys.argv[2:], prepare)
