"""torch's functions for neural networks, computed by Hologram, with gradients.

They take and return torch tensors. `backend` is the device that computes: `"cpu"`, `"cuda"`, `"metal"`; by default the
one that the tensors are on, in torch's memory. On another device operands are copied there and results back. Inside
`torch.compile` they are torch's own functions, which the backend `"hologram"` compiles with everything around them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._backend import compiled_function

__all__ = [
    "cross_entropy",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "mse_loss",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
]

# Functions, their options and the types and shapes of operands of which the compiled graphs are kept.
_CAPACITY = 1024


_COMPILED: dict[Any, Callable[..., Tensor]] = {}


def _applied(function: Callable[..., Tensor], operands: tuple[Tensor | None, ...], backend: str | None) -> Tensor:
    """A function's value for operands, of which some may be missing; gradients flow through it."""
    if torch.compiler.is_compiling():
        return function(*operands)
    device = None if backend in (None, "auto") else backend
    kinds = [None if t is None else (t.dtype, t.shape, t.device, t.requires_grad) for t in operands]
    # A partial function is told apart by what it is made of.
    options = tuple(sorted(function.keywords.items())) if isinstance(function, functools.partial) else ()
    key = (getattr(function, "func", function), options, device, torch.is_grad_enabled(), *kinds)
    found = _COMPILED.get(key)
    if found is None:
        if len(_COMPILED) >= _CAPACITY:
            _COMPILED.pop(next(iter(_COMPILED)))
        present = [i for i, t in enumerate(operands) if t is not None]

        def whole(*given: Tensor) -> Tensor:
            own: list[Tensor | None] = [None] * len(operands)
            for i, t in zip(present, given, strict=True):
                own[i] = t
            return function(*own)

        found = _COMPILED[key] = compiled_function(whole, device)
    return found(*(t for t in operands if t is not None))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """`x @ weight.T + bias`."""
    return _applied(F.linear, (x, weight, bias), backend)


def matmul(a: Tensor, b: Tensor, *, backend: str | None = None) -> Tensor:
    """The product of matrices, or of batches of them."""
    return _applied(torch.matmul, (a, b), backend)


def embedding(indices: Tensor, weight: Tensor, *, backend: str | None = None) -> Tensor:
    """The rows of `weight` at the indices."""
    return _applied(F.embedding, (indices, weight), backend)


def relu(x: Tensor, *, backend: str | None = None) -> Tensor:
    """max(x, 0)."""
    return _applied(F.relu, (x,), backend)


def sigmoid(x: Tensor, *, backend: str | None = None) -> Tensor:
    """1 / (1 + e⁻ˣ)."""
    return _applied(torch.sigmoid, (x,), backend)


def tanh(x: Tensor, *, backend: str | None = None) -> Tensor:
    """The hyperbolic tangent."""
    return _applied(torch.tanh, (x,), backend)


def silu(x: Tensor, *, backend: str | None = None) -> Tensor:
    """x · sigmoid(x)."""
    return _applied(F.silu, (x,), backend)


def gelu(x: Tensor, approximate: str = "none", *, backend: str | None = None) -> Tensor:
    """x/2 · (1 + erf(x/√2)), or its approximation by `"tanh"`."""
    return _applied(functools.partial(F.gelu, approximate=approximate), (x,), backend)


def softmax(x: Tensor, dim: int = -1, *, backend: str | None = None) -> Tensor:
    """eˣ over its sum along a dimension."""
    return _applied(functools.partial(torch.softmax, dim=dim), (x,), backend)


def log_softmax(x: Tensor, dim: int = -1, *, backend: str | None = None) -> Tensor:
    """The logarithm of `softmax`."""
    return _applied(functools.partial(torch.log_softmax, dim=dim), (x,), backend)


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, shape: tuple[int, ...], eps: float) -> Tensor:
    return F.layer_norm(x, shape, weight, bias, eps)


def layer_norm(
    x: Tensor,
    normalized_shape: int | tuple[int, ...] | list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    backend: str | None = None,
) -> Tensor:
    """Elements less their mean over the last dimensions, divided by their standard deviation."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    return _applied(functools.partial(_layer_norm, shape=shape, eps=eps), (x, weight, bias), backend)


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean", *, backend: str | None = None) -> Tensor:
    """Squared errors: their mean, their sum, or each for `"none"`."""
    return _applied(functools.partial(F.mse_loss, reduction=reduction), (x, target), backend)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    """−ln softmax(logits) of each target class: the mean, the sum, or each for `"none"`."""
    options = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    return _applied(functools.partial(F.cross_entropy, **options), (logits, target), backend)
