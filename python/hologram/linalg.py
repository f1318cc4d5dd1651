"""Linear algebra: products, norms, parts of matrices, and decompositions.

Decompositions are computed on the host in float64, whatever the tensor's device, and rounded once for float32. They
have no gradients. A matrix that has none (a singular one, one that is not positive definite) is a ValueError.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from . import _dtypes as dt
from . import _functions as f
from . import _native
from ._checks import check_all
from ._common import _axes, _axis, _float, _number, broadcast_shapes
from ._functions import matmul, matrix_transpose, tensordot, vecdot
from ._native import Tensor
from ._statistics import _root

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Every product of elements of two vectors."""
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError("outer takes two vectors")
    return f.expand_dims(x1, axis=1) * f.expand_dims(x2, axis=0)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross products of vectors of three elements along an axis."""
    x1, x2 = f.broadcast_arrays(x1, x2)
    at = _axis(x1, axis)
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
    # Diagonals outside the matrix have nothing.
    offset = max(-rows, min(offset, columns))
    first = (max(-offset, 0), max(offset, 0))
    count = max(min(rows - first[0], columns - first[1]), 0)
    flat = f.reshape(x, (*x.shape[:-2], rows * columns))
    places = f.arange(count, device=x._device) * (columns + 1) + (first[0] * columns + first[1])
    return f.take(flat, places, axis=-1)


def trace(x: Tensor, /, *, offset: int = 0, dtype=None) -> Tensor:
    """The sums of the diagonals of matrices."""
    return f.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def _identity(x: Tensor) -> Tensor:
    """Unit matrices in the shape of these."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError("square matrices are wanted")
    return f.broadcast_to(f.eye(x.shape[-1], dtype=x.dtype, device=x._device), x.shape)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The n-th power of square matrices; of their inverses for n < 0."""
    result = _identity(x)
    if n < 0:
        x, n = inv(x), -n
    while n:
        if n & 1:
            result = f.matmul(result, x)
        x, n = f.matmul(x, x), n >> 1
    return result


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """What `slogdet` gives."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """What `svd` gives."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The lower triangles L with x = L · Lᵀ of symmetric, positive definite matrices, or the upper ones Lᵀ."""
    return _native.decompose("cholesky", x, upper)[0]


def det(x: Tensor, /) -> Tensor:
    """The determinants of square matrices."""
    return _native.decompose("det", x)[0]


def slogdet(x: Tensor, /) -> SlogdetResult:
    """The signs of the determinants, and the logarithms of their magnitudes."""
    return SlogdetResult(*_native.decompose("slogdet", x))


def eigh(x: Tensor, /) -> EighResult:
    """The eigenvalues of symmetric matrices in ascending order, and the eigenvectors as columns."""
    return EighResult(*_native.decompose("eigh", x))


def eigvalsh(x: Tensor, /) -> Tensor:
    """The eigenvalues of symmetric matrices in ascending order."""
    return eigh(x).eigenvalues


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """Orthonormal columns and an upper triangle; mode "complete" gives as many columns as rows."""
    if mode not in ("reduced", "complete"):
        raise ValueError('mode is "reduced" or "complete"')
    return QRResult(*_native.decompose("qr", x, mode == "complete"))


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """Left vectors as columns, singular values in descending order, right vectors as rows."""
    return SVDResult(*_native.decompose("svd", x, full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    """The singular values in descending order."""
    return _native.decompose("svdvals", x)[0]


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The x with x1 · x = x2; x2 is a vector if it has one dimension, matrices otherwise."""
    dtype = dt.result_type(x1, x2)
    x1, x2 = _native.cast(x1, dtype), _native.cast(x2, dtype)
    is_vector = x2.ndim == 1
    if is_vector:
        x2 = f.expand_dims(x2, axis=-1)
    if x1.ndim < 2:
        raise ValueError("solve takes square matrices")
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    x1 = f.broadcast_to(x1, (*batch, *x1.shape[-2:]))
    x2 = f.broadcast_to(x2, (*batch, *x2.shape[-2:]))
    result = _native.solve(x1, x2)
    return f.squeeze(result, axis=-1) if is_vector else result


def inv(x: Tensor, /) -> Tensor:
    """The inverses of square matrices."""
    return _native.solve(x, _identity(x))


def _cut(x: Tensor, values: Tensor, rtol) -> Tensor:
    """The least singular values that count, with a dimension for them."""
    if rtol is not None:
        _number("rtol", rtol)
    else:
        rtol = max(x.shape[-2:]) * dt.finfo(x.dtype).eps
    if isinstance(rtol, Tensor):
        rtol = f.expand_dims(rtol, axis=-1)
    return f.max(values, axis=-1, keepdims=True) * rtol


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The numbers of singular values above rtol times the greatest."""
    if x.ndim < 2:
        raise ValueError("matrix_rank takes matrices")
    values = svdvals(x)
    if values.shape[-1] == 0:
        return f.zeros(values.shape[:-1], dtype=dt.int64, device=x._device)
    return f.count_nonzero(values > _cut(x, values, rtol), axis=-1)


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The pseudo-inverses; singular values up to rtol times the greatest count as 0."""
    u, values, vh = svd(x, full_matrices=False)
    if values.shape[-1] == 0:
        return f.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), dtype=x.dtype, device=x._device)
    counts = values > _cut(x, values, rtol)
    inverse = f.where(counts, 1 / f.where(counts, values, f.ones_like(values)), f.zeros_like(values))
    return f.matmul(matrix_transpose(vh) * f.expand_dims(inverse, axis=-2), matrix_transpose(u))


def vector_norm(x: Tensor, /, *, axis=None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of vectors along axes: the `ord`-th root of the sum of powers. At 0 its gradient is 0."""
    size = f.abs(_float(x))
    axes = _axes(x, axis)
    if ord == math.inf:
        return f.max(size, axis=axes, keepdims=keepdims)
    if ord == -math.inf:
        return f.min(size, axis=axes, keepdims=keepdims)
    if ord == 0:
        return _native.cast(f.count_nonzero(size, axis=axes, keepdims=keepdims), size.dtype)
    if ord == 1:
        return f.sum(size, axis=axes, keepdims=keepdims)
    if ord == 2:
        return _root(f.sum(size * size, axis=axes, keepdims=keepdims), 2)
    return _root(f.sum(size**ord, axis=axes, keepdims=keepdims), ord)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord="fro") -> Tensor:
    """The norm of matrices: "fro", "nuc", 1, −1, 2, −2, inf or −inf."""
    if x.ndim < 2:
        raise ValueError("matrix_norm takes matrices")
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = f.expand_dims(svdvals(_float(x)), axis=-1)
        reduce = f.sum if ord == "nuc" else f.max if ord > 0 else f.min
        result = reduce(values, axis=-2, keepdims=True)
    elif ord in (1, -1, math.inf, -math.inf):
        along, over = (-2, -1) if abs(ord) == 1 else (-1, -2)
        sums = f.sum(f.abs(_float(x)), axis=along, keepdims=True)
        result = (f.max if ord > 0 else f.min)(sums, axis=over, keepdims=True)
    else:
        raise ValueError(f"there is no norm {ord!r}: use 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    return result if keepdims else f.squeeze(result, axis=(-2, -1))


check_all(globals())
