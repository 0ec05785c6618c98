"""Nodes of networks: convolutions, pools, normalisations, losses."""
import numpy

from random_nodes import Node, generator


def extent(r, low=1, high=6):
    """Mostly small; else around the widths of vectors."""
    return max(low, r.pick(7, 8, 15, 16, 17, 33, 64, 100)) if r.chance(0.05) else r.int(low, high)


def float_type(r, *more):
    return r.pick("float32", "float32", "float32", "float64", "float16", *more)


def peer_float_type(r, opset):
    """Where ONNX Runtime has float alone, and half by casts; onnx.reference is wrong in many such nodes."""
    return r.pick("float32", "float32", "float16") if opset >= 11 else "float32"


def windows(r, n, kernel, dilation, pad_limit, pools=False):
    """strides and pads or auto_pad for windows of these extents. Under SAME, ONNX Runtime's pools forget the dilation
    and cut where a stride is above the kernel."""
    attributes = {}
    auto = r.pick(None, None, "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    same = auto in ("SAME_UPPER", "SAME_LOWER")
    if r.chance(0.8):
        attributes["strides"] = [r.int(1, min(3, k) if same and pools else 3) for k in kernel]
    if same and pools:
        dilation = None
    if auto in (None, "NOTSET") and r.chance(0.7):
        attributes["pads"] = [r.int(0, pad_limit(i % n)) for i in range(2 * n)]
    if auto:
        attributes["auto_pad"] = auto
    if dilation:
        attributes["dilations"] = dilation
    return attributes


def spans(kernel, dilation):
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilation or [1] * len(kernel))]


@generator("Conv")
def conv(r):
    n = r.int(1, 3)
    group = r.pick(1, 1, 2, 3, 8, 16)
    depthwise = group > 1 and r.chance()
    kernel = [r.int(1, 4) for _ in range(n)]
    if r.chance(0.15):
        kernel = [r.pick(1, 3, 5, 7)] * n
    dilation = [r.int(1, 3) for _ in range(n)] if r.chance(0.5) else None
    c = group * (1 if depthwise else extent(r, 1, 3))
    m = group * (1 if depthwise and r.chance() else extent(r, 1, 3))
    spatial = [extent(r, s, s + 6) for s in spans(kernel, dilation)]
    if n == 3:
        spatial[0] = min(spatial[0], 8 + spans(kernel, dilation)[0])
    attributes = {"group": group, **windows(r, n, kernel, dilation, lambda i: 3)}
    if r.chance():
        attributes["kernel_shape"] = kernel
    t = float_type(r)
    bias = r.floats([m], dtype=t) if r.chance() else None
    operands = [r.floats([r.int(1, 3), c, *spatial], dtype=t), r.floats([m, c // group, *kernel], dtype=t), bias]
    return Node("Conv", operands, attributes, opset=r.pick(1, 11, 22))


@generator("ConvTranspose")
def conv_transpose(r):
    """onnx.reference adds the biases of the first channels to all groups."""
    n = r.int(1, 3)
    group = r.pick(1, 1, 2, 3, 8)
    kernel = [r.int(1, 4) for _ in range(n)]
    dilation = [r.int(1, 3) for _ in range(n)] if r.chance(0.5) else [1] * n
    strides = [r.int(1, 3) for _ in range(n)] if r.chance(0.8) else [1] * n
    c, m = group * extent(r, 1, 3), r.int(1, 3)
    spatial = [extent(r, 1, 6) for _ in range(n)]
    span = spans(kernel, dilation)
    attributes = {"group": group, "strides": strides, "dilations": dilation}
    extra = [r.int(0, max(s, d) - 1) for s, d in zip(strides, dilation)] if r.chance(0.4) else [0] * n
    if any(extra):
        attributes["output_padding"] = extra
    auto = r.pick(None, None, "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    if any(k < s for k, s in zip(span, strides)) and auto and "SAME" in auto:
        auto = None  # input * stride is then longer than the full output: peers disagree
    if auto:
        attributes["auto_pad"] = auto
    full = [(e - 1) * s + k + x for e, s, k, x in zip(spatial, strides, span, extra)]
    if r.chance(0.25):
        attributes["output_shape"] = [r.int(max(1, f - 4), f) for f in full]
    elif auto in (None, "NOTSET") and r.chance(0.7):
        pads = [r.int(0, 2) for _ in range(2 * n)]
        for i in range(n):
            while pads[i] + pads[i + n] >= full[i]:
                pads[i], pads[i + n] = pads[i] // 2, pads[i + n] // 2
        attributes["pads"] = pads
    if r.chance():
        attributes["kernel_shape"] = kernel
    opset = r.pick(1, 11, 22)
    t = peer_float_type(r, opset)
    bias = r.floats([m * group], dtype=t) if r.chance() else None
    operands = [r.floats([r.int(1, 2), c, *spatial], dtype=t), r.floats([c, m, *kernel], dtype=t), bias]
    return Node("ConvTranspose", operands, attributes, opset=opset)


def pool_window(r, n, dilates):
    kernel = [r.int(1, 4) for _ in range(n)]
    dilation = [r.int(1, 3) for _ in range(n)] if dilates and r.chance(0.4) else None
    span = spans(kernel, dilation)
    attributes = {"kernel_shape": kernel, **windows(r, n, kernel, dilation, lambda i: min(kernel[i] - 1, 2), True)}
    return attributes, [extent(r, s, s + 6) for s in span]


@generator("MaxPool")
def max_pool(r):
    n, opset = r.int(1, 3), r.pick(1, 8, 10, 11, 12, 22)
    attributes, spatial = pool_window(r, n, opset >= 10)
    if opset >= 10 and r.chance(0.4):
        attributes["ceil_mode"] = 1
    outputs = 2 if opset >= 8 and r.chance() else 1
    if outputs == 2 and r.chance(0.4):
        attributes["storage_order"] = r.int(0, 1)
    t = float_type(r, *(["int8", "uint8"] if opset >= 12 else [])) if opset >= 8 else "float32"
    x = r.tensor([r.int(1, 2), extent(r, 1, 3), *spatial], t, -100, 100)
    return Node("MaxPool", [x], attributes, opset=opset, outputs=outputs)


@generator("AveragePool")
def average_pool(r):
    n, opset = r.int(1, 3), r.pick(7, 10, 11, 19, 22)
    attributes, spatial = pool_window(r, n, opset >= 19)
    if opset >= 10 and r.chance(0.4):
        attributes["ceil_mode"] = 1
    if opset >= 7 and r.chance():
        attributes["count_include_pad"] = r.int(0, 1)
    x = r.floats([r.int(1, 2), extent(r, 1, 3), *spatial], dtype=peer_float_type(r, opset))
    return Node("AveragePool", [x], attributes, opset=opset)


@generator("LpPool")
def lp_pool(r):
    n, opset = r.int(1, 3), r.pick(2, 11, 18, 22)
    attributes, spatial = pool_window(r, n, opset >= 18)
    if opset >= 18 and r.chance(0.4):
        attributes["ceil_mode"] = 1
    if r.chance(0.7):
        attributes["p"] = r.int(1, 4)
    x = r.floats([r.int(1, 2), extent(r, 1, 3), *spatial], dtype=peer_float_type(r, opset))
    return Node("LpPool", [x], attributes, opset=opset)


@generator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(r):
    shape = [r.int(1, 3), extent(r, 1, 4), *(extent(r) for _ in range(r.int(1, 3)))]
    lp = r.name == "GlobalLpPool"
    attributes = {"p": r.int(1, 4)} if lp and r.chance(0.7) else {}
    opset = r.pick(2, 22) if lp else r.pick(1, 22)
    return Node(r.name, [r.floats(shape, dtype=peer_float_type(r, opset))], attributes, opset=opset)


@generator("MaxUnpool")
def max_unpool(r):
    """Indices are distinct, as two values for one place have no defined order. ONNX Runtime's indices count in
    output_shape, the standard's in the shape without it."""
    n = r.int(1, 3)
    kernel = [r.int(1, 3) for _ in range(n)]
    strides = [r.int(1, 3) for _ in range(n)] if r.chance(0.7) else None
    spatial = [r.int(1, 4) for _ in range(n)]
    step = strides or [1] * n
    pads = [0] * (2 * n)
    if r.chance(0.4):
        pads = [r.int(0, (kernel[i % n] - 1) // 2) for i in range(2 * n)]
    out = [(e - 1) * s - pads[i] - pads[i + n] + k for i, (e, s, k) in enumerate(zip(spatial, step, kernel))]
    if numpy.prod(out) < numpy.prod(spatial) or min(out) < 1:
        strides, step, pads = None, [1] * n, [0] * (2 * n)
        out = [e - 1 + k for e, k in zip(spatial, kernel)]
    attributes = {"kernel_shape": kernel, "pads": pads}
    if strides:
        attributes["strides"] = strides
    batch, c = r.int(1, 2), r.int(1, 3)
    sizes = numpy.array([batch, c, *out], "int64") if r.chance(0.4) else None
    places = int(numpy.prod(out))
    count = int(numpy.prod(spatial))
    planes = [r.random.permutation(places)[:count] + p * places for p in range(batch * c)]
    indices = numpy.stack(planes).reshape([batch, c, *spatial]).astype("int64")
    x = r.floats([batch, c, *spatial], dtype=r.pick("float32", "float32", "float64", "float16"))
    return Node("MaxUnpool", [x, indices, sizes], attributes, opset=r.pick(9, 11, 22), constants={2: True})


@generator("LRN")
def lrn(r):
    attributes = {"size": r.pick(1, 3, 5, 7)}
    for name, low, high in (("alpha", 0.0001, 2), ("beta", 0.1, 2), ("bias", 0.5, 3)):
        if r.chance():
            attributes[name] = float(r.floats([], low, high))
    shape = [r.int(1, 3), extent(r, 1, 9), extent(r), extent(r)]
    return Node("LRN", [r.floats(shape)], attributes, opset=r.pick(1, 13))


@generator("Col2Im")
def col2im(r):
    """ONNX Runtime sums wrongly in one and three dimensions."""
    n = 2
    block = [r.int(1, 3) for _ in range(n)]
    dilation = [r.int(1, 2) for _ in range(n)]
    strides = [r.int(1, 3) for _ in range(n)]
    pads = [r.int(0, 2) for _ in range(2 * n)]
    image = [r.int(s, s + 6) for s in spans(block, dilation)]
    blocks = [(e + pads[i] + pads[i + n] - s) // t + 1
              for i, (e, s, t) in enumerate(zip(image, spans(block, dilation), strides))]
    attributes = {}
    for name, value, usual in (("dilations", dilation, 1), ("pads", pads, 0), ("strides", strides, 1)):
        if any(v != usual for v in value) or r.chance():
            attributes[name] = value
    c = r.int(1, 3)
    x = r.floats([r.int(1, 2), c * int(numpy.prod(block)), int(numpy.prod(blocks))], dtype=float_type(r))
    operands = [x, numpy.array(image, "int64"), numpy.array(block, "int64")]
    constant = r.chance(0.9)
    return Node("Col2Im", operands, attributes, opset=18, constants={1: constant, 2: constant})


@generator("DeformConv")
def deform_conv(r):
    group, offset_group = r.pick(1, 1, 2), r.pick(1, 1, 2)
    kernel = [r.int(1, 3), r.int(1, 3)]
    dilation, strides = [r.int(1, 2), r.int(1, 2)], [r.int(1, 2), r.int(1, 2)]
    pads = [r.int(0, 2) for _ in range(4)]
    span = spans(kernel, dilation)
    image = [r.int(s, s + 5) for s in span]
    c = group * offset_group * r.int(1, 2)
    m = group * r.int(1, 3)
    out = [(e + pads[i] + pads[i + 2] - s) // t + 1 for i, (e, s, t) in enumerate(zip(image, span, strides))]
    t = r.pick("float32", "float32", "float64")
    batch, taps = r.int(1, 2), kernel[0] * kernel[1]
    offset = r.floats([batch, offset_group * taps * 2, *out], -2.5, 2.5, t)
    if r.chance(0.2):
        offset = numpy.round(offset)
    bias = r.floats([m], dtype=t) if r.chance() else None
    mask = r.floats([batch, offset_group * taps, *out], 0, 1, t) if r.chance() else None
    attributes = {"group": group, "offset_group": offset_group, "strides": strides, "dilations": dilation, "pads": pads}
    if r.chance():
        attributes["kernel_shape"] = kernel
    operands = [r.floats([batch, c, *image], dtype=t), r.floats([m, c // group, *kernel], dtype=t), offset, bias, mask]
    return Node("DeformConv", operands, attributes, opset=r.pick(19, 22), units=256)


# ---- normalisations and losses ---------------------------------------------------------------------------------------


def units_of(dtype):
    """ONNX Runtime's epsilon is a float, of which a double shows the rounding; parts of it compute in float."""
    return 2.0**31 if dtype == "float64" else 512


def epsilon(r):
    return {"epsilon": r.pick(1e-5, 1e-3, 0.1)} if r.chance(0.7) else {}


@generator("BatchNormalization")
def batch_normalization(r):
    opset = r.pick(1, 6, 7, 9, 14, 15)
    shape = [r.int(1, 3), extent(r), *(extent(r, 1, 5) for _ in range(r.int(0, 3)))]
    attributes = epsilon(r)
    if r.chance(0.4):
        attributes["momentum"] = r.pick(0.9, 0.5, 0.0, 1.0)
    training = opset >= 14 and r.chance(0.4)
    shape[0] += training  # the variance of one element is rounding alone
    if training or opset >= 14 and r.chance(0.2):
        attributes["training_mode"] = int(training)
    if opset < 7:
        attributes["is_test"] = 1
    if opset == 1:
        attributes["consumed_inputs"] = [0, 0, 0, 1, 1]
    if opset < 9 and r.chance():
        attributes["spatial"] = 1
    t = float_type(r) if opset >= 7 else "float32"
    s = r.pick(t, "float32") if opset >= 15 and t != "float64" else t
    c = [shape[1]]
    operands = [r.floats(shape, dtype=t), r.floats(c, dtype=s), r.floats(c, dtype=s), r.floats(c, dtype=s),
                r.floats(c, 0.1, 3, s)]
    return Node("BatchNormalization", operands, attributes, opset=opset,
                outputs=3 if training else 1, units=units_of(t))


@generator("InstanceNormalization", "GroupNormalization")
def group_normalization(r):
    grouped = r.name == "GroupNormalization"
    opset = r.pick(18, 21) if grouped else r.pick(1, 6, 22)
    groups = r.int(1, 4)
    c = groups * extent(r, 1, 4) if grouped else extent(r)
    scales = groups if grouped and opset == 18 else c
    shape = [r.int(1, 3), c, *(extent(r) for _ in range(r.int(1, 3)))]
    attributes = epsilon(r)
    if grouped:
        attributes["num_groups"] = groups
        if opset == 21 and r.chance(0.3):
            attributes["stash_type"] = 1
    t = float_type(r) if opset >= 6 else "float32"
    operands = [r.floats(shape, dtype=t), r.floats([scales], dtype=t), r.floats([scales], dtype=t)]
    return Node(r.name, operands, attributes, opset=opset, units=units_of(t))


@generator("LayerNormalization", "RMSNormalization")
def layer_normalization(r):
    """A scale may be any that broadcasts, but ONNX Runtime wants its kind of broadcast."""
    rms = r.name == "RMSNormalization"
    shape = [extent(r, 1, 5) for _ in range(r.int(1, 4))]
    if rms:
        shape[-1] = max(2, shape[-1])
    axis = r.int(-len(shape), len(shape) - 1)
    attributes = {"axis": axis, **epsilon(r)}
    if axis == -1 and r.chance():
        del attributes["axis"]
    if r.chance(0.2):
        attributes["stash_type"] = 1
    t = float_type(r)
    scale = r.floats(shape[axis:], dtype=t)
    if rms:
        return Node(r.name, [r.floats(shape, dtype=t), scale], attributes, opset=23, units=units_of(t))
    bias = r.floats(shape[axis:], dtype=t) if r.chance(0.7) else None
    wants = r.pick([True], [True, True], [True, True, True], [True, False, True])
    operands = [r.floats(shape, dtype=t), scale, bias]
    return Node(r.name, operands, attributes, opset=r.pick(17, 23), wants=wants, units=units_of(t))


@generator("LpNormalization")
def lp_normalization(r):
    x = r.floats(r.shape(1, 4, 1, 6), dtype=r.pick("float32", "float32", "float64"))
    attributes = {"p": r.int(1, 2)} if r.chance(0.7) else {}
    if r.chance(0.7):
        attributes["axis"] = r.int(-x.ndim, x.ndim - 1)
    if r.chance(0.2):
        x[..., 0] = 0
    return Node("LpNormalization", [x], attributes, opset=r.pick(1, 22))


@generator("MeanVarianceNormalization")
def mean_variance_normalization(r):
    """An axis of one element has no deviation: its quotient is rounding."""
    shape = [extent(r, 2, 5) for _ in range(4)]
    attributes = {"axes": r.pick([0, 2, 3], [0, 1, 2, 3], [2, 3], [0, 3], [-1, -2, 0])} if r.chance(0.8) else {}
    return Node("MeanVarianceNormalization", [r.floats(shape)], attributes, opset=r.pick(9, 13), units=4096)


@generator("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(r):
    softmax = r.name == "SoftmaxCrossEntropyLoss"
    shape = [extent(r, 1, 5), extent(r, 1, 6), *(extent(r, 1, 4) for _ in range(r.int(0, 3)))]
    t = r.pick("float32", "float32", "float64", "float16")
    target = r.ints([shape[0], *shape[2:]], 0, shape[1] - 1, r.pick("int32", "int64"))
    attributes = {}
    if r.chance(0.7):
        attributes["reduction"] = r.pick("none", "sum", "mean")
    if r.chance(0.4):
        attributes["ignore_index"] = r.pick(0, shape[1] - 1, -1, -100)
        target[r.random.random(target.shape) < 0.3] = attributes["ignore_index"]
        target.reshape(-1)[0] = shape[1] // 2
    weight = r.floats([shape[1]], 0.1, 2, t) if r.chance() else None
    if attributes.get("ignore_index") == shape[1] // 2 and attributes.get("reduction", "mean") == "mean":
        del attributes["ignore_index"]
    outputs = r.int(1, 2) if softmax else 1
    operands = [r.floats(shape, dtype=t), target, weight]
    return Node(r.name, operands, attributes, opset=r.pick(12, 13, 13 if softmax else 22), outputs=outputs, units=256)


@generator("Dropout")
def dropout(r):
    opset = r.pick(1, 6, 7, 10, 12, 13, 22)
    attributes, operands = {}, [r.floats(r.shape(0, 4), dtype=float_type(r) if opset >= 7 else "float32")]
    if opset < 12:
        attributes = {"ratio": 0.3} if r.chance() else {}
        if opset < 7:
            attributes["is_test"] = 1
        if opset == 1:
            attributes["consumed_inputs"] = [0]
    else:
        if r.chance(0.6):
            operands.append(numpy.array(0.3, "float32"))
            if r.chance():
                operands.append(numpy.array(False))
    return Node("Dropout", operands, attributes, opset=opset, outputs=r.int(1, 2) if opset >= 12 else 1)
