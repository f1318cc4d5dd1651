"""Elementwise operations, conversions, and tensors of numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from .._values import Value, category, promoted
from ._table import TABLE, Context, lower

# Operations on floats; of integers they compute in the default float.
_FLOATS = (
    "acos acosh asin asinh atan atanh cos cosh erf exp exp2 expm1 log log10 log1p log2 rsqrt sigmoid sin sinh sqrt tan "
    "tanh"
)
# Operations on numbers.
_NUMBERS = "abs neg relu sign"
# Operations that do nothing to integers.
_ROUNDINGS = "ceil floor trunc round"
_COMPARISONS = "eq ne lt le gt ge"


def _float(name: str) -> Any:
    return lambda c, x: c.graph.map(name, *c.floats(x))


def _number(name: str) -> Any:
    def apply(c: Context, x: Value) -> Value:
        if name == "neg" and x.dtype == torch.uint8:
            return 0 - x
        if name != "neg" and x.dtype in (torch.bool, torch.uint8):
            return x if name != "sign" or x.dtype == torch.bool else x.ne(0).to(x.dtype)
        return c.graph.map(name, x)

    return apply


def _rounding(name: str) -> Any:
    return lambda c, x: c.graph.map(name, x) if category(x.dtype) == 2 else x


def _comparison(name: str) -> Any:
    def apply(c: Context, a: Any, b: Any) -> Value:
        dtype = promoted(a, b)
        if dtype == torch.bool and name not in ("eq", "ne"):
            dtype = torch.uint8
        return c.graph.map(name, c.value(a, dtype), c.value(b, dtype))

    return apply


for _name in _FLOATS.split():
    lower(f"{_name}.default")(_float(_name))
for _name in _NUMBERS.split():
    lower(f"{_name}.default")(_number(_name))
for _name in _ROUNDINGS.split():
    lower(f"{_name}.default")(_rounding(_name))
for _name in _COMPARISONS.split():
    lower(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_name))
lower("positive.default", "alias.default", "detach.default", "lift_fresh_copy.default", "prims.view_of.default")(
    lambda c, x: x
)
lower("isnan.default")(lambda c, x: x.ne(x))
lower("isinf.default")(lambda c, x: c.graph.map("isinf", *c.floats(x)))
lower("signbit.default")(lambda c, x: c.graph.map("signbit", x) if category(x.dtype) == 2 else _less_than_zero(c, x))
lower("sgn.default")(TABLE["aten.sign.default"])


def _less_than_zero(c: Context, x: Value) -> Value:
    return c.graph.full(torch.bool, x.shape, 0) if x.dtype in (torch.bool, torch.uint8) else x < 0


@lower("reciprocal.default")
def reciprocal(c: Context, x: Value) -> Value:
    (x,) = c.floats(x)
    return 1 / x


@lower("erfc.default")
def erfc(c: Context, x: Value) -> Value:
    (x,) = c.floats(x)
    return 1 - c.graph.map("erf", x)


@lower("gelu.default")
def gelu(c: Context, x: Value, approximate: str = "none") -> Value:
    return c.graph.map("gelu_tanh" if approximate == "tanh" else "gelu", x)


lower("silu.default")(lambda c, x: c.graph.map("silu", *c.floats(x)))


@lower("add.Tensor", "add.Scalar")
def add(c: Context, a: Any, b: Any, alpha: float = 1) -> Value:
    a, b = c.values(a, b)
    if a.dtype == torch.bool:
        return a | b if alpha else a
    return a + (b if alpha == 1 else b * alpha)


@lower("sub.Tensor", "sub.Scalar")
def sub(c: Context, a: Any, b: Any, alpha: float = 1) -> Value:
    a, b = c.values(a, b)
    return a - (b if alpha == 1 else b * alpha)


lower("rsub.Tensor", "rsub.Scalar")(lambda c, a, b, alpha=1: sub(c, b, a, alpha))


@lower("mul.Tensor", "mul.Scalar")
def mul(c: Context, a: Any, b: Any) -> Value:
    a, b = c.values(a, b)
    return a & b if a.dtype == torch.bool else a * b


@lower("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(c: Context, a: Any, b: Any) -> Value:
    a, b = c.floats(a, b)
    return a / b


@lower("div.Tensor_mode", "div.Scalar_mode")
def div_mode(c: Context, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return div(c, a, b)
    if rounding_mode == "floor":
        return floor_divide(c, a, b)
    a, b = c.values(a, b)
    quotient = a / b
    return c.graph.map("trunc", quotient) if category(a.dtype) == 2 else quotient


@lower("floor_divide.default", "floor_divide.Scalar")
def floor_divide(c: Context, a: Any, b: Any) -> Value:
    a, b = c.values(a, b)
    return c.graph.map("floor_divide", a, b)


@lower("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(c: Context, a: Any, b: Any) -> Value:
    a, b = c.values(a, b)
    return c.graph.map("remainder", a, b)


@lower("fmod.Tensor", "fmod.Scalar")
def fmod(c: Context, a: Any, b: Any) -> Value:
    a, b = c.values(a, b)
    if category(a.dtype) != 2:
        return c.graph.map("rem", a, b)
    # The remainder of magnitudes is exact, and has the sign of a.
    magnitude = c.graph.map("remainder", c.graph.map("abs", a), c.graph.map("abs", b))
    return c.graph.map("copysign", magnitude, a)


@lower("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(c: Context, a: Any, b: Any) -> Value:
    x, y = c.values(a, b)
    if not isinstance(b, Value):
        # Exact and quick where the exponent is a small one.
        if b == 2:
            return x * x
        if b == 3:
            return x * x * x
        if b == 1:
            return x
        if category(x.dtype) == 2 and b in (0.5, -0.5, -1):
            return 1 / x if b == -1 else c.graph.map("sqrt" if b > 0 else "rsqrt", x)
    return c.graph.map("pow", x, y)


def _binary(name: str, floats: bool = False) -> Any:
    return lambda c, a, b: c.graph.map(name, *(c.floats(a, b) if floats else c.values(a, b)))


def _extreme(name: str, of_bools: str) -> Any:
    def apply(c: Context, a: Any, b: Any) -> Value:
        a, b = c.values(a, b)
        return c.graph.map(of_bools if a.dtype == torch.bool else name, a, b)

    return apply


lower("maximum.default")(_extreme("maximum", "or"))
lower("minimum.default")(_extreme("minimum", "and"))
for _name in ("atan2", "copysign", "hypot", "nextafter"):
    lower(f"{_name}.default", f"{_name}.Tensor")(_binary(_name, floats=True))
lower("copysign.Scalar")(_binary("copysign", floats=True))
for _name, _own in (("and", "and"), ("or", "or"), ("xor", "xor")):
    lower(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar", f"bitwise_{_name}.Scalar_Tensor")(_binary(_own))
lower("bitwise_not.default")(lambda c, x: ~x)
for _name, _own in (("left", "shl"), ("right", "shr")):
    lower(f"bitwise_{_name}_shift.Tensor", f"bitwise_{_name}_shift.Tensor_Scalar")(_binary(_own))
    lower(f"bitwise_{_name}_shift.Scalar_Tensor", f"__{_name[0]}shift__.Scalar", f"__{_name[0]}shift__.Tensor")(
        _binary(_own)
    )


@lower("fmax.default")
def fmax(c: Context, a: Value, b: Value) -> Value:
    return _fextreme(c, a, b, "maximum")


@lower("fmin.default")
def fmin(c: Context, a: Value, b: Value) -> Value:
    return _fextreme(c, a, b, "minimum")


def _fextreme(c: Context, a: Value, b: Value, name: str) -> Value:
    a, b = c.values(a, b)
    if category(a.dtype) != 2:
        return TABLE[f"aten.{name}.default"](c, a, b)
    found = c.graph.where(a.ne(a), b, c.graph.map(name, a, b))
    return c.graph.where(b.ne(b), a, found)


def _logical(name: str) -> Any:
    return lambda c, a, b: c.graph.map(name, a.to(torch.bool), b.to(torch.bool))


for _name in ("and", "or", "xor"):
    lower(f"logical_{_name}.default")(_logical(_name))
lower("logical_not.default")(lambda c, x: ~x.to(torch.bool))


@lower("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(c: Context, condition: Value, a: Any, b: Any) -> Value:
    a, b = c.values(a, b)
    return c.graph.where(condition.to(torch.bool), a, b)


@lower("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(c: Context, x: Value, mask: Value, number: Any) -> Value:
    return c.graph.where(mask, c.value(number, x.dtype), x)


@lower("clamp.default", "clamp.Tensor")
def clamp(c: Context, x: Value, least: Any = None, greatest: Any = None) -> Value:
    dtype = promoted(*(v for v in (x, least, greatest) if v is not None))
    x = x.to(dtype)
    if least is not None:
        x = TABLE["aten.maximum.default"](c, x, c.value(least, dtype))
    if greatest is not None:
        x = TABLE["aten.minimum.default"](c, x, c.value(greatest, dtype))
    return x


lower("clamp_min.default", "clamp_min.Tensor")(lambda c, x, least: clamp(c, x, least))
lower("clamp_max.default", "clamp_max.Tensor")(lambda c, x, greatest: clamp(c, x, None, greatest))


@lower("prims.fma.default")
def fma(c: Context, a: Value, b: Value, addend: Value) -> Value:
    a, b, addend = c.values(a, b, addend)
    return Value(c.graph, c.graph.native.mul_add(a.number, b.number, addend.number))


@lower("prims.div.default")
def prims_div(c: Context, a: Value, b: Value) -> Value:
    a, b = c.values(a, b)
    return a / b


# The operations that torch's own definitions consist of have the same meaning for operands of one type.
for _name in (*_FLOATS.split(), *_NUMBERS.split(), *_ROUNDINGS.split(), "reciprocal", "erfc", "maximum", "minimum"):
    lower(f"prims.{_name}.default")(TABLE[f"aten.{_name}.default"])
for _name in ("add", "sub", "mul", *_COMPARISONS.split(), "remainder", "fmod"):
    lower(f"prims.{_name}.default")(TABLE[f"aten.{_name}.Tensor"])
for _name in ("atan2", "copysign", "hypot", "nextafter", "bitwise_not", "signbit"):
    lower(f"prims.{_name}.default")(TABLE[f"aten.{_name}.default"])
for _name in ("and", "or", "xor"):
    lower(f"prims.bitwise_{_name}.default")(TABLE[f"aten.bitwise_{_name}.Tensor"])
lower("prims.pow.default")(power)
lower("prims.where.default")(where)
lower("prims.shift_left.default")(_binary("shl"))
lower("prims.shift_right_arithmetic.default")(_binary("shr"))
lower("prims.isfinite.default", "isfinite.default")(lambda c, x: c.graph.map("isfinite", *c.floats(x)))

# Conversions and copies.


@lower("_to_copy.default", "to.dtype")
def to_copy(c: Context, x: Value, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return x if dtype is None else x.to(dtype)


lower("prims.convert_element_type.default")(lambda c, x, dtype: x.to(dtype))
lower("clone.default")(lambda c, x, memory_format=None: x)


@lower("copy.default")
def copy(c: Context, x: Value, source: Any, non_blocking: bool = False) -> Value:
    return c.value(source, x.dtype).expand(x.shape)


@lower("fill.Scalar", "fill.Tensor")
def fill(c: Context, x: Value, number: Any) -> Value:
    return (
        c.value(number, x.dtype).expand(x.shape)
        if isinstance(number, Value)
        else c.graph.full(x.dtype, x.shape, number)
    )


# Tensors of numbers.


def _kind(c: Context, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or c.dtype or torch.get_default_dtype()


@lower("full.default")
def full(c: Context, size: list[int], number: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if isinstance(number, Value):
        return number.to(_kind(c, dtype)).expand(size)
    return c.graph.full(_kind(c, dtype), size, number)


@lower("full_like.default")
def full_like(c: Context, x: Value, number: float, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return c.graph.full(dtype or x.dtype, x.shape, number)


for _name, _number_ in (("zeros", 0.0), ("ones", 1.0), ("empty", 0.0)):

    def _of_number(c: Context, size: list[int], *, number: float = _number_, dtype: Any = None, **_: Any) -> Value:
        return c.graph.full(_kind(c, dtype), size, number)

    def _like_number(c: Context, x: Value, *, number: float = _number_, dtype: Any = None, **_: Any) -> Value:
        return c.graph.full(dtype or x.dtype, x.shape, number)

    def _new_number(c: Context, x: Value, size: Any, *, number: float = _number_, dtype: Any = None, **_: Any) -> Value:
        return c.graph.full(dtype or x.dtype, size, number)

    lower(f"{_name}.default", f"{_name}.memory_format")(_of_number)
    lower(f"{_name}_like.default")(_like_number)
    lower(f"new_{_name}.default")(_new_number)
lower("new_full.default")(lambda c, x, size, number, dtype=None, **_: c.graph.full(dtype or x.dtype, size, number))
lower("empty_permuted.default")(lambda c, size, layout, dtype=None, **_: c.graph.full(_kind(c, dtype), size, 0))
lower("empty_strided.default")(lambda c, size, stride, dtype=None, **_: c.graph.full(_kind(c, dtype), size, 0))
lower("new_empty_strided.default")(lambda c, x, size, stride, dtype=None, **_: c.graph.full(dtype or x.dtype, size, 0))
lower("scalar_tensor.default")(lambda c, number, dtype=None, **_: c.graph.scalar(_kind(c, dtype), number))


@lower("arange.start_step")
def arange(c: Context, start: float, end: float, step: float = 1, dtype: Any = None, **_: Any) -> Value:
    if all(isinstance(n, int) for n in (start, end, step)):
        length = max(0, -(-(end - start) // step))
    else:
        length = max(0, math.ceil((end - start) / step))
    return c.graph.arange(length, start, step, _kind(c, dtype))


lower("arange.start")(lambda c, start, end, **options: arange(c, start, end, 1, **options))
lower("arange.default")(lambda c, end, **options: arange(c, 0, end, 1, **options))
lower("prims.iota.default")(lambda c, length, *, start, step, dtype, **_: c.graph.arange(length, start, step, dtype))


@lower("_assert_async.msg", "_assert_async.default")
def assert_async(c: Context, condition: Value, message: str = "an assertion of the model failed") -> None:
    c.asserts.append((condition, message))
