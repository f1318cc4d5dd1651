"""Operations on buffers under the names of the systems that Hologram descends from: `op(executor, inputs…, output)`.

The number of elements, the last argument, may be left out: all of the first input then count. New code is better
written with tensors and the functions of `hologram`; here, each of these is one of them.
"""

from __future__ import annotations

from . import _functions as f
from . import _native
from ._common import _whole
from ._native import Tensor
from ._seeds import Buffer, Executor

__all__ = [
    "binary_cross_entropy_loss",
    "buffer_copy",
    "buffer_fill",
    "cross_entropy_loss",
    "gelu",
    "gemm",
    "mse_loss",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "relu",
    "scalar_add",
    "scalar_mul",
    "sigmoid",
    "softmax",
    "tanh",
    "vector_abs",
    "vector_add",
    "vector_div",
    "vector_max",
    "vector_min",
    "vector_mul",
    "vector_neg",
    "vector_relu",
    "vector_sub",
]


def _head(executor: Executor, buffer: Buffer, n: int | None) -> Tensor:
    if not isinstance(executor, Executor):
        raise TypeError(f"the first argument is an Executor, not {type(executor).__name__}")
    if not isinstance(buffer, Buffer):
        raise TypeError(f"the inputs and the output are buffers, not {type(buffer).__name__}")
    if executor._freed:
        raise ValueError("the executor's cleanup has been called")
    if n is not None:
        _whole("n", n, 0, buffer.size)
    return buffer.tensor if n is None else buffer.tensor[:n]


def _store(executor: Executor, output: Buffer, result: Tensor, n: int | None) -> None:
    """The result as the first elements of the output, which without `n` has as many."""
    if n is None and _head(executor, output, None).size != result.size:
        raise ValueError(f"the output has {output.size} elements, but the result {result.size}: give their number")
    output._set(result)


def _both(executor: Executor, a: Buffer, b: Buffer, n: int | None) -> tuple[Tensor, Tensor]:
    left, right = _head(executor, a, n), _head(executor, b, n)
    if left.size != right.size:
        raise ValueError(f"the inputs have {left.size} and {right.size} elements: give the number of elements")
    return left, right


def _two(function, text: str):
    def op(executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None) -> None:
        _store(executor, c, function(*_both(executor, a, b, n)), n)

    op.__doc__ = text
    return op


def _one(function, text: str):
    def op(executor: Executor, a: Buffer, b: Buffer, n: int | None = None) -> None:
        _store(executor, b, function(_head(executor, a, n)), n)

    op.__doc__ = text
    return op


vector_add = _two(f.add, "c = a + b.")
vector_sub = _two(f.subtract, "c = a − b.")
vector_mul = _two(f.multiply, "c = a · b.")
vector_div = _two(f.divide, "c = a / b.")
vector_min = _two(f.minimum, "c = min(a, b).")
vector_max = _two(f.maximum, "c = max(a, b).")
vector_abs = _one(f.abs, "b = |a|.")
vector_neg = _one(f.negative, "b = −a.")
vector_relu = relu = _one(lambda x: _native.elementwise("relu", x), "b = max(a, 0).")
sigmoid = _one(lambda x: _native.elementwise("sigmoid", x), "b = 1 / (1 + e^−a).")
tanh = _one(f.tanh, "b = tanh(a).")
gelu = _one(lambda x: _native.elementwise("gelu", x), "b = a/2 · (1 + erf(a/√2)).")
softmax = _one(lambda x: _native.softmax(x, 0), "b = e^a over its sum.")
buffer_copy = _one(lambda x: x, "b = a.")


def buffer_fill(executor: Executor, a: Buffer, value: float, n: int | None = None) -> None:
    """a = value."""
    a._set(f.full_like(_head(executor, a, n), value))


def scalar_add(executor: Executor, a: Buffer, b: Buffer, scalar: float, n: int | None = None) -> None:
    """b = a + scalar."""
    _store(executor, b, _head(executor, a, n) + scalar, n)


def scalar_mul(executor: Executor, a: Buffer, b: Buffer, scalar: float, n: int | None = None) -> None:
    """b = a · scalar."""
    _store(executor, b, _head(executor, a, n) * scalar, n)


def _reduction(function, text: str):
    def op(executor: Executor, a: Buffer, output: Buffer, n: int | None = None) -> float:
        result = function(_head(executor, a, n))
        _head(executor, output, 1)
        output._set(result)
        return result.item()

    op.__doc__ = text
    return op


reduce_sum = _reduction(f.sum, "The sum, also in the output's first element.")
reduce_min = _reduction(f.min, "The least element, also in the output's first element.")
reduce_max = _reduction(f.max, "The greatest element, also in the output's first element.")


def gemm(executor: Executor, a: Buffer, b: Buffer, c: Buffer, m: int, n: int, k: int) -> None:
    """c [m, n] = a [m, k] · b [k, n], matrices in rows."""
    left, right = _head(executor, a, m * k), _head(executor, b, k * n)
    c._set(f.matmul(f.reshape(left, (m, k)), f.reshape(right, (k, n))))


def _loss(compute, text: str):
    def op(executor: Executor, predictions: Buffer, targets: Buffer, output: Buffer, n: int | None = None) -> float:
        result = compute(*_both(executor, predictions, targets, n))
        output._set(result)
        return result.item()

    op.__doc__ = text
    return op


def _mean_of_logs(p: Tensor, t: Tensor) -> Tensor:
    # Probabilities of 0 count as the least positive number.
    return -f.mean(t * f.log(f.clip(p, 1e-38, None)))


mse_loss = _loss(lambda p, t: _native.loss("mse", p, t, "mean"), "The mean of squared errors.")
cross_entropy_loss = _loss(
    lambda p, t: _mean_of_logs(p, t) * p.size, "−Σ t · ln p of one distribution of probabilities and its target."
)
binary_cross_entropy_loss = _loss(
    lambda p, t: _mean_of_logs(p, t) + _mean_of_logs(1 - p, 1 - t),
    "The mean of −(t · ln p + (1 − t) · ln(1 − p)).",
)
