"""ONNX Runtime's interface for inference: what programs that use it call, on Kvasir."""

import enum
import os
import pathlib

from ._library import Error, call
from ._model import Model

_DEVICES = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


class GraphOptimizationLevel(enum.IntEnum):
    """Models are always compiled with all optimisations."""
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Steps run in order, each on all threads."""
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class SessionOptions:
    """Settings of a session. intra_op_num_threads, dimension overrides and configuration entries have an effect; the other
    fields, which cannot change results, are taken as they are. Unknown fields and entries are errors."""

    __slots__ = ("intra_op_num_threads", "inter_op_num_threads", "graph_optimization_level", "execution_mode",
                 "execution_order", "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "log_severity_level",
                 "log_verbosity_level", "logid", "use_deterministic_compute", "_pins", "_entries")
    _CONFIG = {"session.intra_op.allow_spinning": "1", "kvasir.precision": None, "kvasir.target": None,
               "kvasir.cache": None}

    def __init__(self):
        self.intra_op_num_threads = self.inter_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = 0
        self.enable_cpu_mem_arena = self.enable_mem_pattern = self.enable_mem_reuse = True
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.use_deterministic_compute = False
        self._pins, self._entries = {}, {}

    def add_free_dimension_override_by_name(self, name, value):
        """Fixes an open dimension."""
        self._pins[name] = int(value)

    def add_session_config_entry(self, key, value):
        if key not in self._CONFIG:
            raise ValueError(f"unknown configuration entry {key!r}; known: {', '.join(self._CONFIG)}")
        self._entries[key] = str(value)

    def get_session_config_entry(self, key):
        if key not in self._entries:
            raise ValueError(f"configuration entry {key!r} is not set")
        return self._entries[key]

    def _of_model(self):
        entry = {key: self._entries.get(key, default) for key, default in self._CONFIG.items()}
        return {"pins": self._pins, "threads": self.intra_op_num_threads,
                "spin": entry["session.intra_op.allow_spinning"] != "0", "precision": entry["kvasir.precision"],
                "target": entry["kvasir.target"], "cache": entry["kvasir.cache"]}


class RunOptions:
    """Settings of a run; none has an effect."""
    __slots__ = ("log_severity_level", "log_verbosity_level", "logid")

    def __init__(self):
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""


class NodeArg:
    """An input or output: name, shape, type."""

    def __init__(self, port):
        self.name, self.shape, self.type = port.name, port.shape, port.type

    def __repr__(self):
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


class ModelMetadata:
    """What the file says about itself."""

    def __init__(self, fields, graph_name):
        text = {n: v[-1].decode(errors="replace") for n, v in fields.items() if n in (2, 4, 6)}
        self.producer_name, self.domain, self.description = (text.get(n, "") for n in (2, 4, 6))
        self.version = fields.get(5, [2**63 - 1])[-1]
        self.version -= self.version >> 63 << 64  # an int64
        self.graph_name = graph_name
        graph = _fields(fields[7][-1]) if 7 in fields else {}
        self.graph_description = graph[10][-1].decode(errors="replace") if 10 in graph else ""
        entries = [_fields(entry) for entry in fields.get(14, [])]
        self.custom_metadata_map = {e[1][-1].decode(): e.get(2, [b""])[-1].decode() for e in entries if 1 in e}


def _varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def _fields(data):
    """The fields of a protobuf message by number: lists of integers and bytes."""
    fields, at = {}, 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = data[at:at + size], at + size
        fields.setdefault(key >> 3, []).append(bytes(value) if isinstance(value, memoryview) and key >> 3 != 7 else value)
    return fields


def _metadata(model, name):
    data = pathlib.Path(model).read_bytes() if isinstance(model, (str, os.PathLike)) else bytes(model)
    binary = any(byte < 9 or 13 < byte < 32 for byte in data[:4096])
    return ModelMetadata(_fields(memoryview(data)) if binary else {}, name)


def get_all_providers():
    """The providers that sessions know."""
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def get_available_providers():
    """The providers that this machine has."""
    available = []
    for provider in get_all_providers():
        try:
            call("device_check", _DEVICES[provider].encode())
            available.append(provider)
        except Error:
            pass
    return available


def get_device():
    """"GPU" or "CPU"."""
    return "GPU" if "CUDAExecutionProvider" in get_available_providers() else "CPU"


def set_default_logger_severity(severity):
    """Nothing is logged."""


def _choose(providers, provider_options):
    """The first provider that the machine has."""
    named = [p if isinstance(p, tuple) else (p, {}) for p in providers or ["CPUExecutionProvider"]]
    named = [(name, {**own, **more}) for (name, own), more in zip(named, provider_options or [{}] * len(named))]
    for name, options in named:
        if name not in _DEVICES:
            raise ValueError(f"unknown provider {name!r}; known: {', '.join(get_all_providers())}")
        unknown = [o for o, value in options.items() if (o, str(value)) != ("device_id", "0")]
        if unknown:
            raise ValueError(f"{name}: unknown option {unknown[0]!r}")
    available = get_available_providers()
    for name, _ in named:
        if name in available:
            return name
    raise Error("missing", f"this machine has none of {', '.join(name for name, _ in named)}")


class InferenceSession:
    """A compiled model. `providers` are names, best first: CPUExecutionProvider, CUDAExecutionProvider."""

    def __init__(self, path_or_bytes, sess_options=None, providers=None, provider_options=None, **unknown):
        if unknown:
            raise TypeError(f"unknown argument {next(iter(unknown))!r}")
        self._options = sess_options or SessionOptions()
        self._provider = _choose(providers, provider_options)
        self._source = path_or_bytes
        self._model = Model(path_or_bytes, device=_DEVICES[self._provider], **self._options._of_model())
        self._input_names = [port.name for port in self._model.inputs]
        self._output_names = [port.name for port in self._model.outputs]

    def get_inputs(self):
        return [NodeArg(port) for port in self._model.inputs]

    def get_outputs(self):
        return [NodeArg(port) for port in self._model.outputs]

    def get_providers(self):
        return [self._provider]

    def get_provider_options(self):
        return {self._provider: {}}

    def get_session_options(self):
        return self._options

    def get_modelmeta(self):
        return _metadata(self._source, self._model.name)

    def run(self, output_names, input_feed, run_options=None):
        """The outputs of these names (None or empty: all) for inputs by name."""
        if run_options is not None and not isinstance(run_options, RunOptions):
            raise TypeError(f"run_options must be RunOptions, found {type(run_options).__name__}")
        for name in output_names or ():
            if name not in self._output_names:
                raise ValueError(f"there is no output {name!r}; there are: {', '.join(self._output_names)}")
        for name in input_feed:
            if name not in self._input_names:
                raise ValueError(f"there is no input {name!r}; there are: {', '.join(self._input_names)}")
        if len(input_feed) < len(self._input_names):
            raise ValueError(f"input {next(n for n in self._input_names if n not in input_feed)!r} is missing")
        results = self._model.run([input_feed[name] for name in self._input_names])
        return [results[self._output_names.index(name)] for name in output_names] if output_names else results

    def __getattr__(self, name):
        raise AttributeError(f"kvasir.InferenceSession has no {name!r}; it has ONNX Runtime's run, get_inputs, "
                             "get_outputs, get_providers, get_provider_options, get_session_options and get_modelmeta")
