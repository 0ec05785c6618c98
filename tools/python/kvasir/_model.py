"""Models that run and train in this process."""

import ctypes
import itertools
import os
import threading
import weakref

from ._library import CompileOptions, ModelOptions, SessionOptionsStruct, Tensor, Training, byref, c_void_p, call
from ._library import encode, library, settings, strings
from ._tensors import Call, to_tensor, to_tensors, type_name, view


class Port:
    """An input or output: `name`, `shape` (numbers, and names of dimensions that are open), `type` as "tensor(float)"."""

    def __init__(self, struct):
        self.name = struct.name.decode()
        self.number = struct.type
        self.shape = [struct.symbols[d].decode() if struct.symbols[d] else struct.dims[d] for d in range(struct.rank)]

    @property
    def type(self):
        return f"tensor({type_name(self.number)})"

    def __repr__(self):
        return f"{self.name}: {self.type}{self.shape}"


def _shape(t):
    return f"{type_name(t.type)}{list(t.dims[:t.rank])}"


def _ports(handle, count, get):
    return [Port(get(handle, i).contents) for i in range(count(handle))]


class _Handle(c_void_p):
    """An object of libkvasir, which lives as long as whatever refers to it: a copied Model does, too."""

    def destroy_with(self, destroy):
        weakref.finalize(self, destroy, self.value)


class _Session:
    """A model, compiled, with a session. Several threads may call it; they wait for each other."""

    def __init__(self, model, *, defines=None, pins=None, weights=None, free_batch=False, inference=False,
                 device=None, target=None, precision=None, gemm=None, math=None, cache=None, check_indices=False,
                 threads=0, spin=True, seed=0, training=None):
        self._lock = threading.Lock()
        self._call = None  # the last one
        opened = self._open(model, defines, pins, weights, free_batch, inference)
        try:
            self.name = library.kvasir_model_name(opened).decode()
            self.inputs = _ports(opened, library.kvasir_model_input_count, library.kvasir_model_input)
            self.outputs = _ports(opened, library.kvasir_model_output_count, library.kvasir_model_output)
            options = CompileOptions(*[encode(o) for o in (device, target, precision, gemm, math, cache)], check_indices)
            self._program = self._compile(opened, options, training)
        finally:
            library.kvasir_model_destroy(opened)
        self._handle = _Handle()
        call("session_create", self._program, byref(SessionOptionsStruct(threads, spin, seed)), byref(self._handle))
        self._handle.destroy_with(library.kvasir_session_destroy)

    @staticmethod
    def _open(model, defines, pins, weights, free_batch, inference):
        options = ModelOptions(*settings(defines), *settings(pins), encode(weights), bool(free_batch),
                               bool(inference))
        handle = c_void_p()
        if isinstance(model, (str, os.PathLike)):
            call("model_open", encode(model), byref(options), byref(handle))
        elif isinstance(model, (bytes, bytearray, memoryview)):
            data = bytes(model)
            call("model_open_bytes", data, len(data), None, byref(options), byref(handle))
        else:
            raise TypeError(f"a model is a path or bytes, found {type(model).__name__}")
        return handle

    def _compile(self, model, options, training):
        program = _Handle()
        if training is None:
            call("compile", model, byref(options), byref(program))
        else:
            call("compile_training", model, byref(options), byref(training), byref(program))
        program.destroy_with(library.kvasir_program_destroy)
        return program

    def run(self, values):
        """All outputs for values in the order of `inputs`, as arrays."""
        with self._lock:
            if self._call is None or not self._call.take(values):
                self._call = None
                self._call = Call(self._handle, values, self.inputs, len(self.outputs))
            return self._call.run()

    def _by_name(self, positional, named, ports):
        if len(positional) > len(ports):
            raise TypeError(f"{len(positional)} inputs are given, and there are {len(ports)}")
        values = dict(zip((p.name for p in ports), positional))
        for name, value in named.items():
            if name not in [p.name for p in ports]:
                raise TypeError(f"there is no input {name!r}; there are: {', '.join(p.name for p in ports)}")
            if name in values:
                raise TypeError(f"input {name!r} is given twice")
            values[name] = value
        missing = [p.name for p in ports if p.name not in values]
        if missing:
            raise TypeError(f"input {missing[0]!r} is missing")
        return [values[p.name] for p in ports]

    def __call__(self, *positional, **named):
        """Runs the model on inputs in order or by name. Returns an array, or a tuple of them if there are several
        outputs."""
        results = self.run(self._by_name(positional, named, self.inputs))
        return results[0] if len(results) == 1 else tuple(results)


class Model(_Session):
    """A model that runs; kvasir.load makes it."""


class Trainer(_Session):
    """A model that trains and runs; kvasir.trainer and kvasir.train make it. `train_inputs` is what a batch has, `values`
    are the names of the numbers that a step reports: the loss, then metrics."""

    def __init__(self, model, *, loss=None, labels=None, optimizer=None, weight_decay=0.0, train=None, freeze=None,
                 init=None, lora=None, lora_rank=0, lora_alpha=0.0, **options):
        lists = [strings(v) for v in (train, freeze, init, lora)]
        training = Training(encode(loss), encode(labels), encode(optimizer), weight_decay, *[n for n, _ in lists],
                            *[v for _, v in lists], lora_rank, lora_alpha)
        options.setdefault("free_batch", loss is not None)
        options.setdefault("inference", True)
        super().__init__(model, training=training, **options)
        self.steps = 0
        self.train_inputs = _ports(self._program, library.kvasir_program_train_input_count,
                                   library.kvasir_program_train_input)
        self.values = [library.kvasir_program_value_name(self._program, i).decode()
                       for i in range(library.kvasir_program_value_count(self._program))]

    def _batch(self, batch):
        named = batch if isinstance(batch, dict) else {}
        positional = () if isinstance(batch, dict) else batch
        return to_tensors(self._by_name(positional, named, self.train_inputs), self.train_inputs)

    def step(self, batch, rate=None):
        """One training step on a batch: a tuple of arrays in the order of train_inputs, or a dictionary. rate None: that
        of the model's schedule. Returns the values by name."""
        tensors, owners = self._batch(batch)
        values = (ctypes.c_double * len(self.values))()
        if rate is None:
            rate = library.kvasir_program_rate(self._program, self.steps + 1)
        with self._lock:
            call("session_train", self._handle, tensors, len(tensors), rate, values)
            self.steps += 1
        del owners
        return dict(zip(self.values, values))

    def evaluate(self, batch):
        """The values of a batch without learning; those of gradients are NaN."""
        tensors, owners = self._batch(batch)
        values = (ctypes.c_double * len(self.values))()
        with self._lock:
            call("session_evaluate", self._handle, tensors, len(tensors), values)
        del owners
        return dict(zip(self.values, values))

    def _states(self):
        kind, t = ctypes.c_int(), Tensor()
        for i in range(library.kvasir_session_state_count(self._handle)):
            name = library.kvasir_session_state(self._handle, i, byref(kind), byref(t))
            if name is None:
                raise RuntimeError("the device did not give its states")
            yield name.decode(), kind.value, t

    def _parameters(self):
        return {name: Tensor.from_buffer_copy(t) for name, kind, t in self._states() if kind == 0}

    def parameters(self):
        """Copies of all parameters by name."""
        with self._lock:
            return {name: view(t).copy() for name, t in self._parameters().items()}

    def set_parameters(self, values):
        """Sets parameters by name, to what inputs may be, too; the others stay."""
        with self._lock:
            own, new = self._parameters(), {}
            for name, value in values.items():
                if name not in own:
                    raise KeyError(f"there is no parameter {name!r}")
                t, owner = to_tensor(value, own[name].type, f"parameter {name!r}")
                if (t.type, list(t.dims[:t.rank])) != (own[name].type, list(own[name].dims[:own[name].rank])):
                    raise ValueError(f"parameter {name!r} is {_shape(own[name])}, found {_shape(t)}")
                new[name] = view(t), owner
            for name, (array, _) in new.items():
                view(own[name])[...] = array

    def save(self, path):
        """Writes parameters, moments and counters to a safetensors file, which `weights` of kvasir.load takes, too."""
        with self._lock:
            call("session_save", self._handle, encode(path))

    def load(self, path):
        """Continues from such a file, with the step that it was written after."""
        with self._lock:
            call("session_load", self._handle, encode(path))
            self.steps = next((int(view(t)) for name, _, t in self._states() if name == "train.step"), self.steps)


def load(model, **options):
    """Compiles a model for inference: a path or bytes of ONNX, or of a .kv text.

    Options: defines and pins (dictionaries: hyper-parameters of a .kv model, values of shape symbols), weights (a
    safetensors file), device ("cpu", "cuda"), target, precision ("f32", "bf16", "f16"), gemm, math ("exact",
    "relaxed", "int8"), cache (a folder, or "off"), check_indices, threads (0: all), spin, seed, free_batch, inference
    (dropout and batch normalisation of a model in training mode are as in inference).
    """
    return Model(model, **options)


def trainer(model, **options):
    """Compiles a model for training: by its train block, or by a loss, "cross_entropy" or "mse".

    Options: those of load, and labels ("int64", "int32"), optimizer, weight_decay, train, freeze, init, lora (patterns of
    names), lora_rank, lora_alpha. With a loss all initialisers train unless `train` or `lora` say what.
    """
    return Trainer(model, **options)


def _repeat(data):
    """Batches without end from data that can be gone through again, else once."""
    while True:
        empty = True
        for batch in data:
            empty = False
            yield batch
        if empty or iter(data) is data:
            return


def train(model, data, steps=None, rate=None, progress=None, **options):
    """Trains a model on batches and returns its Trainer.

    data: an iterable of batches as Trainer.step takes them. steps None: every batch once; else data that can be gone
    through again are. rate: a number, a function of the step (from 1), or None, the model's schedule. progress(step,
    values) is called after each step; returning False ends the training. Options: those of trainer.
    """
    t = trainer(model, **options)
    for batch in data if steps is None else itertools.islice(_repeat(data), max(int(steps), 0)):
        values = t.step(batch, rate(t.steps + 1) if callable(rate) else rate)
        if progress and progress(t.steps, values) is False:
            break
    return t
