"""ONNX's own test runner over the tool: KVASIR=build/release/kvasir python3 tools/onnx_backend.py [-k NAME]

Needs pip's onnx. Each case is a folder as `kvasir conform` takes it; the runner compares, and counts each case for CUDA, too, as
skipped. docs/onnx.md has the counts.
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


def to_proto(value, kind):
    if kind.HasField("optional_type"):
        return onnx.numpy_helper.from_optional(value)
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.from_list(value)
    return onnx.numpy_helper.from_array(numpy.asarray(value))


class Model(onnx.backend.base.BackendRep):
    def __init__(self, model):
        self.model = model

    def outputs(self, folder):
        for k in range(len(self.model.graph.output)):
            one, parts = folder / f"output_{k}.pb", folder.glob(f"output_{k}_*.pb")
            arrays = [onnx.numpy_helper.to_array(onnx.load_tensor(path)) for path in
                      ([one] if one.exists() else sorted(parts, key=lambda p: int(p.stem.split("_")[2])))]
            yield arrays[0] if one.exists() else arrays

    def run(self, inputs, **_):
        with tempfile.TemporaryDirectory() as name:
            case = pathlib.Path(name)
            (data := case / "test_data_set_0").mkdir()
            onnx.save(self.model, case / "model.onnx")
            constants = {t.name for t in self.model.graph.initializer}  # inputs, too, in old files
            kinds = [i.type for i in self.model.graph.input if i.name not in constants]
            for k, (value, kind) in enumerate(zip(inputs, kinds)):
                (data / f"input_{k}.pb").write_bytes(to_proto(value, kind).SerializeToString())
            command = [os.environ.get("KVASIR", "kvasir"), "conform", case, "--output", case / "out", "--time-limit", "600", "-v"]
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
    tests = onnx.backend.test.BackendTest(Backend, __name__)
    # The runner compares values of random draws, and cannot compare a list that holds a scalar.
    tests.exclude("test_(bernoulli|training_dropout(?!_zero)).*_cpu|test_loop16_seq_none_cpu")
    globals().update(tests.test_cases)
    unittest.main()
