"""Gradients of random ONNX nodes in Kvasir, compared with differences of their results.

    KVASIR_LIBRARY=build/release/libkvasir.so PYTHONPATH=tools/python python3 tests/onnx/random_gradients.py --count 40

The nodes are those of random_nodes.py, with its options. Floating-point operands are the parameters of a model in double,
whose gradient one step of SGD tells; its results are differentiated numerically, too. In float the same gradient must be
finite. Some elements are 0 or large. Where the differences to both sides do not agree, the node is not smooth.
"""
import sys
import zlib

import kvasir
import numpy
import onnx
import onnx.helper
import onnx.numpy_helper

import random_nodes

FLOATS = ("float16", "float32", "float64")  # of NumPy
FLOAT_TENSORS = ("tensor(float16)", "tensor(float)", "tensor(double)")
RATE = 2.0**12  # of the step: the gradient is a change of parameters, and must not drown in their own size
SPECIAL = (0, 1, -1, 100, -100, 1000, -1000)
SIZES = {"Resize": (1, 2), "Upsample": (1,)}  # operands that are no data
MAX_ELEMENTS = 40  # of an operand, whose differences are taken


class NotCompared(Exception):
    pass


def make_model(node, kinds, operands, dtype, are_inputs):
    """Bytes of the node with its float operands in dtype; its float results follow each other in one vector."""
    inputs, constants, names = [], [onnx.numpy_helper.from_array(numpy.array([-1]), "flat")], []
    for i, value in enumerate(operands):
        names.append("" if value is None else f"i{i}")
        if value is None:
            continue
        is_float = value.dtype.name in FLOATS
        if is_float and are_inputs:
            kind = onnx.helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype))
            inputs.append(onnx.helper.make_tensor_value_info(names[-1], kind, value.shape))
        else:
            constants.append(onnx.numpy_helper.from_array(value.astype(dtype) if is_float else value, names[-1]))
    results = [f"o{i}" if kind else "" for i, kind in enumerate(kinds)]
    nodes = [onnx.helper.make_node(node.op, names, results, "n", domain=node.domain, **node.attributes)]
    parts = [f"o{i}" for i, kind in enumerate(kinds) if kind in FLOAT_TENSORS]
    old = not node.domain and node.opset < 5
    for part in parts:
        shape = {"shape": [-1]} if old else {}
        nodes.append(onnx.helper.make_node("Reshape", [part] if old else [part, "flat"], [part + "_flat"], **shape))
    nodes.append(onnx.helper.make_node("Concat", [part + "_flat" for part in parts], ["y"], axis=0))
    if not are_inputs:
        inputs.append(onnx.helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, [1]))
    graph = onnx.helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], constants)
    opsets = [onnx.helper.make_opsetid("", 23 if node.domain else node.opset)]
    if node.domain:
        opsets.append(onnx.helper.make_opsetid(node.domain, node.opset))
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def operands_of(node, random):
    """Copies, with some special values, and the numbers of those that are differentiated."""
    if any(isinstance(value, (list, tuple)) for value in node.operands):
        raise NotCompared("sequences")
    operands = [None if value is None else numpy.array(value) for value in node.operands]
    own = [i for i, value in enumerate(operands)
           if value is not None and value.dtype.name in FLOATS and value.size and not node.constants.get(i)]
    own = [i for i in own if numpy.isfinite(operands[i].astype("f4")).all() and i not in SIZES.get(node.op, ())]
    if not own:
        raise NotCompared("no floats")
    special = random.random() < 0.5
    for i in own:
        operands[i] = numpy.array(operands[i].astype("f4").astype("f8"))
        if special:
            chosen = random.random(operands[i].shape) < 0.1
            operands[i][chosen] = random.choice(SPECIAL, operands[i].shape)[chosen]
    return operands, own


def kinds_of_results(node, model):
    """The type of each result, None for one without a name."""
    try:
        found = iter(kvasir.InferenceSession(model.SerializeToString()).get_outputs())
    except kvasir.Error:
        raise NotCompared("no inference") from None
    kinds = [next(found).type if wanted else None for wanted in node.wants or [True] * node.outputs]
    if not any(kind in FLOAT_TENSORS for kind in kinds):
        raise NotCompared("no float results")
    return kinds


def in_double(node, kinds, operands):
    """The results as a function of the operands, in double."""
    try:
        session = kvasir.InferenceSession(make_model(node, kinds, operands, "float64", True))
    except kvasir.Error as error:
        raise NotCompared("in double: " + random_nodes.reason(error)) from None
    if session.get_outputs()[0].type != "tensor(double)":
        raise NotCompared("not double")
    names = [port.name for port in session.get_inputs()]
    return lambda values: session.run(None, {name: values[int(name[1:])].astype("f8") for name in names})[0]


def step(node, kinds, operands, own, target, dtype):
    """(loss, gradients by operand), in this type."""
    trainer = kvasir.trainer(make_model(node, kinds, operands, dtype, False), loss="mse", optimizer="sgd",
                             free_batch=False)
    batch = {"target": target.astype(dtype), "unused": numpy.zeros(1, "f4")}
    loss = trainer.step({port.name: batch[port.name] for port in trainer.train_inputs}, rate=RATE)["loss"]
    new = trainer.parameters()
    return loss, {i: (operands[i] - new[f"i{i}"].astype("f8")) / RATE for i in own if f"i{i}" in new}


def differences(loss, operands, i, element):
    """To both sides, at two distances, or None where they do not agree."""
    here, found = loss(operands), []
    for h in (1e-6, 3e-5):
        for sign in (1, -1):
            moved = list(operands)
            moved[i] = operands[i].copy()
            moved[i].reshape(-1)[element] += sign * h
            found.append(sign * (loss(moved) - here) / h)
    size = max(0.1, abs(here), *numpy.abs(found))
    if not numpy.isfinite(found).all() or max(found) - min(found) > 1e-3 * size:
        return None
    return (found[0] + found[1]) / 2


def compare(node, model):
    random = numpy.random.default_rng(zlib.crc32(model.SerializeToString()))
    operands, own = operands_of(node, random)
    kinds = kinds_of_results(node, model)
    run = in_double(node, kinds, operands)
    y = run(operands)
    if not y.size or not numpy.isfinite(y).all() or numpy.abs(y).max() > 1e4:
        raise NotCompared("empty, not finite or too large")
    target = (y + random.uniform(-1, 1, y.shape)).astype("f4")

    def loss(values):
        out = run(values)
        return float(numpy.mean((out - target) ** 2)) if out.shape == y.shape else numpy.nan

    smooth = {}
    for i in own:
        chosen = random.permutation(operands[i].size)[:MAX_ELEMENTS]
        smooth.update({(i, e): d for e in chosen if (d := differences(loss, operands, i, e)) is not None})
    if not smooth:
        raise NotCompared("nothing smooth")
    found, gradients = step(node, kinds, operands, own, target, "float64")
    in_float = step(node, kinds, operands, own, target, "float32")[1]
    smooth = {at: d for at, d in smooth.items() if at[0] in gradients}
    if not smooth:
        raise NotCompared("no parameter")
    if abs(found - loss(operands)) > 1e-6 * max(1, numpy.abs(y).max()):
        return "differs", f"loss {found:.8g}, expected {loss(operands):.8g}"
    size = max(1, numpy.abs(list(smooth.values())).max())
    for (i, element), d in smooth.items():
        gradient = gradients[i].reshape(-1)[element]
        if not abs(gradient - d) <= 1e-3 * size:
            return "differs", f"operand {i}: {gradient:.6g}, expected {d:.6g}"
        if not numpy.isfinite(in_float[i].reshape(-1)[element]):
            return "differs", f"operand {i}: not finite in float, expected {d:.6g}"
    return "agrees", ""


def judge(node, model, feeds, before=lambda: None):
    before()
    try:
        return compare(node, model)
    except NotCompared as reason:
        return "not compared", str(reason)
    except kvasir.Error as error:
        text = random_nodes.reason(error)
        return ("differs" if "not finite" in text else "refused"), text


if __name__ == "__main__":
    sys.exit(random_nodes.main(judge, __doc__))
