"""What the functions of the standard share."""

from __future__ import annotations

import math
import operator

from . import _dtypes as dt
from . import _native
from ._native import Tensor


def _name(device) -> str | None:
    return None if device is None else str(device)


def _whole(name: str, value, low: int | None = None, high: int | None = None) -> int:
    """A whole number as an argument of this name."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}") from None
    if (low is not None and number < low) or (high is not None and number > high):
        # A limit of memory says little about a number below.
        is_open = high is None or (high >= 2**32 and low is not None and number < low)
        rest = f"{low} or more" if is_open else f"from {low} to {high}"
        raise ValueError(f"{name} is {number}, but must be {rest}")
    return number


def _shape(shape, low: int | None = 0) -> list[int]:
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    return [_whole("shape: a size", n, low, None if low is None else 2**63 - 1) for n in sizes]


def _axis(x: Tensor, axis: int, ndim: int | None = None, name: str = "axis") -> int:
    ndim = x.ndim if ndim is None else ndim
    axis = _whole(name, axis)
    if not -ndim <= axis < ndim:
        raise IndexError(f"{name}: there is no axis {axis}: the tensor has {ndim}")
    return axis % ndim


def _axes(x: Tensor, axis) -> list[int]:
    """Axes as a sorted list; all for None."""
    if axis is None:
        return list(range(x.ndim))
    axes = [_axis(x, a) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if len(set(axes)) != len(axes):
        raise ValueError(f"an axis is named twice: {axis}")
    return sorted(axes)


def _number(name: str, value, low: float = -math.inf, high: float = math.inf) -> None:
    """Checks a number as an argument of this name; a tensor passes."""
    if isinstance(value, Tensor):
        return
    if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not low <= value <= high:
        wanted = f"{low} or more" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"{name} is {value}, but must be {wanted if low > -math.inf else 'a number'}")


def _several(name: str, value) -> list[int]:
    """A whole number, or several in a list or a tuple."""
    return [_whole(name, n) for n in (value if isinstance(value, (tuple, list)) else (value,))]


def _tensor(x, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} takes tensors, not {type(x).__name__}: use hologram.asarray")
    return x


def broadcast_shapes(*shapes) -> tuple[int, ...]:
    """The shape that these shapes broadcast to."""
    result: list[int] = []
    for shape in shapes:
        shape = _shape(shape)
        short, long = (result, shape) if len(result) < len(shape) else (shape, result)
        short = [1] * (len(long) - len(short)) + short
        merged = []
        for a, b in zip(short, long):
            if a != b and 1 not in (a, b):
                raise ValueError(f"shapes do not broadcast: {', '.join(map(str, shapes))}")
            merged.append(b if a == 1 else a)
        result = merged
    return tuple(result)


def _float(x: Tensor) -> Tensor:
    return x if x.dtype.kind == "f" else _native.cast(x, dt.DEFAULT_FLOAT)


def _truth(x):
    """The elements as bools, or a number as a bool."""
    if not isinstance(x, Tensor):
        return bool(x)
    return _native.cast(x, dt.bool)


def _wide(x: Tensor, dtype) -> Tensor:
    """The elements in the type of their sum."""
    if dtype is not None:
        return _native.cast(x, dt.as_dtype(dtype))
    if x.dtype.kind in "bi":
        return _native.cast(x, dt.int64)
    return _native.cast(x, dt.uint64) if x.dtype.kind == "u" else x
