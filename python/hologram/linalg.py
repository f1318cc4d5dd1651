"""Linear algebra without decompositions: products, norms, parts of matrices."""

from __future__ import annotations

import math

from . import _functions as f
from . import _native
from ._functions import matmul, matrix_transpose, tensordot, vecdot
from ._native import Tensor

__all__ = """
    cross diagonal matmul matrix_norm matrix_power matrix_transpose outer tensordot trace vecdot vector_norm
""".split()


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Every product of elements of two vectors."""
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError("outer takes two vectors")
    return f.expand_dims(x1, axis=1) * f.expand_dims(x2, axis=0)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross products of vectors of three elements along an axis."""
    x1, x2 = f.broadcast_arrays(x1, x2)
    at = f._axis(x1, axis)
    if x1.shape[at] != 3:
        raise ValueError(f"cross takes vectors of 3 elements, not {x1.shape[at]}")
    a, b = f.unstack(x1, axis=at), f.unstack(x2, axis=at)
    parts = [a[(i + 1) % 3] * b[(i + 2) % 3] - a[(i + 2) % 3] * b[(i + 1) % 3] for i in range(3)]
    return f.stack(parts, axis=at)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The diagonals of matrices."""
    if x.ndim < 2:
        raise ValueError("diagonal takes matrices")
    rows, columns = x.shape[-2:]
    first = (max(-offset, 0), max(offset, 0))
    count = max(min(rows - first[0], columns - first[1]), 0)
    flat = f.reshape(x, (*x.shape[:-2], rows * columns))
    places = f.arange(count, device=x._device) * (columns + 1) + (first[0] * columns + first[1])
    return f.take(flat, places, axis=-1)


def trace(x: Tensor, /, *, offset: int = 0, dtype=None) -> Tensor:
    """The sums of the diagonals of matrices."""
    return f.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The n-th power of square matrices, n ≥ 0."""
    if n < 0:
        raise ValueError("negative powers need an inverse, which there is not")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError("matrix_power takes square matrices")
    result = f.broadcast_to(f.eye(x.shape[-1], dtype=x.dtype, device=x._device), x.shape)
    while n:
        if n & 1:
            result = f.matmul(result, x)
        x, n = f.matmul(x, x), n >> 1
    return result


def vector_norm(x: Tensor, /, *, axis=None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of vectors along axes: the `ord`-th root of the sum of powers."""
    size = f.abs(f._float(x))
    axes = f._axes(x, axis)
    if ord == math.inf:
        return f.max(size, axis=axes, keepdims=keepdims)
    if ord == -math.inf:
        return f.min(size, axis=axes, keepdims=keepdims)
    if ord == 0:
        return _native.cast(f.count_nonzero(size, axis=axes, keepdims=keepdims), size.dtype)
    if ord == 1:
        return f.sum(size, axis=axes, keepdims=keepdims)
    if ord == 2:
        return f.sqrt(f.sum(size * size, axis=axes, keepdims=keepdims))
    return f.sum(size**ord, axis=axes, keepdims=keepdims) ** (1 / ord)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord="fro") -> Tensor:
    """The norm of matrices: "fro", 1, −1, inf or −inf; those of singular values are not supported."""
    if x.ndim < 2:
        raise ValueError("matrix_norm takes matrices")
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(f"the norm {ord!r} is not supported: use 'fro', 1, -1, inf or -inf")
    along, over = (-2, -1) if abs(ord) == 1 else (-1, -2)
    sums = f.sum(f.abs(f._float(x)), axis=along, keepdims=True)
    result = (f.max if ord > 0 else f.min)(sums, axis=over, keepdims=True)
    return result if keepdims else f.squeeze(result, axis=(-2, -1))
