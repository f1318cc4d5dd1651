"""Optimizers: they give new parameters for parameters, gradients and a state, and change nothing in place.

    state = optimizer.init(parameters)
    parameters, state = optimizer.update(parameters, grads, state)

Parameters, gradients and the state's moments have one structure: tensors, or lists, tuples and dicts of them. So a
whole step can be compiled by `hg.compile`. `optimizer.step(module, grads)` keeps the state and updates a module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _functions as f
from ._checks import check_all
from ._common import _number
from ._compile import _build, _flatten
from ._native import Tensor

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "clip_grad_norm"]


def clip_grad_norm(grads: Any, limit: float) -> tuple[Any, Tensor]:
    """The gradients, scaled so that the norm of all together is at most `limit`, and their norm before that."""
    _number("limit", limit, 0.0)
    tensors: list[Tensor] = []
    structure = _flatten(grads, tensors)
    if not tensors:
        raise ValueError("clip_grad_norm: there are no gradients")
    total = f.sqrt(_total([f.sum(t * t) for t in tensors]))
    scale = f.minimum(limit / (total + 1e-6), f.ones_like(total))
    return _build(structure, [t * f.astype(scale, t.dtype) for t in tensors]), total


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class Optimizer:
    """What optimizers share: `_moments` says how many moments a parameter has, `_apply` is the rule."""

    _moments = 0

    def __init__(self, learning_rate: float | Tensor | Callable[[Tensor], Tensor]):
        if not callable(learning_rate):
            _number("learning_rate", learning_rate, 0.0)
        self.learning_rate = learning_rate
        self._state: Any = None

    def init(self, parameters: Any) -> dict[str, Any]:
        """The state before the first step: the number of steps, and moments of 0."""
        tensors: list[Tensor] = []
        structure = _flatten(parameters, tensors)
        if not tensors:
            raise ValueError("an optimizer needs parameters")
        moments = [_build(structure, [f.zeros_like(t) for t in tensors]) for _ in range(self._moments)]
        return {"step": f.zeros((), device=tensors[0].device), "moments": moments}

    def update(self, parameters: Any, grads: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The parameters and the state after a step. A parameter whose gradient is None stays."""
        tensors: list[Tensor] = []
        structure = _flatten(parameters, tensors)
        slopes = _leaves(grads)
        moments = [_leaves(part) for part in state["moments"]]
        if len(slopes) != len(tensors):
            raise ValueError(f"there are {len(tensors)} parameters and {len(slopes)} gradients")
        step = state["step"] + 1
        rate = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        for i, (parameter, slope) in enumerate(zip(tensors, slopes, strict=True)):
            if slope is not None:
                tensors[i], new = self._apply(parameter, slope, [part[i] for part in moments], step, rate)
                for part, moment in zip(moments, new, strict=True):
                    part[i] = moment
        return _build(structure, tensors), {"step": step, "moments": [_build(structure, part) for part in moments]}

    def step(self, module: Any, grads: Any) -> None:
        """Updates the parameters of a module, and the state that is kept here."""
        parameters = module.parameters()
        if self._state is None:
            self._state = self.init(parameters)
        parameters, self._state = self.update(parameters, grads, self._state)
        module.update(parameters)

    def _apply(self, p: Tensor, g: Tensor, moments: list[Tensor], step: Tensor, rate: Any) -> Any:
        raise NotImplementedError


def _leaves(tree: Any) -> list[Any]:
    """The tensors of a structure, and its Nones."""
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in _leaves(part)]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    return [tree]


class SGD(Optimizer):
    """Stochastic gradient descent: m ← momentum·m + g, p ← p − rate·m."""

    def __init__(self, learning_rate, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False):
        super().__init__(learning_rate)
        _number("momentum", momentum, 0.0)
        _number("weight_decay", weight_decay, 0.0)
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov
        self._moments = 1 if momentum else 0

    def _apply(self, p, g, moments, step, rate):
        if self.weight_decay:
            g = g + self.weight_decay * p
        if moments:
            moment = self.momentum * moments[0] + g
            moments = [moment]
            g = g + self.momentum * moment if self.nesterov else moment
        return p - _typed(rate, p) * g, moments


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2014, arXiv:1412.6980). Weight decay is added to the gradient."""

    _moments = 2
    _decoupled = False

    def __init__(self, learning_rate, betas: tuple[float, float] = (0.9, 0.999), eps=1e-8, weight_decay: float = 0.0):
        super().__init__(learning_rate)
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise TypeError(f"betas must be two numbers, not {betas!r}")
        for beta in betas:
            _number("one of betas", beta, 0.0, 1.0)
        _number("eps", eps, 0.0)
        _number("weight_decay", weight_decay, 0.0)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay

    def _apply(self, p, g, moments, step, rate):
        one, two = self.betas
        if self.weight_decay and not self._decoupled:
            g = g + self.weight_decay * p
        m = one * moments[0] + (1 - one) * g
        v = two * moments[1] + (1 - two) * (g * g)
        first = f.astype(1 - f.pow(f.full_like(step, one), step), p.dtype)
        second = f.astype(1 - f.pow(f.full_like(step, two), step), p.dtype)
        moved = (m / first) / (f.sqrt(v / second) + self.eps)
        if self.weight_decay and self._decoupled:
            moved = moved + self.weight_decay * p
        return p - _typed(rate, p) * moved, [m, v]


class AdamW(Adam):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2017, arXiv:1711.05101)."""

    _decoupled = True

    def __init__(self, learning_rate, betas: tuple[float, float] = (0.9, 0.999), eps=1e-8, weight_decay: float = 0.01):
        super().__init__(learning_rate, betas, eps, weight_decay)


def _typed(rate: Any, p: Tensor) -> Any:
    return f.astype(rate, p.dtype) if isinstance(rate, Tensor) else rate


check_all(globals())
