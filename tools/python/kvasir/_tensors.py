"""Arrays to tensors of libkvasir and back, without copies where their memory is dense."""

import ctypes

import numpy

from ._library import DlTensor, Tensor, byref, call, library

_names = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
          11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128"}
# Types that NumPy has only with the package ml_dtypes.
_ml_names = {16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
             24: "float8_e8m0fnu"}
_dtypes = {number: numpy.dtype(name) for number, name in _names.items()}
_types = {dtype: number for number, dtype in _dtypes.items()}


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


def _tensor(array):
    t = Tensor(type=_number_of(array.dtype), rank=array.ndim, data=array.ctypes.data)
    if array.ndim > len(t.dims):
        raise TypeError(f"an array of {array.ndim} dimensions; at most {len(t.dims)} are supported")
    t.dims[:array.ndim] = array.shape
    return t


def _from_dlpack(value):
    """Borrows the memory of any tensor of the host; what is returned second keeps it alive."""
    capsule = value.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = Tensor()
    call("tensor_from_dlpack", ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(DlTensor)), byref(t))
    return t, (capsule, value)


def to_tensor(value, port):
    """A tensor for an input, and what keeps its memory alive. Arrays must have the input's type; lists and numbers are
    converted to it as far as that keeps their kind."""
    if isinstance(value, numpy.ndarray):
        array = value
    elif isinstance(value, numpy.generic):
        array = numpy.asarray(value)
    elif hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    else:
        array = numpy.asarray(value).astype(dtype_of(port.number), casting="same_kind")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = numpy.require(array, requirements=["C", "A"])
    return _tensor(array), array


def to_tensors(values, ports):
    """An array of tensors, and what keeps their memory alive."""
    pairs = [to_tensor(value, port) for value, port in zip(values, ports)]
    return (Tensor * len(pairs))(*[t for t, _ in pairs]), [owner for _, owner in pairs]


def empty_for(t):
    """A new array for an output; None if its shape is not known yet."""
    dims = list(t.dims[:t.rank])
    if min(dims, default=0) < 0:
        return None
    array = numpy.empty(dims, dtype_of(t.type))
    t.data = array.ctypes.data
    return array


def view(t):
    """The tensor's memory as an array, which does not keep it alive."""
    dtype, dims = dtype_of(t.type), tuple(t.dims[:t.rank])
    count = int(numpy.prod(dims, dtype=numpy.int64))
    if not count:
        return numpy.empty(dims, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(t.data)
    return numpy.frombuffer(memory, dtype).reshape(dims)
