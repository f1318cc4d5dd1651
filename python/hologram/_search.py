"""Searching, sorting, sets of elements."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _dtypes as dt
from . import _native
from ._checks import check_all
from ._common import _axes, _axis, _truth, broadcast_shapes
from ._dtypes import result_type
from ._indexing import check_on_host, getitem
from ._native import Tensor
from ._shapes import expand_dims, reshape


def _arg(native):
    def function(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
        if x.dtype.kind == "b":
            x = _native.cast(x, dt.uint8)
        ndim = x.ndim
        if axis is None:
            x, at = reshape(x, (-1,)), 0
        else:
            at = _axis(x, axis)
        result = _native.cast(native(x, at), dt.int64)
        if keepdims:
            return _native.reshape(result, [1] * ndim) if axis is None else expand_dims(result, axis=at)
        return result

    return function


argmax = _arg(_native.arg_max)
argmax.__doc__ = "The indices of the greatest elements along an axis; NaN counts as greater than all."
argmin = _arg(_native.arg_min)
argmin.__doc__ = "The indices of the least elements along an axis."


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that put the elements in order; equal ones keep theirs."""
    if x.dtype.kind == "b":
        x = _native.cast(x, dt.uint8)
    return _native.cast(_native.arg_sort(x, _axis(x, axis), descending), dt.int64)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order; NaN last, or first if descending."""
    if x.dtype.kind == "b":
        return _native.cast(sort(_native.cast(x, dt.uint8), axis=axis, descending=descending), dt.bool)
    return _native.sort(x, _axis(x, axis), descending)


def count_nonzero(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """The number of elements that are not zero."""
    return _native.reduce("count_nonzero", x, _axes(x, axis), keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the elements that are not zero, one tensor per dimension."""
    if x.ndim == 0:
        raise ValueError("nonzero takes at least one dimension")
    return tuple(_native.nonzero(x))


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Where elements of x2 belong in the sorted x1."""
    if side not in ("left", "right"):
        raise ValueError('side is "left" or "right"')
    if sorter is not None:
        x1 = take(x1, sorter)
    dtype = result_type(x1, x2)
    places = _native.search_sorted(_native.cast(x1, dtype), _native.cast(x2, dtype), side == "right")
    return _native.cast(places, dt.int64)


def where(condition: Tensor, x1, x2, /) -> Tensor:
    """x1 where the condition is true, else x2."""
    for name, x in (("x1", x1), ("x2", x2)):
        if not isinstance(x, (Tensor, bool, int, float)):
            raise TypeError(f"where: {name} must be a tensor or a number, not {type(x).__name__}")
    dtype = result_type(x1, x2)
    device = condition._device

    def side(x):
        return _native.cast(x, dtype) if isinstance(x, Tensor) else _native.full([], x, dtype, device)

    return _native.select(_truth(condition), side(x1), side(x2))


class UniqueAll(NamedTuple):
    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """The different values, their first indices, the value of each element, and how often each value occurs."""
    return UniqueAll(*_native.unique(x))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    values, _, _, counts = _native.unique(x)
    return UniqueCounts(values, counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    values, _, inverse, _ = _native.unique(x)
    return UniqueInverse(values, inverse)


def unique_values(x: Tensor, /) -> Tensor:
    """The different values in order; each NaN is one."""
    return _native.unique(x)[0]


def take(x: Tensor, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """The slices of an axis at these indices."""
    if not isinstance(indices, (Tensor, list, tuple, int)):
        raise TypeError(f"take: indices must be a tensor of whole numbers, not {type(indices).__name__}")
    if axis is None:
        if x.ndim != 1:
            raise ValueError("take needs an axis where there are several")
        axis = 0
    at = _axis(x, axis)
    return getitem(x, (slice(None),) * at + (indices,))


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Elements along an axis by an index for each."""
    at = _axis(x, axis)
    if x.ndim != indices.ndim:
        raise ValueError("the indices need as many dimensions as the tensor")
    shape = broadcast_shapes(x.shape[:at] + x.shape[at + 1 :], indices.shape[:at] + indices.shape[at + 1 :])
    size = x.shape[at]
    x = _native.broadcast_to(x, [*shape[:at], size, *shape[at:]])
    indices = _native.broadcast_to(indices, [*shape[:at], indices.shape[at], *shape[at:]])
    if indices.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, not {indices.dtype}")
    indices = _native.cast(indices, dt.int64)
    check_on_host(indices, at, size)
    indices = _native.cast(where(indices < 0, indices + size, indices), dt.uint32)
    return _native.take_along(_native.contiguous(x), _native.contiguous(indices), at)


check_all(globals())
