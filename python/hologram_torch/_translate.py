"""From a torch graph of ATen operations to a compiled function of torch tensors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ._lowerings import RANDOM, TABLE, Context
from ._values import Graph, Value

_PYTHON = {
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg,
    operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.getitem,
    torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_int, torch.sym_float, torch.sym_ite,
}  # fmt: skip


class UnsupportedOperator(NotImplementedError):
    """A graph has an operation that Hologram has no translation for."""


def is_supported(node: fx.Node) -> bool:
    """Whether there is a translation for a node's operation."""
    return node.op != "call_function" or node.target in _PYTHON or str(node.target) in TABLE


def _where(node: fx.Node) -> str:
    """The line of the model that a node is from."""
    trace = (node.stack_trace or node.meta.get("stack_trace") or "").strip().splitlines()
    if not trace:
        return ""
    frames = [i for i, line in enumerate(trace) if line.lstrip().startswith("File ")]
    last = frames[-1] if frames else 0
    return "\nin the model at\n" + "\n".join(f"  {line.strip()}" for line in trace[last : last + 2])


def check(module: fx.GraphModule) -> None:
    """Reports the operations of a graph that have no translation."""
    missing = [node for node in module.graph.nodes if not is_supported(node)]
    if missing:
        names = ", ".join(sorted({str(node.target) for node in missing}))
        raise UnsupportedOperator(
            f"hologram cannot compile the operation {names}{_where(missing[0])}\n"
            'torch.compile(..., options={"fallback": "eager"}) leaves it to torch'
        )


class Result:
    """Memory of a result: size, strides and type of its tensor, and how its elements lie row-major."""

    __slots__ = ("size", "strides", "dtype")

    def __init__(self, size: Sequence[int], strides: Sequence[int], dtype: torch.dtype):
        self.size, self.strides, self.dtype = tuple(size), tuple(strides), dtype


def _hint(n: Any) -> int:
    """A number, or what a symbol stood for when the graph was traced."""
    return n if isinstance(n, int) else getattr(n.node, "hint", None) or 1


def _order(fake: Any) -> list[int] | None:
    """The dimensions of a tensor, slowest first, if its elements lie next to each other; else `None`."""
    size, stride = [_hint(n) for n in fake.shape], [_hint(n) for n in fake.stride()]
    # Of equal strides the dimension with one element is slower.
    order = sorted(range(len(size)), key=lambda d: (-stride[d], size[d], d))
    expected = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != expected:
            return None
        expected *= max(size[d], 1)
    return order


class Translation:
    """A compiled function, and what its callers need to know: which arguments it reads, and what it returns."""

    def __init__(self, device: str, module: fx.GraphModule, inputs: Sequence[Any]):
        nodes = list(module.graph.nodes)
        graph = Graph(device)
        context = Context(graph)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        env: dict[fx.Node, Any] = {}
        self.reads: list[int] = []
        for position, (node, value) in enumerate(zip(placeholders, inputs, strict=True)):
            if not isinstance(value, torch.Tensor):
                env[node] = value
            elif node.users:
                env[node] = graph.argument(value.dtype, value.shape, value.stride())
                self.reads.append(position)
        self.constants: list[torch.Tensor] = []
        for node in nodes:
            if node.op == "get_attr":
                constant = operator.attrgetter(node.target)(module)
                env[node] = graph.argument(constant.dtype, constant.shape, constant.stride())
                self.constants.append(constant)
        # The words of a seed.
        self.random = any(str(node.target) in RANDOM for node in nodes)
        if self.random:
            context.key = graph.argument(torch.int64, [2], None)
        for node in nodes:
            if node.op == "call_function":
                env[node] = self._lowered(context, node, env)
        (output,) = (node for node in nodes if node.op == "output")
        # Per output: the number of a result, or a value that is known now, or the position of an argument.
        self.outputs: list[tuple[str, Any]] = []
        self.results: list[Result] = []
        numbers = []
        for node in output.args[0]:
            value = env.get(node) if isinstance(node, fx.Node) else node
            if isinstance(node, fx.Node) and node.op == "placeholder" and not isinstance(value, (int, float, bool)):
                self.outputs.append(("argument", placeholders.index(node)))
            elif isinstance(value, Value):
                self.outputs.append(("result", len(numbers)))
                value, result = self._placed(value, node.meta.get("val"))
                numbers.append(value.number)
                self.results.append(result)
            else:
                self.outputs.append(("value", value))
        #: Messages of the last results, which must be true.
        self.asserts = [message for _, message in context.asserts]
        for condition, _ in context.asserts:
            numbers.append(condition.number)
            self.results.append(Result(condition.shape, [0] * condition.ndim, condition.dtype))
        self.compiled = graph.native.finish(numbers)

    @staticmethod
    def _placed(value: Value, fake: Any) -> tuple[Value, Result]:
        """A result as it lies in memory, and its tensor with the strides that torch expects."""
        size = value.shape
        order = _order(fake) if isinstance(fake, torch.Tensor) and fake.ndim == value.ndim else None
        order = list(range(value.ndim)) if order is None else order
        strides, step = [0] * value.ndim, 1
        for d in reversed(order):
            strides[d] = step
            step *= max(size[d], 1)
        return value.permute(order), Result(size, strides, value.dtype)

    @staticmethod
    def _lowered(context: Context, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: env[n])
        if node.target in _PYTHON:
            return node.target(*args, **kwargs)
        fake = node.meta.get("val")
        context.dtype = fake.dtype if isinstance(fake, torch.Tensor) else None
        context.fake = fake
        try:
            return TABLE[str(node.target)](context, *args, **kwargs)
        except (ValueError, TypeError, IndexError, NotImplementedError) as error:
            error.add_note(f"when hologram compiled {node.target}{_where(node)}")
            raise


def device_name(inputs: Sequence[Any], module: fx.GraphModule) -> torch.device:
    """torch's device of a graph: that of its arguments, or of its values if they have none."""
    found: set[torch.device] = set()
    scalars: set[torch.device] = set()
    values = [*inputs, *(node.meta.get("val") for node in module.graph.nodes)]
    for value in values:
        if isinstance(value, torch.Tensor):
            # A number on the CPU may stand beside tensors of a GPU.
            (found if value.ndim else scalars).add(value.device)
    found = found or scalars or {torch.device("cpu")}
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        raise ValueError(f"hologram compiles graphs on one device; this one has tensors on {names}")
    return found.pop()
