"""The functions of the Python array API standard 2024.12, over the operations of the native module."""

from __future__ import annotations

import builtins
import math
from typing import Any

from . import _dtypes as dt
from . import _native
from ._devices import Device
from ._dtypes import DType, as_dtype, result_type
from ._indexing import getitem
from ._native import Tensor

__all__ = """
    UniqueAll UniqueCounts UniqueInverse abs acos acosh add all any arange argmax argmin argsort asarray asin
    asinh astype atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift
    bitwise_xor broadcast_arrays broadcast_shapes broadcast_to ceil clip concat conj copysign cos cosh
    count_nonzero cumulative_prod cumulative_sum diff divide e empty empty_like equal exp expand_dims expm1 eye
    flip floor floor_divide from_dlpack full full_like greater greater_equal hypot imag inf isfinite isinf isnan
    less less_equal linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor
    matmul matrix_transpose max maximum mean meshgrid min minimum moveaxis multiply nan negative newaxis
    nextafter nonzero not_equal ones ones_like permute_dims pi positive pow prod real reciprocal remainder
    repeat reshape roll round searchsorted sign signbit sin sinh sort sqrt square squeeze stack std subtract sum
    take take_along_axis tan tanh tensordot tile tril triu trunc unique_all unique_counts unique_inverse
    unique_values unstack var vecdot where zeros zeros_like
""".split()

e = math.e
inf = math.inf
nan = math.nan
pi = math.pi
newaxis = None


# -- helpers ---------------------------------------------------------------------------------------------------------


def _name(device) -> str | None:
    return None if device is None else str(device)


def _shape(shape) -> list[int]:
    if isinstance(shape, (tuple, list)):
        return [n.__index__() for n in shape]
    return [shape.__index__()]


def _axis(x: Tensor, axis: int, ndim: int | None = None) -> int:
    ndim = x.ndim if ndim is None else ndim
    axis = axis.__index__()
    if not -ndim <= axis < ndim:
        raise IndexError(f"there is no axis {axis}: the tensor has {ndim}")
    return axis % ndim


def _axes(x: Tensor, axis) -> list[int]:
    """Axes as a sorted list; all for None."""
    if axis is None:
        return list(range(x.ndim))
    axes = [_axis(x, a) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if len(set(axes)) != len(axes):
        raise ValueError(f"an axis is named twice: {axis}")
    return sorted(axes)


def _tensor(x, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} takes tensors, not {type(x).__name__}: use hologram.asarray")
    return x


def broadcast_shapes(*shapes) -> tuple[int, ...]:
    """The shape that these shapes broadcast to."""
    result: list[int] = []
    for shape in shapes:
        shape = list(shape)
        short, long = (result, shape) if len(result) < len(shape) else (shape, result)
        short = [1] * (len(long) - len(short)) + short
        merged = []
        for a, b in zip(short, long):
            if a != b and 1 not in (a, b):
                raise ValueError(f"shapes do not broadcast: {', '.join(map(str, shapes))}")
            merged.append(b if a == 1 else a)
        result = merged
    return tuple(result)


def _float(x: Tensor) -> Tensor:
    return x if x.dtype.kind == "f" else _native.cast(x, dt.DEFAULT_FLOAT)


# -- creation --------------------------------------------------------------------------------------------------------


def asarray(obj: Any, /, *, dtype=None, device=None, copy: bool | None = None) -> Tensor:
    """A tensor of an object: a tensor, a number, nested lists of numbers, an object with a buffer (NumPy's arrays) or
    with DLPack. `copy=False`: an error if the elements would have to be copied."""
    if isinstance(obj, Tensor):
        x = obj if dtype is None else _native.cast(obj, as_dtype(dtype))
        moved = x if device is None else _native.to_device(x, _name(device))
        if copy is False and moved._device != obj._device:
            raise ValueError("another device needs a copy")
        if copy is False and x.dtype != obj.dtype:
            raise ValueError("another type needs a copy")
        if copy and moved is obj or copy and moved._device == obj._device and x is obj:
            return _native.elementwise("copy", obj)
        return moved
    listed = isinstance(obj, (builtins.bool, int, float, list, tuple))
    if listed and copy is False:
        raise ValueError("Python's numbers and lists need a copy")
    if listed and type(obj) in (builtins.bool, int, float):
        return _native.from_objects(obj, None if dtype is None else as_dtype(dtype), _name(device))
    if isinstance(obj, complex):
        raise TypeError("there are no complex numbers")
    x = None
    if not isinstance(obj, (list, tuple)):
        if copy is False and hasattr(obj, "__dlpack__"):
            x = from_dlpack(obj, device=device, copy=False)
        elif copy is False:
            raise ValueError(f"{type(obj).__name__} needs a copy")
        else:
            x = _bfloat16(obj, device)
            x = _native.from_buffer(obj, _name(device)) if x is None else x
        if x is None and hasattr(obj, "__dlpack__"):
            x = from_dlpack(obj, device=device, copy=copy)
        if x is None and hasattr(obj, "__array__"):
            return asarray(obj.__array__(), dtype=dtype, device=device)
    elif builtins.any(_has_shape(item) for item in obj):
        x = stack([asarray(item, device=device) for item in obj])
    if x is None:
        return _native.from_objects(obj, None if dtype is None else as_dtype(dtype), _name(device))
    return x if dtype is None else _native.cast(x, as_dtype(dtype))


def _has_shape(item) -> builtins.bool:
    return getattr(item, "ndim", 0) > 0


def _bfloat16(obj, device) -> Tensor | None:
    """NumPy's arrays of ml_dtypes.bfloat16, which the buffer protocol has no letter for."""
    if getattr(getattr(obj, "dtype", None), "name", None) != "bfloat16" or not hasattr(obj, "tobytes"):
        return None
    return _native.from_bytes(obj.tobytes(), dt.bfloat16, list(obj.shape), _name(device))


def from_dlpack(x: Any, /, *, device=None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of another library's array, by DLPack."""
    from ._dlpack import from_dlpack

    return from_dlpack(x, device=device, copy=copy)


def arange(start, /, stop=None, step=1, *, dtype=None, device=None) -> Tensor:
    """Numbers from `start` up to, without, `stop`."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("the step is 0")
    if dtype is None:
        whole = builtins.all(isinstance(n, int) for n in (start, stop, step))
        dtype = dt.DEFAULT_INT if whole else dt.DEFAULT_FLOAT
    dtype = as_dtype(dtype)
    count = builtins.max(0, math.ceil((stop - start) / step))
    if dtype.kind in "iu" and isinstance(start, int) and isinstance(step, int):
        if builtins.max(builtins.abs(start), builtins.abs(step)) < 2**53 and (dtype.kind == "i" or step > 0):
            return _native.arange(start, step, count, dtype, _name(device))
        return asarray(list(range(start, start + step * count, step)) if count else [], dtype=dtype, device=device)
    if dtype.kind in "iu":
        return asarray([int(start + i * step) for i in range(count)], dtype=dtype, device=device)
    return _native.arange(start, step, count, dtype, _name(device))


def empty(shape, *, dtype=None, device=None) -> Tensor:
    """A tensor for content to come; here zeros."""
    return zeros(shape, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype=None, device=None) -> Tensor:
    return zeros_like(x, dtype=dtype, device=device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype=None, device=None) -> Tensor:
    """Ones on the diagonal `k`, zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    ones_ = reshape(arange(columns, device=device), (1, columns)) - reshape(arange(n_rows, device=device), (n_rows, 1)) == k
    return _native.cast(ones_, dt.DEFAULT_FLOAT if dtype is None else as_dtype(dtype))


def full(shape, fill_value, *, dtype=None, device=None) -> Tensor:
    """A tensor in which every element is `fill_value`."""
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    if dtype is None:
        dtype = as_dtype(type(fill_value))
    return _native.full(_shape(shape), fill_value, as_dtype(dtype), _name(device))


def full_like(x: Tensor, /, fill_value, *, dtype=None, device=None) -> Tensor:
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device or x._device)


def linspace(start, stop, /, num: int, *, dtype=None, device=None, endpoint: bool = True) -> Tensor:
    """`num` numbers at equal distances from `start` to `stop`."""
    if num < 0:
        raise ValueError(f"num is {num}, but must be 0 or more")
    parts = num - 1 if endpoint else num
    dtype = dt.DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    step = (stop - start) / parts if parts > 0 else 0.0
    values = [start + i * step if math.isfinite(step) else start + i * (stop / parts) - i * (start / parts) for i in range(num)]
    if endpoint and num > 1:
        values[-1] = stop
    if dtype.kind in "iu":
        values = [int(v) for v in values]
    return _native.from_objects(values, dtype, _name(device))


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinate matrices of coordinate vectors."""
    if indexing not in ("xy", "ij"):
        raise ValueError('indexing is "xy" or "ij"')
    shape = [x.size for x in arrays]
    out = []
    for i, x in enumerate(arrays):
        wide = _native.reshape(x, [x.size if k == i else 1 for k in range(len(arrays))])
        wide = _native.broadcast_to(wide, shape)
        if indexing == "xy" and len(arrays) > 1:
            wide = _native.permute(wide, [1, 0, *range(2, len(arrays))])
        out.append(_native.contiguous(wide))
    return out


def ones(shape, *, dtype=None, device=None) -> Tensor:
    return full(shape, 1, dtype=dt.DEFAULT_FLOAT if dtype is None else dtype, device=device)


def ones_like(x: Tensor, /, *, dtype=None, device=None) -> Tensor:
    return full_like(x, 1, dtype=dtype, device=device)


def zeros(shape, *, dtype=None, device=None) -> Tensor:
    return full(shape, 0, dtype=dt.DEFAULT_FLOAT if dtype is None else dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype=None, device=None) -> Tensor:
    return full_like(x, 0, dtype=dtype, device=device)


def _triangle(x: Tensor, keep) -> Tensor:
    if x.ndim < 2:
        raise ValueError("a triangle takes at least two dimensions")
    rows, columns = x.shape[-2:]
    mask = keep(reshape(arange(columns, device=x._device), (1, columns)), reshape(arange(rows, device=x._device), (rows, 1)))
    return where(mask, x, 0) if x.dtype.kind != "b" else x & mask


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangle, zeros above diagonal `k`."""
    return _triangle(x, lambda column, row: column - row <= k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangle, zeros below diagonal `k`."""
    return _triangle(x, lambda column, row: column - row >= k)


# -- types -----------------------------------------------------------------------------------------------------------


def astype(x: Tensor, dtype, /, *, copy: bool = True, device=None) -> Tensor:
    """The elements converted to another type."""
    dtype = as_dtype(dtype)
    result = _native.cast(x, dtype)
    if device is not None:
        result = _native.to_device(result, _name(device))
    if dtype == x.dtype and result._device == x._device:
        return _native.elementwise("copy", x) if copy else x
    return result


# -- elementwise -----------------------------------------------------------------------------------------------------


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
    """min(max(x, min), max); NaN if one is NaN."""
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
    if result.dtype != x.dtype:
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
    return zeros_like(x)


def _of_floats(native: str, text: str, other: builtins.bool):
    def function(x: Tensor, /) -> Tensor:
        if x.dtype.kind == "f":
            return _native.elementwise(native, x)
        return full(x.shape, other, dtype=dt.bool, device=x._device)

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


def _truth(x):
    if not isinstance(x, Tensor):
        return builtins.bool(x)
    return _native.cast(x, dt.bool)


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


# -- manipulation ----------------------------------------------------------------------------------------------------


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """The tensors in the shape that they broadcast to."""
    shape = list(broadcast_shapes(*[x.shape for x in arrays]))
    return [_native.broadcast_to(x, shape) for x in arrays]


def broadcast_to(x: Tensor, /, shape) -> Tensor:
    """A view in which dimensions of size 1, and leading ones that x lacks, repeat."""
    return _native.broadcast_to(x, _shape(shape))


def concat(arrays, /, *, axis: int | None = 0) -> Tensor:
    """The tensors, one behind the other, along an axis; None joins their elements."""
    arrays = [_tensor(x, "concat") for x in arrays]
    if not arrays:
        raise ValueError("there are no tensors to concatenate")
    dtype = result_type(*arrays)
    arrays = [_native.cast(x, dtype) for x in arrays]
    if axis is None:
        arrays, axis = [reshape(x, (-1,)) for x in arrays], 0
    return _native.concat(arrays, _axis(arrays[0], axis))


def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """A view with a new dimension of size 1."""
    at = _axis(x, axis, x.ndim + 1)
    return _native.reshape(x, [*x.shape[:at], 1, *x.shape[at:]])


def flip(x: Tensor, /, *, axis=None) -> Tensor:
    """The elements in reverse order along axes."""
    axes = _axes(x, axis)
    return getitem(x, tuple(slice(None, None, -1 if i in axes else 1) for i in range(x.ndim)))


def moveaxis(x: Tensor, source, destination, /) -> Tensor:
    """A view with axes moved to other places."""
    source = [_axis(x, a) for a in (source if isinstance(source, (tuple, list)) else (source,))]
    destination = [_axis(x, a) for a in (destination if isinstance(destination, (tuple, list)) else (destination,))]
    if len(source) != len(destination):
        raise ValueError("source and destination have different lengths")
    if len(set(source)) != len(source) or len(set(destination)) != len(destination):
        raise ValueError("an axis is named twice")
    order = [i for i in range(x.ndim) if i not in source]
    for to, from_ in sorted(zip(destination, source)):
        order.insert(to, from_)
    return _native.permute(x, order)


def permute_dims(x: Tensor, /, axes) -> Tensor:
    """A view with the axes in another order."""
    return _native.permute(x, [_axis(x, a) for a in axes])


def repeat(x: Tensor, repeats, /, *, axis: int | None = None) -> Tensor:
    """Each element several times along an axis."""
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = _axis(x, axis)
    size = x.shape[axis]
    if isinstance(repeats, Tensor) and repeats.size == 1 and size != 1:
        repeats = repeats.item()
    if isinstance(repeats, Tensor):
        counts = [int(n) for n in reshape(repeats, (-1,)).tolist()]
        if len(counts) != size:
            raise ValueError(f"there are {len(counts)} counts for {size} elements")
    else:
        counts = [int(repeats)] * size
    if any_negative := [n for n in counts if n < 0]:
        raise ValueError(f"a count is {any_negative[0]}, but must be 0 or more")
    places = [i for i, n in enumerate(counts) for _ in range(n)]
    return take(x, asarray(places, dtype=dt.int64, device=x._device), axis=axis)


def reshape(x: Tensor, /, shape, *, copy: bool | None = None) -> Tensor:
    """The elements in another shape: a view where strides allow it. One size may be −1."""
    shape = _shape(shape)
    if shape.count(-1) > 1:
        raise ValueError("only one size can be -1")
    if -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        if rest == 0 or x.size % rest:
            raise ValueError(f"{x.size} elements do not divide into the shape {tuple(shape)}")
        shape[shape.index(-1)] = x.size // rest
    if builtins.any(n < 0 for n in shape):
        raise ValueError(f"a size is negative: {tuple(shape)}")
    if copy:
        x = _native.elementwise("copy", x)
    elif copy is False and not x.is_contiguous:
        raise ValueError("this shape needs a copy")
    return _native.reshape(x, shape)


def roll(x: Tensor, /, shift, *, axis=None) -> Tensor:
    """The elements moved along axes, those beyond the end to the front."""
    if axis is None:
        if not isinstance(shift, int):
            raise ValueError("several shifts take as many axes")
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ValueError("there are not as many shifts as axes")
    for s, a in zip(shifts, axes):
        a = _axis(x, a)
        size = x.shape[a]
        if size == 0 or s % size == 0:
            continue
        cut = size - s % size
        x = _native.concat([_native.slice(x, a, cut, size), _native.slice(x, a, 0, cut)], a)
    return x


def squeeze(x: Tensor, /, axis) -> Tensor:
    """A view without axes of size 1."""
    axes = _axes(x, axis)
    for a in axes:
        if x.shape[a] != 1:
            raise ValueError(f"axis {a} has size {x.shape[a]}, not 1")
    return _native.reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


def stack(arrays, /, *, axis: int = 0) -> Tensor:
    """The tensors along a new axis."""
    arrays = list(arrays)
    if not arrays:
        raise ValueError("there are no tensors to stack")
    at = _axis(arrays[0], axis, arrays[0].ndim + 1)
    return concat([expand_dims(x, axis=at) for x in arrays], axis=at)


def tile(x: Tensor, repetitions, /) -> Tensor:
    """The whole tensor several times along its axes."""
    repetitions = list(repetitions) if isinstance(repetitions, (tuple, list)) else [repetitions]
    ndim = builtins.max(x.ndim, len(repetitions))
    shape = [1] * (ndim - x.ndim) + list(x.shape)
    repetitions = [1] * (ndim - len(repetitions)) + repetitions
    wide = _native.reshape(x, [n for size in shape for n in (1, size)])
    wide = _native.broadcast_to(wide, [n for pair in zip(repetitions, shape) for n in pair])
    return _native.reshape(_native.contiguous(wide), [r * n for r, n in zip(repetitions, shape)])


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, as views."""
    at = _axis(x, axis)
    rest = [n for i, n in enumerate(x.shape) if i != at]
    return tuple(_native.reshape(_native.slice(x, at, i, i + 1), rest) for i in range(x.shape[at]))


# -- searching, sorting, sets ----------------------------------------------------------------------------------------


def _arg(native):
    def function(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
        if x.dtype.kind == "b":
            x = _native.cast(x, dt.uint8)
        ndim = x.ndim
        if axis is None:
            x, at = reshape(x, (-1,)), 0
        else:
            at = _axis(x, axis)
        result = _native.cast(native(x, at), dt.int64)
        if keepdims:
            return _native.reshape(result, [1] * ndim) if axis is None else expand_dims(result, axis=at)
        return result

    return function


argmax = _arg(_native.arg_max)
argmax.__doc__ = "The indices of the greatest elements along an axis; NaN counts as greater than all."
argmin = _arg(_native.arg_min)
argmin.__doc__ = "The indices of the least elements along an axis."


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that put the elements in order; equal ones keep theirs."""
    if x.dtype.kind == "b":
        x = _native.cast(x, dt.uint8)
    return _native.cast(_native.arg_sort(x, _axis(x, axis), descending), dt.int64)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order; NaN last, or first if descending."""
    if x.dtype.kind == "b":
        return _native.cast(sort(_native.cast(x, dt.uint8), axis=axis, descending=descending), dt.bool)
    return _native.sort(x, _axis(x, axis), descending)


def count_nonzero(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """The number of elements that are not zero."""
    return sum(_native.cast(_truth(x), dt.int64), axis=axis, keepdims=keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the elements that are not zero, one tensor per dimension."""
    if x.ndim == 0:
        raise ValueError("nonzero takes at least one dimension")
    return tuple(_native.nonzero(x))


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Where elements of x2 belong in the sorted x1."""
    if side not in ("left", "right"):
        raise ValueError('side is "left" or "right"')
    if sorter is not None:
        x1 = take(x1, sorter)
    dtype = result_type(x1, x2)
    x1, x2 = _native.cast(x1, dtype), _native.cast(x2, dtype)
    wanted, size = reshape(x2, (-1,)), x1.size
    low = zeros(wanted.size, dtype=dt.int64, device=x1._device)
    if size and wanted.size:
        high = full_like(low, size)
        for _ in range(size.bit_length()):
            middle = (low + high) >> 1
            found = take(x1, clip(middle, 0, size - 1))
            before = (found < wanted) if side == "left" else (found <= wanted)
            open_ = low < high
            low, high = where(open_ & before, middle + 1, low), where(open_ & ~before, middle, high)
    return reshape(low, x2.shape)


def where(condition: Tensor, x1, x2, /) -> Tensor:
    """x1 where the condition is true, else x2."""
    _tensor(condition, "where")
    dtype = result_type(x1, x2)
    device = condition._device

    def side(x):
        return _native.cast(x, dtype) if isinstance(x, Tensor) else _native.full([], x, dtype, device)

    return _native.select(_truth(condition), side(x1), side(x2))


def _unique(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values, first indices, the value of each element, and counts."""
    flat = reshape(x, (-1,))
    size = flat.size
    if size == 0:
        none = zeros(0, dtype=dt.int64, device=x._device)
        return flat, none, reshape(none, x.shape), none
    order = argsort(flat)
    ordered = take(flat, order)
    new = concat([full(1, True, device=x._device), ordered[1:] != ordered[:-1]])
    (starts,) = _native.nonzero(new)
    inverse = cumulative_sum(_native.cast(new, dt.int64)) - 1
    inverse = _native.scatter(zeros_like(inverse), _native.cast(order, dt.uint32), inverse, 0)
    counts = concat([starts[1:], full(1, size, device=x._device)]) - starts
    return take(ordered, starts), take(order, starts), reshape(inverse, x.shape), counts


def _result(name: str, fields: str):
    from collections import namedtuple

    return namedtuple(name, fields)


UniqueAll = _result("UniqueAll", "values indices inverse_indices counts")
UniqueCounts = _result("UniqueCounts", "values counts")
UniqueInverse = _result("UniqueInverse", "values inverse_indices")


def unique_all(x: Tensor, /) -> UniqueAll:
    """The different values, their first indices, the value of each element, and how often each value occurs."""
    return UniqueAll(*_unique(x))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    values, _, _, counts = _unique(x)
    return UniqueCounts(values, counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    values, _, inverse, _ = _unique(x)
    return UniqueInverse(values, inverse)


def unique_values(x: Tensor, /) -> Tensor:
    """The different values in order; each NaN is one."""
    return _unique(x)[0]


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The slices of an axis at these indices."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError("take needs an axis where there are several")
        axis = 0
    at = _axis(x, axis)
    return getitem(x, (slice(None),) * at + (indices,))


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Elements along an axis by an index for each."""
    at = _axis(x, axis)
    if x.ndim != indices.ndim:
        raise ValueError("the indices need as many dimensions as the tensor")
    shape = broadcast_shapes(x.shape[:at] + x.shape[at + 1 :], indices.shape[:at] + indices.shape[at + 1 :])
    size = x.shape[at]
    x = _native.broadcast_to(x, [*shape[:at], size, *shape[at:]])
    indices = _native.broadcast_to(indices, [*shape[:at], indices.shape[at], *shape[at:]])
    indices = _native.cast(indices, dt.int64)
    indices = _native.cast(where(indices < 0, indices + size, indices), dt.uint32)
    return _native.take_along(_native.contiguous(x), _native.contiguous(indices), at)


# -- statistics ------------------------------------------------------------------------------------------------------


def _wide(x: Tensor, dtype) -> Tensor:
    """The elements in the type of their sum."""
    if dtype is not None:
        return _native.cast(x, as_dtype(dtype))
    if x.dtype.kind in "bi":
        return _native.cast(x, dt.int64)
    return _native.cast(x, dt.uint64) if x.dtype.kind == "u" else x


def sum(x: Tensor, /, *, axis=None, dtype=None, keepdims: bool = False) -> Tensor:
    """The sum along axes; integers in 64 bits."""
    return _native.reduce("sum", _wide(x, dtype), _axes(x, axis), keepdims)


def prod(x: Tensor, /, *, axis=None, dtype=None, keepdims: bool = False) -> Tensor:
    """The product along axes; integers in 64 bits."""
    return _native.reduce("prod", _wide(x, dtype), _axes(x, axis), keepdims)


def mean(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """The mean along axes."""
    return _native.reduce("mean", _float(x), _axes(x, axis), keepdims)


def _extreme(name: str, x: Tensor, axis, keepdims: bool) -> Tensor:
    axes = _axes(x, axis)
    if builtins.any(x.shape[a] == 0 for a in axes):
        raise ValueError(f"{name} of no elements is not defined")
    if x.dtype.kind == "b":
        return _native.cast(_extreme(name, _native.cast(x, dt.uint8), axis, keepdims), dt.bool)
    return _native.reduce(name, x, axes, keepdims)


def max(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """The greatest element along axes; NaN if one is NaN."""
    return _extreme("max", x, axis, keepdims)


def min(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """The least element along axes; NaN if one is NaN."""
    return _extreme("min", x, axis, keepdims)


def var(x: Tensor, /, *, axis=None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance along axes, over the number of elements less `correction`."""
    x = _float(x)
    axes = _axes(x, axis)
    count = math.prod(x.shape[a] for a in axes)
    off = x - mean(x, axis=tuple(axes), keepdims=True)
    total = _native.reduce("sum", off * off, axes, keepdims)
    rest = count - correction
    return total / rest if rest > 0 else total * (nan if rest == 0 else inf)


def std(x: Tensor, /, *, axis=None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation along axes, as `var`."""
    return sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def _cumulative(x: Tensor, axis, include_initial: bool, first: int, compute) -> Tensor:
    if axis is None:
        if x.ndim != 1:
            raise ValueError("an axis is needed where there are several")
        axis = 0
    at = _axis(x, axis)
    result = compute(x, at)
    if include_initial:
        shape = [1 if i == at else n for i, n in enumerate(x.shape)]
        result = _native.concat([_native.full(shape, first, x.dtype, x._device), result], at)
    return result


def cumulative_sum(x: Tensor, /, *, axis: int | None = None, dtype=None, include_initial: bool = False) -> Tensor:
    """The sums of the elements up to each one."""

    def compute(wide: Tensor, at: int) -> Tensor:
        narrow = wide.dtype.kind in "iu" and wide.dtype.itemsize < 4
        middle = _native.cast(wide, dt.int32 if wide.dtype.kind == "i" else dt.uint32) if narrow else wide
        return _native.cast(_native.cumsum(middle, at), wide.dtype)

    return _cumulative(_wide(x, dtype), axis, include_initial, 0, compute)


def cumulative_prod(x: Tensor, /, *, axis: int | None = None, dtype=None, include_initial: bool = False) -> Tensor:
    """The products of the elements up to each one."""

    def compute(wide: Tensor, at: int) -> Tensor:
        # Each round doubles the number of factors.
        step, size = 1, wide.shape[at]
        while step < size:
            head = _native.slice(wide, at, 0, step)
            rest = _native.slice(wide, at, step, size) * _native.slice(wide, at, 0, size - step)
            wide = _native.concat([head, rest], at)
            step *= 2
        return wide

    return _cumulative(_wide(x, dtype), axis, include_initial, 1, compute)


def all(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """Whether all elements along axes are true."""
    return count_nonzero(logical_not(x), axis=axis, keepdims=keepdims) == 0


def any(x: Tensor, /, *, axis=None, keepdims: bool = False) -> Tensor:
    """Whether an element along axes is true."""
    return count_nonzero(x, axis=axis, keepdims=keepdims) != 0


def diff(x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """The differences of neighbours along an axis, `n` times."""
    if n < 0:
        raise ValueError(f"n is {n}, but must be 0 or more")
    at = _axis(x, axis)
    parts = [part for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        x = concat(parts, axis=at)
    for _ in range(n):
        size = x.shape[at]
        if size == 0:
            break
        high, low = _native.slice(x, at, 1, size), _native.slice(x, at, 0, size - 1)
        x = high ^ low if x.dtype.kind == "b" else high - low
    return x


# -- linear algebra --------------------------------------------------------------------------------------------------


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product of the last two dimensions; the others broadcast."""
    return _native.matmul(_tensor(x1, "matmul"), _tensor(x2, "matmul"))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """A view with the last two dimensions swapped."""
    if x.ndim < 2:
        raise ValueError("matrix_transpose takes at least two dimensions")
    return _native.permute(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def tensordot(x1: Tensor, x2: Tensor, /, *, axes=2) -> Tensor:
    """Sums of products over axes of both tensors."""
    if isinstance(axes, int):
        if not 0 <= axes <= builtins.min(x1.ndim, x2.ndim):
            raise ValueError(f"axes is {axes}, but the tensors have {x1.ndim} and {x2.ndim} dimensions")
        first, second = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        first, second = [_axis(x1, a) for a in axes[0]], [_axis(x2, a) for a in axes[1]]
    if [x1.shape[a] for a in first] != [x2.shape[a] for a in second]:
        raise ValueError("the summed axes have different sizes")
    rest1 = [i for i in range(x1.ndim) if i not in first]
    rest2 = [i for i in range(x2.ndim) if i not in second]
    inner = math.prod(x1.shape[a] for a in first)
    shape = [x1.shape[i] for i in rest1] + [x2.shape[i] for i in rest2]
    a = _native.reshape(_native.permute(x1, rest1 + first), [math.prod(x1.shape[i] for i in rest1), inner])
    b = _native.reshape(_native.permute(x2, second + rest2), [inner, math.prod(x2.shape[i] for i in rest2)])
    return _native.reshape(_native.matmul(a, b), shape)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Sums of products of vectors along an axis."""
    ndim = builtins.min(x1.ndim, x2.ndim)
    if not -ndim <= axis < 0:
        raise ValueError(f"axis is {axis}, but must be from {-ndim} to -1")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"the vectors have {x1.shape[axis]} and {x2.shape[axis]} elements")
    product = x1 * x2
    return _native.cast(_native.reduce("sum", _wide(product, None), [product.ndim + axis], False), product.dtype)
