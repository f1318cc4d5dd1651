"""Functions of tensors that are compiled as a whole."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

from . import _native
from ._native import Tensor

# Argument types and shapes of which a function keeps its compiled form.
_CAPACITY = 256


_state = threading.local()


def drawn(tensor: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """Makes what `draw` gave an input of the function that is being compiled, so that each call draws anew."""
    draws = getattr(_state, "draws", None)
    if draws is not None and _native.is_recording():
        _native.record_input(tensor)
        draws.append(draw)
    return tensor


class _Leaf:
    """The place of a tensor in a structure."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


def _flatten(value: Any, tensors: list[Tensor]) -> Any:
    """The structure of nested lists, tuples and dicts, whose tensors go to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Leaf(len(tensors) - 1)
    if isinstance(value, (list, tuple)):
        parts = [_flatten(part, tensors) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: _flatten(part, tensors) for key, part in value.items()}
    return value


def _build(structure: Any, tensors: list[Tensor]) -> Any:
    if isinstance(structure, _Leaf):
        return tensors[structure.number]
    if isinstance(structure, (list, tuple)):
        parts = [_build(part, tensors) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else type(structure)(parts)
    if isinstance(structure, dict):
        return {key: _build(part, tensors) for key, part in structure.items()}
    return structure


def _key(structure: Any) -> Any:
    """What the compiled form depends on besides the tensors' types."""
    if isinstance(structure, _Leaf):
        return _Leaf
    if isinstance(structure, (list, tuple)):
        return type(structure), tuple(_key(part) for part in structure)
    if isinstance(structure, dict):
        return dict, tuple((key, _key(part)) for key, part in structure.items())
    if isinstance(structure, float):
        # -0.0 is not 0.0.
        return type(structure), structure.hex()
    name = type(structure).__name__
    if type(structure).__hash__ is None:
        raise TypeError(f"compile: an argument is of {name}, neither a tensor nor hashable: hg.asarray makes tensors")
    if type(structure).__hash__ is object.__hash__ and hasattr(structure, "__dict__"):
        # Equal by identity whatever it holds.
        if not isinstance(structure, (types.FunctionType, types.ModuleType, type, functools.partial)):
            raise TypeError(f"compile: an argument is of {name}, whose changes later calls would not see: pass tensors")
    return type(structure), structure, repr(structure)


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors, compiled as one graph: a chain of elementwise operations is one launch.

    The first call with arguments of some types and shapes runs the function and records its operations; later calls
    with such arguments run the graph, without the function. So the function must compute from its arguments alone: what
    else it does is done once, tensors from outside keep their elements, and reading elements (`if x > 0`, `x.item()`)
    is an error. Random numbers are new in each call. Other arguments than tensors, and lists, tuples and dicts of them,
    count by value; a module, or another object that may change, is an error.

    >>> import hologram as hg
    >>> @hg.compile
    ... def scaled(x, y):
    ...     return hg.exp(x) * y + 1
    >>> scaled(hg.zeros(2), hg.ones(2)).tolist(), scaled(hg.zeros(2), hg.zeros(2)).tolist()
    ([2.0, 2.0], [1.0, 1.0])
    """
    if not callable(function):
        raise TypeError(f"compile takes a function, not {type(function).__name__}")
    compiled: dict[Any, tuple[Any, Any, list[Callable[[], Tensor]]]] = {}

    @functools.wraps(function)
    def call(*args, **kwargs):
        if _native.is_recording():
            # A part of the function or gradient that is being recorded.
            return function(*args, **kwargs)
        # Tensors alone, the usual case, are told apart by bytes.
        signature = None if kwargs else _native.signature(args)
        found = None if signature is None else compiled.get(signature)
        if found is not None:
            graph, result, draws = found
            outputs = graph.call([*args, *(draw() for draw in draws)] if draws else args)
            return outputs[0] if isinstance(result, _Leaf) else _build(result, outputs)
        tensors: list[Tensor] = []
        structure = _flatten((args, kwargs), tensors)
        if not tensors:
            return function(*args, **kwargs)
        key = signature or (_key(structure), tuple((t._device, t.dtype, t.shape) for t in tensors))
        found = compiled.get(key)
        if found is not None:
            graph, result, draws = found
            return _build(result, graph.call(tensors + [draw() for draw in draws]))
        # The same tensor may be two arguments, which later calls give apart.
        own = [_native.reshape(t, list(t.shape)) for t in tensors]
        _native.begin_recording(own)
        draws = _state.draws = []
        try:
            args, kwargs = _build(structure, own)
            outputs: list[Tensor] = []
            value = function(*args, **kwargs)
            result = _flatten(value, outputs)
            graph = _native.end_recording(own[0], outputs)
        finally:
            _native.cancel_recording()
            _state.draws = None
        if len(compiled) >= _CAPACITY:
            compiled.pop(next(iter(compiled)))
        compiled[key] = (graph, result, draws)
        return value

    return call
