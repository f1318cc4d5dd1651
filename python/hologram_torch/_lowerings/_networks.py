"""Products, convolutions, pooling, and random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .._values import Value
from ._shapes import flip
from ._table import RANDOM, Context, lower


@lower("mm.default", "bmm.default")
def matmul(c: Context, a: Value, b: Value, *dtype: torch.dtype) -> Value:
    product = c.graph.matmul(a, b)
    return product.to(*dtype) if dtype else product


def _scaled(x: Value, factor: float) -> Value:
    return x if factor == 1 else x * factor


@lower("addmm.default", "baddbmm.default")
def addmm(c: Context, bias: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
    if alpha == beta == 1 and tuple(bias.shape) == (b.shape[-1],) and a.dtype.is_floating_point:
        return c.graph.matmul(a, b, bias)
    product = _scaled(c.graph.matmul(a, b), alpha)
    return product + _scaled(bias, beta) if beta else product


@lower("addbmm.default")
def addbmm(c: Context, bias: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
    product = _scaled(c.graph.matmul(a, b).reduce("sum", [0]), alpha)
    return product + _scaled(bias, beta) if beta else product


@lower("dot.default", "vdot.default")
def dot(c: Context, a: Value, b: Value) -> Value:
    return (a * b).reduce("sum", None)


@lower("mv.default")
def mv(c: Context, a: Value, x: Value) -> Value:
    return c.graph.matmul(a, x.reshape([x.size, 1])).reshape([a.shape[0]])


# Convolutions.


def _pair(numbers: Sequence[int], n: int) -> list[int]:
    numbers = list(numbers)
    return numbers * n if len(numbers) == 1 else numbers


def _convolve(
    c: Context, x: Value, kernel: Value, stride: Sequence[int], padding: Sequence[int], dilation: Any, groups: int
) -> Value:
    number = c.graph.native.conv2d(x.number, kernel.number, list(stride), list(padding), list(dilation), groups)
    return Value(c.graph, number)


def _spread(x: Value, stride: Sequence[int]) -> Value:
    """With stride − 1 zeros between the elements of the last two dimensions."""
    for dim, step in zip((2, 3), stride, strict=True):
        n = x.shape[dim]
        if step == 1 or n <= 1:
            continue
        shape = [*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]]
        x = x.reshape(shape).pad([(0, step - 1 if d == dim + 1 else 0) for d in range(len(shape))])
        x = x.reshape([n * step if d == dim else m for d, m in enumerate([*shape[: dim + 1], *shape[dim + 2 :]])])
        x = x.slice(dim, 0, (n - 1) * step + 1)
    return x


def _transposed(
    c: Context,
    x: Value,
    kernel: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
) -> Value:
    """The transpose of a convolution whose input has the spatial size `size`."""
    o, per_group, *window = kernel.shape
    turned = kernel.reshape([groups, o // groups, per_group, *window]).permute([0, 2, 1, 3, 4])
    turned = flip(c, turned.reshape([groups * per_group, o // groups, *window]), [2, 3])
    x = _spread(x, stride)
    sides = [(0, 0), (0, 0)]
    for k in range(2):
        before = dilation[k] * (window[k] - 1) - padding[k]
        sides.append((before, size[k] + dilation[k] * (window[k] - 1) - x.shape[2 + k] - before))
    return _convolve(c, x.pad(sides), turned, [1, 1], [0, 0], dilation, groups)


class _Planes:
    """A convolution's arguments as those of one in two dimensions."""

    def __init__(self, x: Value, kernel: Value, stride: Any, padding: Any, dilation: Any, output_padding: Any):
        n = kernel.ndim - 2
        if n > 2:
            raise NotImplementedError(f"convolutions in {n} dimensions cannot be compiled")
        lists = [_pair(numbers, n) for numbers in (stride, padding, dilation, output_padding)]
        self.line = n == 1
        if self.line:
            lists = [[neutral, *numbers] for neutral, numbers in zip((1, 0, 1, 0), lists, strict=True)]
        self.stride, self.padding, self.dilation, self.output_padding = lists
        self.single = x.ndim == n + 1
        self.x, self.kernel = self.widened(x), kernel.unsqueeze(2) if self.line else kernel

    def widened(self, x: Value) -> Value:
        x = x.unsqueeze(0) if self.single else x
        return x.unsqueeze(2) if self.line else x

    def narrowed(self, x: Value) -> Value:
        x = x.squeeze([2]) if self.line else x
        return x.squeeze([0]) if self.single else x

    def narrow_kernel(self, x: Value) -> Value:
        return x.squeeze([2]) if self.line else x


@lower("convolution.default")
def convolution(
    c: Context,
    x: Value,
    kernel: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    p = _Planes(x, kernel, stride, padding, dilation, output_padding)
    if transposed:
        window = p.kernel.shape[2:]
        size = [
            (p.x.shape[2 + k] - 1) * p.stride[k]
            - 2 * p.padding[k]
            + p.dilation[k] * (window[k] - 1)
            + p.output_padding[k]
            + 1
            for k in range(2)
        ]
        result = _transposed(c, p.x, p.kernel, p.stride, p.padding, p.dilation, groups, size)
    else:
        result = _convolve(c, p.x, p.kernel, p.stride, p.padding, p.dilation, groups)
    if bias is not None:
        result = result + bias.reshape([1, bias.size, 1, 1])
    return p.narrowed(result)


def _kernel_gradient(c: Context, x: Value, grad: Value, p: _Planes, groups: int, window: Sequence[int]) -> Value:
    """The gradient of a convolution's kernel: images and gradients are convolved, with samples as channels."""
    n, channels = x.shape[:2]
    each = channels // groups
    images = x.reshape([n, groups, each, *x.shape[2:]]).permute([2, 1, 0, 3, 4])
    images = images.reshape([each, groups * n, *x.shape[2:]])
    found = _convolve(c, images, grad.swap(0, 1), p.dilation, p.padding, p.stride, groups)
    # Images may be larger than the windows reach.
    return found.swap(0, 1).slice(2, 0, window[0]).slice(3, 0, window[1])


@lower("convolution_backward.default")
def convolution_backward(
    c: Context,
    grad: Value,
    x: Value,
    kernel: Value,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:
    p = _Planes(x, kernel, stride, padding, dilation, output_padding)
    grad = p.widened(grad)
    window = p.kernel.shape[2:]
    of_x = of_kernel = None
    if transposed:
        if wanted[0]:
            of_x = _convolve(c, grad, p.kernel, p.stride, p.padding, p.dilation, groups)
        if wanted[1]:
            of_kernel = _kernel_gradient(c, grad, p.x, p, groups, window)
    else:
        if wanted[0]:
            of_x = _transposed(c, grad, p.kernel, p.stride, p.padding, p.dilation, groups, p.x.shape[2:])
        if wanted[1]:
            of_kernel = _kernel_gradient(c, p.x, grad, p, groups, window)
    return (
        p.narrowed(of_x) if of_x is not None else None,
        p.narrow_kernel(of_kernel) if of_kernel is not None else None,
        grad.reduce("sum", [0, 2, 3]) if wanted[2] else None,
    )


# Pooling.


def _windows(
    c: Context, size: Sequence[int], window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[list[int], Value, list[tuple[int, int]]]:
    """For pooling of planes of a size: the result's size, the places in the padded plane of each window's elements
    (`[window, result]`), and the padding."""
    window, padding, dilation = (_pair(numbers, 2) for numbers in (window, padding, dilation))
    stride = _pair(stride, 2) if stride else window
    counts, sides, along = [], [], []
    for k in range(2):
        room = size[k] + 2 * padding[k] - dilation[k] * (window[k] - 1) - 1
        n = (-(-room // stride[k]) if ceil else room // stride[k]) + 1
        # A window must begin in the plane or the padding before it.
        if ceil and (n - 1) * stride[k] >= size[k] + padding[k]:
            n -= 1
        reach = (n - 1) * stride[k] + dilation[k] * (window[k] - 1) + 1
        counts.append(n)
        sides.append((padding[k], max(reach - size[k] - padding[k], 0)))
        shape = [1, 1, 1, 1]
        shape[k], shape[2 + k] = window[k], n
        offsets = c.graph.arange(window[k], 0, dilation[k], torch.int32).reshape([window[k], 1])
        starts = c.graph.arange(n, 0, stride[k], torch.int32).reshape([1, n])
        along.append((offsets + starts).reshape(shape))
    width = sum(sides[1]) + size[1]
    places = (along[0] * width + along[1]).expand([*window, *counts])
    return counts, places.reshape([math.prod(window), math.prod(counts)]), sides


def _planes(x: Value) -> Value:
    return x.reshape([math.prod(x.shape[:-2]), *x.shape[-2:]])


@lower("max_pool2d_with_indices.default")
def max_pool2d(
    c: Context, x: Value, window: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> tuple[Value, Value]:
    planes = _planes(x)
    h, w = x.shape[-2:]
    counts, places, sides = _windows(c, (h, w), window, stride, padding, dilation, ceil)
    least = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    padded = planes.pad([(0, 0), *sides], least)
    flat = padded.reshape([padded.shape[0], -1])
    parts = flat.take(1, places.reshape([places.size])).reshape([flat.shape[0], *places.shape])
    best = Value(c.graph, c.graph.native.arg_max(parts.number, 1)).reshape([parts.shape[0], parts.shape[2]])
    values = parts.reduce("max", [1])
    # The place in the padded plane of the best element, as one in the plane.
    places = places.swap(0, 1).reshape([places.size])
    of_window = c.graph.arange(parts.shape[2], 0, parts.shape[1], torch.int64)
    chosen = (best.to(torch.int64) + of_window).reshape([best.size])
    at = places.take(0, chosen)
    width = w + sum(sides[1])
    row = c.graph.map("floor_divide", at, width)
    column = at - row * width
    at = (row - sides[0][0]) * w + (column - sides[1][0])
    shape = [*x.shape[:-2], *counts]
    return values.reshape(shape), at.to(torch.int64).reshape(shape)


@lower("max_pool2d_with_indices_backward.default")
def max_pool2d_backward(
    c: Context, grad: Value, x: Value, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, at: Value
) -> Value:
    planes = math.prod(x.shape[:-2])
    zeros = c.graph.full(grad.dtype, [planes, math.prod(x.shape[-2:])], 0)
    per_plane = [planes, math.prod(grad.shape[-2:])]
    return c.graph.scatter(zeros, 1, at.reshape(per_plane), grad.reshape(per_plane), add=True).reshape(x.shape)


def _shares(
    c: Context, size: Sequence[int], counts: Sequence[int], window: Any, stride: Any, padding: Any, counted: bool,
    divisor: int | None, dtype: torch.dtype,
) -> Value:  # fmt: skip
    """1 / the number of elements that each window of an average counts, `[rows, columns]`."""
    window, padding = _pair(window, 2), _pair(padding, 2)
    stride = _pair(stride, 2) if stride else window
    if divisor:
        return c.graph.full(dtype, list(counts), 1 / divisor)
    along = []
    for k in range(2):
        starts = [i * stride[k] - padding[k] for i in range(counts[k])]
        start = c.graph.arange(counts[k], starts[0] if starts else 0, stride[k], torch.int32)
        end = start + window[k]
        limit = size[k] + padding[k] if counted else size[k]
        end = c.graph.map("minimum", end, limit)
        start = start if counted else c.graph.map("maximum", start, 0)
        along.append((end - start).to(dtype).reshape([counts[k], 1] if k == 0 else [1, counts[k]]))
    return 1 / (along[0] * along[1])


@lower("avg_pool2d.default")
def avg_pool2d(
    c: Context,
    x: Value,
    window: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil: bool = False,
    counted: bool = True,
    divisor: int | None = None,
) -> Value:
    planes, size = _planes(x), x.shape[-2:]
    counts, places, sides = _windows(c, size, window, stride, padding, (1,), ceil)
    padded = planes.pad([(0, 0), *sides])
    flat = padded.reshape([padded.shape[0], -1])
    parts = flat.take(1, places.reshape([places.size])).reshape([flat.shape[0], *places.shape])
    sums = parts.reduce("sum", [1]).reshape([flat.shape[0], *counts])
    shares = _shares(c, size, counts, window, stride, padding, counted, divisor, x.dtype)
    return (sums * shares).reshape([*x.shape[:-2], *counts])


@lower("avg_pool2d_backward.default")
def avg_pool2d_backward(
    c: Context, grad: Value, x: Value, window: Any, stride: Any, padding: Any, ceil: bool, counted: bool, divisor: Any
) -> Value:
    counts, size = grad.shape[-2:], x.shape[-2:]
    _, places, sides = _windows(c, size, window, stride, padding, (1,), ceil)
    shares = _shares(c, size, counts, window, stride, padding, counted, divisor, grad.dtype)
    planes = _planes(grad) * shares
    n = planes.shape[0]
    each = planes.reshape([n, 1, math.prod(counts)]).expand([n, *places.shape]).reshape([n, places.size])
    height, width = (size[k] + sum(sides[k]) for k in range(2))
    zeros = c.graph.full(grad.dtype, [n, height * width], 0)
    added = c.graph.scatter(zeros.swap(0, 1), 0, places.reshape([places.size]), each.swap(0, 1), add=True).swap(0, 1)
    added = added.reshape([n, height, width])
    added = added.slice(1, sides[0][0], sides[0][0] + size[0]).slice(2, sides[1][0], sides[1][0] + size[1])
    return added.reshape(x.shape)


# Random numbers: other ones than torch's, but of the same distributions, and decided by torch's seed.


def _draw(c: Context, normal: bool, shape: Sequence[int], dtype: torch.dtype | None) -> Value:
    assert c.key is not None
    dtype = dtype or torch.get_default_dtype()
    own = torch.float32 if dtype == torch.float64 else dtype
    # The high word of the counter tells the operations of a graph apart.
    counter = c.graph.arange(2, 0, c.draws, torch.int64)
    c.draws += 1
    key = c.graph.concat([c.key, counter], 0).to(torch.uint32)
    native = c.graph.native.random_normal if normal else c.graph.native.random_uniform
    name = str(own).removeprefix("torch.")
    return Value(c.graph, native(key.number, name, [int(n) for n in shape])).to(dtype)


def _random(*names: str) -> Any:
    RANDOM.update(f"aten.{name}" for name in names)
    return lower(*names)


@_random("rand.default")
def rand(c: Context, size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _draw(c, False, size, dtype)


@_random("randn.default")
def randn(c: Context, size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _draw(c, True, size, dtype)


@_random("rand_like.default")
def rand_like(c: Context, x: Value, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _draw(c, False, x.shape, dtype or x.dtype)


@_random("randn_like.default")
def randn_like(c: Context, x: Value, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _draw(c, True, x.shape, dtype or x.dtype)


@_random("bernoulli.default")
def bernoulli(c: Context, x: Value, generator: Any = None) -> Value:
    return (_draw(c, False, x.shape, x.dtype) < x).to(x.dtype)


@_random("bernoulli.p")
def bernoulli_p(c: Context, x: Value, p: float = 0.5, generator: Any = None) -> Value:
    return (_draw(c, False, x.shape, torch.float32) < p).to(x.dtype)


@_random("uniform.default")
def uniform(c: Context, x: Value, start: float = 0, end: float = 1, generator: Any = None) -> Value:
    return _draw(c, False, x.shape, x.dtype) * (end - start) + start


@_random("normal_functional.default")
def normal(c: Context, x: Value, mean: float = 0, std: float = 1, generator: Any = None) -> Value:
    return _draw(c, True, x.shape, x.dtype) * std + mean


@_random("randint.low", "randint.default")
def randint(c: Context, *bounds: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    *low, high, size = bounds
    start = low[0] if low else 0
    drawn = c.graph.map("floor", _draw(c, False, size, torch.float32) * (high - start))
    return drawn.to(dtype or torch.int64) + start


@_random("native_dropout.default")
def dropout(c: Context, x: Value, p: float, train: bool | None = True) -> tuple[Value, Value]:
    if not train or p == 0:
        return x, c.graph.full(torch.bool, x.shape, 1)
    if p == 1:
        return x * 0.0, c.graph.full(torch.bool, x.shape, 0)
    kept = _draw(c, False, x.shape, torch.float32) >= p
    return x * kept.to(x.dtype) * (1 / (1 - p)), kept
