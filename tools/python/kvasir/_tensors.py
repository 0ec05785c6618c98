"""Arrays to tensors of libkvasir and back, without copies where their memory is dense."""

import ctypes

import numpy

from ._library import DlTensor, Tensor, byref, c_void_p, call, conclude, library

_names = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
          11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128"}
# Types that NumPy has only with the package ml_dtypes.
_ml_names = {16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
             24: "float8_e8m0fnu"}
_dtypes = {number: numpy.dtype(name) for number, name in _names.items()}
_types = {dtype: number for number, dtype in _dtypes.items()}
_byte = ctypes.c_char
_HOST = 1  # DLPack's kDLCPU
_run = library.kvasir_session_run


def type_name(number):
    """ONNX's name: "float", "int64"."""
    return library.kvasir_type_name(number).decode()


def dtype_of(number):
    """The NumPy type of a type of libkvasir."""
    if number in _dtypes:
        return _dtypes[number]
    if number in _ml_names:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"NumPy has no type {type_name(number)}; the package ml_dtypes adds it") from None
        return numpy.dtype(getattr(ml_dtypes, _ml_names[number]))
    raise TypeError(f"NumPy has no type {type_name(number)}")


def _number_of(dtype):
    number = _types.get(dtype)
    if number is None:
        number = next((n for n, name in _ml_names.items() if name == dtype.name), None)
    if number is None:
        raise TypeError(f"Kvasir has no type {dtype}")
    return number


def _address(array):
    """array.ctypes.data, in a third of its time for what buffers can describe: not read-only, empty or of type bfloat16."""
    try:
        return ctypes.addressof(_byte.from_buffer(array))
    except (BufferError, TypeError, ValueError):
        return array.ctypes.data


def _tensor(array):
    t = Tensor(type=_number_of(array.dtype), rank=array.ndim, data=_address(array))
    if array.ndim > len(t.dims):
        raise TypeError(f"an array of {array.ndim} dimensions; at most {len(t.dims)} are supported")
    t.dims[:array.ndim] = array.shape
    return t


def _make_dense(dl):
    """Lets a tensor of the host with strides have dense memory, which is returned: its own, or else a copy."""
    dims, size = tuple(dl.dims[:dl.rank]), dl.type_bits // 8
    if dl.device_type != _HOST or not dl.strides or 0 in dims or dl.type_bits % 8:
        return None
    first = (_byte * size).from_address(dl.data + dl.byte_offset)
    strided = numpy.lib.stride_tricks.as_strided(numpy.frombuffer(first, f"V{size}"), dims,
                                                 [size * stride for stride in dl.strides[:dl.rank]])
    dense = numpy.ascontiguousarray(strided)
    dl.data, dl.byte_offset, dl.strides = dense.ctypes.data, 0, None
    return dense


def _from_dlpack(value):
    """Borrows the memory of any tensor of the host that is dense; what is returned second keeps it alive."""
    capsule = value.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    dl, t = DlTensor.from_buffer_copy(DlTensor.from_address(get(capsule, b"dltensor"))), Tensor()
    owners = capsule, value, _make_dense(dl)
    call("tensor_from_dlpack", byref(dl), byref(t))
    return t, owners


def _converted(value, number):
    """Numbers, nested lists of them and buffers as an array of a type."""
    array, dtype = numpy.asarray(value), dtype_of(number)
    integers = array.dtype.kind in "iu" and dtype.kind in "iu"
    # Whether an integer fits is a matter of its value; an empty list has no kind.
    result = array.astype(dtype, casting="unsafe" if integers or not array.size else "same_kind")
    if integers and not numpy.array_equal(result, array):
        raise TypeError(f"a number is beyond {dtype}")
    return result


def _to_tensor(value, number):
    if isinstance(value, numpy.ndarray):
        array = value
    elif isinstance(value, numpy.generic):
        array = numpy.asarray(value)
    elif hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    else:
        array = _converted(value, number)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = numpy.require(array, requirements=["C", "A"])
    return _tensor(array), array


def to_tensor(value, number, what):
    """A tensor for an input or parameter, and what keeps its memory alive. Arrays keep their type; lists and numbers are
    converted to the type `number` as far as that keeps their kind."""
    try:
        return _to_tensor(value, number)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def to_tensors(values, ports):
    """An array of tensors, and what keeps their memory alive."""
    if len(values) != len(ports):
        raise TypeError(f"{len(values)} inputs are given, and there are {len(ports)}")
    pairs = [to_tensor(value, port.number, f"input {port.name!r}") for value, port in zip(values, ports)]
    return (Tensor * len(pairs))(*[t for t, _ in pairs]), [owner for _, owner in pairs]


def _kind(t):
    """Shape and NumPy type of an output; None if its shape is not known before the run."""
    dims = tuple(t.dims[:t.rank])
    return None if min(dims, default=0) < 0 else (dims, dtype_of(t.type))


class Call:
    """The structs of session_run. They serve all calls with arrays of the same types and shapes, between which nothing
    changes but addresses."""

    def __init__(self, session, values, ports, n_outputs):
        self._tensors, self._owners = to_tensors(values, ports)
        self._results = (Tensor * n_outputs)()
        self._messages = c_void_p()
        arguments = session, self._tensors, len(self._owners), self._results, n_outputs
        call("session_shapes", *arguments)
        self._arguments = *arguments, byref(self._messages)
        dense = all(isinstance(owner, numpy.ndarray) for owner in self._owners)
        self._inputs = [(owner.shape, owner.dtype) for owner in self._owners] if dense else None
        self._outputs = [_kind(t) for t in self._results]

    def take(self, values):
        """Whether the structs serve for these values, which live until the end of run; then they have their addresses."""
        if self._inputs is None or len(values) != len(self._inputs):
            return False
        for t, value, (shape, dtype) in zip(self._tensors, values, self._inputs):
            if type(value) is not numpy.ndarray or value.shape != shape or value.dtype is not dtype:
                return False
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned):
                return False
            t.data = _address(value)
        return True

    def run(self):
        """New arrays of all outputs."""
        arrays = []
        for t, kind in zip(self._results, self._outputs):
            array = kind and numpy.empty(*kind)
            t.data = None if array is None else _address(array)
            arrays.append(array)
        status = _run(*self._arguments)
        self._owners = None
        if status or self._messages:
            conclude(status, self._messages)
        return [view(t).copy() if a is None else a for t, a in zip(self._results, arrays)]


def view(t):
    """The tensor's memory as an array, which does not keep it alive."""
    dtype, dims = dtype_of(t.type), tuple(t.dims[:t.rank])
    count = int(numpy.prod(dims, dtype=numpy.int64))
    if not count:
        return numpy.empty(dims, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(t.data)
    return numpy.frombuffer(memory, dtype).reshape(dims)
