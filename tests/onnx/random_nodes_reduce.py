"""Nodes over an axis or several: reductions, scans, selection, products of matrices."""
import string

import numpy

from random_nodes import Node, generator
from random_nodes_math import FLOATS, extents, negative_or_not, specials, type_of


def axes_of(r, rank):
    """Some of the axes, in any order, counted from either end."""
    axes = [int(a) for a in r.random.permutation(rank)[:r.int(1, rank)]] if rank else []
    return [negative_or_not(r, a, rank) for a in axes]


# ---- reductions ----

@generator("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
           "ReduceLogSum", "ReduceLogSumExp")
def reduction(r):
    """Axes: an attribute or, later, an input. No empty extents for means and logarithms, whose results are NaNs;
    results that are no whole numbers only in floats."""
    opset = r.pick(11, 13, 18, 23)
    by_input = opset >= (13 if r.name == "ReduceSum" else 18)
    fractional = r.name in ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
    shape = extents(r, empty=0 if fractional else 0.1)
    dtype = r.pick(*FLOATS) if fractional else type_of(r, r.name, opset)
    if r.name in ("ReduceMax", "ReduceMin") and 0 in shape and dtype != "bool":
        dtype = r.pick("float32", "float64", "int32", "int64")
    low, high = (0.1, 3) if r.name == "ReduceLogSum" else (-1.5, 1.5) if r.name == "ReduceProd" else (-3, 3)
    if r.name == "ReduceSumSquare" and dtype in ("uint32", "uint64"):
        dtype = "int32"  # onnx.reference widens them
    x = r.tensor(shape, dtype, low, high)  # products of integers do not overflow, which ONNX Runtime saturates
    if r.name in ("ReduceMax", "ReduceMin"):
        x = specials(r, x)  # no NaN: ONNX Runtime has the largest number or NaN, as its vectors fall
        x = numpy.nan_to_num(x, nan=1, posinf=numpy.inf, neginf=-numpy.inf) if x.dtype.kind == "f" else x
    axes = axes_of(r, len(shape)) if r.chance(0.75) else None
    attributes, operands = {}, [x]
    if r.chance(0.7):
        attributes["keepdims"] = r.int(0, 1)
    if by_input:
        if r.chance(0.3):
            attributes["noop_with_empty_axes"] = r.int(0, 1)
        if axes is not None or r.chance(0.3):
            operands.append(numpy.array(axes or [], "int64"))
    elif axes:
        if opset < 11:
            axes = [a % len(shape) for a in axes]
        attributes["axes"] = axes
    return Node(r.name, operands, attributes, opset=opset, constants={1: r.chance(0.98)})


@generator("ArgMax", "ArgMin")
def arg(r):
    opset = r.pick(1, 11, 12, 13, 23)
    shape = extents(r, low_rank=1, empty=0)
    x = r.tensor(shape, type_of(r, r.name, opset), -9, 9)
    if r.chance():
        x = numpy.round(x / 3).astype(x.dtype)  # ties
    attributes = {}
    if r.chance(0.8):
        axis = r.int(0, len(shape) - 1)
        attributes["axis"] = negative_or_not(r, axis, len(shape)) if opset >= 11 else axis
    if r.chance(0.7):
        attributes["keepdims"] = r.int(0, 1)
    if opset >= 12 and r.chance():
        attributes["select_last_index"] = r.int(0, 1)
    return Node(r.name, [x], attributes, opset=opset)


@generator("CumSum", "CumProd")
def scan(r):
    opset = r.pick(11, 14, 23) if r.name == "CumSum" else 26
    shape = extents(r, low_rank=1)
    x = r.tensor(shape, type_of(r, r.name, opset), -2, 2)
    axis = negative_or_not(r, r.int(0, len(shape) - 1), len(shape))
    attributes = {name: r.int(0, 1) for name in ("exclusive", "reverse") if r.chance()}
    operands = [x, numpy.array(axis if r.chance(0.8) else [axis], r.pick("int32", "int64"))]
    return Node(r.name, operands, attributes, opset=opset, constants={1: r.chance(0.98)}, units=256)


@generator("TopK")
def top_k(r):
    """Sorted, as the order is open otherwise."""
    opset = r.pick(1, 10, 11, 23, 24)
    shape = extents(r, low_rank=1, empty=0)
    axis = r.int(0, len(shape) - 1)
    k = r.int(1 if opset < 10 else 0, shape[axis])
    x = r.tensor(shape, type_of(r, "TopK", opset), -50, 50)
    if r.chance(0.4):
        x = (x / 20).astype("int32").astype(x.dtype)  # ties: the lower index comes first
    attributes = {}
    if axis != len(shape) - 1 or r.chance():
        attributes["axis"] = negative_or_not(r, axis, len(shape)) if opset >= 11 else axis
    if opset < 10:
        return Node("TopK", [x], {**attributes, "k": k}, opset=opset, outputs=2, units=0)
    if opset >= 11 and r.chance(0.7):
        attributes["largest"] = r.int(0, 1)
    return Node("TopK", [x, numpy.array([k], "int64")], attributes, opset=opset, outputs=2, units=0,
                constants={1: r.chance(0.9)}, wants=r.pick(None, None, [True, False], [False, True]))


# ---- products ----

@generator("MatMul")
def matmul(r):
    opset = r.pick(1, 9, 13, 23)
    m, n, k = (r.pick(r.int(1, 6), r.int(1, 6), r.int(1, 70), 1 if r.chance(0.9) else 0) for _ in range(3))
    batch = r.shape(0, 2, 1, 3)
    x, y = [*r.broadcast(batch), m, k], [*r.broadcast(batch), k, n]
    if r.chance(0.15):
        x = [k]
    if r.chance(0.15):
        y = [k]
    dtype = type_of(r, "MatMul", opset)
    return Node("MatMul", [r.tensor(x, dtype), r.tensor(y, dtype)], opset=opset)


@generator("Gemm")
def gemm(r):
    opset = r.pick(7, 9, 11, 13, 23)
    m, n, k = (r.pick(r.int(1, 6), r.int(1, 6), r.int(1, 70)) for _ in range(3))
    dtype = r.pick("float32", "float32", "float64", "float16", *(["int32", "int64", "uint32"] if opset >= 9 else []))
    attributes = {name: r.int(0, 1) for name in ("transA", "transB") if r.chance(0.6)}
    for name in ("alpha", "beta"):
        if r.chance(0.4) and numpy.dtype(dtype).kind == "f":
            attributes[name] = r.pick(0.5, -1.25, 2.0, 0.0)
    x = r.tensor([k, m] if attributes.get("transA") else [m, k], dtype)
    y = r.tensor([n, k] if attributes.get("transB") else [k, n], dtype)
    c = r.tensor(r.pick([m, n], [1, n], [m, 1], [n], [1], [], [1, 1]), dtype)
    return Node("Gemm", [x, y, c if opset < 11 or r.chance(0.7) else None][:2 if r.chance(0.1) and opset >= 11 else 3],
                attributes, opset=opset)


def equation(r):
    """Terms over few letters, at times with one twice (a diagonal), an ellipsis, spaces or no result."""
    letters = list(r.random.permutation(list(string.ascii_lowercase[:6] + "AB")))[:r.int(1, 5)]
    sizes = {letter: r.int(1, 5) for letter in letters}
    batch = r.shape(0, 2, 1, 3) if r.chance(0.3) else None
    terms, shapes = [], []
    for _ in range(r.pick(1, 1, 2, 2, 2, 3)):
        term = [str(r.pick(*letters)) for _ in range(r.int(0, 3))] if r.chance(0.25) else \
            [str(v) for v in r.random.permutation(letters)[:r.int(1, 3)]]
        shape = [sizes[v] for v in term]
        if batch is not None and r.chance(0.8):
            at = r.int(0, len(term))
            term.insert(at, "...")
            shape[at:at] = r.broadcast(batch)
        terms.append("".join(term))
        shapes.append(shape)
    dotted = any("..." in t for t in terms)
    text = ("," if r.chance(0.8) else " , ").join(terms)
    if r.chance(0.75):
        used = sorted(set("".join(terms)) - {"."})
        result = [str(v) for v in r.random.permutation(used)[:r.int(0, len(used))]] if used else []
        if dotted:
            result.insert(r.int(0, len(result)), "...")
        text += ("->" if r.chance(0.8) else " -> ") + "".join(result)
    return text, shapes


@generator("Einsum")
def einsum(r):
    text, shapes = equation(r)
    dtype = r.pick("float32", "float32", "float64", "int32", "int64")
    return Node("Einsum", [r.tensor(s, dtype) for s in shapes], {"equation": text}, opset=r.pick(12, 23))


@generator("Det")
def det(r):
    n = r.int(1, 6)
    return Node("Det", [r.floats([*extents(r, 0, 2), n, n], dtype=r.pick("float32", "float64"))], opset=r.pick(11, 22),
                units=1024, symbolic=False)


# ---- boxes and state ----

@generator("NonMaxSuppression")
def non_max_suppression(r):
    """Distinct scores: equal ones have no order."""
    batch, classes, boxes = r.int(1, 2), r.int(1, 3), r.int(1, 12)
    a, b = r.floats([batch, boxes, 2], 0, 10), r.floats([batch, boxes, 2], 0, 10)
    centre = r.int(0, 1)
    corners = numpy.concatenate([a, b / 2 if centre else b], 2)
    scores = (r.random.permutation(batch * classes * boxes) / (batch * classes * boxes)).astype("float32")
    operands = [corners, scores.reshape(batch, classes, boxes)]
    for value in (numpy.array([r.int(0, 5)], "int64"), numpy.array([r.pick(0.1, 0.3, 0.5, 0.9)], "float32"),
                  numpy.array([r.pick(0.0, 0.25, 0.5)], "float32"))[:r.int(0, 3)]:
        operands.append(value if r.chance(0.9) else None)
    attributes = {"center_point_box": centre} if centre or r.chance() else {}
    return Node("NonMaxSuppression", operands, attributes, opset=r.pick(10, 11, 23))


@generator("TensorScatter")
def tensor_scatter(r):
    mode = r.pick(None, "linear", "circular")
    past = [r.int(1, 3), *r.shape(1, 3, 1, 5)]
    axis = r.int(1, len(past) - 1)
    update = list(past)
    update[axis] = r.int(1, past[axis])
    start = r.ints([past[0]], 0, past[axis] - (1 if mode == "circular" else update[axis]))
    if not r.chance(0.8):
        start = None
    dtype = r.pick("float32", "float16", "int8", "int64", "bool", "float64")
    attributes = {"mode": mode} if mode else {}
    if axis != len(past) - 2 or r.chance():
        attributes["axis"] = negative_or_not(r, axis, len(past))
    return Node("TensorScatter", [r.tensor(past, dtype), r.tensor(update, dtype), start], attributes, opset=24, units=0)
