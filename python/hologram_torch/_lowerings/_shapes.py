"""Views, and operations that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .._values import Value, promoted
from ._table import Context, lower

_END = 2**62


@lower("view.default", "_unsafe_view.default", "reshape.default", "view_copy.default", "prims.reshape.default")
def view(c: Context, x: Value, shape: Sequence[int]) -> Value:
    return x.reshape(shape)


lower("expand.default", "expand_copy.default")(lambda c, x, shape, implicit=False: x.expand(shape))
lower("unsqueeze.default")(lambda c, x, dim: x.unsqueeze(dim))
lower("squeeze.default")(lambda c, x: x.squeeze(range(x.ndim)))
lower("squeeze.dim")(lambda c, x, dim: x.squeeze([dim]))
lower("squeeze.dims", "prims.squeeze.default")(lambda c, x, dims: x.squeeze(dims))
lower("permute.default", "permute_copy.default", "prims.transpose.default")(lambda c, x, order: x.permute(order))
lower("t.default")(lambda c, x: x.swap(0, -1) if x.ndim == 2 else x)
lower("transpose.int")(lambda c, x, a, b: x.swap(a, b))


@lower("prims.broadcast_in_dim.default")
def broadcast_in_dim(c: Context, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    sizes = [1] * len(shape)
    for own, dim in enumerate(dims):
        sizes[dim] = x.shape[own]
    return x.reshape(sizes).expand(shape)


def bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    """A range of a dimension as Python counts it."""
    start, end, _ = slice(start, end).indices(n)
    return start, max(start, end)


@lower("slice.Tensor")
def slice_tensor(
    c: Context, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim = x.dim(dim)
    start, end = bounds(x.shape[dim], start, end)
    if step == 1 or end - start <= 1:
        return x.slice(dim, start, end)
    # Every step-th element is the first column of rows of that length.
    rows = -(-(end - start) // step)
    missing = start + rows * step - x.shape[dim]
    if missing > 0:
        x = x.pad([(0, missing if d == dim else 0) for d in range(x.ndim)])
    x = x.slice(dim, start, start + rows * step)
    shape = x.shape
    x = x.reshape([*shape[:dim], rows, step, *shape[dim + 1 :]]).slice(dim + 1, 0, 1)
    return x.reshape([*shape[:dim], rows, *shape[dim + 1 :]])


@lower("select.int")
def select(c: Context, x: Value, dim: int, index: int) -> Value:
    dim = x.dim(dim)
    index %= x.shape[dim]
    return x.slice(dim, index, index + 1).reshape([n for d, n in enumerate(x.shape) if d != dim])


@lower("split_with_sizes.default", "split_with_sizes_copy.default")
def split_with_sizes(c: Context, x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    parts, start = [], 0
    for size in sizes:
        parts.append(x.slice(dim, start, start + size))
        start += size
    return tuple(parts)


@lower("split.Tensor")
def split(c: Context, x: Value, size: int, dim: int = 0) -> tuple[Value, ...]:
    n = x.shape[x.dim(dim)]
    starts = range(0, n, size) if n else [0]
    return tuple(x.slice(dim, start, min(start + size, n)) for start in starts)


@lower("unbind.int")
def unbind(c: Context, x: Value, dim: int = 0) -> tuple[Value, ...]:
    return tuple(select(c, x, dim, i) for i in range(x.shape[x.dim(dim)]))


@lower("cat.default", "prims.cat.default")
def cat(c: Context, parts: Sequence[Value], dim: int = 0) -> Value:
    dtype = promoted(*parts)
    # torch ignores empty tensors of one dimension.
    kept = [part.to(dtype) for part in parts if part.shape != (0,)] or [parts[0].to(dtype)]
    return c.graph.concat(kept, kept[0].dim(dim))


@lower("stack.default")
def stack(c: Context, parts: Sequence[Value], dim: int = 0) -> Value:
    return cat(c, [part.unsqueeze(dim % (part.ndim + 1)) for part in parts], dim % (parts[0].ndim + 1))


@lower("repeat.default")
def repeat(c: Context, x: Value, times: Sequence[int]) -> Value:
    shape = [*[1] * (len(times) - x.ndim), *x.shape]
    x = x.reshape([m for n in shape for m in (1, n)])
    x = x.expand([m for k, n in zip(times, shape, strict=True) for m in (k, n)])
    return x.reshape([k * n for k, n in zip(times, shape, strict=True)])


@lower("constant_pad_nd.default")
def constant_pad(c: Context, x: Value, pad: Sequence[int], number: float = 0) -> Value:
    sides = [(0, 0)] * x.ndim
    for k in range(len(pad) // 2):
        sides[x.ndim - 1 - k] = (pad[2 * k], pad[2 * k + 1])
    return x.pad(sides, number)


@lower("flip.default")
def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    for dim in dims:
        n = x.shape[x.dim(dim)] if x.ndim else 1
        if n > 1:
            x = x.take(dim, c.graph.arange(n, n - 1, -1, torch.int32))
    return x


lower("prims.rev.default")(flip)


@lower("slice_scatter.default")
def slice_scatter(
    c: Context,
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    dim = x.dim(dim)
    n = x.shape[dim]
    start, end = bounds(n, start, end)
    rows = max(0, -(-(end - start) // step))
    source = source.to(x.dtype).expand([rows if d == dim else m for d, m in enumerate(x.shape)])
    if step != 1:
        indices = c.graph.arange(rows, start, step, torch.int32)
        return c.graph.scatter(x, dim, indices, source, add=False)
    parts = [x.slice(dim, 0, start), source, x.slice(dim, start + rows, n)]
    return c.graph.concat([part for part in parts if part.shape[dim]] or [x], dim)


@lower("select_scatter.default")
def select_scatter(c: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    dim = x.dim(dim)
    index %= x.shape[dim]
    return slice_scatter(c, x, source.expand(x.shape[:dim] + x.shape[dim + 1 :]).unsqueeze(dim), dim, index, index + 1)


@lower("diagonal.default")
def diagonal(c: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    a, b = x.dim(dim1), x.dim(dim2)
    x = x.permute([*(d for d in range(x.ndim) if d not in (a, b)), a, b])
    rows, columns = x.shape[-2:]
    x = x.slice(-2, min(max(-offset, 0), rows), rows).slice(-1, min(max(offset, 0), columns), columns)
    rows, columns = x.shape[-2:]
    n = min(rows, columns)
    flat = x.reshape([*x.shape[:-2], rows * columns])
    return flat.take(-1, c.graph.arange(n, 0, columns + 1, torch.int32))


def strided(c: Context, size: Sequence[int], stride: Sequence[int], offset: int) -> Value:
    """The places of the elements of a strided view in its memory, in row-major order."""
    places = c.graph.full(torch.int64, [math.prod(size)], offset).reshape(size)
    for dim, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = c.graph.arange(n, 0, step, torch.int64)
        places = places + along.reshape([n if d == dim else 1 for d in range(len(size))])
    return places.reshape([math.prod(size)])


@lower("as_strided.default", "as_strided_copy.default")
def as_strided(c: Context, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Value:
    return x.reshape([x.size]).take(0, strided(c, size, stride, offset or 0)).reshape(size)


@lower("as_strided_scatter.default")
def as_strided_scatter(
    c: Context, x: Value, source: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    places = strided(c, size, stride, offset or 0)
    flat = c.graph.scatter(x.reshape([x.size]), 0, places, source.reshape([source.size]), add=False)
    return flat.reshape(x.shape)
