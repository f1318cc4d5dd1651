"""Elements by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .._values import Value
from ._table import Context, lower


@lower("gather.default")
def gather(c: Context, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if not x.ndim or not index.ndim:
        return x.reshape([1]).take(0, index.reshape([1])).reshape(index.shape)
    dim = x.dim(dim)
    for d in range(x.ndim):
        if d != dim:
            x = x.slice(d, 0, index.shape[d])
    return x.take(dim, index)


@lower("index_select.default")
def index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    if not x.ndim:
        return x
    return x.take(dim, index.reshape([index.size]))


@lower("embedding.default")
def embedding(
    c: Context, weight: Value, index: Value, padding: int = -1, by_frequency: bool = False, sparse: bool = False
) -> Value:
    return weight.take(0, index.reshape([index.size])).reshape([*index.shape, *weight.shape[1:]])


@lower("embedding_dense_backward.default")
def embedding_backward(
    c: Context, grad: Value, index: Value, rows: int, padding: int, by_frequency: bool = False
) -> Value:
    if by_frequency:
        raise NotImplementedError("embedding gradients scaled by frequency cannot be compiled")
    index = index.reshape([index.size])
    grad = grad.reshape([index.size, grad.shape[-1]])
    if padding >= 0:
        skip = index.eq(padding).reshape([index.size, 1])
        grad = c.graph.where(skip, c.graph.scalar(grad.dtype, 0), grad)
    zeros = c.graph.full(grad.dtype, [rows, grad.shape[-1]], 0)
    return c.graph.scatter(zeros, 0, index, grad, add=True)


def _scatter(c: Context, x: Value, dim: int, index: Value, source: Any, add: bool) -> Value:
    if not isinstance(source, Value):
        source = c.graph.full(x.dtype, index.shape, source)
    if not x.ndim:
        return _scatter(c, x.reshape([1]), 0, index.reshape([1]), source.reshape([1]), add).reshape([])
    if not index.ndim:
        index, source = index.reshape([1]), source.reshape([1])
    dim = x.dim(dim)
    if not index.size:
        return x
    for d in range(x.ndim):
        source = source.slice(d, 0, index.shape[d])
    others = [d for d in range(x.ndim) if d != dim and index.shape[d] != x.shape[d]]
    part = x
    for d in others:
        part = part.slice(d, 0, index.shape[d])
    part = c.graph.scatter(part, dim, index, source.to(x.dtype), add)
    if not others:
        return part
    # The elements outside of the index's shape stay.
    inside = c.graph.full(torch.bool, part.shape, 1)
    sides = [(0, x.shape[d] - part.shape[d]) for d in range(x.ndim)]
    return c.graph.where(inside.pad(sides), part.pad(sides), x)


@lower("scatter.src")
def scatter(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scatter(c, x, dim, index, source, add=False)


lower("scatter.value")(scatter)


@lower("scatter_add.default")
def scatter_add(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scatter(c, x, dim, index, source, add=True)


@lower("scatter.reduce", "scatter.value_reduce")
def scatter_reduced(c: Context, x: Value, dim: int, index: Value, source: Any, *, reduce: str) -> Value:
    if reduce != "add":
        raise NotImplementedError(f"scatter with the reduction {reduce!r} cannot be compiled")
    return _scatter(c, x, dim, index, source, add=True)


@lower("scatter_reduce.two")
def scatter_reduce(
    c: Context, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    if reduce != "sum":
        raise NotImplementedError(f"scatter_reduce with the reduction {reduce!r} cannot be compiled")
    if not include_self:
        x = _scatter(c, x, dim, index, 0, add=False)
    return _scatter(c, x, dim, index, source, add=True)


@lower("index_add.default")
def index_add(c: Context, x: Value, dim: int, index: Value, source: Value, alpha: float = 1) -> Value:
    if not x.ndim:
        return x + source.reshape([-1]).reduce("sum", None) * alpha
    source = source if alpha == 1 else source * alpha
    return c.graph.scatter(x, x.dim(dim), index.reshape([index.size]), source.to(x.dtype), add=True)


def _linear(c: Context, x: Value, indices: Sequence[Value | None]) -> tuple[Value, list[int], list[int], Value, int]:
    """For the indices of `x[indices]`: `x` with the indexed dimensions first, its order of dimensions, the shape of the
    indices, their places in the merged first dimension, and where the result has the indices' dimensions."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    rest = [d for d in range(x.ndim) if d not in dims]
    shape = torch.broadcast_shapes(*(tuple(indices[d].shape) for d in dims))
    places: Value | None = None
    for d in dims:
        index = indices[d]
        if index.dtype in (torch.bool, torch.uint8):
            raise NotImplementedError("an index of bool has as many elements as the mask says, which no graph knows")
        index = index.to(torch.int64)
        n = x.shape[d]
        index = c.graph.where(index < 0, index + n, index)
        # An index out of range must not be one of another row.
        index = c.graph.where(index < n, index, c.graph.scalar(torch.int64, 2**31))
        places = index if places is None else places * n + index
    assert places is not None
    places = places.expand(shape).reshape([math.prod(shape)])
    order = [*dims, *rest]
    moved = x.permute(order)
    merged = moved.reshape([math.prod(x.shape[d] for d in dims), *(x.shape[d] for d in rest)])
    neighbours = dims == list(range(dims[0], dims[-1] + 1))
    return merged, order, list(shape), places, dims[0] if neighbours else 0


@lower("index.Tensor", "_unsafe_index.Tensor")
def index(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    merged, _, shape, places, at = _linear(c, x, indices)
    rest = list(merged.shape[1:])
    taken = merged.take(0, places).reshape([*shape, *rest])
    n = len(shape)
    return taken.permute([*range(n, n + at), *range(n), *range(n + at, n + len(rest))])


@lower("index_put.default", "_unsafe_index_put.default")
def index_put(c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    if any(i is not None and i.dtype == torch.bool for i in indices):
        return _masked_put(c, x, indices, values, accumulate)
    merged, order, shape, places, at = _linear(c, x, indices)
    rest = list(merged.shape[1:])
    n = len(shape)
    values = values.to(x.dtype).expand([*rest[:at], *shape, *rest[at:]])
    values = values.permute([*range(at, at + n), *range(at), *range(at + n, n + len(rest))])
    values = values.reshape([math.prod(shape), *rest])
    done = c.graph.scatter(merged, 0, places, values, add=accumulate)
    done = done.reshape([x.shape[d] for d in order])
    return done.permute([order.index(d) for d in range(x.ndim)])


def _masked_put(c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    """`x[mask] = value` for one mask and one value."""
    (mask, *others) = indices
    if mask is None or any(i is not None for i in others) or values.size != 1:
        raise NotImplementedError("of masks only one, of the leading dimensions, with one value can be compiled")
    mask = mask.reshape([*mask.shape, *[1] * (x.ndim - mask.ndim)])
    value = values.to(x.dtype).reshape([])
    return c.graph.where(mask, x + value if accumulate else value, x)
