"""Element types, and the rules between them."""

from __future__ import annotations

import builtins
from typing import NamedTuple

from . import _native
from ._native import DType, Tensor

bool = DType("bool")
int8 = DType("int8")
int16 = DType("int16")
int32 = DType("int32")
int64 = DType("int64")
uint8 = DType("uint8")
uint16 = DType("uint16")
uint32 = DType("uint32")
uint64 = DType("uint64")
float16 = DType("float16")
bfloat16 = DType("bfloat16")
float32 = DType("float32")
float64 = DType("float64")

ALL = (bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64)

DEFAULT_FLOAT = float32
DEFAULT_INT = int64

# Kinds of the standard, and the types they have.
_KINDS = {
    "bool": (bool,),
    "signed integer": (int8, int16, int32, int64),
    "unsigned integer": (uint8, uint16, uint32, uint64),
    "integral": (int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    "real floating": (float16, bfloat16, float32, float64),
    "complex floating": (),
    "numeric": tuple(t for t in ALL if t != bool),
}

# Bits of a float: of its significand (with the leading one), and its greatest exponent.
_FLOATS = {"float16": (11, 15), "bfloat16": (8, 127), "float32": (24, 127), "float64": (53, 1023)}


class FInfo(NamedTuple):
    """Limits of a float type."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IInfo(NamedTuple):
    """Limits of an integer type."""

    bits: int
    max: int
    min: int
    dtype: DType


def as_dtype(of) -> DType:
    """The type that a name, a class or a NumPy type means."""
    if isinstance(of, DType):
        return of
    if of is builtins.bool:
        return bool
    if of is int:
        return DEFAULT_INT
    if of is float:
        return DEFAULT_FLOAT
    name = of if isinstance(of, str) else getattr(of, "name", None) or getattr(of, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"dtype must be an element type such as hologram.float32, not {of!r}")
    return DType(name)


def _type_of(of) -> DType:
    """The type of a tensor, or as `as_dtype`."""
    return of.dtype if isinstance(of, Tensor) else as_dtype(of)


def finfo(type, /) -> FInfo:
    """Limits of a float type, or of a tensor's."""
    dtype = _type_of(type)
    if dtype.kind != "f":
        raise TypeError(f"finfo takes a float type, not {dtype}")
    bits, exponent = _FLOATS[dtype.name]
    largest = (2.0 - 2.0 ** (1 - bits)) * 2.0**exponent
    return FInfo(8 * dtype.itemsize, 2.0 ** (1 - bits), largest, -largest, 2.0 ** (1 - exponent), dtype)


def iinfo(type, /) -> IInfo:
    """Limits of an integer type, or of a tensor's."""
    dtype = _type_of(type)
    bits = 8 * dtype.itemsize
    if dtype.kind == "i":
        return IInfo(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), dtype)
    if dtype.kind == "u":
        return IInfo(bits, 2**bits - 1, 0, dtype)
    raise TypeError(f"iinfo takes an integer type, not {dtype}")


def isdtype(dtype: DType, kind) -> builtins.bool:
    """Whether a type is of a kind: a type, a name such as "integral", or a tuple of these."""
    if not isinstance(dtype, DType):
        raise TypeError(f"isdtype: dtype must be an element type such as hologram.float32, not {dtype!r}")
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ValueError(f"there is no kind {kind!r}: use one of {', '.join(_KINDS)}")
        return dtype in _KINDS[kind]
    if not isinstance(kind, DType):
        raise TypeError(f"isdtype: kind must be a type, a name or a tuple of these, not {kind!r}")
    return dtype == kind


def result_type(*arrays_and_dtypes) -> DType:
    """The type that operations on these promote to. Python's numbers take the kind of the others."""
    types = [_type_of(x) for x in arrays_and_dtypes if not isinstance(x, (builtins.bool, int, float))]
    numbers = [x for x in arrays_and_dtypes if isinstance(x, (builtins.bool, int, float))]
    if not types and not numbers:
        raise ValueError("result_type takes at least one argument")
    if not types:
        types = [as_dtype(type(numbers.pop()))]
    result = types[0]
    for other in types[1:]:
        result = _native.promote_types(result, other)
    for number in numbers:
        if isinstance(number, builtins.bool):
            continue
        if isinstance(number, int):
            result = DEFAULT_INT if result == bool else result
        elif result.kind != "f":
            result = DEFAULT_FLOAT
    return result


def can_cast(from_, to, /) -> builtins.bool:
    """Whether promotion turns the first type into the second."""
    dtype, to = _type_of(from_), as_dtype(to)
    try:
        return _native.promote_types(dtype, to) == to
    except TypeError:
        return False
