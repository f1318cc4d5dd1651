"""Functions of elements."""

from __future__ import annotations

import builtins

from . import _dtypes as dt
from . import _native
from ._checks import check_all
from ._common import _truth
from ._native import Tensor


def _unary(native: str, text: str):
    def function(x: Tensor, /) -> Tensor:
        return _native.elementwise(native, x)

    function.__doc__ = text
    return function


def _binary(native: str, text: str):
    def function(x1, x2, /) -> Tensor:
        return _native.elementwise(native, x1, x2)

    function.__doc__ = text
    return function


abs = _unary("abs", "|x|.")
acos = _unary("acos", "The angle in radians whose cosine is x.")
acosh = _unary("acosh", "The inverse of the hyperbolic cosine.")
asin = _unary("asin", "The angle in radians whose sine is x.")
asinh = _unary("asinh", "The inverse of the hyperbolic sine.")
atan = _unary("atan", "The angle in radians whose tangent is x.")
atanh = _unary("atanh", "The inverse of the hyperbolic tangent.")
bitwise_invert = _unary("not", "The bitwise complement.")
cos = _unary("cos", "The cosine of radians.")
cosh = _unary("cosh", "The hyperbolic cosine.")
exp = _unary("exp", "e to the power of x.")
expm1 = _unary("expm1", "e to the power of x, minus 1.")
log = _unary("log", "The natural logarithm.")
log1p = _unary("log1p", "The natural logarithm of 1 + x.")
log10 = _unary("log10", "The logarithm to base 10.")
log2 = _unary("log2", "The logarithm to base 2.")
negative = _unary("neg", "−x.")
signbit = _unary("signbit", "Whether the sign bit is set.")
sin = _unary("sin", "The sine of radians.")
sinh = _unary("sinh", "The hyperbolic sine.")
sqrt = _unary("sqrt", "√x.")
tan = _unary("tan", "The tangent of radians.")
tanh = _unary("tanh", "The hyperbolic tangent.")

add = _binary("add", "x1 + x2.")
atan2 = _binary("atan2", "The angle of the point (x2, x1).")
bitwise_and = _binary("and", "x1 & x2.")
bitwise_left_shift = _binary("shl", "x1 << x2.")
bitwise_or = _binary("or", "x1 | x2.")
bitwise_right_shift = _binary("shr", "x1 >> x2.")
bitwise_xor = _binary("xor", "x1 ^ x2.")
copysign = _binary("copysign", "|x1| with the sign of x2.")
divide = _binary("div", "x1 / x2.")
equal = _binary("eq", "Whether x1 = x2.")
floor_divide = _binary("floor_divide", "⌊x1 / x2⌋.")
greater = _binary("gt", "Whether x1 > x2.")
greater_equal = _binary("ge", "Whether x1 ≥ x2.")
hypot = _binary("hypot", "√(x1² + x2²), without overflow between.")
less = _binary("lt", "Whether x1 < x2.")
less_equal = _binary("le", "Whether x1 ≤ x2.")
logaddexp = _binary("logaddexp", "log(e^x1 + e^x2), without overflow between.")
maximum = _binary("maximum", "The greater; NaN if one is NaN.")
minimum = _binary("minimum", "The lesser; NaN if one is NaN.")
multiply = _binary("mul", "x1 · x2.")
nextafter = _binary("nextafter", "The next number after x1 towards x2.")
not_equal = _binary("ne", "Whether x1 ≠ x2.")
pow = _binary("pow", "x1 to the power of x2.")
remainder = _binary("remainder", "The remainder of x1 / x2 with the sign of x2.")
subtract = _binary("sub", "x1 − x2.")


def _rounding(native: str, text: str):
    def function(x: Tensor, /) -> Tensor:
        if x.dtype.kind == "b":
            raise TypeError(f"{native} is not defined for bool")
        return _native.elementwise(native, x) if x.dtype.kind == "f" else x

    function.__doc__ = text
    return function


ceil = _rounding("ceil", "The least whole number not below.")
floor = _rounding("floor", "The greatest whole number not above.")
round = _rounding("round", "The nearest whole number, ties to even.")
trunc = _rounding("trunc", "The whole number towards zero.")


def clip(x: Tensor, /, min=None, max=None) -> Tensor:
    """min(max(x, min), max); NaN if one is NaN. Floats as bounds of integers give floats."""
    if x.dtype.kind == "b":
        raise TypeError("clip is not defined for bool")
    result = x
    for native, bound in (("maximum", min), ("minimum", max)):
        if bound is None:
            continue
        if x.dtype.kind in "iu" and isinstance(bound, (int, float)) and not isinstance(bound, builtins.bool):
            info = dt.iinfo(x.dtype)
            if not info.min <= bound <= info.max:
                bound = info.min if bound < info.min else info.max
        result = _native.elementwise(native, result, bound)
    if result.dtype != x.dtype and (x.dtype.kind == "f" or result.dtype.kind != "f"):
        result = _native.cast(result, x.dtype)
    return _native.elementwise("copy", x) if result is x else result


def conj(x: Tensor, /) -> Tensor:
    """The complex conjugate, which is x: there are no complex numbers."""
    return positive(x)


def real(x: Tensor, /) -> Tensor:
    """The real part, which is x."""
    return positive(x)


def imag(x: Tensor, /) -> Tensor:
    """The imaginary part: zeros."""
    return _native.full(list(x.shape), 0, x.dtype, x._device)


def _of_floats(native: str, text: str, other: builtins.bool):
    def function(x: Tensor, /) -> Tensor:
        if x.dtype.kind == "f":
            return _native.elementwise(native, x)
        return _native.full(list(x.shape), other, dt.bool, x._device)

    function.__doc__ = text
    return function


isfinite = _of_floats("isfinite", "Whether x is neither infinite nor NaN.", True)
isinf = _of_floats("isinf", "Whether x is infinite.", False)
isnan = _of_floats("isnan", "Whether x is NaN.", False)


def _logical(native: str, text: str):
    def function(x1, x2, /) -> Tensor:
        return _native.elementwise(native, _truth(x1), _truth(x2))

    function.__doc__ = text
    return function


logical_and = _logical("and", "Whether both are true.")
logical_or = _logical("or", "Whether one is true.")
logical_xor = _logical("xor", "Whether exactly one is true.")


def logical_not(x: Tensor, /) -> Tensor:
    """Whether x is false."""
    return _native.elementwise("not", _truth(x))


def positive(x: Tensor, /) -> Tensor:
    """+x."""
    return +x


def reciprocal(x: Tensor, /) -> Tensor:
    """1 / x."""
    return _native.elementwise("div", 1.0, x)


def sign(x: Tensor, /) -> Tensor:
    """−1, 0 or 1; NaN of NaN."""
    result = _native.elementwise("sign", x)
    # Of −0 the standard wants +0.
    return result + 0 if x.dtype.kind == "f" else result


def square(x: Tensor, /) -> Tensor:
    """x · x."""
    return x * x


check_all(globals())
