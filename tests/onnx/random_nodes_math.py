"""Elementwise nodes: mathematics, logic, comparison, casts, activations, the Softmax family."""
import numpy
import onnx
import onnx.defs

from random_nodes import Node, generator

NUMBERS = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TYPES = (*NUMBERS, "bool")
FLOATS = ("float32", "float64", "float16")
ONNX_NAMES = {"float": "float32", "double": "float64"}


# ---- what other modules share ----

def allowed(op, opset, constraint="T"):
    """Element types of NumPy that the standard allows."""
    for one in onnx.defs.get_schema(op, opset, "").type_constraints:
        if one.type_param_str == constraint:
            names = [name[7:-1] for name in one.allowed_type_strs if name.startswith("tensor(")]
            return [t for t in (ONNX_NAMES.get(name, name) for name in names) if t in TYPES]
    raise KeyError(f"{op} {opset}: no {constraint}")


def type_of(r, op, opset, constraint="T"):
    """float32 often, as most code is for it."""
    types = allowed(op, opset, constraint)
    return "float32" if "float32" in types and r.chance(0.3) else r.pick(*types)


def extents(r, low_rank=0, high_rank=4, empty=0.04, low=1):
    """Small mostly, at times around the width of vectors, or none."""
    shape = r.shape(low_rank, high_rank, low, 6)
    if shape and r.chance(0.15):
        shape = [r.int(low, 3) for _ in shape]
        shape[r.int(0, len(shape) - 1)] = r.pick(7, 8, 9, 15, 16, 17, 31, 33, 64, 100)
    if shape and r.chance(empty):
        shape[r.int(0, len(shape) - 1)] = 0
    return shape


def specials(r, values, extremes=True):
    """Puts infinities, NaNs, -0 and extremes of integers at random places."""
    if not values.size or not r.chance(0.3):
        return values
    if values.dtype.kind == "f":
        largest = float(numpy.finfo(values.dtype).max)
        tiny = float(numpy.finfo(values.dtype).smallest_subnormal)
        put = [numpy.inf, -numpy.inf, numpy.nan, -0.0, 0.0] + ([largest, -largest, tiny] if extremes else [])
    elif values.dtype.kind in "iu":
        limits = numpy.iinfo(values.dtype)
        put = [limits.min, limits.max, limits.max - 1, limits.min + 1, 0]
    else:
        return values
    values = values.copy()
    for _ in range(r.int(1, 4)):
        values.reshape(-1)[r.int(0, values.size - 1)] = numpy.array(r.pick(*put)).astype(values.dtype)
    return values


def negative_or_not(r, axis, rank):
    return axis - rank if rank and r.chance(0.4) else axis


# ---- one operand ----

DOMAINS = {"Acos": (-1, 1), "Acosh": (1, 9), "Asin": (-1, 1), "Atanh": (-0.99, 0.99), "Exp": (-9, 9), "Log": (0.01, 9),
           "Sqrt": (0, 20), "Cosh": (-6, 6), "Sinh": (-6, 6), "Erf": (-4, 4), "Tan": (-1.4, 1.4), "Sin": (-50, 50),
           "Cos": (-50, 50), "Sigmoid": (-12, 12), "Tanh": (-6, 6), "Softplus": (-20, 20), "Relu": (-9, 9)}
EXACT = {"Abs", "BitwiseNot", "Ceil", "Floor", "Identity", "IsNaN", "Neg", "Not", "Relu", "Round", "Sign", "Sqrt"}
LOOSE = {"Sin", "Cos", "Tan", "Sigmoid", "HardSwish", "Erf"}  # a result near zero is no better than the largest
FIRST = {"Acosh": 9, "Asinh": 9, "Atanh": 9, "Cosh": 9, "Sinh": 9, "Erf": 9, "IsNaN": 9, "Sign": 9, "BitwiseNot": 18,
         "Round": 11}


@generator("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos", "Cosh", "Erf", "Exp",
           "Floor", "Identity", "IsNaN", "Log", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
           "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Mish", "HardSwish")
def unary(r):
    opset = max(r.pick(7, 13, 23), FIRST.get(r.name, 1), onnx.defs.get_schema(r.name, 26, "").since_version
                if r.name in ("Mish", "HardSwish") else 1)
    low, high = DOMAINS.get(r.name, (-3, 3))
    constraint = "V" if r.name == "Identity" and opset > 13 else "T1" if r.name == "IsNaN" else "T"
    x = r.tensor(extents(r), r.pick(*FLOATS) if r.name == "Erf" else type_of(r, r.name, opset, constraint), low, high)
    if r.name in ("Round", "Floor", "Ceil") and r.chance():
        x = (numpy.round(x * 2) / 2).astype(x.dtype)
    x = specials(r, x, extremes=r.name not in ("Sin", "Cos", "Tan"))
    if r.name == "Sign" and x.dtype == "float16":
        x = numpy.nan_to_num(x)  # ONNX Runtime has 0 of NaN there
    by_float = x.dtype == "float64" and r.name in ("Erf", "HardSwish")  # in a peer
    units = 0 if r.name in EXACT else 2**31 if by_float else 16
    return Node(r.name, [x], opset=opset, units=units, each=r.name not in LOOSE)


@generator("IsInf")
def is_inf(r):
    opset = r.pick(10, 20)
    attributes = {name: r.int(0, 1) for name in ("detect_negative", "detect_positive") if r.chance()}
    return Node("IsInf", [specials(r, r.tensor(extents(r), type_of(r, "IsInf", opset, "T1")))], attributes, opset=opset)


# ---- activations with attributes ----

LEAST = {"Celu": 0.1, "Swish": 0.1, "HardSigmoid": 0.05, "lambd": 0}


@generator("LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid", "ThresholdedRelu", "Shrink", "Gelu", "Swish")
def activation(r):
    """Attributes are floats with few bits: Kvasir reads others as the decimal that they stand for. Defaults and
    constants have the precision of a float in the peers, of a double in Kvasir; Selu-1 has others in onnx.reference."""
    names = {"Selu": ["alpha", "gamma"], "HardSigmoid": ["alpha", "beta"], "Shrink": ["bias", "lambd"], "Gelu": []}
    schemas = onnx.defs.get_all_schemas_with_history()
    since = sorted({s.since_version for s in schemas if s.name == r.name and not s.domain})
    since = since[1:] if r.name == "Selu" else since
    opset = r.pick(*since, 23 if since[0] < 23 else since[0])
    attributes = {}
    for name in names.get(r.name, ["alpha"]):
        if r.chance(0.7):
            low = LEAST.get(name if r.name == "Shrink" else r.name, -1)
            attributes[name] = round(float(r.random.uniform(low, 1.5)) * 64) / 64
    if r.name == "Gelu" and r.chance(0.7):
        attributes["approximate"] = r.pick("none", "tanh")
    x = r.tensor(extents(r), type_of(r, r.name, opset), -5, 5)
    x = specials(r, x, extremes=r.name in ("LeakyRelu", "ThresholdedRelu"))
    if r.name == "Shrink" and x.dtype.kind in "iu":
        x = numpy.abs(x) + 3 if x.dtype.kind == "u" else x  # no result below 0, which is open
        x = numpy.clip(x, -100, 100)
    units = 2**32 if x.dtype == "float64" else 16
    return Node(r.name, [x], attributes, opset=opset, units=units)


@generator("PRelu")
def prelu(r):
    opset = r.pick(7, 9, 16, 23)
    dtype, shape = type_of(r, "PRelu", opset), extents(r)
    slope = r.broadcast(shape)
    return Node("PRelu", [r.tensor(shape, dtype), r.tensor(slope, dtype)], opset=opset, units=1, each=True)


@generator("Softmax", "LogSoftmax", "Hardmax")
def softmax(r):
    """Before opset 13 in types that ONNX Runtime has: onnx.reference does not flatten."""
    opset = r.pick(1, 11, 13, 23)
    shape = extents(r, low_rank=1)
    attributes = {}
    if r.chance(0.8) or (opset < 13 and len(shape) < 2):  # axis 1 is the old default
        axis = r.int(0, len(shape) - 1)
        attributes["axis"] = negative_or_not(r, axis, len(shape)) if opset >= 11 else axis
    types = ["float32"] if opset < 13 and r.name == "Hardmax" else FLOATS[:2] if opset < 13 else FLOATS
    x = r.tensor(shape, r.pick(*types), -6, 6)
    if r.name == "Hardmax" and r.chance():
        x = numpy.round(x)
    elif x.size and r.chance(0.2):
        x.reshape(-1)[r.int(0, x.size - 1)] = -numpy.inf
    return Node(r.name, [x], attributes, opset=opset, units=16)


# ---- two operands ----

@generator("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Less",
           "LessOrEqual", "Greater", "GreaterOrEqual")
def binary(r):
    """No division of integers by zero or of the least one by -1: C leaves both open."""
    opset = r.pick(7, 13, 23)
    opset = max(opset, 18) if r.name.startswith("Bitwise") else max(opset, 12) if r.name.endswith("OrEqual") else opset
    dtype, shape = type_of(r, r.name, opset), extents(r)
    x, y = (specials(r, r.tensor(r.broadcast(shape), dtype, -9, 9)) for _ in range(2))
    if r.name == "Div" and y.dtype.kind in "iu":
        y[y == 0] = 1
        if y.dtype.kind == "i":
            y[y == -1] = 2
    return Node(r.name, [x, y], opset=opset, units=1, each=True)


OLD = {"Add": numpy.add, "Sub": numpy.subtract, "Mul": numpy.multiply, "Pow": numpy.power, "And": numpy.logical_and,
       "Equal": numpy.equal, "Less": numpy.less, "Greater": numpy.greater,
       "Div": lambda x, y: x // y if x.dtype.kind in "iu" else x / y}


@generator("OldAdd", "OldSub", "OldMul", "OldDiv", "OldPow", "OldAnd", "OldEqual", "OldLess", "OldGreater")
def old_binary(r):
    """Before opset 7: operand 1 covers axes of operand 0 from `axis`, the last ones by default."""
    op, opset, shape = r.name[3:], r.pick(1, 6), extents(r, 1)
    dtype = type_of(r, op, opset)
    start = r.int(0, len(shape) - 1)
    attributes, other = {}, shape
    if r.chance(0.8):
        attributes["broadcast"] = 1
        if r.chance():
            attributes["axis"], other = start, shape[start:r.int(start + 1, len(shape))]
        else:
            other = shape[start:]
    low = 1 if op in ("Div", "Pow") else -5
    x, y = r.tensor(shape, dtype, low, 5), r.tensor(other, dtype, low, 3)
    axis = attributes.get("axis", len(shape) - len(other))
    expected = OLD[op](x, y.reshape(other + [1] * (len(shape) - len(other) - axis)))
    expected = expected.astype("bool" if op in ("And", "Equal", "Less", "Greater") else dtype)
    return Node(op, [x, y], attributes, opset=opset, units=8, expected=[expected])


@generator("Pow")
def power(r):
    """Bases and exponents of integers stay where doubles are exact and the result fits."""
    opset = r.pick(7, 12, 13, 15, 23)
    dtype = type_of(r, "Pow", opset)
    other = type_of(r, "Pow", opset, "T1") if opset >= 12 else dtype
    shape = extents(r)
    y = r.tensor(r.broadcast(shape), other, -3 if numpy.dtype(dtype).kind == "f" else 0, 4)
    if y.dtype.kind == "f" and r.chance():
        y = numpy.round(y)
    x = r.tensor(r.broadcast(shape), dtype, -5 if numpy.dtype(dtype).kind == "f" or y.dtype.kind != "f" else 0, 5)
    if x.dtype.kind == "f":
        x = specials(r, x, extremes=False)
        if y.dtype.kind == "f":
            y = specials(r, y, extremes=False)
    return Node("Pow", [x, y], opset=opset, units=16, each=True)


@generator("Mod")
def mod(r):
    """Floats need fmod."""
    opset = r.pick(10, 13, 23)
    dtype, shape = type_of(r, "Mod", opset), extents(r)
    attributes = {"fmod": r.int(0, 1)} if r.chance(0.7) else {}
    if numpy.dtype(dtype).kind == "f":
        attributes["fmod"] = 1
    x, y = (r.tensor(r.broadcast(shape), dtype, -20, 20) for _ in range(2))
    x = specials(r, x, extremes=False) if x.dtype.kind != "f" else x
    y[y == 0] = 3
    if y.dtype.kind == "i":
        y[y == -1] = -2
    return Node("Mod", [x, y], attributes, opset=opset, units=1, each=True)


@generator("BitShift")
def bit_shift(r):
    opset = r.pick(11, 23)
    dtype, shape = type_of(r, "BitShift", opset), extents(r)
    width = numpy.dtype(dtype).itemsize * 8
    x = specials(r, r.tensor(r.broadcast(shape), dtype, 0, 100))
    return Node("BitShift", [x, r.tensor(r.broadcast(shape), dtype, 0, width - 1)],
                {"direction": r.pick("LEFT", "RIGHT")}, opset=opset)


# ---- more operands ----

@generator("Min", "Max", "Sum", "Mean")
def variadic(r):
    opset = r.pick(8, 12, 13, 23)
    dtype, shape = type_of(r, r.name, opset), extents(r)
    operands = [r.tensor(r.broadcast(shape), dtype, -9, 9) for _ in range(r.int(1, 4))]
    if r.name in ("Min", "Max") or dtype != "float16":  # of which sums overflow, rounded after each operand or once
        operands = [specials(r, x) for x in operands]
    return Node(r.name, operands, opset=opset, units=4)


@generator("Where")
def where(r):
    opset = r.pick(9, 16, 23)
    dtype, shape = type_of(r, "Where", opset), extents(r)
    x, y = (specials(r, r.tensor(r.broadcast(shape), dtype)) for _ in range(2))
    return Node("Where", [r.tensor(r.broadcast(shape), "bool"), x, y], opset=opset, units=0)


@generator("Clip")
def clip(r):
    """Least and greatest value in any order: the least operation comes last."""
    opset = r.pick(1, 6, 11, 12, 13, 23)
    x = specials(r, r.tensor(extents(r), type_of(r, "Clip", opset), -9, 9), extremes=opset >= 11)
    low, high = ((r.tensor([], x.dtype, -6, 6) if r.chance(0.7) else None) for _ in range(2))
    if low is not None and high is not None and (opset < 12 or r.chance(0.9)):
        low, high = min(low, high), max(low, high)
    if opset >= 11:
        if low is None or high is None:  # a bound left out is the greatest float in ONNX Runtime
            x = numpy.nan_to_num(x, posinf=9, neginf=-9) if x.dtype.kind == "f" else x
        return Node("Clip", [x, *(numpy.asarray(v) if v is not None else v for v in (low, high))], opset=opset, units=0)
    attributes = {name: round(float(v) * 8) / 8 for name, v in (("min", low), ("max", high)) if v is not None}
    if opset == 6:  # whose defaults are the greatest float: no infinities
        x = numpy.nan_to_num(x, nan=1, posinf=9, neginf=-9)
    return Node("Clip", [x], attributes, opset=opset, units=0)


# ---- casts ----

def castable(r, source, target):
    """Whole numbers of the target where the source is a float: elsewhere the standard leaves the result open."""
    target = numpy.dtype(target)
    x = r.tensor(extents(r), source, -100, 100)
    if x.dtype.kind == "f" and target.kind == "u":
        x = numpy.abs(x)
    if x.dtype.kind == "f" and target.kind in "iu":
        return x
    return specials(r, x, extremes=target != "float16" or x.dtype.kind != "i")


@generator("Cast", "CastLike")
def cast(r):
    opset = r.pick(6, 9, 13, 19, 21, 23) if r.name == "Cast" else r.pick(15, 19, 23)
    source, target = r.pick(*TYPES), r.pick(*TYPES)
    x = castable(r, source, target)
    if r.name == "CastLike":
        return Node("CastLike", [x, r.tensor(extents(r), target)], opset=opset, units=0)
    return Node("Cast", [x], {"to": onnx.helper.np_dtype_to_tensor_dtype(numpy.dtype(target))}, opset=opset, units=0)


@generator("CastFromNarrow")
def cast_from_narrow(r):
    """Types that NumPy lacks and ONNX Runtime takes as constants alone."""
    import ml_dtypes
    source = r.pick("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4")
    x = r.ints(extents(r), 0, 7) if source.endswith("int4") else r.floats(extents(r), -9, 9)
    target = r.pick("float32", "float16")
    return Node("Cast", [x.astype(getattr(ml_dtypes, source))],
                {"to": onnx.helper.np_dtype_to_tensor_dtype(numpy.dtype(target))}, opset=r.pick(21, 23),
                constants={0: True}, units=0)


@generator("BitCast")
def bit_cast(r):
    """Between types of one width."""
    source, target = r.pick(*[(a, b) for a in NUMBERS for b in NUMBERS
                              if numpy.dtype(a).itemsize == numpy.dtype(b).itemsize and numpy.dtype(b).kind != "f"])
    x = specials(r, r.tensor(extents(r), source, -100, 100))
    return Node("BitCast", [x], {"to": onnx.helper.np_dtype_to_tensor_dtype(numpy.dtype(target))}, opset=26,
                expected=[x.view(target)])
