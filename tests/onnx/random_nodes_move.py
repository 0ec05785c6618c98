"""Nodes that move elements or make them: shapes, slices, pads, gathers and scatters, generators, what data sizes."""
import math

import numpy
import onnx
import onnx.numpy_helper

from random_nodes import Node, generator
from random_nodes_math import TYPES, extents, negative_or_not, type_of

INT64 = numpy.iinfo("int64")


def i64(values):
    return numpy.array(values, "int64")


def mostly(r, *operands):
    """These operands are constants nine times of ten."""
    return {i: r.chance(0.9) for i in operands}


# ---- shapes ----

def factors(r, n, rank):
    """An extent of each axis, with this product."""
    result = [1] * rank
    for p in (2, 3, 5, 7, 11, 13, 17, 31):
        while n % p == 0:
            result[r.int(0, rank - 1)] *= p
            n //= p
    result[r.int(0, rank - 1)] *= n
    return result


@generator("Reshape")
def reshape(r):
    opset = r.pick(5, 13, 14, 19, 23)
    shape = extents(r)
    size = math.prod(shape)
    target = factors(r, size, r.int(1, 4)) if size else [r.int(1, 4) for _ in range(r.int(0, 3))] + [0]
    if size == 1 and r.chance(0.2):
        target = []
    attributes = {"allowzero": r.int(0, 1)} if opset >= 14 and r.chance() else {}
    if size == 0:
        if opset >= 14:
            attributes["allowzero"] = 1
        else:
            target = list(shape)
    else:
        if target and r.chance(0.4):
            target[r.int(0, len(target) - 1)] = -1
        if not attributes.get("allowzero"):
            target = [0 if d < len(shape) and n == shape[d] and r.chance() else n for d, n in enumerate(target)]
    return Node("Reshape", [r.tensor(shape, r.pick(*TYPES)), i64(target)], attributes, opset=opset,
                constants=mostly(r, 1), units=0)


@generator("Flatten")
def flatten(r):
    opset = r.pick(1, 9, 11, 13, 23)
    shape = extents(r, 0 if opset >= 9 else 1)
    attributes = {}
    if r.chance(0.8) or not shape:
        axis = r.int(0, len(shape))
        attributes["axis"] = axis - len(shape) if opset >= 11 and axis < len(shape) and r.chance(0.4) else axis
    return Node("Flatten", [r.tensor(shape, type_of(r, "Flatten", opset))], attributes, opset=opset, units=0)


@generator("Squeeze")
def squeeze(r):
    opset = r.pick(1, 11, 13, 21, 23)
    shape = [1 if r.chance() else n for n in extents(r)]
    ones = [d for d, n in enumerate(shape) if n == 1]
    axes = None if r.chance(0.3) else [d for d in ones if r.chance(0.7)]
    x = r.tensor(shape, r.pick(*TYPES))
    if not axes:
        return Node("Squeeze", [x], opset=opset, units=0, symbolic=False)
    if opset >= 11:
        axes = [negative_or_not(r, a, len(shape)) for a in axes]
    axes = [axes[i] for i in r.random.permutation(len(axes))]
    if opset < 13:
        return Node("Squeeze", [x], {"axes": axes}, opset=opset, units=0)
    return Node("Squeeze", [x, i64(axes)], opset=opset, units=0, constants=mostly(r, 1))


@generator("Unsqueeze")
def unsqueeze(r):
    opset = r.pick(1, 11, 13, 21, 23)
    shape = extents(r, 0, 3)
    rank = len(shape) + r.int(1, 3)
    axes = [int(a) for a in r.random.permutation(rank)[:rank - len(shape)]]
    x = r.tensor(shape, r.pick(*TYPES))
    if opset >= 11:
        axes = [negative_or_not(r, a, rank) for a in axes]
    if opset < 13:
        return Node("Unsqueeze", [x], {"axes": sorted(axes) if opset < 11 else axes}, opset=opset, units=0)
    axes = i64(axes[0]) if len(axes) == 1 and r.chance(0.2) else i64(axes)
    return Node("Unsqueeze", [x, axes], opset=opset, units=0, constants={1: True})


@generator("Expand")
def expand(r):
    opset = r.pick(8, 13, 23)
    shape = extents(r)
    x = r.broadcast(shape)
    target = [1 if d >= len(shape) - len(x) and n == x[d - len(shape)] and r.chance(0.4) else n
              for d, n in enumerate(shape)]
    while target and target[0] == 1 and r.chance(0.5):
        target = target[1:]
    return Node("Expand", [r.tensor(x, type_of(r, "Expand", opset)), i64(target)], opset=opset, units=0,
                constants=mostly(r, 1))


@generator("Tile")
def tile(r):
    opset = r.pick(6, 13, 23)
    shape = extents(r)
    repeats = i64([r.int(0 if r.chance(0.05) else 1, 3) for _ in shape])
    return Node("Tile", [r.tensor(shape, type_of(r, "Tile", opset)), repeats], opset=opset, units=0,
                constants=mostly(r, 1))


@generator("Transpose")
def transpose(r):
    opset = r.pick(1, 13, 23)
    shape = extents(r, 0, 6 if r.chance(0.2) else 4)
    attributes = {"perm": [int(p) for p in r.random.permutation(len(shape))]} if shape and r.chance(0.85) else {}
    return Node("Transpose", [r.tensor(shape, type_of(r, "Transpose", opset))], attributes, opset=opset, units=0)


@generator("Concat")
def concat(r):
    opset = r.pick(4, 11, 13, 23)
    shape = extents(r, low_rank=1)
    axis = r.int(0, len(shape) - 1)
    dtype = type_of(r, "Concat", opset)
    operands = []
    for _ in range(r.int(1, 5)):
        shape[axis] = r.int(0 if r.chance(0.1) else 1, 5)
        operands.append(r.tensor(shape, dtype))
    axis = negative_or_not(r, axis, len(shape)) if opset >= 11 else axis
    return Node("Concat", operands, {"axis": axis}, opset=opset, units=0)


@generator("Split")
def split(r):
    """Sizes as attribute, operand, or none: equal parts, of which the last may be smaller since opset 18. No part is
    left out, with which ONNX Runtime crashes."""
    opset = r.pick(2, 11, 13, 18, 23)
    shape = extents(r, low_rank=1, empty=0)
    axis = r.int(0, len(shape) - 1)
    parts = r.int(1, 4)
    sizes = [r.int(0 if r.chance(0.1) else 1, 4) for _ in range(parts)]
    given = r.chance(0.6)
    if not given:
        sizes = [r.int(1, 4)] * parts
        if opset >= 18 and parts > 1:
            sizes[-1] = r.int(1, sizes[0])
    shape[axis] = sum(sizes)
    attributes, operands = {}, [r.tensor(shape, type_of(r, "Split", opset))]
    if axis or r.chance():
        attributes["axis"] = negative_or_not(r, axis, len(shape)) if opset >= 11 else axis
    if given and opset < 13:
        attributes["split"] = sizes
    elif given:
        operands.append(i64(sizes))
    elif opset >= 18:
        attributes["num_outputs"] = parts
    return Node("Split", operands, attributes, opset=opset, outputs=parts, units=0, constants=mostly(r, 1),
                symbolic=given or opset >= 18)


def bounds(r, n, step):
    """A start or end, at times far outside. Greatest integers only forwards: ONNX Runtime reads them as no bound in
    both directions, onnx.reference and Kvasir as NumPy does."""
    if r.chance(0.15):
        return r.pick(*([INT64.max, 2**31 - 1] if step > 0 else []), INT64.min, -2**31, n, -n, -n - 1, 0)
    return r.int(-n - 2, n + 2)


@generator("Slice")
def slice_(r):
    opset = r.pick(1, 10, 11, 13, 23)
    shape = extents(r, low_rank=1)
    axes = [int(a) for a in r.random.permutation(len(shape))[:r.int(1, len(shape))]]
    defaults = r.chance(0.3)
    if defaults:
        axes = list(range(len(axes)))
    steps = [r.pick(1, 1, 1, 2, 3, -1, -1, -2, -3, 100, -100) for _ in axes]
    if opset < 10 or r.chance(0.3):
        steps = [1] * len(axes)
    starts = [bounds(r, shape[a], s) for a, s in zip(axes, steps)]
    ends = [bounds(r, shape[a], s) for a, s in zip(axes, steps)]
    named = [negative_or_not(r, a, len(shape)) if opset >= 11 else a for a in axes]
    x = r.tensor(shape, type_of(r, "Slice", opset))
    if opset < 10:
        attributes = {"starts": starts, "ends": ends} | ({} if defaults else {"axes": named})
        return Node("Slice", [x], attributes, opset=opset, units=0)
    kind = r.pick("int64", "int64", "int32")
    if kind == "int32":
        starts, ends = (numpy.clip(v, -2**31, 2**31 - 1) for v in (starts, ends))
    operands = [numpy.array(v, kind) for v in (starts, ends)] + [None if defaults else numpy.array(named, kind)]
    if any(s != 1 for s in steps) or r.chance(0.2):
        operands.append(numpy.array(steps, kind))
    while operands[-1] is None:
        operands.pop()
    return Node("Slice", [x, *operands], opset=opset, units=0,
                constants=mostly(r, 1, 2) | {3: r.chance(0.98), 4: r.chance(0.98)})


@generator("Pad")
def pad(r):
    """Where elements are mirrored or repeated, extents without them are not empty, and reflections stay inside."""
    opset = r.pick(2, 11, 13, 18, 19, 21, 23)
    mode = r.pick("constant", "constant", "reflect", "edge", *(["wrap"] if opset >= 19 else []))
    shape = extents(r, low_rank=1, empty=0.04 if mode == "constant" else 0)
    axes = list(range(len(shape)))
    if opset >= 18 and r.chance(0.4):
        axes = [int(a) for a in r.random.permutation(len(shape))[:r.int(1, len(shape))]]
    begins, ends = [], []
    for a in axes:
        most = min(3, shape[a] - 1) if mode == "reflect" else min(3, shape[a]) if mode == "wrap" else 3
        pair = [r.int(0, most), r.int(0, most)]
        if r.chance(0.15) and shape[a] > 2 and mode in ("constant", "edge"):
            pair[r.int(0, 1)] = -r.int(1, shape[a] - 2)
        begins.append(pair[0])
        ends.append(pair[1])
    pads = begins + ends
    dtype = type_of(r, "Pad", opset)
    x, attributes = r.tensor(shape, dtype), {"mode": mode} if mode != "constant" or r.chance() else {}
    if opset < 11:
        value = {"value": r.pick(0.0, 1.5, -2.0)} if r.chance() else {}
        return Node("Pad", [x], {**attributes, "pads": pads, **value}, opset=opset, units=0)
    operands = [x, i64(pads), r.tensor([], dtype) if r.chance() else None]
    operands[2] = operands[2] if operands[2] is None else numpy.asarray(operands[2])
    if len(axes) < len(shape) or axes != sorted(axes) or (opset >= 18 and r.chance(0.2)):
        operands.append(numpy.array([negative_or_not(r, a, len(shape)) for a in axes], r.pick("int64", "int32")))
    while operands[-1] is None:
        operands.pop()
    return Node("Pad", operands, attributes, opset=opset, units=0, constants=mostly(r, 1) | {3: r.chance(0.98)})


@generator("CenterCropPad")
def center_crop_pad(r):
    shape = extents(r, low_rank=1, empty=0)
    axes = [int(a) for a in r.random.permutation(len(shape))[:r.int(1, len(shape))]] if r.chance() else None
    target = [r.int(1, 9) for _ in (shape if axes is None else axes)]
    attributes = {} if axes is None else {"axes": [negative_or_not(r, a, len(shape)) for a in axes]}
    return Node("CenterCropPad", [r.tensor(shape, r.pick(*TYPES)), numpy.array(target, r.pick("int64", "int32"))],
                attributes, opset=18, constants=mostly(r, 1), units=0)


@generator("DepthToSpace", "SpaceToDepth")
def blocks(r):
    opset = r.pick(1, 11, 13) if r.name == "DepthToSpace" else r.pick(1, 13)
    block, (n, c, h, w) = r.int(1, 3), (r.int(1, 3) for _ in range(4))
    attributes = {"blocksize": block}
    if r.name == "DepthToSpace":
        shape = [n, c * block * block, h, w]
        if opset >= 11 and r.chance(0.7):
            attributes["mode"] = r.pick("DCR", "CRD")
    else:
        shape = [n, c, h * block, w * block]
    return Node(r.name, [r.tensor(shape, type_of(r, r.name, opset))], attributes, opset=opset, units=0)


# ---- gather and scatter ----

def indices(r, shape, n, opset, kind=None):
    return r.ints(shape, -n if opset >= 11 else 0, n - 1, kind or r.pick("int64", "int64", "int32"))


@generator("Gather")
def gather(r):
    opset = r.pick(1, 11, 13, 23)
    shape = extents(r, low_rank=1, empty=0)
    axis = r.int(0, len(shape) - 1)
    attributes = {"axis": negative_or_not(r, axis, len(shape)) if opset >= 11 else axis} if axis or r.chance() else {}
    index = indices(r, extents(r, 0, 3, empty=0.1), shape[axis], opset)
    return Node("Gather", [r.tensor(shape, type_of(r, "Gather", opset)), index], attributes, opset=opset, units=0)


@generator("GatherElements")
def gather_elements(r):
    opset = r.pick(11, 13, 23)
    shape = extents(r, low_rank=1, empty=0)
    axis = r.int(0, len(shape) - 1)
    taken = [r.int(1, n) for n in shape]
    taken[axis] = r.int(0 if r.chance(0.1) else 1, 7)
    attributes = {"axis": negative_or_not(r, axis, len(shape))} if axis or r.chance() else {}
    return Node("GatherElements", [r.tensor(shape, type_of(r, "GatherElements", opset)),
                indices(r, taken, shape[axis], 11)], attributes, opset=opset, units=0, symbolic=r.chance(0.3))


def places(r, shape, count, kind="int64"):
    """count distinct coordinates in a tensor of this shape, some from its end."""
    flat = r.random.permutation(math.prod(shape))[:count]
    at = numpy.stack(numpy.unravel_index(flat, shape), -1).astype(kind) if shape else numpy.zeros((count, 0), kind)
    return numpy.where(r.random.random(at.shape) < 0.3, at - numpy.array(shape, kind), at)


@generator("GatherND")
def gather_nd(r):
    opset = r.pick(11, 12, 13, 23)
    shape = extents(r, low_rank=1, empty=0)
    batch = r.int(0, len(shape) - 1) if opset >= 12 and r.chance() else 0
    depth = r.int(1, len(shape) - batch)
    index_shape = [*shape[:batch], *r.shape(0 if batch else 1, 2, 1, 4)]
    columns = [r.ints(index_shape, -n, n - 1) for n in shape[batch:batch + depth]]
    attributes = {"batch_dims": batch} if batch or (opset >= 12 and r.chance(0.3)) else {}
    return Node("GatherND", [r.tensor(shape, type_of(r, "GatherND", opset)), numpy.stack(columns, -1)], attributes,
                opset=opset, units=0, symbolic=False)


def reductions(r, opset):
    return {"reduction": r.pick("none", "add", "mul", *(["max", "min"] if opset >= 18 else []))} \
        if opset >= 16 and r.chance(0.7) else {}


@generator("ScatterElements", "Scatter")
def scatter_elements(r):
    """Places repeat only where a reduction is there."""
    opset = r.pick(9, 10) if r.name == "Scatter" else r.pick(11, 13, 16, 18, 23)
    shape = extents(r, low_rank=1, empty=0)
    axis = r.int(0, len(shape) - 1)
    attributes = reductions(r, opset)
    taken = [r.int(1, n) for n in shape]
    dtype = type_of(r, r.name, opset)
    if dtype == "bool" and attributes:
        dtype = "int32"
    if attributes.get("reduction", "none") == "none":
        keys = [n if d == axis else t for d, (n, t) in enumerate(zip(shape, taken))]
        index = numpy.argsort(r.random.random(keys), axis)
        index = numpy.take(index, range(taken[axis]), axis)
        if opset >= 11:
            index = numpy.where(r.random.random(index.shape) < 0.3, index - shape[axis], index)
    else:
        taken[axis] = r.int(1, 9)
        index = indices(r, taken, shape[axis], 11)
    index = index.astype(r.pick("int64", "int32"))
    if axis or r.chance():
        attributes["axis"] = negative_or_not(r, axis, len(shape)) if opset >= 11 else axis
    return Node(r.name, [r.tensor(shape, dtype), index, r.tensor(taken, dtype)], attributes, opset=opset,
                symbolic=r.chance(0.3), units=8)


@generator("ScatterND")
def scatter_nd(r):
    opset = r.pick(11, 13, 16, 18, 23)
    shape = extents(r, low_rank=1, empty=0)
    depth = r.int(1, len(shape))
    attributes, dtype = reductions(r, opset), type_of(r, "ScatterND", opset)
    if dtype == "bool" and attributes:
        dtype = "int64"
    if attributes.get("reduction", "none") == "none":
        count = r.int(1, min(6, math.prod(shape[:depth])))
        index = places(r, shape[:depth], count)
    else:
        count = r.int(1, 9)
        index = numpy.stack([r.ints([count], -n, n - 1) for n in shape[:depth]], -1)
    if len(index) % 2 == 0 and r.chance():
        index = index.reshape(2, -1, depth)
    return Node("ScatterND", [r.tensor(shape, dtype), index, r.tensor([*index.shape[:-1], *shape[depth:]], dtype)],
                attributes, opset=opset, units=8)


@generator("OneHot")
def one_hot(r):
    """Indices outside of [-depth, depth) leave zeros. No peer has all types."""
    shape = extents(r, 1, 3)
    depth = r.int(1, 6)
    axis = r.int(-len(shape) - 1, len(shape))
    index = r.tensor(shape, r.pick("int64", "int32", "float32"), -depth - 2, depth + 2)
    index = numpy.round(index).astype(index.dtype)
    size = numpy.array(depth if r.chance() else [depth], r.pick("int64", "int32", "float32"))
    values = r.tensor([2], r.pick("float32", "int64", "int32", "bool" if r.chance(0.1) else "float32"))
    wrapped = numpy.expand_dims(numpy.where(index < 0, index + depth, index), axis)
    steps = numpy.arange(depth).reshape([-1 if d == axis % (len(shape) + 1) else 1 for d in range(len(shape) + 1)])
    expected = numpy.where(wrapped == steps, values[1], values[0])
    return Node("OneHot", [index, size, values], {"axis": axis} if axis != -1 or r.chance() else {},
                opset=r.pick(9, 11, 23), constants={1: size.dtype == "float32" or r.chance(0.9)}, units=0,
                expected=[expected])


@generator("ReverseSequence")
def reverse_sequence(r):
    shape = extents(r, 2, 4, empty=0)
    batch_first = r.int(0, 1)
    attributes = {"batch_axis": 0, "time_axis": 1} if batch_first else {"batch_axis": 1, "time_axis": 0}
    if not batch_first and r.chance():
        attributes = {}
    lengths = r.ints([shape[0 if batch_first else 1]], 1, shape[1 if batch_first else 0])
    return Node("ReverseSequence", [r.tensor(shape, r.pick(*TYPES)), lengths], attributes, opset=10, units=0)


# ---- generators ----

@generator("Range")
def range_(r):
    dtype = r.pick("float32", "float64", "int16", "int32", "int64")
    start, step = r.int(-10, 10), r.pick(1, 1, 2, 3, -1, -2, 7)
    limit = start + step * r.int(-1, 8) + r.int(0, 1)
    if dtype.startswith("float") and r.chance():
        start, limit, step = start + 0.25, limit + 0.5, step * r.pick(0.5, 0.375, 1.5)
    operands = [numpy.array(v, dtype) for v in (start, limit, step)]
    return Node("Range", operands, opset=r.pick(11, 23), constants=mostly(r, 0, 1, 2), units=4)


@generator("ConstantOfShape")
def constant_of_shape(r):
    value = r.tensor([1], r.pick(*TYPES))
    attributes = {"value": onnx.numpy_helper.from_array(value)} if r.chance(0.8) else {}
    return Node("ConstantOfShape", [i64(extents(r, empty=0.1))], attributes, opset=r.pick(9, 20, 23),
                constants=mostly(r, 0), units=0)


@generator("EyeLike")
def eye_like(r):
    opset = r.pick(9, 22)
    x = r.tensor(extents(r, 2, 2), type_of(r, "EyeLike", opset, "T1"))
    attributes = {}
    if r.chance(0.7):
        attributes["k"] = r.int(-8, 8)
    if r.chance():
        attributes["dtype"] = onnx.helper.np_dtype_to_tensor_dtype(numpy.dtype(type_of(r, "EyeLike", opset, "T2")))
    return Node("EyeLike", [x], attributes, opset=opset, units=0)


@generator("Trilu")
def trilu(r):
    x = r.tensor(extents(r, 2, 4), r.pick(*TYPES))
    k = i64(r.int(-8, 8) if not r.chance(0.05) else r.pick(INT64.max, INT64.min + 1)) if r.chance(0.7) else None
    return Node("Trilu", [x, k] if k is not None else [x], {"upper": r.int(0, 1)} if r.chance(0.7) else {},
                opset=r.pick(14, 23), constants={1: r.chance(0.6)}, units=0)


@generator("Shape", "Size")
def shape_(r):
    opset = r.pick(1, 13, 15, 19, 23)
    x = r.tensor(extents(r), r.pick(*TYPES))
    attributes = {}
    if r.name == "Shape" and opset >= 15:
        attributes = {name: r.int(-6, 6) for name in ("start", "end") if r.chance()}
    return Node(r.name, [x], attributes, opset=opset)


# ---- data gives the size ----

@generator("NonZero")
def non_zero(r):
    x = r.tensor(extents(r, low_rank=1), r.pick("float32", "int32", "int64", "uint8", "bool"), -2, 2)
    x = numpy.where(r.random.random(x.shape) < 0.4, numpy.zeros((), x.dtype), x)
    return Node("NonZero", [x], opset=r.pick(9, 13, 23))


@generator("Compress")
def compress(r):
    opset = r.pick(9, 11, 23)
    shape = extents(r, low_rank=1)
    axis = r.int(0, len(shape) - 1) if r.chance(0.7) else None
    n = math.prod(shape) if axis is None else shape[axis]
    attributes = {} if axis is None else {"axis": negative_or_not(r, axis, len(shape)) if opset >= 11 else axis}
    flags = r.tensor([r.int(min(1, n), n)], "bool")
    return Node("Compress", [r.tensor(shape, type_of(r, "Compress", opset)), flags], attributes, opset=opset, units=0)


@generator("Unique")
def unique(r):
    shape = extents(r, low_rank=1, empty=0)
    x = r.tensor(shape, r.pick("float32", "float64", "int64", "int8", "float32"), -3, 3)
    x = numpy.round(x).astype(x.dtype) + numpy.zeros((), x.dtype)
    attributes = {}
    if r.chance(0.6):
        attributes["axis"] = negative_or_not(r, r.int(0, len(shape) - 1), len(shape))
        x = numpy.abs(x) > 1 if r.chance(0.4) else x
        x = x.astype("float32") if x.dtype == bool else x
    if r.chance(0.7):
        attributes["sorted"] = r.int(0, 1)
    outputs = r.int(1, 4)
    wants = [True] + [r.chance(0.7) for _ in range(outputs - 1)]
    return Node("Unique", [x], attributes, opset=r.pick(11, 23), outputs=outputs, wants=wants, units=0)
