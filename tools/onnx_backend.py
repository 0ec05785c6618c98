"""ONNX's own test runner over the tool: KVASIR=build/release/kvasir python3 tools/onnx_backend.py [-k NAME]

Needs pip's onnx. Each case is a folder as `kvasir conform` takes it; what it computes is compared by the runner. docs/onnx.md
has the counts; the runner also counts each case for CUDA, skipped.
"""
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy
import onnx
import onnx.backend.base
import onnx.backend.test

TOOL = os.environ.get("KVASIR", "kvasir")


def to_proto(value, kind):
    if kind.HasField("optional_type"):
        return onnx.numpy_helper.from_optional(value)
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.from_list(value)
    return onnx.numpy_helper.from_array(numpy.asarray(value))


def element_type(kind):
    while not kind.HasField("tensor_type"):
        kind = kind.optional_type.elem_type if kind.HasField("optional_type") else kind.sequence_type.elem_type
    return onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)


def load(path, dtype):
    array = numpy.load(path)
    return array.view(dtype) if array.dtype.kind == "V" else array.astype(dtype)


class Model(onnx.backend.base.BackendRep):
    def __init__(self, model):
        self.model = model

    def outputs(self, folder):
        for k, output in enumerate(self.model.graph.output):
            dtype, one = element_type(output.type), folder / f"output_{k}.npy"
            parts = sorted(folder.glob(f"output_{k}_*.npy"), key=lambda p: int(p.stem.split("_")[2]))
            yield load(one, dtype) if one.exists() else [load(p, dtype) for p in parts]

    def run(self, inputs, **_):
        with tempfile.TemporaryDirectory() as name:
            case = pathlib.Path(name)
            data = case / "test_data_set_0"
            data.mkdir()
            onnx.save(self.model, case / "model.onnx")
            constants = {t.name for t in self.model.graph.initializer}  # inputs, too, in old files
            kinds = [i.type for i in self.model.graph.input if i.name not in constants]
            for k, (value, kind) in enumerate(zip(inputs, kinds)):
                (data / f"input_{k}.pb").write_bytes(to_proto(value, kind).SerializeToString())
            command = [TOOL, "conform", case, "--output", case / "out", "--time-limit", "600", "-v"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.stdout.startswith("skip"):
                raise unittest.SkipTest(done.stdout.splitlines()[0])
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
            return list(self.outputs(case / "out"))


class Backend(onnx.backend.base.Backend):
    @classmethod
    def prepare(cls, model, device="CPU", **_):
        return Model(model)

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"


if __name__ == "__main__":
    globals().update(onnx.backend.test.BackendTest(Backend, __name__).test_cases)
    unittest.main()
