"""Nodes of com.microsoft: attention with its masks and caches, fused products, embeddings, packed tables."""
import numpy

from random_nodes import Node, generator
from random_nodes_microsoft import node


ACTIVATIONS = [("Relu", 0), ("Tanh", 0), ("Sigmoid", 0), ("LeakyRelu", 1), ("Clip", 2), ("HardSigmoid", 2)]


@generator("FusedConv")
def fused_conv(r):
    n, group = r.int(1, 2), r.int(1, 2)
    kernel = [r.int(1, 3) for _ in range(n)]
    x = r.floats([r.int(1, 2), group * r.int(1, 3), *(k + r.int(0, 4) for k in kernel)])
    m = group * r.int(1, 3)
    w = r.floats([m, x.shape[1] // group, *kernel])
    name, count = r.pick(*ACTIVATIONS)
    attributes = {"kernel_shape": kernel, "group": group, "activation": name}
    if count:
        attributes["activation_params"] = [0.2] if count == 1 else [-0.5, 0.75] if name == "Clip" else [0.3, 0.4]
    return node("FusedConv", [x, w, r.floats([m]) if r.chance() else None], attributes)


@generator("FusedGemm")
def fused_gemm(r):
    m, k, n = r.int(1, 6), r.int(1, 9), r.int(1, 9)
    left, right = r.chance(), r.chance()
    x, y = r.floats((k, m) if left else (m, k)), r.floats((n, k) if right else (k, n))
    name = r.pick("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "HardSigmoid", "Softplus", "Softsign", "ThresholdedRelu",
                  "Selu")
    attributes = {"activation": name, "transA": int(left), "transB": int(right), "alpha": float(r.pick(1, 0.5)),
                  "beta": float(r.pick(1, 2))}
    if name in ("LeakyRelu", "Elu", "ThresholdedRelu", "HardSigmoid", "Selu"):
        attributes["activation_alpha"] = float(r.pick(0.2, 1.5))
    if name == "HardSigmoid":
        attributes["activation_beta"] = float(r.pick(0.3, 0.7))
    if name == "Selu":
        attributes["activation_gamma"] = 1.25
    c = r.pick(None, r.floats(r.broadcast([m, n])))
    return node("FusedGemm", [x, y, c], attributes)


@generator("SimplifiedLayerNormalization")
def simplified(r):
    """ONNX Runtime's name for RMSNormalization, in ONNX's domain."""
    x = r.floats([r.int(1, 3), r.int(1, 4), r.int(2, 40)])
    attributes = {"axis": r.pick(-1, 2), "epsilon": 1e-5, "stash_type": 1}
    return Node(r.name, [x, r.floats(x.shape[-1:])], attributes, units=256)


@generator("EmbedLayerNormalization")
def embed(r):
    batch, rows, width, words = r.int(1, 3), r.int(1, 5), r.int(2, 20), r.int(3, 9)
    segments = r.chance()
    operands = [r.ints([batch, rows], 0, words - 1, "int32"), r.ints([batch, rows], 0, 1, "int32") if segments else None,
                r.floats([words, width]), r.floats([rows + r.int(0, 2), width]), r.floats([2, width]) if segments else None,
                r.floats([width]), r.floats([width])]
    wants = [True, False, False]
    if r.chance():
        lengths = [r.int(1, rows) for _ in range(batch)]
        operands.append(numpy.array([[int(i < n) for i in range(rows)] for n in lengths], "int32"))
        wants[1] = True
    else:
        operands.append(None)
        wants[1] = r.chance()
    if r.chance():
        operands.append(r.ints([r.pick(1, batch), rows], 0, rows - 1, "int32"))
    wants[2] = r.chance()
    dims = {i: ["B", "S"] for i in (0, 1, 7)}  # ONNX Runtime wants numbers for the tables
    return node("EmbedLayerNormalization", operands, {"epsilon": 1e-6}, outputs=3, wants=wants, units=256, dims=dims)


@generator("MicrosoftRotaryEmbedding")
def rotary(r):
    batch, heads, rows, pairs = r.int(1, 3), r.int(1, 3), r.int(1, 5), r.pick(1, 2, 4, 8)
    length = rows + r.int(0, 4)
    size = 2 * pairs
    tables = [r.floats([length, pairs], -1, 1) for _ in range(2)]
    offset = r.chance(0.4)
    positions = r.ints([1], 0, length - rows) if offset else r.ints([batch, rows], 0, length - 1)
    attributes = {"interleaved": int(r.chance())}
    if r.chance(0.4):
        size += 2 * r.int(0, 3)
        attributes |= {"rotary_embedding_dim": 2 * pairs, "num_heads": heads}
    four = r.chance(0.4)
    x = r.floats([batch, heads, rows, size] if four else [batch, rows, heads * size])
    dims = {0: ["B", None, "S", None] if four else ["B", "S", None], 2: ["L", None], 3: ["L", None]}
    if not offset:
        dims[1] = ["B", "S"]
    return node("RotaryEmbedding", [x, positions, *tables], attributes, dims=dims)


def mask_of(r, batch, rows, keys):
    """Any mask of Attention and MultiHeadAttention."""
    kind = r.pick("none", "ends", "flags", "square")
    if kind == "ends":
        return r.ints([batch], 1, keys, "int32")
    if kind == "none":
        return None
    flags = r.ints([batch, keys] if kind == "flags" else [batch, rows, keys], 0, 1, "int32")
    flags[..., 0] = 1
    return flags


def bias_of(r, batch, heads, rows, keys):
    return r.floats([r.pick(1, batch), r.pick(1, heads), rows, keys]) if r.chance(0.3) else None


@generator("MultiHeadAttention")
def multi_head(r):
    batch, heads, rows, size = r.int(1, 3), r.int(1, 3), r.int(1, 5), r.pick(2, 4, 8, 16)
    kind = r.pick("rows", "rows", "cross", "packed", "packed keys", "heads")
    keys = r.int(1, 6) if kind in ("cross", "heads", "packed keys") else rows
    value = r.pick(size, size, 3) if kind in ("rows", "cross") else size
    q = r.floats([batch, rows, heads * size])
    key, v = r.floats([batch, keys, heads * size]), r.floats([batch, keys, heads * value])
    if kind == "packed":
        q, key, v = r.floats([batch, rows, heads, 3, size]), None, None
    elif kind == "packed keys":
        key, v = r.floats([batch, keys, heads, 2, size]), None
    elif kind == "heads":
        key, v = (r.floats([batch, heads, keys, size]) for _ in range(2))
    bias = r.floats([2 * heads * size + heads * value]) if kind in ("rows", "cross") and r.chance() else None
    past = r.int(1, 4) if kind == "rows" and value == size and r.chance(0.4) else 0
    total = keys + past
    pasts = [r.floats([batch, heads, past, size]) for _ in range(2)] if past else [None, None]
    mask = mask_of(r, batch, rows, total)
    attributes = {"num_heads": heads}
    if r.chance(0.3):
        attributes["scale"] = 0.3
    if r.chance(0.3) and keys == rows:
        attributes["unidirectional"] = 1
    if r.chance(0.3):
        attributes["mask_filter_value"] = -100.0
    wants = [True, bool(past), bool(past)]
    return node("MultiHeadAttention", [q, key, v, bias, mask, bias_of(r, batch, heads, rows, total), *pasts], attributes,
              outputs=3, wants=wants, units=256,
                dims={0: ["B", "T", None], 1: ["B", "S", None], 2: ["B", "S", None]} if kind == "cross" else None,
                symbolic=kind == "cross")


@generator("MicrosoftAttention")
def attention(r):
    batch, heads, rows, size, width = r.int(1, 3), r.int(1, 3), r.int(1, 5), r.pick(2, 4, 8, 16), r.int(1, 12)
    past = r.int(1, 4) if r.chance(0.4) else 0
    value = r.pick(size, 3) if not past else size
    n = 2 * heads * size + heads * value
    mask = r.pick(mask_of(r, batch, rows, rows + past), r.ints([2 * batch], 1, rows, "int32"))
    if mask is not None and mask.shape == (2 * batch,):
        mask[batch:] = r.pick(0, mask[:batch] - 1)
    attributes = {"num_heads": heads}
    if value != size or r.chance(0.2):
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * value]
    if r.chance(0.3):
        attributes["unidirectional"] = 1
    if r.chance(0.3):
        attributes["scale"] = 0.3
    operands = [r.floats([batch, rows, width]), r.floats([width, n], -1, 1), r.floats([n]) if r.chance(0.7) else None, mask,
                r.floats([2, batch, heads, past, size]) if past else None, None if past else bias_of(r, batch, heads, rows, rows)]
    pairs = mask is not None and mask.shape == (2 * batch,)  # which two numbers tell from lengths
    return node("Attention", operands, attributes, outputs=2, wants=[True, bool(past)], units=512, symbolic=not pairs,
              dims={0: ["B", "S", None], 4: [None, "B", None, "P", None]})


@generator("QAttention")
def q_attention(r):
    batch, heads, rows, size, width = r.int(1, 3), r.int(1, 3), r.int(1, 5), r.pick(2, 4, 8, 16), r.int(1, 12)
    n = 3 * heads * size
    columns = r.chance(0.4)
    x, w = r.tensor([batch, rows, width], "uint8", 0, 255), r.tensor([width, n], r.pick("int8", "uint8"), -127, 127)
    mask = r.pick(None, r.ints([batch], 1, rows, "int32"), r.ints([batch, rows], 0, 1, "int32"))
    scale = r.floats([n] if columns else [], 0.005, 0.02)
    zeros = [r.pick(None, numpy.array(128, "uint8")), r.pick(None, r.tensor([n] if columns else [], w.dtype, 0, 3))]
    past = r.floats([2, batch, heads, 2, size]) if r.chance(0.3) else None
    if past is not None:
        mask = None
    operands = [x, w, r.floats([n]), numpy.array(0.02, "float32"), scale, mask, *zeros, past]
    return node("QAttention", operands, {"num_heads": heads, "unidirectional": int(r.chance(0.3))}, outputs=2,
              wants=[True, past is not None], units=2048, constants={1: True, 4: True, 7: True},
              dims={0: ["B", "S", None], 8: [None, "B", None, "P", None]})


def kept(length, capacity, window):
    """Rows that a cache as large as the window keeps."""
    step = capacity - window + 1
    return length if length <= capacity else length - step * -(-(length - capacity) // step)


@generator("GroupQueryAttentionSliding")
def sliding(r):
    kv, group, size, window = r.int(1, 2), r.int(1, 2), r.pick(16, 32), r.int(1, 6)
    heads, capacity = kv * group, window + r.int(0, 4)
    batch = r.int(1, 3)
    rows = r.int(1, 9)
    if r.chance(0.3):
        befores = [0] * batch  # a prompt
    else:
        rows = rows if batch == 1 else 1
        befores = [r.int(1, 12) for _ in range(batch)]
    lengths = [n + rows for n in befores]
    total = max(lengths)
    operands = [r.floats([batch, rows, heads * size]), *(r.floats([batch, rows, kv * size]) for _ in range(2)),
                *(r.floats([batch, kv, capacity, size]) for _ in range(2)), numpy.array(lengths, "int32") - 1,
                numpy.array(total, "int32")]
    attributes = {"num_heads": heads, "kv_num_heads": kv, "local_window_size": window, "sliding_window_cache": 1}
    if r.chance():
        attributes |= {"do_rotary": 1}
        operands += [r.floats([total + 1, size // 2], -1, 1) for _ in range(2)]

    def defined(output, y):
        y = numpy.array(y)
        for b, n in enumerate(lengths):
            if output:
                y[b, :, kept(n, capacity, window):] = 0
        return y

    return node("GroupQueryAttention", operands, attributes, outputs=3, units=512, constants={6: r.chance()},
              defined=defined, dims={0: ["B", "S", None], 1: ["B", "S", None], 2: ["B", "S", None],
                                     3: ["B", None, "C", None], 4: ["B", None, "C", None], 5: ["B"]})


@generator("GroupQueryAttention")
def grouped(r):
    batch, kv, group, size = r.int(1, 3), r.int(1, 2), r.int(1, 3), r.pick(16, 32)
    heads = kv * group
    kind = r.pick("prompt", "prompt with room", "step", "step with room", "chunk")
    rows = r.int(1, 6) if "prompt" in kind or kind == "chunk" else 1
    if kind == "chunk":
        batch = 1
    past = 0 if "prompt" in kind else r.int(1, 9)
    total = rows + past
    room = total + r.int(0, 5) if "room" in kind else past
    if "prompt" in kind:
        lengths = [r.int(1, rows) for _ in range(batch)]
    else:
        lengths = [r.int(rows + 1, total) if kind.startswith("step") else total for _ in range(batch)]
    lengths[r.int(0, batch - 1)] = total
    seqlens = numpy.array(lengths, "int32") - 1
    q = r.floats([batch, rows, heads * size])
    key, value = (r.floats([batch, rows, kv * size]) for _ in range(2))
    if r.chance(0.3):
        q, key, value = r.floats([batch, rows, (heads + 2 * kv) * size]), None, None
    pasts = [r.floats([batch, kv, room, size]) for _ in range(2)]
    if not past and kind == "prompt":
        pasts = r.pick([None, None], [r.floats([batch, kv, 0, size]) for _ in range(2)])
    attributes = {"num_heads": heads, "kv_num_heads": kv}
    operands = [q, key, value, *pasts, seqlens, numpy.array(total, "int32")]
    if r.chance():
        length = max(total, room) + r.int(0, 3)
        pairs = size // 2  # fewer are of packed tables
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(r.chance(0.3))}
        operands += [r.floats([length, pairs], -1, 1) for _ in range(2)]
    else:
        operands += [None, None]
    operands.append(None)
    if r.chance(0.3):
        operands.append(r.floats([1, r.pick(1, heads), rows, total]))
    if r.chance(0.3):
        attributes["scale"] = 0.3
    if r.chance(0.3):
        attributes["softcap"] = 2.0
    if r.chance(0.3):
        attributes["local_window_size"] = r.int(1, 6)
    made = node("GroupQueryAttention", operands, attributes, outputs=3, units=512, constants={5: False, 6: r.chance()})

    def defined(output, y):
        """Rows of padding are not; those of a prompt come after the others."""
        y = numpy.array(y)
        for b, n in enumerate(lengths):
            if output:
                y[b, :, n:] = 0
            elif "prompt" in kind:
                y[b, n:] = 0
        return y

    made.defined = defined
    made.dims = {0: ["B", "S", None], 1: ["B", "S", None], 2: ["B", "S", None], 3: ["B", None, "P", None],
                 4: ["B", None, "P", None], 5: ["B"]}
    return made


@generator("MatMulBnb4")
def bnb4(r):
    block, n, k = r.pick(16, 32, 64), r.int(1, 20), r.int(1, 50)
    operands = [r.floats([*r.shape(1, 2, 1, 4), k]), r.tensor([(n * k + 1) // 2], "uint8", 0, 255),
                r.floats([(n * k + block - 1) // block], 0.1, 2)]
    attributes = {"K": k, "N": n, "block_size": block, "quant_type": r.int(0, 1)}
    if r.chance():
        attributes["transB"] = 1  # with 0 ONNX Runtime reads past its weights
    return node("MatMulBnb4", operands, attributes, constants={1: True, 2: True}, units=512)


@generator("GatherBlockQuantized")
def gather_blocks(r):
    block, rows, blocks = r.pick(16, 32), r.int(1, 6), r.int(1, 3)
    bits = r.pick(4, 8)
    columns = block * blocks
    data = r.tensor([rows, columns * bits // 8], "uint8", 0, 255)
    zero = r.tensor([rows, (blocks * bits + 7) // 8], "uint8", 0, 255) if r.chance() else None
    indices = r.ints(r.shape(0, 2, 1, 3), -rows, rows - 1, r.pick("int32", "int64"))
    attributes = {"block_size": block, "quantize_axis": 1, "gather_axis": 0, "bits": bits}
    return node("GatherBlockQuantized", [data, indices, r.floats([rows, blocks], 0.01, 0.05), zero], attributes,
              constants={0: True, 2: True, 3: True})


@generator("DynamicQuantizeMatMul", "MatMulIntegerToFloat")
def dynamic_products(r):
    op = r.name
    m, k, n = r.int(1, 6), r.int(1, 40), r.int(1, 20)
    columns = r.chance(0.4)
    w = r.tensor([k, n], r.pick("int8", "uint8"), -127, 127)
    scale, zero = r.floats([n] if columns else [1], 0.005, 0.02), r.pick(None, r.tensor([n] if columns else [1], w.dtype, 0, 9))
    bias = r.pick(None, r.floats([n]))
    batch = r.shape(0, 2, 1, 3)
    if op == "DynamicQuantizeMatMul":
        operands = [r.floats([*batch, m, k]), w, scale, zero, bias]
        return node(op, operands, constants={1: True, 2: True, 3: True}, units=1 << 18)
    operands = [r.tensor([*batch, m, k], "uint8", 0, 255), w, r.floats([1], 0.01, 0.02), scale,
                r.pick(None, numpy.array([128], "uint8")), zero, bias]
    return node(op, operands, constants={1: True, 2: True, 3: True, 4: True, 5: True}, units=512)


