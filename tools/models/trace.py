"""Where a model of the corpus differs: python3 tools/models/trace.py FOLDER NAME... [--tool FILE]

For each output, the largest differences relative to it: of Kvasir, and of ONNX Runtime with its optimisations of graphs,
from ONNX Runtime without them. For models with QuantizeLinear also the first tensor of codes that differs, how many of
its elements do, by how many steps, and how far the values of these are from a tie between two steps.
"""
import argparse
import os
import pathlib
import sys
import tempfile

import numpy
import onnx

import run


def named_inputs(session, path):
    names = [port.name for port in session.get_inputs()]
    return {name: value for name, value in run.runs_of(path)[0].items() if name in names}


def outputs_of(session, inputs):
    return dict(zip([port.name for port in session.get_outputs()], session.run(None, inputs)))


def trace_outputs(path):
    own, written, optimised = run.kvasir_session(path), run.ort_session(path, as_written=True), run.ort_session(path)
    inputs = named_inputs(own, path)
    found, expected, other = [outputs_of(session, inputs) for session in (own, written, optimised)]
    for name, value in expected.items():
        print(f"{path.stem} {name} {list(value.shape)}: Kvasir {run.difference(found[name], value):.1e}, "
              f"optimised {run.difference(other[name], value):.1e}")


def with_codes(path, folder):
    """The model with its codes, and the floats that they are made of, as further outputs; and those pairs."""
    model = onnx.load(path)
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    known = {port.name for port in [*model.graph.input, *model.graph.output]}
    pairs = [(n.input[0], n.output[0], constants.get(n.input[1])) for n in model.graph.node
             if n.op_type == "QuantizeLinear" and n.input[0] not in constants]
    for name in {name for pair in pairs for name in pair[:2]} - known:
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    onnx.save(model, folder / path.name)
    return folder / path.name, pairs


def trace_codes(path):
    with tempfile.TemporaryDirectory() as folder:
        extended, pairs = with_codes(path, pathlib.Path(folder))
        if not pairs:
            return
        own, peer = run.kvasir_session(extended), run.ort_session(extended, as_written=True)
        inputs = named_inputs(own, path)
        found, expected = outputs_of(own, inputs), outputs_of(peer, inputs)
    for floats, codes, scale in pairs:
        steps = numpy.abs(found[codes].astype(int) - expected[codes].astype(int))
        if not steps.any():
            continue
        print(f"{path.stem} {codes}: {(steps > 0).sum()} of {steps.size} codes differ, by {steps.max()} at most", end="")
        if floats in expected and scale is not None and scale.size == 1:
            in_steps = expected[floats][steps > 0].astype(float) / float(scale.ravel()[0])
            print(f", within {numpy.abs(numpy.abs(in_steps) % 1 - 0.5).max():.1e} steps of a tie", end="")
        print()
        return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="what export.py made")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--tool", type=pathlib.Path, default=run.ROOT / "build/release/kvasir")
    options = parser.parse_args()
    sys.path.insert(0, str(run.ROOT / "tools/python"))
    os.environ.update(KVASIR_CACHE="off", KVASIR_LIBRARY=str(options.tool.resolve().parent / "libkvasir.so"))
    for name in options.names:
        trace_outputs(options.folder / f"{name}.onnx")
        trace_codes(options.folder / f"{name}.onnx")


if __name__ == "__main__":
    sys.exit(main())
