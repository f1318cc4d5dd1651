"""Gradients of functions of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from . import _dtypes as dt
from . import _native
from ._checks import check_all
from ._common import _several
from ._compile import _build, _flatten
from ._native import Tensor

_FLOATS = (dt.float16, dt.bfloat16, dt.float32, dt.float64)


def value_and_grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., tuple[Any, Any]]:
    """A function of the same arguments that gives the function's value and its gradients.

    The value is a tensor of one float, or a tuple that begins with one. The gradients are by the arguments that
    `argnums` counts: tensors of floats, or lists, tuples and dicts of them, whose structure the gradients have. A
    tensor of another type has the gradient None. Inside `hg.compile` forward and backward pass are one graph.

    >>> import hologram as hg
    >>> value, slope = hg.value_and_grad(lambda x: hg.sum(x * x))(hg.asarray([1.0, 2.0]))
    >>> float(value), slope.tolist()
    (5.0, [2.0, 4.0])
    """
    if not callable(function):
        raise TypeError(f"grad takes a function, not {type(function).__name__}")
    several = isinstance(argnums, (list, tuple))
    numbers = tuple(_several("argnums", argnums))
    if not numbers:
        raise ValueError("argnums names no argument")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given = list(args)
        structures, places, tensors = [], [], []
        for number in numbers:
            if not -len(given) <= number < len(given):
                raise ValueError(f"grad: there is no argument {number} of {len(given)}")
            if number % len(given) in places:
                raise ValueError(f"grad: argument {number} of {len(given)} is asked for twice")
            places.append(number % len(given))
            structures.append(_flatten(given[number], tensors))
        # The same tensor may be two arguments, or a part of another.
        own = [_native.reshape(t, list(t.shape)) for t in tensors]
        wrt = [i for i, t in enumerate(own) if t.dtype in _FLOATS]
        if not wrt:
            raise TypeError("grad: the arguments have no tensors of floats")
        recording = _native.is_recording()
        if not recording:
            _native.begin_recording(own)
        try:
            # What the function changes in place are its own: gradients are by what it was given.
            inside = [_native.reshape(t, list(t.shape)) for t in own]
            for number, structure in zip(numbers, structures, strict=True):
                given[number] = _build(structure, inside)
            value = function(*given, **kwargs)
            loss = value[0] if isinstance(value, tuple) else value
            if not isinstance(loss, Tensor):
                raise TypeError("grad: the function gives no tensor")
            if loss.size != 1 or loss.dtype not in _FLOATS:
                about = f"{loss.dtype} of shape {loss.shape}"
                raise ValueError(f"grad: the function gives {about}, not one float: hg.sum or hg.mean gives one")
            found = _native.gradients(loss, [own[i] for i in wrt])
        finally:
            if not recording:
                _native.cancel_recording()
        grads: list[Any] = [None] * len(own)
        for i, by_tensor in zip(wrt, found, strict=True):
            grads[i] = by_tensor
        results = tuple(_build(structure, grads) for structure in structures)
        return value, results if several else results[0]

    return call


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """As `value_and_grad`, but gives the gradients alone.

    >>> import hologram as hg
    >>> hg.grad(lambda x: hg.sin(x))(hg.asarray(0.0)).item()
    1.0
    """
    both = value_and_grad(function, argnums)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return call


def stop_gradient(x: Tensor, /) -> Tensor:
    """The same values, through which no gradient passes."""
    return _native.detach(x)


def straight_through(x: Tensor, y: Tensor, /) -> Tensor:
    """The values of `y` with the gradient of `x`, of the same type and shape: for rounded weights.

    >>> import hologram as hg
    >>> hg.grad(lambda x: hg.straight_through(x, hg.round(x)) * 3.0)(hg.asarray(0.7)).item()
    3.0
    """
    return _native.straight_through(x, y)


check_all(globals())
