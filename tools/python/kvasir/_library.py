"""libkvasir by ctypes: the structs and functions of kvasir.h, and errors as exceptions."""

import ctypes
import numbers
import os
import pathlib
import warnings
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32
from ctypes import c_uint64, c_void_p

MAX_RANK = 8
STATUS = ("ok", "invalid", "unsupported", "missing", "io", "no memory", "not finite", "internal")
WARNING = 1


class Error(RuntimeError):
    """What libkvasir refused, in the words of its messages. `status` is one of STATUS."""

    def __init__(self, status, text):
        super().__init__(text or status)
        self.status = status

    def __reduce__(self):
        return type(self), (self.status, str(self))


class KvasirWarning(UserWarning):
    """What libkvasir says about a model that it takes."""


class Message(ctypes.Structure):
    _fields_ = [("severity", c_int), ("text", c_char_p), ("file", c_char_p), ("line", c_uint32), ("column", c_uint32),
                ("node", c_char_p)]


class Tensor(ctypes.Structure):
    _fields_ = [("type", c_int32), ("rank", c_int32), ("dims", c_int64 * MAX_RANK), ("data", c_void_p)]


class DlTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("rank", c_int32),
                ("type_code", c_uint8), ("type_bits", c_uint8), ("type_lanes", c_uint16), ("dims", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Setting(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Options:
    """A struct of options. ctypes would cut integers off that a field does not hold."""

    def __init__(self, *values):
        super().__init__(*values)
        for (name, _), value in zip(self._fields_, values):
            if isinstance(value, numbers.Integral) and getattr(self, name) != value:
                raise ValueError(f"{name} is out of range: {value}")


class ModelOptions(Options, ctypes.Structure):
    _fields_ = [("n_defines", c_size_t), ("defines", POINTER(Setting)), ("n_pins", c_size_t), ("pins", POINTER(Setting)),
                ("weights", c_char_p), ("free_batch", c_int), ("inference", c_int)]


class PortStruct(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("type", c_int32), ("rank", c_int32), ("dims", c_int64 * MAX_RANK),
                ("symbols", c_char_p * MAX_RANK)]


class CompileOptions(Options, ctypes.Structure):
    _fields_ = [("device", c_char_p), ("target", c_char_p), ("precision", c_char_p), ("gemm", c_char_p),
                ("math", c_char_p), ("cache", c_char_p), ("check_indices", c_int)]


class Training(Options, ctypes.Structure):
    _fields_ = [("loss", c_char_p), ("labels", c_char_p), ("optimizer", c_char_p), ("weight_decay", c_double),
                ("n_train", c_size_t), ("n_freeze", c_size_t), ("n_init", c_size_t), ("n_lora", c_size_t),
                ("train", POINTER(c_char_p)), ("freeze", POINTER(c_char_p)), ("init", POINTER(c_char_p)),
                ("lora", POINTER(c_char_p)), ("lora_rank", c_int64), ("lora_alpha", c_double)]


class SessionOptionsStruct(Options, ctypes.Structure):
    _fields_ = [("threads", c_int), ("spin", c_int), ("seed", c_uint64)]


_tensors = POINTER(Tensor)
_out = POINTER(c_void_p)
# Functions by result and arguments. Those that return a status take `out_messages` behind these arguments.
_plain = {
    "version": (c_char_p, []),
    "messages_text": (c_char_p, [c_void_p]),
    "messages_count": (c_size_t, [c_void_p]),
    "messages_at": (Message, [c_void_p, c_size_t]),
    "messages_destroy": (None, [c_void_p]),
    "tensor_bytes": (c_int64, [_tensors]),
    "type_name": (c_char_p, [c_int32]),
    "model_destroy": (None, [c_void_p]),
    "model_name": (c_char_p, [c_void_p]),
    "model_input_count": (c_size_t, [c_void_p]),
    "model_output_count": (c_size_t, [c_void_p]),
    "model_input": (POINTER(PortStruct), [c_void_p, c_size_t]),
    "model_output": (POINTER(PortStruct), [c_void_p, c_size_t]),
    "program_destroy": (None, [c_void_p]),
    "program_train_input_count": (c_size_t, [c_void_p]),
    "program_train_input": (POINTER(PortStruct), [c_void_p, c_size_t]),
    "program_value_count": (c_size_t, [c_void_p]),
    "program_value_name": (c_char_p, [c_void_p, c_size_t]),
    "program_rate": (c_double, [c_void_p, c_int64]),
    "session_destroy": (None, [c_void_p]),
    "session_state_count": (c_size_t, [c_void_p]),
    "session_state": (c_char_p, [c_void_p, c_size_t, POINTER(c_int), _tensors]),
}
_fallible = {
    "tensor_from_dlpack": [POINTER(DlTensor), _tensors],
    "device_check": [c_char_p],
    "model_open": [c_char_p, POINTER(ModelOptions), _out],
    "model_open_bytes": [c_char_p, c_size_t, c_char_p, POINTER(ModelOptions), _out],
    "compile": [c_void_p, POINTER(CompileOptions), _out],
    "compile_training": [c_void_p, POINTER(CompileOptions), POINTER(Training), _out],
    "session_create": [c_void_p, POINTER(SessionOptionsStruct), _out],
    "session_run": [c_void_p, _tensors, c_size_t, _tensors, c_size_t],
    "session_shapes": [c_void_p, _tensors, c_size_t, _tensors, c_size_t],
    "session_train": [c_void_p, _tensors, c_size_t, c_double, POINTER(c_double)],
    "session_evaluate": [c_void_p, _tensors, c_size_t, POINTER(c_double)],
    "session_save": [c_void_p, c_char_p],
    "session_load": [c_void_p, c_char_p],
}


def _find():
    """$KVASIR_LIBRARY, else the library of the wheel, else that of the system."""
    own = os.environ.get("KVASIR_LIBRARY")
    beside = pathlib.Path(__file__).parent / "libkvasir.so.0"
    return own or (str(beside) if beside.exists() else "libkvasir.so.0")


def _bind(library):
    for name, (result, arguments) in _plain.items():
        function = getattr(library, "kvasir_" + name)
        function.restype, function.argtypes = result, arguments
    for name, arguments in _fallible.items():
        function = getattr(library, "kvasir_" + name)
        function.restype, function.argtypes = c_int, [*arguments, _out]


try:
    library = ctypes.CDLL(_find())
except OSError as error:
    raise ImportError(f"libkvasir is not to be found: {error}. Set KVASIR_LIBRARY to its path, or install the wheel, "
                      "which contains it") from None
_bind(library)
version = library.kvasir_version().decode()


def _warn(messages):
    for i in range(library.kvasir_messages_count(messages)):
        message = library.kvasir_messages_at(messages, i)
        if message.severity == WARNING:
            warnings.warn(message.text.decode(errors="replace"), KvasirWarning, stacklevel=4)


def call(name, *arguments):
    """Calls kvasir_<name>; an error becomes an Error, a warning a KvasirWarning."""
    messages = c_void_p()
    status = getattr(library, "kvasir_" + name)(*arguments, byref(messages))
    if status or messages:
        conclude(status, messages)


def conclude(status, messages):
    """Raises or warns what a call returned, and frees the messages."""
    try:
        if status:
            raise Error(STATUS[status], library.kvasir_messages_text(messages).decode(errors="replace").rstrip())
        _warn(messages)
    finally:
        library.kvasir_messages_destroy(messages)


def encode(text):
    """A string or path for C; None stays None."""
    if text is None:
        return None
    encoded = os.fsencode(text)
    if b"\0" in encoded:
        raise ValueError(f"there is a null character in {text!r}")
    return encoded


def _text_of_setting(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def settings(pairs):
    """A dictionary as an array of Setting."""
    pairs = dict(pairs or {})
    return len(pairs), (Setting * len(pairs))(*[Setting(encode(k), encode(_text_of_setting(v)))
                                                for k, v in pairs.items()])


def strings(values):
    """A list of strings, or one string, as an array for C."""
    values = [values] if isinstance(values, str) else list(values or ())
    return len(values), (c_char_p * len(values))(*[encode(v) for v in values])
