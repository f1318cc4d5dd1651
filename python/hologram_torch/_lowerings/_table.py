"""The table of translations, by the names of ATen's overloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._values import Graph, Value, category, promoted

#: Per overload a function from a context and the operation's arguments to its result, or a tuple of results.
TABLE: dict[str, Callable[..., Any]] = {}

#: Overloads that draw random numbers.
RANDOM: set[str] = set()


class Context:
    """What a translation knows besides the arguments."""

    def __init__(self, graph: Graph):
        self.graph = graph
        #: The type of the result, if it is one tensor.
        self.dtype: torch.dtype | None = None
        #: torch's description of the result, or of the results.
        self.fake: Any = None
        #: Two words of a seed, if the graph draws random numbers, and how many operations have drawn.
        self.key: Value | None = None
        self.draws = 0
        #: Conditions that the graph asserts, with messages.
        self.asserts: list[tuple[Value, str]] = []

    def value(self, x: Any, dtype: torch.dtype) -> Value:
        """A value or a number in a type."""
        return x.to(dtype) if isinstance(x, Value) else self.graph.scalar(dtype, x)

    def values(self, *operands: Any) -> list[Value]:
        """Operands in their common type."""
        dtype = promoted(*operands)
        return [self.value(x, dtype) for x in operands]

    def floats(self, *operands: Any) -> list[Value]:
        """Operands in their common type, or the default float if that is none."""
        dtype = promoted(*operands)
        dtype = dtype if category(dtype) == 2 else torch.get_default_dtype()
        return [self.value(x, dtype) for x in operands]


def lower(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function under overloads of ATen, or full names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            TABLE[name if name.startswith(("prims.", "aten.")) else f"aten.{name}"] = function
        return function

    return enter
