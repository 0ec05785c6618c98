"""Nodes over sequences: recurrent networks, attention, Fourier transforms."""
import numpy

from random_nodes import Node, generator

# What ONNX Runtime knows: which parameters each takes (alpha, beta).
ACTIVATIONS = {"Tanh": 0, "Relu": 0, "Sigmoid": 0, "Softsign": 0, "Softplus": 0, "LeakyRelu": 1, "ThresholdedRelu": 1,
               "Elu": 1, "HardSigmoid": 2, "ScaledTanh": 2, "Affine": 2}


def activations(r, count, attributes):
    """The parameters are consumed by those that take some, in their order."""
    names = [r.pick(*ACTIVATIONS) if r.chance(0.5) else r.pick("Tanh", "Sigmoid", "Relu") for _ in range(count)]
    attributes["activations"] = names
    alpha = [round(float(r.floats([], 0.1, 1)), 2) for n in names if ACTIVATIONS[n] >= 1]
    beta = [round(float(r.floats([], 0.1, 1)), 2) for n in names if ACTIVATIONS[n] >= 2]
    if alpha:
        attributes["activation_alpha"] = alpha
    if beta:
        attributes["activation_beta"] = beta


@generator("RNN", "GRU", "LSTM")
def recurrent(r):
    gates, functions = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}[r.name]
    lstm = r.name == "LSTM"
    way = r.pick("forward", "reverse", "bidirectional")
    d = 2 if way == "bidirectional" else 1
    steps, batch, width = r.int(1, 6), r.int(1, 4), r.int(1, 5)
    hidden = r.pick(7, 8, 16, 17, 33) if r.chance(0.15) else r.int(1, 5)
    attributes = {"hidden_size": hidden}
    if way != "forward" or r.chance():
        attributes["direction"] = way
    spread = 1
    if r.chance(0.4):
        spread = 0.3  # some functions have no bound: states would overflow
        activations(r, functions * d, attributes)
    if r.chance(0.2):
        attributes["clip"] = round(float(r.floats([], 0.2, 2)), 2)
    if lstm and r.chance(0.15):
        attributes["input_forget"] = 1
    if r.name == "GRU" and r.chance():
        attributes["linear_before_reset"] = r.int(0, 1)
    w, rr = (r.floats([d, gates * hidden, n], -spread, spread) for n in (width, hidden))
    bias = r.floats([d, 2 * gates * hidden], -1, 1) if r.chance(0.7) else None
    lengths = r.ints([batch], 1, steps, "int32") if r.chance(0.4) else None
    h = r.floats([d, batch, hidden], -1, 1) if r.chance() else None
    operands = [r.floats([steps, batch, width], -2, 2), w, rr, bias, lengths, h]
    if lstm:
        operands += [r.floats([d, batch, hidden], -1, 1) if r.chance() else None,
                     r.floats([d, 3 * hidden], -1, 1) if r.chance(0.4) else None]
    n = 3 if lstm else 2
    wants = [r.chance(0.7) for _ in range(n)]
    wants[r.int(0, n - 1)] = True
    constant = r.chance(0.7)
    return Node(r.name, operands, attributes, opset=r.pick(7, 14, 22), wants=wants, units=256,
                constants={1: constant, 2: constant, 3: constant})


# ---- attention -------------------------------------------------------------------------------------------------------


def mask_of(r, batch, heads, rows, columns, t):
    """Every row keeps one place: the softmax of none is not defined."""
    full = [batch, heads, rows, columns]
    shape = [1 if i < 2 and r.chance() else n for i, n in enumerate(full)]
    shape = shape[r.pick(0, 0, 1, 2):]
    if r.chance():
        mask = r.random.random(shape) < 0.6
        mask[..., 0] = True
        return mask
    return r.floats(shape, -2, 2, t)


@generator("Attention")
def attention(r):
    opset = r.pick(23, 24)
    t = r.pick("float32", "float32", "float32", "float16")
    batch, kv_heads = r.int(1, 3), r.int(1, 3)
    heads = kv_heads * r.int(1, 3)
    depth, value_depth = r.pick(2, 3, 4, 8, 16), r.pick(2, 3, 4, 8)
    rows, columns, past = r.int(1, 7), r.int(1, 7), r.pick(0, 0, 0, 1, 2, 4)
    attributes = {}
    rank3 = r.chance()
    if rank3:
        attributes.update(q_num_heads=heads, kv_num_heads=kv_heads)
        q = r.floats([batch, rows, heads * depth], dtype=t)
        k = r.floats([batch, columns, kv_heads * depth], dtype=t)
        v = r.floats([batch, columns, kv_heads * value_depth], dtype=t)
    else:
        q = r.floats([batch, heads, rows, depth], dtype=t)
        k = r.floats([batch, kv_heads, columns, depth], dtype=t)
        v = r.floats([batch, kv_heads, columns, value_depth], dtype=t)
    operands = [q, k, v, None, None, None]
    causal = r.chance(0.3) and (not past or rows == columns)  # else ONNX Runtime aligns the ends, the standard the past
    if causal:
        attributes["is_causal"] = 1
    if r.chance():
        operands[3] = mask_of(r, batch, heads, rows, columns + past, t)
    if past:
        operands[4] = r.floats([batch, kv_heads, past, depth], dtype=t)
        operands[5] = r.floats([batch, kv_heads, past, value_depth], dtype=t)
    if r.chance(0.3):
        attributes["scale"] = round(float(r.floats([], 0.1, 1)), 3)
    if r.chance(0.3):
        attributes["softcap"] = round(float(r.floats([], 0.5, 5)), 3)
    wants = [True, False, False, False]
    if past or r.chance(0.2):
        wants[1] = wants[2] = bool(past)
    if r.chance(0.3):
        wants[3] = True
        attributes["qk_matmul_output_mode"] = r.int(0, 3)
        hides = causal or operands[3] is not None and operands[3].dtype == bool
        if hides and attributes["qk_matmul_output_mode"] == 2:
            attributes["qk_matmul_output_mode"] = 3  # ONNX Runtime hides by the lowest float, the standard by -inf
    if opset == 24 and not past and attributes.get("qk_matmul_output_mode") != 2 and r.chance(0.3):
        operands.append(r.ints([batch], 1, columns))
    while not wants[-1]:
        wants.pop()
    return Node("Attention", operands, attributes, opset=opset, wants=wants, units=512)


@generator("RotaryEmbedding")
def rotary_embedding(r):
    t = r.pick("float32", "float32", "float16")
    batch, heads, length = r.int(1, 3), r.int(1, 4), r.int(1, 7)
    size = 2 * r.int(1, 8)
    rotated = 2 * r.int(1, size // 2) if r.chance(0.3) else size
    attributes = {}
    if r.chance():
        attributes["interleaved"] = r.int(0, 1)
    if rotated != size:
        attributes["rotary_embedding_dim"] = rotated
    rank3 = r.chance() or rotated != size and r.chance(0.3)
    if rank3 or rotated != size:
        attributes["num_heads"] = heads
    x = r.floats([batch, length, heads * size] if rank3 else [batch, heads, length, size], dtype=t)
    if r.chance(0.7):
        rows = length + r.int(0, 4)
        cache = [rows, rotated // 2]
        ids = r.ints([batch, length], 0, rows - 1)
    else:
        cache, ids = [batch, length, rotated // 2], None
    return Node("RotaryEmbedding", [x, r.floats(cache, -1, 1, t), r.floats(cache, -1, 1, t), ids], attributes, opset=23)


# ---- signals ---------------------------------------------------------------------------------------------------------


def units_of(dtype):
    """ONNX Runtime has the angles, and constants of windows, in float."""
    return 2.0**29 if dtype == "float64" else 512


@generator("DFT")
def dft(r):
    """Axis -1 would be that of the parts, which ONNX Runtime does not refuse."""
    opset = r.pick(17, 20)
    shape = [r.int(1, 3)]
    for _ in range(r.int(1, 3)):
        shape.append(r.pick(7, 8, 16, 17, 33, 64) if r.chance(0.15) else r.int(2, 9))
    t = r.pick("float32", "float32", "float64")
    attributes = {}
    axis = r.int(1, len(shape) - 1)
    length = shape[axis]
    signed = axis - len(shape) - 1 if r.chance(0.3) else axis
    complex_ = r.chance()
    kind = r.pick("forward", "forward", "inverse", "onesided")
    if kind == "inverse":
        attributes["inverse"], complex_ = 1, True
    if kind == "onesided":
        attributes["onesided"], complex_ = 1, False
    operands = [r.floats([*shape, 2 if complex_ else 1], dtype=t)]
    constants = {1: True, 2: True}
    operands.append(numpy.array(r.int(2, length + 3), "int64") if r.chance(0.4) else None)
    if opset == 17:
        attributes["axis"] = signed
    elif r.chance(0.7) or axis != len(shape) - 1:
        operands.append(numpy.array(signed, "int64"))
    return Node("DFT", operands, attributes, opset=opset, constants=constants, units=units_of(t))


@generator("STFT")
def stft(r):
    batch, frame, step = r.int(1, 3), r.int(2, 12), r.int(1, 5)
    length = frame + step * r.int(0, 5) + r.int(0, step - 1)
    t = r.pick("float32", "float32", "float64")
    window = r.floats([frame], 0.1, 1, t) if r.chance(0.6) else None
    by_length = numpy.array(frame, "int64") if window is None or r.chance() else None
    attributes = {"onesided": r.int(0, 1)} if r.chance(0.7) else {}
    operands = [r.floats([batch, length, 1], dtype=t), numpy.array(step, "int64"), window, by_length]
    return Node("STFT", operands, attributes, opset=17, constants={1: True, 3: True}, units=units_of(t))


@generator("HannWindow", "HammingWindow", "BlackmanWindow")
def window(r):
    attributes = {"periodic": r.int(0, 1)} if r.chance(0.7) else {}
    if r.chance(0.3):
        attributes["output_datatype"] = r.pick(1, 11)
    size = numpy.array(r.int(2, 40), r.pick("int32", "int64"))
    return Node(r.name, [size], attributes, opset=17, constants={0: r.chance(0.9)},
                units=units_of("float64" if attributes.get("output_datatype") == 11 else "float32"))


@generator("MelWeightMatrix")
def mel(r):
    bins, length, rate = r.int(1, 16), r.pick(16, 32, 64, 100), r.pick(8000, 16000)
    low = float(r.int(0, 1000))
    operands = [numpy.array(bins, "int64"), numpy.array(length, "int64"), numpy.array(rate, "int64"),
                numpy.array(low, "float32"), numpy.array(low + r.int(500, rate // 2 - 1000), "float32")]
    return Node("MelWeightMatrix", operands, opset=17, constants={i: True for i in range(5)})


# ---- states, which onnx.reference alone knows ------------------------------------------------------------------------


@generator("CausalConvWithState")
def causal_conv(r):
    batch, channels, length, taps = r.int(1, 3), r.int(1, 5), r.int(1, 8), r.int(1, 4)
    operands = [r.floats([batch, channels, length]), r.floats([channels, 1, taps]),
                r.floats([channels]) if r.chance() else None,
                r.floats([batch, channels, taps - 1]) if r.chance() else None]
    attributes = {"activation": r.pick("silu", "swish", "none")} if r.chance(0.7) else {}
    return Node("CausalConvWithState", operands, attributes, opset=27, outputs=2)


@generator("LinearAttention")
def linear_attention(r):
    batch, length, kv_heads, depth, width = r.int(1, 3), r.int(1, 6), r.int(1, 3), r.int(1, 5), r.int(1, 5)
    heads = kv_heads * r.int(1, 2)
    rule = r.pick("linear", "gated", "delta", "gated_delta")
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads, "update_rule": rule}
    if rule == "gated_delta" and r.chance():
        del attributes["update_rule"]
    if r.chance(0.3):
        attributes["scale"] = round(float(r.floats([], 0.1, 1)), 3)
    decay = beta = None
    if "gated" in rule:
        decay = r.floats([batch, length, kv_heads * r.pick(1, depth)], -1, 0)
    if "delta" in rule:
        beta = r.floats([batch, length, r.pick(1, kv_heads)], 0, 1)
    key = r.floats([batch, length, kv_heads * depth], -1, 1)
    operands = [r.floats([batch, length, heads * depth], -1, 1), key, r.floats([batch, length, kv_heads * width]),
                r.floats([batch, kv_heads, depth, width]) if r.chance() else None, decay, beta]
    return Node("LinearAttention", operands, attributes, opset=27, outputs=2, units=512)
