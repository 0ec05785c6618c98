"""Small ONNX models, valid and wrong, written with a protobuf encoder of its own: no package is needed.

    python3 onnx_models.py DIR

writes DIR/<name>.onnx for every function below whose name begins with `model_`."""
import pathlib
import struct
import sys

FLOAT, INT32, INT64, STRING, BOOL, COMPLEX64 = 1, 6, 7, 8, 9, 14


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 0x7F:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """An integer becomes a varint, text and bytes a length-delimited field, a float 32 bits; a list repeats the field."""
    if isinstance(value, list):
        return b"".join(field(number, v) for v in value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name, dims, data_type=FLOAT, raw=None, external=None, **packed):
    out = field(1, dims) + field(2, data_type) + field(8, name)
    if raw is not None:
        out += field(9, raw)
    for key, value in (external or {}).items():
        out += field(13, field(1, key) + field(2, value))
    return out + (field(14, 1) if external is not None else b"") + b"".join(field(int(k[1:]), v) for k, v in packed.items())


def floats(name, dims, values):
    return tensor(name, dims, raw=struct.pack("<%df" % len(values), *values))


def int64s(name, values):
    return tensor(name, [len(values)], INT64, raw=struct.pack("<%dq" % len(values), *values))


def info(name, dims, data_type=FLOAT):
    """Dimensions: numbers, or text for a symbol; None for a tensor of unknown rank."""
    shape = b"" if dims is None else field(2, b"".join(
        field(1, field(2, d) if isinstance(d, str) else field(1, d)) for d in dims))
    return field(1, name) + field(2, field(1, field(1, data_type) + shape))


def node(op, inputs, outputs, name=None, domain="", attrs=()):
    return (field(1, inputs) + field(2, outputs) + (field(3, name) if name else b"") + field(4, op) +
            field(5, list(attrs)) + (field(7, domain) if domain else b""))


def attr_int(name, i):
    return field(1, name) + field(3, i) + field(20, 2)


def attr_ints(name, ints):
    return field(1, name) + field(8, ints) + field(20, 7)


def attr_tensor(name, t):
    return field(1, name) + field(5, t) + field(20, 4)


def attr_graph(name, g):
    return field(1, name) + field(6, g) + field(20, 5)


def graph(nodes, inputs=(), outputs=(), initializers=()):
    return (field(1, list(nodes)) + field(2, "g") + field(5, list(initializers)) + field(11, list(inputs)) +
            field(12, list(outputs)))


def model(g, opset=17, ir=8, functions=(), domains=()):
    imports = [field(1, "") + field(2, opset)] + [field(1, d) + field(2, 1) for d in domains]
    return field(1, ir) + field(8, imports) + field(7, g) + field(25, list(functions))


def simple(nodes, dims=(2, 3), out=(2, 3), initializers=(), **rest):
    return model(graph(nodes, [info("x", dims)], [info("y", out)], initializers), **rest)


# ---- valid ------------------------------------------------------------------------------------------------------------


def model_valid():
    weights = floats("w", [3, 2], [1, 0, 0, 1, 1, 1])
    return simple([node("MatMul", ["x", "w"], ["h"], "product"), node("Relu", ["h"], ["y"], "activation")], out=(2, 2),
                  initializers=[weights])


def model_symbolic():
    return simple([node("Softmax", ["x"], ["y"], "softmax", attrs=[attr_int("axis", -1)])], ("N", 4), ("N", 4))


# ---- indices ----------------------------------------------------------------------------------------------------------


def model_gather_range():
    return simple([node("Gather", ["x", "i"], ["y"], "rows")], out=(1, 3), initializers=[int64s("i", [5])])


def model_gather_elements_range():
    indices = tensor("i", [1, 3], INT64, raw=struct.pack("<3q", 0, -3, 1))
    return simple([node("GatherElements", ["x", "i"], ["y"], "picks")], out=(1, 3), initializers=[indices])


def model_gather_nd_range():
    indices = tensor("i", [1, 2], INT64, raw=struct.pack("<2q", 1, 3))
    return simple([node("GatherND", ["x", "i"], ["y"], "pairs")], out=(1,), initializers=[indices])


def model_scatter_nd_range():
    indices = tensor("i", [1, 1], INT64, raw=struct.pack("<q", 99))
    return simple([node("ScatterND", ["x", "i", "u"], ["y"], "writes")],
                  initializers=[indices, floats("u", [1, 3], [1, 1, 1])])


def model_gather_computed_range():
    return simple([node("Add", ["i", "i"], ["j"], "double"), node("Gather", ["x", "j"], ["y"], "rows")], out=(1, 3),
                  initializers=[int64s("i", [1])])


# ---- structure --------------------------------------------------------------------------------------------------------


def model_no_graph():
    return field(1, 8) + field(8, field(1, "") + field(2, 17))


def model_no_outputs():
    return model(graph([node("Relu", ["x"], ["y"], "r")], [info("x", [2])], []))


def model_ir_version():
    return simple([node("Relu", ["x"], ["y"], "r")], ir=999)


def model_opset():
    return simple([node("Relu", ["x"], ["y"], "r")], opset=999)


def model_opset_negative():
    return simple([node("Relu", ["x"], ["y"], "r")], opset=-3)


def model_no_opset():
    return field(1, 8) + field(7, graph([node("Relu", ["x"], ["y"], "r")], [info("x", [2])], [info("y", [2])]))


def model_cycle():
    return simple([node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second"),
                   node("Relu", ["b"], ["y"], "third")])


def model_self_cycle():
    return simple([node("Add", ["x", "y"], ["y"], "loop")])


def model_wrong_order():
    return simple([node("Relu", ["h"], ["y"], "late"), node("Relu", ["x"], ["h"], "early")])


def model_undefined_input():
    return simple([node("Add", ["x", "ghost"], ["y"], "sum")])


def model_undefined_output():
    return model(graph([node("Relu", ["x"], ["h"], "r")], [info("x", [2])], [info("y", [2])]))


def model_defined_twice():
    return simple([node("Relu", ["x"], ["y"], "one"), node("Neg", ["x"], ["y"], "two")])


def model_input_twice():
    return model(graph([node("Relu", ["x"], ["y"], "r")], [info("x", [2]), info("x", [2])], [info("y", [2])]))


def model_field_type():
    """Field 7 of ModelProto, the graph, as a number."""
    return field(1, 8) + field(7, 5)


def model_deep_subgraphs():
    inner = graph([node("Identity", ["x"], ["o"])], [], [info("o", [2])])
    for _ in range(500):
        inner = graph([node("If", ["c"], ["o"], attrs=[attr_graph("then_branch", inner)])], [], [info("o", [2])])
    return model(graph([node("If", ["c"], ["y"], "top", attrs=[attr_graph("then_branch", inner)])],
                       [info("x", [2]), info("c", [], BOOL)], [info("y", [2])]))


def model_long_cycle():
    chain = [node("Relu", ["v%d" % ((i + 1) % 3000)], ["v%d" % i], "n%d" % i) for i in range(3000)]
    return simple(chain + [node("Relu", ["v0"], ["y"], "last")])


# ---- operators ----------------------------------------------------------------------------------------------------------


def model_unknown_operator():
    return simple([node("Frobnicate", ["x"], ["y"], "mystery")])


def model_unknown_domain():
    return simple([node("Relu", ["x"], ["y"], "foreign", domain="com.example")], domains=["com.example"])


def model_unknown_many():
    return simple([node("Frobnicate", ["x"], ["h"], "one"), node("Quux", ["h"], ["y"], "two")])


def model_gaps():
    """One gap of each kind, none behind another: an operator, an attribute, an element type, shapes, an input, an output."""
    w = floats("w", [3, 2], [1, 1, 1, 1, 1, 1])
    nodes = [node("Frobnicate", ["x"], ["a"], "operator"), node("Relu", ["a"], ["unseen"], "behind"),
             node("Softmax", ["x"], ["b"], "attribute", attrs=[attr_int("axsi", 1)]),
             node("Abs", ["c"], ["d"], "type"), node("MatMul", ["x", "w"], ["e"], "shapes"),
             node("Add", ["x", "nowhere"], ["f"], "input"), node("Relu", ["x"], ["y"], "right")]
    return model(graph(nodes, [info("x", [1, 2]), info("c", [2], COMPLEX64)], [info("y", [1, 2]), info("z", [1, 2])], [w]))


def model_empty_operator():
    return simple([node("", ["x"], ["y"], "nameless")])


def model_too_few_inputs():
    return simple([node("MatMul", ["x"], ["y"], "half")])


def model_too_many_inputs():
    return simple([node("Relu", ["x", "x"], ["y"], "crowd")])


def model_too_many_outputs():
    return simple([node("Relu", ["x"], ["y", "z"], "twins")])


def model_attribute_type():
    return simple([node("Softmax", ["x"], ["y"], "soft", attrs=[attr_ints("axis", [1])])])


def model_attribute_twice():
    return simple([node("Softmax", ["x"], ["y"], "soft", attrs=[attr_int("axis", 1), attr_int("axis", 0)])])


def model_attribute_unknown():
    return simple([node("Softmax", ["x"], ["y"], "soft", attrs=[attr_int("axsi", 1)])])


def model_axis():
    return simple([node("Softmax", ["x"], ["y"], "soft", attrs=[attr_int("axis", 7)])])


def model_perm():
    return simple([node("Transpose", ["x"], ["y"], "turn", attrs=[attr_ints("perm", [0, 0])])])


def model_conv_group():
    w = floats("w", [2, 1, 1, 1], [1, 1])
    return simple([node("Conv", ["x", "w"], ["y"], "conv", attrs=[attr_int("group", 0)])], (1, 2, 4, 4), (1, 2, 4, 4), [w])


def model_conv_stride():
    w = floats("w", [2, 2, 1, 1], [1, 1, 1, 1])
    return simple([node("Conv", ["x", "w"], ["y"], "conv", attrs=[attr_ints("strides", [0, 0])])], (1, 2, 4, 4),
                  (1, 2, 4, 4), [w])


def model_conv_pads():
    w = floats("w", [2, 2, 1, 1], [1, 1, 1, 1])
    return simple([node("Conv", ["x", "w"], ["y"], "conv", attrs=[attr_ints("pads", [1 << 62, 0, 1 << 62, 0])])],
                  (1, 2, 4, 4), (1, 2, 4, 4), [w])


def model_slice_step():
    return simple([node("Slice", ["x", "b", "e", "a", "s"], ["y"], "cut")],
                  initializers=[int64s("b", [0]), int64s("e", [2]), int64s("a", [0]), int64s("s", [0])])


def model_reshape_minus():
    return simple([node("Reshape", ["x", "s"], ["y"], "fold")], initializers=[int64s("s", [-1, -1])])


def model_reshape_size():
    return simple([node("Reshape", ["x", "s"], ["y"], "fold")], out=(4, 4), initializers=[int64s("s", [4, 4])])


def model_expand_huge():
    return simple([node("Expand", ["x", "s"], ["y"], "grow")], dims=(1,), out=(1 << 62, 8),
                  initializers=[int64s("s", [1 << 62, 8])])


def model_cast_type():
    return simple([node("Cast", ["x"], ["y"], "cast", attrs=[attr_int("to", 77)])])


def model_range_huge():
    return simple([node("ConstantOfShape", ["s"], ["big"], "fill"), node("Add", ["x", "big"], ["y"], "sum")],
                  initializers=[int64s("s", [1 << 31, 1 << 31, 4])])


def model_function_self():
    body = (field(1, "f") + field(4, "a") + field(5, "b") + field(7, node("f", ["a"], ["b"], "again", domain="local")) +
            field(9, field(1, "local") + field(2, 1)) + field(10, "local"))
    return simple([node("f", ["x"], ["y"], "call", domain="local")], functions=[body], domains=["local"])


def model_function_arity():
    body = (field(1, "f") + field(4, "a") + field(5, "b") + field(7, node("Relu", ["a"], ["b"])) +
            field(9, field(1, "") + field(2, 17)) + field(10, "local"))
    return simple([node("f", ["x", "x"], ["y"], "call", domain="local")], functions=[body], domains=["local"])


def model_function_bomb():
    """Twenty functions, each calling the next ten times: 10^20 nodes when inlined."""
    functions = []
    for i in range(20):
        op = ("f%d" % (i + 1), "local") if i < 19 else ("Relu", "")
        nodes = [node(op[0], ["a" if k == 0 else "t%d" % k], ["b" if k == 9 else "t%d" % (k + 1)], domain=op[1])
                 for k in range(10)]
        functions.append(field(1, "f%d" % i) + field(4, "a") + field(5, "b") + field(7, nodes) +
                         field(9, [field(1, "") + field(2, 17), field(1, "local") + field(2, 1)]) + field(10, "local"))
    return simple([node("f0", ["x"], ["y"], "fuse", domain="local")], functions=functions, domains=["local"])


# ---- attributes and inputs that do not fit -----------------------------------------------------------------------------


def attr_string(name, text):
    return field(1, name) + field(4, text) + field(20, 3)


def model_perm_negative():
    return simple([node("Transpose", ["x"], ["y"], "turn", attrs=[attr_ints("perm", [0, -1])])])


def model_split_outputs():
    return simple([node("Split", ["x"], ["y", "z"], "cut", attrs=[attr_int("num_outputs", 3), attr_int("axis", 1)])],
                  (2, 4), (2, 2), opset=18)


def model_scalar_lengths():
    return model(graph([node("ReverseSequence", ["x", "n"], ["y"], "turned")], [info("x", (2, 3)), info("n", (), 7)],
                       [info("y", (2, 3))]), opset=17)


def model_split_both():
    return simple([node("Split", ["x", "s"], ["y", "z"], "cut", attrs=[attr_int("num_outputs", 2), attr_int("axis", 1)])],
                  (2, 4), (2, 2), [int64s("s", [2, 2])], opset=18)


def model_one_hot_depth():
    return model(graph([node("OneHot", ["x", "d", "v"], ["y"], "hot")], [info("x", [3], INT64)], [info("y", [3, "D"])],
                       [int64s("d", [-1]), floats("v", [2], [0, 1])]))


def lstm(attrs=(), hidden=2, rows=8, directions=1, bias=16):
    weights = [floats("w", [directions, rows, 3], [0.5] * (directions * rows * 3)),
               floats("r", [directions, rows, hidden], [0.5] * (directions * rows * hidden)),
               floats("b", [directions, bias], [0.5] * (directions * bias))]
    return simple([node("LSTM", ["x", "w", "r", "b"], ["y"], "memory", attrs=list(attrs))], (4, 1, 3),
                  (4, directions, 1, hidden), weights)


def model_lstm_hidden():
    return lstm([attr_int("hidden_size", 5)])


def model_lstm_direction():
    return lstm([attr_string("direction", "sideways")])


def model_lstm_directions():
    return lstm([attr_string("direction", "bidirectional")])


def model_lstm_gates():
    return lstm(rows=6, bias=12)


def model_lstm_bias():
    return lstm(bias=8)


def model_resize_roi():
    def crop(low):
        attrs = [attr_string("coordinate_transformation_mode", "tf_crop_and_resize"), attr_string("mode", "nearest")]
        return simple([node("Resize", ["x", "roi", "", "s"], ["y"], "crop", attrs=attrs)], (2, 3), (4, 3),
                      [floats("roi", [4], [low, 0.0, 1.0, 1.0]), int64s("s", [4, 3])])
    return crop(float("nan"))


def model_resize_roi_huge():
    attrs = [attr_string("coordinate_transformation_mode", "tf_crop_and_resize"), attr_string("mode", "nearest")]
    return simple([node("Resize", ["x", "roi", "", "s"], ["y"], "crop", attrs=attrs)], (2, 3), (4, 3),
                  [floats("roi", [4], [1e30, 0.0, 1.0, 1.0]), int64s("s", [4, 3])])


def model_int32_data():
    return simple([node("Add", ["x", "c"], ["y"], "sum")],
                  initializers=[tensor("c8", [1], 3, _5=[300]), floats("c", [1], [1])])


def model_bool_data():
    return simple([node("Where", ["c", "x", "x"], ["y"], "choice")], initializers=[tensor("c", [1], BOOL, _5=[256])])


def model_initializer_shape():
    g = graph([node("MatMul", ["x", "w"], ["y"], "product")], [info("x", [2, 3]), info("w", [2, 3])], [info("y", [2, 2])],
              [floats("w", [3, 2], [1, 0, 0, 1, 1, 1])])
    return model(g)


def identity_function(name="f", imports=((17, ""),)):
    return (field(1, name) + field(4, "a") + field(5, "b") + field(7, node("Relu", ["a"], ["b"])) +
            field(9, [field(1, d) + field(2, v) for v, d in imports]) + field(10, "local"))


def model_function_twice():
    return simple([node("f", ["x"], ["y"], "call", domain="local")], functions=[identity_function(), identity_function()],
                  domains=["local"])


def model_function_imports():
    f = identity_function(imports=((17, ""), (6, "")))
    return simple([node("f", ["x"], ["y"], "call", domain="local")], functions=[f], domains=["local"])


def model_opset_twice():
    g = graph([node("Relu", ["x"], ["y"], "r")], [info("x", [2])], [info("y", [2])])
    return field(1, 8) + field(8, [field(1, "") + field(2, 17), field(1, "ai.onnx") + field(2, 6)]) + field(7, g)


# ---- names -----------------------------------------------------------------------------------------------------------------


def model_control_names():
    return simple([node("Frob\x1b]0;x\x07", ["x"], ["y"], "\x1b[2J\x1b[31m")])


def model_control_outputs():
    return model(graph([node("Relu", ["x"], ["y\x1b[2J\u009b"], "r")], [info("x", [2])], [info("y\x1b[2J\u009b", [2])]))


def model_output_files():
    return model(graph([node("Relu", ["x"], ["a/b"], "r"), node("Neg", ["x"], ["a_b"], "n")], [info("x", [2])],
                       [info("a/b", [2]), info("a_b", [2])]))


# ---- types and shapes ------------------------------------------------------------------------------------------------------


def model_matmul_shapes():
    return simple([node("MatMul", ["x", "w"], ["y"], "product")], initializers=[floats("w", [2, 2], [1, 2, 3, 4])])


def model_add_shapes():
    return simple([node("Add", ["x", "w"], ["y"], "sum")], initializers=[floats("w", [4], [1, 2, 3, 4])])


def model_output_shape():
    return simple([node("Relu", ["x"], ["y"], "r")], out=(5, 7))


def model_types():
    w = tensor("w", [3], INT32, raw=struct.pack("<3i", 1, 2, 3))
    return simple([node("Add", ["x", "w"], ["y"], "sum")], initializers=[w])


def model_negative_dim():
    return simple([node("Relu", ["x"], ["y"], "r")], (-5, 3), (-5, 3))


def model_huge_input():
    return simple([node("Relu", ["x"], ["y"], "r")], (1 << 62, 4), (1 << 62, 4))


def model_large_input():
    """2^62 elements fit 64 bits, their 2^64 bytes do not."""
    return simple([node("Relu", ["x"], ["y"], "r")], (1 << 62,), (1 << 62,))


def model_big_input():
    """2^50 bytes: a size that no machine has."""
    return simple([node("Relu", ["x"], ["y"], "r")], (1 << 48,), (1 << 48,))


def model_rank_unknown():
    return simple([node("Relu", ["x"], ["y"], "r")], None, None)


def model_rank_nine():
    return simple([node("Relu", ["x"], ["y"], "r")], [1] * 9, [1] * 9)


def model_elem_type():
    return model(graph([node("Relu", ["x"], ["y"], "r")], [info("x", [2], 99)], [info("y", [2], 99)]))


def model_string_input():
    return model(graph([node("Identity", ["x"], ["y"], "r")], [info("x", [2], STRING)], [info("y", [2], STRING)]))


def model_sequence_input():
    sequence = field(1, "x") + field(2, field(4, field(1, field(1, field(1, FLOAT)))))
    return model(graph([node("Relu", ["x"], ["y"], "r")], [sequence], [info("y", [2])]))


def model_no_type():
    return model(graph([node("Relu", ["x"], ["y"], "r")], [field(1, "x")], [info("y", [2])]))


# ---- tensors ------------------------------------------------------------------------------------------------------------


def add_weight(t):
    return simple([node("Add", ["x", "w"], ["y"], "sum")], initializers=[t])


def model_raw_short():
    return add_weight(tensor("w", [3], raw=b"\0" * 11))


def model_values_count():
    return add_weight(tensor("w", [3], _4=[1.0, 2.0]))


def model_tensor_negative():
    return add_weight(tensor("w", [-3], raw=b""))


def model_tensor_huge():
    return add_weight(tensor("w", [1 << 62, 1 << 62], raw=b"\0" * 12))


def model_tensor_bytes():
    return add_weight(tensor("w", [1 << 62], raw=b"\0" * 12))


def model_tensor_type():
    return add_weight(tensor("w", [3], 99, raw=b"\0" * 12))


def model_tensor_string():
    return add_weight(tensor("w", [1], STRING, _6=["text"]))


def model_tensor_complex():
    return add_weight(tensor("w", [1], COMPLEX64, raw=b"\0" * 8))


def model_bool_values():
    w = tensor("w", [3], BOOL, raw=b"\x01\x02\x00")
    return simple([node("Where", ["w", "x", "x"], ["y"], "choose")], initializers=[w])


def model_external_missing():
    return add_weight(tensor("w", [3], external={"location": "absent.bin"}))


def model_external_parent():
    return add_weight(tensor("w", [3], external={"location": "../secret.bin"}))


def model_external_hidden_parent():
    return add_weight(tensor("w", [3], external={"location": "sub/../../secret.bin"}))


def model_external_absolute():
    return add_weight(tensor("w", [3], external={"location": "/etc/passwd", "length": "12"}))


def model_external_folder():
    return add_weight(tensor("w", [3], external={"location": "folder"}))


def model_external_link():
    """link.bin is a symbolic link out of the model's folder."""
    return add_weight(tensor("w", [3], external={"location": "link.bin"}))


def model_external_offset():
    return add_weight(tensor("w", [3], external={"location": "twelve.bin", "offset": "4"}))


def model_external_overflow():
    return add_weight(tensor("w", [3], external={"location": "twelve.bin", "offset": "9223372036854775807"}))


def model_external_number():
    return add_weight(tensor("w", [3], external={"location": "twelve.bin", "offset": "many"}))


def model_external_length():
    return add_weight(tensor("w", [3], external={"location": "twelve.bin", "length": "8"}))


def model_external_nowhere():
    return add_weight(tensor("w", [3], external={"offset": "0"}))


def main():
    folder = pathlib.Path(sys.argv[1])
    for name, build in list(globals().items()):
        if name.startswith("model_"):
            (folder / (name[6:] + ".onnx")).write_bytes(build())


if __name__ == "__main__":
    main()
