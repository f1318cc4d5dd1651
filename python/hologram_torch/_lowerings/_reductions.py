"""Reductions, scans, and what orders elements."""

from __future__ import annotations

import math
from typing import Any

import torch

from .._values import Value, category
from ._table import Context, lower


def _sum_type(x: Value, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (x.dtype if category(x.dtype) == 2 else torch.int64)


@lower("sum.dim_IntList")
def sum_dim(c: Context, x: Value, dims: Any, keep: bool = False, dtype: torch.dtype | None = None) -> Value:
    return x.to(_sum_type(x, dtype)).reduce("sum", dims, keep)


lower("sum.default")(lambda c, x, dtype=None: sum_dim(c, x, None, False, dtype))
lower("prims.sum.default")(
    lambda c, x, dims, output_dtype=None: x.to(output_dtype or x.dtype).reduce("sum", dims) if dims else x
)


@lower("mean.dim")
def mean_dim(c: Context, x: Value, dims: Any, keep: bool = False, dtype: torch.dtype | None = None) -> Value:
    return x.to(dtype or x.dtype).reduce("mean", dims, keep)


lower("mean.default")(lambda c, x, dtype=None: mean_dim(c, x, None, False, dtype))
lower("prod.default")(lambda c, x, dtype=None: x.to(_sum_type(x, dtype)).reduce("prod", None))
lower("prims.prod.default")(
    lambda c, x, dims, output_dtype=None: x.to(output_dtype or x.dtype).reduce("prod", dims) if dims else x
)
lower("prod.dim_int")(lambda c, x, dim, keep=False, dtype=None: x.to(_sum_type(x, dtype)).reduce("prod", [dim], keep))


def _extreme(name: str) -> Any:
    def apply(c: Context, x: Value, dims: Any = None, keep: bool = False) -> Value:
        if x.dtype == torch.bool:
            return x.to(torch.uint8).reduce(name, dims, keep).to(torch.bool)
        return x.reduce(name, dims, keep)

    return apply


amax, amin = _extreme("max"), _extreme("min")
lower("amax.default")(amax)
lower("amin.default")(amin)
lower("max.default", "prims.amax.default")(amax)
lower("min.default", "prims.amin.default")(amin)


def arg(c: Context, name: str, x: Value, dim: int | None, keep: bool) -> Value:
    """The index of the greatest or the least element."""
    x = x.to(torch.uint8) if x.dtype == torch.bool else x
    flat = x.reshape([x.size]) if dim is None else x
    if not x.ndim:
        return c.graph.full(torch.int64, [], 0)
    along = 0 if dim is None else x.dim(dim)
    native = c.graph.native.arg_max if name == "max" else c.graph.native.arg_min
    found = Value(c.graph, native(flat.number, along)).to(torch.int64)
    if not keep:
        return found
    return found.reshape([1] * x.ndim if dim is None else [1 if d == along else n for d, n in enumerate(x.shape)])


lower("argmax.default")(lambda c, x, dim=None, keep=False: arg(c, "max", x, dim, keep))
lower("argmin.default")(lambda c, x, dim=None, keep=False: arg(c, "min", x, dim, keep))
lower("max.dim")(lambda c, x, dim, keep=False: (amax(c, x, [dim], keep), arg(c, "max", x, dim, keep)))
lower("min.dim")(lambda c, x, dim, keep=False: (amin(c, x, [dim], keep), arg(c, "min", x, dim, keep)))


def _any(x: Value, dims: Any, keep: bool) -> Value:
    # Of floats, for which devices have kernels. A sum, because it is 0 of no elements.
    return x.to(torch.bool).to(torch.float32).reduce("sum", dims, keep).to(torch.bool)


lower("any.default")(lambda c, x: _any(x, None, False))
lower("any.dim")(lambda c, x, dim, keep=False: _any(x, [dim], keep))
lower("any.dims")(lambda c, x, dims=None, keep=False: _any(x, dims, keep))
lower("all.default")(lambda c, x: ~_any(~x.to(torch.bool), None, False))
lower("all.dim")(lambda c, x, dim, keep=False: ~_any(~x.to(torch.bool), [dim], keep))
lower("all.dims")(lambda c, x, dims=None, keep=False: ~_any(~x.to(torch.bool), dims, keep))


def _variance(x: Value, dims: Any, correction: float | None, keep: bool) -> tuple[Value, Value]:
    dims = list(range(x.ndim)) if not dims else [x.dim(d) for d in dims]
    n = math.prod(x.shape[d] for d in dims) if x.ndim else 1
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = wide.reduce("mean", dims, keep=True)
    centered = wide - mean
    divisor = max(n - (1 if correction is None else correction), 0)
    total = (centered * centered).reduce("sum", dims, keep)
    variance = total * (1 / divisor) if divisor else total / 0.0
    return variance.to(x.dtype), (mean if keep else mean.reshape(variance.shape)).to(x.dtype)


@lower("var.correction")
def var(c: Context, x: Value, dims: Any = None, correction: float | None = None, keepdim: bool = False) -> Value:
    return _variance(x, dims, correction, keepdim)[0]


@lower("var_mean.correction")
def var_mean(c: Context, x: Value, dims: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return _variance(x, dims, correction, keepdim)


lower("prims.var.default")(lambda c, x, dims, correction=1, output_dtype=None: _variance(x, dims, correction, False)[0])


@lower("_softmax.default", "softmax.int")
def softmax(c: Context, x: Value, dim: int, wide: Any = False) -> Value:
    return _along(c, c.graph.native.softmax, x, dim)


@lower("_log_softmax.default", "log_softmax.int")
def log_softmax(c: Context, x: Value, dim: int, wide: Any = False) -> Value:
    return _along(c, c.graph.native.log_softmax, x, dim)


def _along(c: Context, native: Any, x: Value, dim: int) -> Value:
    x = x.to(c.dtype or x.dtype)
    line = x if x.ndim else x.reshape([1])
    return Value(c.graph, native(line.number, line.dim(dim))).reshape(x.shape)


@lower("cumsum.default")
def cumsum(c: Context, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    x = x.to(_sum_type(x, dtype))
    return Value(c.graph, c.graph.native.cumsum(x.number, x.dim(dim))) if x.ndim else x


@lower("sort.default", "sort.stable")
def sort(c: Context, x: Value, *args: Any, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    # sort.default takes a dimension and the order, sort.stable by keywords.
    dim, descending = (*args, *(dim, descending)[len(args) :])
    if not x.ndim:
        return x, c.graph.full(torch.int64, [], 0)
    keys = x.to(torch.uint8) if x.dtype == torch.bool else x
    dim = x.dim(dim)
    order = Value(c.graph, c.graph.native.arg_sort(keys.number, dim, descending))
    return x.take(dim, order), order.to(torch.int64)


@lower("topk.default")
def topk(c: Context, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, order = sort(c, x, dim=dim, descending=largest)
    return (values.slice(dim, 0, k), order.slice(dim, 0, k)) if x.ndim else (values, order)


@lower("argsort.default", "argsort.stable")
def argsort(c: Context, x: Value, *args: Any, stable: Any = None, dim: int = -1, descending: bool = False) -> Value:
    return sort(c, x, *args, dim=dim, descending=descending)[1]
