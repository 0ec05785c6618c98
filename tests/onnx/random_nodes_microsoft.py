"""Nodes of com.microsoft: what ONNX Runtime's quantiser and optimiser write."""
import numpy

from random_nodes import Node, generator
from random_nodes_math import extents, negative_or_not
from random_nodes_quant import BYTES, scales, whole

DOMAIN = "com.microsoft"


def node(op, operands, attributes=None, **more):
    operands = [v if v is None else numpy.asarray(v) for v in operands]
    while operands[-1] is None:
        operands.pop()
    return Node(op, operands, attributes or {}, opset=1, domain=DOMAIN, **more)


def codes(r, shape, dtype):
    """A tensor, its scale and its zero point."""
    return [whole(r, shape, dtype), scales(r, []), whole(r, [], dtype)]


def all_constant(*operands):
    """ONNX Runtime wants scales and zero points of some operators as initializers."""
    return {i: True for i in operands}


# ---- operators on codes ----

@generator("QLinearAdd", "QLinearMul")
def qlinear_binary(r):
    dtype, shape = r.pick(*BYTES), extents(r, empty=0)
    operands = codes(r, r.broadcast(shape), dtype) + codes(r, r.broadcast(shape), dtype)
    size = 60 if r.name == "QLinearAdd" else 600
    return node(r.name, operands + [scales(r, [], "float32", 0.2, size / 100), whole(r, [], dtype)], steps=1,
                constants=all_constant(1, 2, 4, 5, 6, 7))


@generator("QLinearWhere")
def qlinear_where(r):
    dtype, shape = r.pick(*BYTES), extents(r, empty=0)
    operands = [r.tensor(r.broadcast(shape), bool)]
    operands += codes(r, r.broadcast(shape), dtype) + codes(r, r.broadcast(shape), dtype)
    return node(r.name, operands + [scales(r, [], "float32", 0.2, 0.6), whole(r, [], dtype)], steps=1,
                constants=all_constant(2, 3, 5, 6, 7, 8))


@generator("QLinearSigmoid", "QLinearLeakyRelu")
def qlinear_unary(r):
    dtype = r.pick(*BYTES)
    attributes = {"alpha": r.pick(0.125, 0.5)} if r.name == "QLinearLeakyRelu" and r.chance(0.8) else {}
    low, high = (1 / 300, 1 / 100) if r.name == "QLinearSigmoid" else (0.01, 0.5)
    operands = codes(r, extents(r, empty=0), dtype) + [scales(r, [], "float32", low, high), whole(r, [], dtype)]
    return node(r.name, operands, attributes, steps=1, constants=all_constant(1, 2, 3, 4))


@generator("QLinearSoftmax")
def qlinear_softmax(r):
    dtype, opset = r.pick(*BYTES), r.pick(11, 13)
    shape = extents(r, low_rank=1, empty=0)
    attributes = {"opset": opset, "axis": negative_or_not(r, r.int(0, len(shape) - 1), len(shape))}
    return node("QLinearSoftmax", [whole(r, shape, dtype), scales(r, [], "float32", 0.01, 0.1), whole(r, [], dtype),
                numpy.float32(1 / 256), numpy.array(0 if dtype == "uint8" else -128, dtype)], attributes, steps=1,
                constants=all_constant(1, 2, 3, 4))


@generator("QLinearGlobalAveragePool")
def qlinear_global_pool(r):
    dtype = r.pick(*BYTES)
    operands = codes(r, r.shape(3, 4, 1, 6), dtype) + [scales(r, [], "float32", 0.05, 0.3), whole(r, [], dtype)]
    return node("QLinearGlobalAveragePool", operands, steps=1)


@generator("QLinearAveragePool")
def qlinear_average_pool(r):
    dtype, n = r.pick(*BYTES), r.int(1, 3)
    kernel = [r.int(1, 3) for _ in range(n)]
    attributes = {"kernel_shape": kernel}
    if r.chance():
        attributes["strides"] = [r.int(1, 2) for _ in range(n)]
    if r.chance():
        attributes["pads"] = [r.int(0, k - 1) for k in kernel * 2]
        attributes["count_include_pad"] = r.int(0, 1)
    shape = [r.int(1, 2), r.int(1, 3), *[r.int(k, k + 5) for k in kernel]]
    operands = codes(r, shape, dtype) + [scales(r, [], "float32", 0.05, 0.3), whole(r, [], dtype)]
    return node("QLinearAveragePool", operands, attributes, steps=1, constants=all_constant(1, 2, 3, 4))


@generator("QLinearConcat")
def qlinear_concat(r):
    dtype, shape = r.pick(*BYTES), extents(r, low_rank=1, empty=0)
    axis = r.int(0, len(shape) - 1)
    operands = [scales(r, [], "float32", 0.1, 0.5), whole(r, [], dtype)]
    for _ in range(r.int(1, 4)):
        shape[axis] = r.int(1, 5)
        operands += codes(r, shape, dtype)
    known = [i for i in range(len(operands)) if i < 2 or (i - 2) % 3]
    return node("QLinearConcat", operands, {"axis": negative_or_not(r, axis, len(shape))}, steps=1,
                constants=all_constant(*known))


@generator("QGemm")
def qgemm(r):
    m, n, k = (r.pick(r.int(1, 6), r.int(1, 6), r.int(1, 70)) for _ in range(3))
    a = r.pick(*BYTES)
    b = r.pick(*BYTES) if a == "uint8" else "int8"
    attributes = {name: r.int(0, 1) for name in ("transA", "transB") if r.chance(0.6)}
    if r.chance(0.3):
        attributes["alpha"] = r.pick(0.5, 2.0)
    x = whole(r, [k, m] if attributes.get("transA") else [m, k], a)
    y = whole(r, [n, k] if attributes.get("transB") else [k, n], b)
    small = [n] if r.chance(0.3) else []
    c = r.ints(r.pick([m, n], [1, n], [n], [m, 1], []), -5000, 5000, "int32") if r.chance(0.6) else None
    operands = [x, scales(r, []), whole(r, [], a), y, scales(r, small), whole(r, small, b), c]
    if r.chance(0.7):
        operands += [scales(r, [], "float32", k**0.5 * 5, k**0.5 * 20), whole(r, [], a)]
    return node("QGemm", operands, attributes, steps=1)


@generator("MatMulNBits")
def matmul_nbits(r):
    bits, block = r.pick(2, 4, 4, 8), r.pick(16, 32, 64)
    n, k, m = r.int(1, 20), r.pick(r.int(1, 70), 16 * r.int(1, 5)), r.int(1, 4)
    blocks = (k + block - 1) // block
    weights = r.ints([n, blocks, block * bits // 8], 0, 255, "uint8")
    zero = r.ints([n, (blocks * bits + 7) // 8], 0, 255, "uint8") if r.chance() else None
    bias = r.floats([n]) if r.chance(0.3) else None
    x = r.floats([*r.shape(0, 2, 1, 3), m, k])
    return node("MatMulNBits", [x, weights, scales(r, [n, blocks]), zero, None, bias],
                {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": r.int(0, 1)}, constants={i: True for i in (1, 2, 3, 5)},
                units=512, symbolic=False)


# ---- what float models are fused into ----

@generator("MicrosoftGelu", "BiasGelu", "FastGelu", "QuickGelu")
def gelu(r):
    shape = extents(r, low_rank=1, empty=0)
    bias = r.floats([shape[-1]]) if r.name == "BiasGelu" or (r.name == "FastGelu" and r.chance()) else None
    attributes = {"alpha": r.pick(1.0, 0.5, 1.75)} if r.name == "QuickGelu" and r.chance(0.7) else {}
    return node(r.name.replace("Microsoft", ""), [r.floats(shape, -5, 5), bias], attributes)


@generator("FusedMatMul")
def fused_matmul(r):
    m, n, k = (r.pick(r.int(1, 6), r.int(1, 6), r.int(1, 40)) for _ in range(3))
    batch = r.shape(0, 2, 1, 3)
    attributes = {name: r.int(0, 1) for name in ("transA", "transB") if r.chance(0.6)}
    if r.chance():
        attributes["alpha"] = r.pick(0.5, -2.0, 0.125)
    x = r.floats([*r.broadcast(batch), *([k, m] if attributes.get("transA") else [m, k])])
    y = r.floats([*r.broadcast(batch), *([n, k] if attributes.get("transB") else [k, n])])
    if x.ndim == y.ndim == 4 and r.chance():
        x, attributes["transBatchA"] = numpy.moveaxis(x, -2, 0).copy(), 1
    return node("FusedMatMul", [x, y], attributes)


@generator("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_norm(r):
    shape = [r.int(1, 3), r.int(1, 5), r.pick(r.int(2, 9), 16, 33)]
    simple, n = r.name.startswith("SkipSimplified"), shape[-1]
    operands = [r.floats(shape), r.floats(shape), r.floats([n])]
    if not simple:
        operands.append(r.floats([n]) if r.chance(0.7) else None)
    operands.append(r.floats([n]) if r.chance() else None)
    return node(r.name, operands, {"epsilon": r.pick(1e-5, 1e-3)}, outputs=4,
                wants=[True, False, False, r.chance()], units=256)
