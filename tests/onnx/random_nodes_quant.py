"""Nodes of quantised models."""
import numpy

from random_nodes import Node, generator
from random_nodes_math import extents, negative_or_not, specials

BYTES = ("uint8", "int8")
SHORTS = (*BYTES, "uint16", "int16")


def whole(r, shape, dtype):
    """Integers of the whole range of the type."""
    limits = numpy.iinfo(dtype)
    return r.ints(shape, limits.min, limits.max, dtype)


def scales(r, shape, dtype="float32", low=0.01, high=0.5):
    return r.random.uniform(low, high, shape).astype(dtype)


def layout(r, opset):
    """(extents of x, extents of its scale, attributes). One scale, or one for each index of an axis or each block."""
    shape = extents(r, empty=0.02)
    kind = r.pick("tensor", *(["axis"] if opset >= 13 and shape else []), *(["block"] if opset >= 21 and shape else []))
    if kind == "tensor":
        return shape, r.pick([], [], [1]), {}
    axis = r.int(0, len(shape) - 1)
    attributes = {"axis": negative_or_not(r, axis, len(shape))}
    if kind == "axis":
        if len(shape) > 1 and axis == 1 and r.chance():
            attributes = {}
        return shape, [shape[axis]], attributes
    block = r.int(1, 4)
    scale = list(shape)
    scale[axis] = r.int(1, 3)
    shape[axis] = block * scale[axis] - (r.int(0, block - 1) if r.chance(0.2) else 0)
    return shape, scale, {**attributes, "block_size": block}


@generator("QuantizeLinear")
def quantize(r):
    opset = r.pick(10, 13, 19, 21, 23)
    shape, small, attributes = layout(r, opset)
    dtype = r.pick("float32", "float32", "float16") if opset >= 19 else "float32"
    x = r.floats(shape, -40, 40, dtype)
    if dtype == "float32" and r.chance(0.2):
        x = (numpy.round(x) + 0.5).astype("float32")  # ties go to the even one
    x = specials(r, x, extremes=False)
    x = numpy.nan_to_num(x, nan=1, posinf=numpy.inf, neginf=-numpy.inf)  # what a NaN becomes is open
    scale = r.random.choice([0.0625, 0.125, 0.25, 0.5], small).astype(dtype)
    target = r.pick(*(SHORTS if opset >= 21 else BYTES))
    operands = [x, scale] + ([whole(r, small, target)] if r.chance(0.8) else [])
    if len(operands) == 2 and opset >= 21 and r.chance():
        attributes["output_dtype"] = {"uint8": 2, "int8": 3, "uint16": 4, "int16": 5}[target]
    return Node("QuantizeLinear", [numpy.asarray(v) for v in operands], attributes, opset=opset)


@generator("DequantizeLinear")
def dequantize(r):
    opset = r.pick(10, 13, 19, 21, 23)
    shape, small, attributes = layout(r, opset)
    dtype = r.pick("float32", "float32", "float16") if opset >= 19 else "float32"
    source = r.pick(*(SHORTS if opset >= 21 else BYTES), "int32")
    zero = whole(r, small, source) if source != "int32" else numpy.zeros(small, "int32")
    x = whole(r, shape, source) if source != "int32" else r.ints(shape, -10**6, 10**6, source)
    operands = [x, scales(r, small, dtype, 1e-3, 1e-2)] + ([zero] if r.chance(0.8) else [])
    return Node("DequantizeLinear", [numpy.asarray(v) for v in operands], attributes, opset=opset, units=4)


@generator("DynamicQuantizeLinear")
def dynamic_quantize(r):
    x = r.floats(extents(r, low_rank=0, empty=0), *r.pick((-3, 3), (0, 5), (-9, -1), (2, 4)))
    return Node("DynamicQuantizeLinear", [x], opset=11, outputs=3, steps=1)


@generator("MatMulInteger")
def matmul_integer(r):
    m, n, k = (r.pick(r.int(1, 6), r.int(1, 6), r.int(1, 70)) for _ in range(3))
    batch = r.shape(0, 2, 1, 3)
    a, b = r.pick(*BYTES), r.pick(*BYTES)
    x, y = whole(r, [*(batch if r.chance() else []), m, k], a), whole(r, [*(batch if r.chance() else []), k, n], b)
    if r.chance(0.1):
        x = whole(r, [k], a)
    if r.chance(0.1):
        y = whole(r, [k], b)
    operands = [x, y]
    if r.chance(0.8):
        operands.append(whole(r, [], a) if r.chance(0.9) else None)
        if r.chance(0.7):
            operands.append(whole(r, r.pick([], [n] if y.ndim == 2 else []), b))
    return Node("MatMulInteger", [v if v is None else numpy.asarray(v) for v in operands], opset=10)


@generator("QLinearMatMul")
def qlinear_matmul(r):
    m, n, k = (r.pick(r.int(1, 6), r.int(1, 6), r.int(1, 70)) for _ in range(3))
    batch = r.shape(0, 2, 1, 3)
    a = r.pick(*BYTES)
    b = r.pick(*BYTES) if a == "uint8" else "int8"
    column = r.chance(0.3)
    y_batch = [] if r.chance(0.6) else batch
    small = [n] if column and not y_batch else []
    x, y = [*batch, m, k], [*y_batch, k, n]
    x, y = [k] if r.chance(0.1) else x, [k] if not small and r.chance(0.1) else y
    operands = [whole(r, x, a), scales(r, []), whole(r, [], a), whole(r, y, b), scales(r, small), whole(r, small, b),
                scales(r, [], "float32", k**0.5 * 5, k**0.5 * 20), whole(r, [], a)]
    return Node("QLinearMatMul", [numpy.asarray(v) for v in operands], opset=r.pick(10, 21), steps=1,
                constants={i: True for i in (1, 2, 4, 5, 6, 7) if r.chance(0.7)})


def window(r):
    """(x, w, group, number of filters, attributes) of a convolution."""
    n = r.pick(1, 2, 2, 3)
    group = r.pick(1, 1, 2, 3)
    kernel, dilation = [r.int(1, 3) for _ in range(n)], [r.int(1, 2) for _ in range(n)]
    channels, filters = group * r.int(1, 3), group * r.int(1, 4)
    spatial = [r.int((k - 1) * d + 1, (k - 1) * d + 7) for k, d in zip(kernel, dilation)]
    attributes = {"strides": [r.int(1, 3) for _ in range(n)]} if r.chance() else {}
    if r.chance():
        attributes["pads"] = [r.int(0, 2) for _ in range(2 * n)]
    elif r.chance(0.3):
        attributes["auto_pad"] = r.pick("SAME_UPPER", "SAME_LOWER", "VALID")
        dilation = [1] * n if attributes["auto_pad"] != "VALID" else dilation
    if any(d > 1 for d in dilation) or r.chance(0.3):
        attributes["dilations"] = dilation
    if group > 1 or r.chance(0.3):
        attributes["group"] = group
    if r.chance():
        attributes["kernel_shape"] = kernel
    return [r.int(1, 2), channels, *spatial], [filters, channels // group, *kernel], filters, attributes


@generator("ConvInteger")
def conv_integer(r):
    """ONNX Runtime has it of unsigned x alone."""
    x, w, _, attributes = window(r)
    a, b = "uint8", r.pick(*BYTES)
    operands = [whole(r, x, a), whole(r, w, b)]
    if r.chance(0.8):
        operands.append(whole(r, [], a))
        if r.chance(0.7):
            operands.append(whole(r, [], b))
    return Node("ConvInteger", [numpy.asarray(v) for v in operands], attributes, opset=10)


@generator("QLinearConv")
def qlinear_conv(r):
    """Scales such that results fill the type, at times saturate; signed x needs a signed w in ONNX Runtime."""
    x, w, filters, attributes = window(r)
    a = r.pick(*BYTES)
    b = r.pick(*BYTES) if a == "uint8" else "int8"
    small = r.pick([], [filters])
    terms = int(numpy.prod(w[1:]))
    zero = numpy.zeros(small, b) if b == "int8" and small else whole(r, [], b) if not small else \
        numpy.full(small, whole(r, [], b), b)
    operands = [whole(r, x, a), scales(r, []), whole(r, [], a), whole(r, w, b), scales(r, small), zero,
                scales(r, [], "float32", terms**0.5 * 5, terms**0.5 * 20), whole(r, [], a)]
    if r.chance():
        operands.append(r.ints([filters], -5000, 5000, "int32"))
    return Node("QLinearConv", [numpy.asarray(v) for v in operands], attributes, opset=10, steps=1,
                constants={i: True for i in (1, 2, 4, 5, 6, 7) if r.chance(0.7)})
