"""Sums, means and other figures of tensors."""

from __future__ import annotations

import builtins
import math

from . import _dtypes as dt
from . import _native
from ._checks import check_all
from ._common import _axes, _axis, _float, _wide
from ._elementwise import sqrt
from ._native import Tensor
from ._shapes import concat


def sum(x: Tensor, /, *, axis=None, dtype=None, keepdims: bool = False) -> Tensor:
    """The sum along axes; integers in 64 bits."""
    wide = _wide(x, dtype)
    return _native.cast(_native.reduce("sum", wide, _axes(x, axis), keepdims), wide.dtype)


def prod(x: Tensor, /, *, axis=None, dtype=None, keepdims: bool = False) -> Tensor:
    """The product along axes; integers in 64 bits."""
    wide = _wide(x, dtype)
    return _native.cast(_native.reduce("prod", wide, _axes(x, axis), keepdims), wide.dtype)


def mean(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """The mean along axes."""
    return _native.reduce("mean", _float(x), _axes(x, axis), keepdims)


def _extreme(name: str, x: Tensor, axis, keepdims: bool) -> Tensor:
    axes = _axes(x, axis)
    if builtins.any(x.shape[a] == 0 for a in axes):
        raise ValueError(f"{name} of no elements is not defined")
    if x.dtype.kind == "b":
        return _native.cast(_extreme(name, _native.cast(x, dt.uint8), axis, keepdims), dt.bool)
    return _native.reduce(name, x, axes, keepdims)


def max(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """The greatest element along axes; NaN if one is NaN."""
    return _extreme("max", x, axis, keepdims)


def min(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """The least element along axes; NaN if one is NaN."""
    return _extreme("min", x, axis, keepdims)


def var(x: Tensor, /, *, axis=None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance along axes, over the number of elements less `correction`."""
    x = _float(x)
    axes = _axes(x, axis)
    count = math.prod(x.shape[a] for a in axes)
    off = x - mean(x, axis=tuple(axes), keepdims=True)
    total = _native.reduce("sum", off * off, axes, keepdims)
    rest = count - float(correction)
    if math.isnan(rest):
        raise ValueError("correction is NaN, but must be a number")
    return total / rest if rest > 0 else total * (math.nan if rest == 0 else math.inf)


def std(x: Tensor, /, *, axis=None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation along axes, as `var`. Where it is 0 its gradient is 0."""
    return _root(var(x, axis=axis, correction=correction, keepdims=keepdims), 2)


def _root(total: Tensor, ord: float) -> Tensor:
    """The `ord`-th root of a sum of powers; at 0, where the root has no slope, the gradient is that of the sum."""

    def root(x: Tensor) -> Tensor:
        return sqrt(x) if ord == 2 else x ** (1 / ord)

    if not _native.is_recording() or ord <= 1:
        return root(total)
    zero, one = total == 0, _native.full([], 1, total.dtype, total._device)
    return _native.select(zero, total, root(_native.select(zero, one, total)))


def _cumulative(x: Tensor, axis, include_initial: bool, first: int, compute) -> Tensor:
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"axis is needed: the tensor has {x.ndim} dimensions")
        axis = 0
    at = _axis(x, axis)
    result = compute(x, at)
    if include_initial:
        shape = [1 if i == at else n for i, n in enumerate(x.shape)]
        result = _native.concat([_native.full(shape, first, x.dtype, x._device), result], at)
    return result


def cumulative_sum(x: Tensor, /, *, axis: int | None = None, dtype=None, include_initial: bool = False) -> Tensor:
    """The sums of the elements up to each one."""

    def compute(wide: Tensor, at: int) -> Tensor:
        narrow = wide.dtype.kind in "iu" and wide.dtype.itemsize < 4
        middle = _native.cast(wide, dt.int32 if wide.dtype.kind == "i" else dt.uint32) if narrow else wide
        return _native.cast(_native.cumsum(middle, at), wide.dtype)

    return _cumulative(_wide(x, dtype), axis, include_initial, 0, compute)


def cumulative_prod(x: Tensor, /, *, axis: int | None = None, dtype=None, include_initial: bool = False) -> Tensor:
    """The products of the elements up to each one."""
    return _cumulative(_wide(x, dtype), axis, include_initial, 1, _native.cumprod)


def all(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """Whether all elements along axes are true."""
    return _native.reduce("all", x, _axes(x, axis), keepdims)


def any(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """Whether an element along axes is true."""
    return _native.reduce("any", x, _axes(x, axis), keepdims)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The differences of neighbours along an axis, `n` times."""
    if n < 0:
        raise ValueError(f"n is {n}, but must be 0 or more")
    at = _axis(x, axis)
    parts = [part for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        x = concat(parts, axis=at)
    for _ in range(n):
        size = x.shape[at]
        if size == 0:
            break
        high, low = _native.slice(x, at, 1, size), _native.slice(x, at, 0, size - 1)
        x = high ^ low if x.dtype.kind == "b" else high - low
    return x


check_all(globals())
