"""If, Loop and Scan with small bodies."""
import numpy
import onnx
import onnx.helper
import onnx.numpy_helper

from random_nodes import Node, generator


class Body:
    """A graph that grows: values of one shape, float."""

    def __init__(self, r, tag):
        self.r, self.tag = r, tag
        self.nodes, self.inputs, self.constants = [], [], []

    def node(self, op, operands, **attributes):
        name = f"{self.tag}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, operands, [name], **attributes))
        return name

    def input(self, name, kind=onnx.TensorProto.FLOAT, shape=None):
        self.inputs.append(onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, value):
        name = f"{self.tag}c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(value, name))
        return name

    def compute(self, values):
        """Something of the same shape, from some of the values."""
        x = self.r.pick(*values)
        for _ in range(self.r.int(1, 3)):
            op = self.r.pick("Add", "Mul", "Max", "Tanh", "Neg", "Sub")
            if op in ("Tanh", "Neg"):
                x = self.node(op, [x])
            else:
                other = self.constant(self.r.floats([], -1, 1)) if self.r.chance(0.4) else self.r.pick(*values)
                x = self.node(op, [x, other])
        return x

    def graph(self, outputs):
        """Outputs get names of their own, as one value may be several."""
        outputs = [self.node("Identity", [o]) for o in outputs]
        infos = [onnx.ValueInfoProto(name=o) for o in outputs]
        for info in infos:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return onnx.helper.make_graph(self.nodes, self.tag, self.inputs, infos, self.constants)


@generator("If")
def if_node(r):
    """Branches see constants of their own, as a node alone has no outer values; their shapes may differ."""
    shape = r.shape(1, 3)
    branches = {}
    for tag in ("then", "else"):
        body = Body(r, tag)
        own = shape if r.chance(0.7) else r.shape(len(shape), len(shape))
        values = [body.constant(r.floats(own)) for _ in range(2)]
        branches[tag + "_branch"] = body.graph([body.compute(values) for _ in range(2)])
    condition = numpy.array(r.chance()) if r.chance(0.7) else numpy.array([r.chance()])
    return Node("If", [condition], branches, opset=r.pick(11, 16, 21), outputs=2)


@generator("Loop")
def loop(r):
    shape, carried, scanned = r.shape(0, 3), r.int(0, 3), r.int(0, 2)
    if carried + scanned == 0:
        carried = 1
    body = Body(r, "body")
    i, going = body.input("i", onnx.TensorProto.INT64, []), body.input("going", onnx.TensorProto.BOOL, [])
    values = [body.input(f"v{k}", shape=shape) for k in range(carried)]
    step = body.node("Cast", [i], to=onnx.TensorProto.FLOAT)
    seen = values + [body.node("Add", [body.constant(r.floats(shape)), step])]
    states = [body.compute(seen) for _ in range(carried)]
    rows = [body.compute(seen) for _ in range(scanned)]
    limit = body.constant(numpy.array(r.int(0, 6), "int64"))
    more = body.node("Less", [i, limit]) if r.chance() else body.node("Identity", [going])
    graph = body.graph(states + rows)
    graph.output.insert(0, onnx.helper.make_tensor_value_info(more, onnx.TensorProto.BOOL, []))
    trips = numpy.array(r.int(0, 6), "int64")
    start = numpy.array(r.chance(0.9)) if r.chance(0.7) else None
    operands = [trips, start, *(r.floats(shape) for _ in range(carried))]
    return Node("Loop", operands, {"body": graph}, opset=r.pick(11, 16, 21), outputs=carried + scanned, units=256)


@generator("Scan")
def scan(r):
    shape, carried, read, written = r.shape(0, 2), r.int(0, 2), r.int(1, 2), r.int(0, 2)
    if carried + written == 0:
        written = 1
    length = r.int(1, 6)
    body = Body(r, "body")
    states = [body.input(f"s{k}", shape=shape) for k in range(carried)]
    values = states + [body.input(f"x{k}", shape=shape) for k in range(read)]
    graph = body.graph([body.compute(values) for _ in range(carried + written)])
    attributes = {"num_scan_inputs": read, "body": graph}
    axes = [r.int(0, len(shape)) if r.chance(0.4) else 0 for _ in range(read)]
    operands = [r.floats(shape) for _ in range(carried)]
    for axis in axes:
        operands.append(r.floats([*shape[:axis], length, *shape[axis:]]))
    if any(axes):
        attributes["scan_input_axes"] = [a - len(shape) - 1 if r.chance(0.2) else a for a in axes]
    if r.chance(0.4):
        attributes["scan_input_directions"] = [r.int(0, 1) for _ in range(read)]
    if written and r.chance(0.4):
        attributes["scan_output_axes"] = [r.int(0, len(shape)) for _ in range(written)]
    if written and r.chance(0.4):
        attributes["scan_output_directions"] = [r.int(0, 1) for _ in range(written)]
    return Node("Scan", operands, attributes, opset=r.pick(9, 11, 16, 21), outputs=carried + written, units=256)
