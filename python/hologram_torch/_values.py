"""Values of a graph that stands for a torch graph: with torch's types, and its rules of promotion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from hologram import _native

_BY_NAME = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.uint16,
        torch.int32,
        torch.uint32,
        torch.int64,
        torch.uint64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
}
NAMES = {dtype: name for name, dtype in _BY_NAME.items()}

_MAX_PARTS = 64


def name_of(dtype: torch.dtype) -> str:
    """The name of a type in Hologram."""
    try:
        return NAMES[dtype]
    except KeyError:
        raise TypeError(f"hologram has no element type {dtype}") from None


class Value:
    """A value of a graph. Its operators are torch's operations on operands of one type, or numbers."""

    __slots__ = ("graph", "number", "dtype", "shape", "swapped")

    def __init__(self, graph: Graph, number: int, swapped: Value | None = None):
        self.graph = graph
        self.number = number
        dtype, self.shape = graph.native.type_of(number)
        self.dtype = _BY_NAME[dtype.name]
        # The value of which this is a view with the last two dimensions swapped.
        self.swapped = swapped

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def _with(self, name: str, *others: Value | float) -> Value:
        return self.graph.map(name, self, *others)

    def __add__(self, other: Value | float) -> Value:
        return self._with("add", other)

    def __radd__(self, other: float) -> Value:
        return self._with("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._with("sub", other)

    def __rsub__(self, other: float) -> Value:
        return self.graph.map("sub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self._with("mul", other)

    def __rmul__(self, other: float) -> Value:
        return self._with("mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._with("div", other)

    def __rtruediv__(self, other: float) -> Value:
        return self.graph.map("div", other, self)

    def __neg__(self) -> Value:
        return self._with("neg")

    def __and__(self, other: Value) -> Value:
        return self._with("and", other)

    def __or__(self, other: Value) -> Value:
        return self._with("or", other)

    def __invert__(self) -> Value:
        return self._with("not")

    def __lt__(self, other: Value | float) -> Value:
        return self._with("lt", other)

    def __le__(self, other: Value | float) -> Value:
        return self._with("le", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._with("gt", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._with("ge", other)

    def eq(self, other: Value | float) -> Value:
        return self._with("eq", other)

    def ne(self, other: Value | float) -> Value:
        return self._with("ne", other)

    def to(self, dtype: torch.dtype) -> Value:
        """Converted to another type."""
        if dtype == self.dtype:
            return self
        return Value(self.graph, self.graph.native.cast(self.number, name_of(dtype)))

    def dim(self, dim: int) -> int:
        """A dimension, counted from the end if it is negative."""
        n = max(self.ndim, 1)
        if not -n <= dim < n:
            raise IndexError(f"there is no dimension {dim} in {tuple(self.shape)}")
        return dim % n

    def reshape(self, shape: Sequence[int]) -> Value:
        shape = [int(n) for n in shape]
        if -1 in shape:
            rest = math.prod(n for n in shape if n != -1)
            shape[shape.index(-1)] = self.size // rest if rest else 0
        if tuple(shape) == self.shape:
            return self
        return Value(self.graph, self.graph.native.reshape(self.number, shape))

    def permute(self, order: Sequence[int]) -> Value:
        order = [self.dim(d) for d in order]
        if order == list(range(self.ndim)):
            return self
        n = self.ndim
        swap = n >= 2 and order == [*range(n - 2), n - 1, n - 2]
        if swap and self.swapped is not None:
            return self.swapped
        return Value(self.graph, self.graph.native.permute(self.number, order), self if swap else None)

    def swap(self, a: int, b: int) -> Value:
        """With two dimensions swapped."""
        order = list(range(self.ndim))
        if order:
            a, b = self.dim(a), self.dim(b)
            order[a], order[b] = b, a
        return self.permute(order)

    def expand(self, shape: Sequence[int]) -> Value:
        lead = len(shape) - self.ndim
        shape = [self.shape[i - lead] if n == -1 else int(n) for i, n in enumerate(shape)]
        if tuple(shape) == self.shape:
            return self
        return Value(self.graph, self.graph.native.broadcast_to(self.number, shape))

    def unsqueeze(self, dim: int) -> Value:
        dim %= self.ndim + 1
        return self.reshape([*self.shape[:dim], 1, *self.shape[dim:]])

    def squeeze(self, dims: Sequence[int]) -> Value:
        dims = {self.dim(d) for d in dims}
        return self.reshape([n for d, n in enumerate(self.shape) if d not in dims or n != 1])

    def slice(self, dim: int, start: int, end: int) -> Value:
        """Indices `start..end` of a dimension."""
        dim = self.dim(dim)
        if start == 0 and end == self.shape[dim]:
            return self
        return Value(self.graph, self.graph.native.slice(self.number, dim, start, end))

    def pad(self, sides: Sequence[tuple[int, int]], number: float = 0.0) -> Value:
        """With more elements on both sides of each dimension; with fewer for negative numbers."""
        x = self
        for dim, (before, after) in enumerate(sides):
            x = x.slice(dim, max(-before, 0), x.shape[dim] - max(-after, 0))
        sides = [(max(before, 0), max(after, 0)) for before, after in sides]
        if not any(map(any, sides)):
            return x
        return Value(self.graph, self.graph.native.pad(x.number, sides, float(number)))

    def take(self, dim: int, indices: Value) -> Value:
        """Elements along a dimension by index: one index per element of the result, or one per slice."""
        taken = self.graph.native.take_along(self.number, indices.to(torch.uint32).number, self.dim(dim))
        return Value(self.graph, taken)

    def reduce(self, name: str, dims: Sequence[int] | None, keep: bool = False) -> Value:
        """A reduction over dimensions; over all if there are none."""
        if not self.ndim:
            return self
        dims = sorted({self.dim(d) for d in dims}) if dims else list(range(self.ndim))
        rest = [d for d in range(self.ndim) if d not in dims]
        # Neighbouring dimensions are merged where they are, others behind the rest.
        neighbours = dims[-1] - dims[0] == len(dims) - 1
        x, first = (self, dims[0]) if neighbours else (self.permute([*rest, *dims]), len(rest))
        merged = math.prod(self.shape[d] for d in dims)
        x = x.reshape([*x.shape[:first], merged, *x.shape[first + len(dims) :]])
        x = Value(self.graph, self.graph.native.reduce(name, x.number, first))
        return x.reshape([1 if d in dims else n for d, n in enumerate(self.shape)]) if keep else x


class Graph:
    """A graph under construction, with operations on values."""

    def __init__(self, device: str):
        self.native = _native.Graph(device)

    def argument(self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int] | None) -> Value:
        return Value(
            self, self.native.argument(name_of(dtype), list(shape), None if strides is None else list(strides))
        )

    def scalar(self, dtype: torch.dtype, number: float) -> Value:
        """A number as a value without dimensions."""
        return Value(self, self.native.scalar(name_of(dtype), float(number)))

    def full(self, dtype: torch.dtype, shape: Sequence[int], number: float) -> Value:
        return Value(self, self.native.full(name_of(dtype), [int(n) for n in shape], float(number)))

    def arange(self, length: int, start: float = 0, step: float = 1, dtype: torch.dtype = torch.int64) -> Value:
        return Value(self, self.native.arange(name_of(dtype), float(start), float(step), int(length)))

    def map(self, name: str, *operands: Value | float) -> Value:
        """An elementwise operation; numbers take the type of the values."""
        dtype = next(v.dtype for v in operands if isinstance(v, Value))
        values = [v if isinstance(v, Value) else self.scalar(dtype, v) for v in operands]
        return Value(self, self.native.elementwise(name, [v.number for v in values]))

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        return Value(self, self.native.select(condition.number, a.number, b.number))

    def concat(self, parts: Sequence[Value], dim: int) -> Value:
        numbers = [part.number for part in parts]
        while len(numbers) > 1:
            numbers = [self.native.concat(numbers[i : i + _MAX_PARTS], dim) for i in range(0, len(numbers), _MAX_PARTS)]
        return Value(self, numbers[0])

    def matmul(self, a: Value, b: Value, bias: Value | None = None) -> Value:
        """The product of matrices, plus a bias for each column. Of a swapped view the matrix itself is read."""
        sides = [v.swapped if v.swapped is not None else v for v in (a, b)]
        swapped = [v.swapped is not None for v in (a, b)]
        left, right = (side.number for side in sides)
        if bias is not None:
            return Value(self, self.native.matmul_bias(left, right, bias.number, *swapped))
        return Value(self, self.native.matmul(left, right, *swapped))

    def scatter(self, x: Value, dim: int, indices: Value, updates: Value, add: bool) -> Value:
        """Elements along a dimension replaced by, or added to, updates at indices: one index per update or slice."""
        native = self.native.scatter_add if add else self.native.scatter
        return Value(self, native(x.number, indices.to(torch.uint32).number, updates.number, dim))


def category(dtype: torch.dtype) -> int:
    """0 for bool, 1 for integers, 2 for floats."""
    return 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


def promoted(*operands: Any) -> torch.dtype:
    """The type of an operation on values and numbers: values with dimensions come before those without, these before
    numbers, unless a later one is of a higher category."""

    def joined(dtypes: list[torch.dtype]) -> torch.dtype | None:
        result = None
        for dtype in dtypes:
            result = dtype if result is None else torch.promote_types(result, dtype)
        return result

    values = [v for v in operands if isinstance(v, Value)]
    numbers = [v for v in operands if isinstance(v, (bool, int, float))]
    result = joined([v.dtype for v in values if v.ndim])
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    for lower in (joined([v.dtype for v in values if not v.ndim]), joined([kinds[type(v)] for v in numbers])):
        if lower is not None and (result is None or category(lower) > category(result)):
            result = lower
    if result is None:
        raise TypeError("an operation without operands has no type")
    return result
