"""Making tensors."""

from __future__ import annotations

import builtins
import math
from typing import Any

from . import _dtypes as dt
from . import _native
from ._checks import check_all
from ._common import _name, _number, _shape, _whole
from ._dtypes import as_dtype
from ._native import Tensor
from ._search import where
from ._shapes import reshape, stack

# The longest line of numbers that the host computes, each rounded once.
_LONG = 1 << 16

# Tensors have fewer elements.
_LIMIT = 1 << 32


def asarray(obj: Any, /, *, dtype=None, device=None, copy: bool | None = None) -> Tensor:
    """A tensor of an object: a tensor, a number, nested lists of numbers, an object with a buffer (NumPy's arrays) or
    with DLPack. `copy=False`: an error if the elements would have to be copied."""
    if isinstance(obj, Tensor):
        own = obj if dtype is None or obj.dtype == as_dtype(dtype) else _native.cast(obj, as_dtype(dtype))
        if device is not None and str(device) != own._device:
            own = _native.to_device(own, _name(device))
        if copy is False and own is not obj:
            raise ValueError("another type or device needs a copy")
        return _native.elementwise("copy", obj) if copy and own is obj else own
    if isinstance(obj, range) and copy is not False:
        if dtype is None or as_dtype(dtype) != dt.bool:
            return arange(obj.start, obj.stop, obj.step, dtype=dtype, device=device)
        obj = list(obj)
    listed = isinstance(obj, (builtins.bool, int, float, list, tuple))
    if listed and copy is False:
        raise ValueError("Python's numbers and lists need a copy")
    if listed and type(obj) in (builtins.bool, int, float):
        return _native.from_objects(obj, None if dtype is None else as_dtype(dtype), _name(device))
    if isinstance(obj, complex):
        raise TypeError("there are no complex numbers")
    x: Tensor | None = None
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
    if getattr(getattr(obj, "dtype", None), "name", None) != "bfloat16" or not hasattr(obj, "view"):
        return None
    return _native.from_buffer(obj.view("uint16"), _name(device), dt.bfloat16)


def from_dlpack(x: Any, /, *, device=None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of another library's array, by DLPack."""
    from ._dlpack import from_dlpack

    return from_dlpack(x, device=device, copy=copy)


def arange(start, /, stop=None, step=1, *, dtype=None, device=None) -> Tensor:
    """Numbers from `start` up to, without, `stop`."""
    if stop is None:
        start, stop = 0, start
    for name, number in (("start", start), ("stop", stop), ("step", step)):
        _number(name, number)
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"arange: {name} is {number}, but must be finite")
    if step == 0:
        raise ValueError("arange: step is 0")
    if dtype is None:
        whole = builtins.all(isinstance(n, int) for n in (start, stop, step))
        dtype = dt.DEFAULT_INT if whole else dt.DEFAULT_FLOAT
    dtype = as_dtype(dtype)
    if dtype.kind == "b":
        raise TypeError("arange: dtype must be a type of numbers, not bool")
    count = builtins.max(0, math.ceil((stop - start) / step))
    if count >= _LIMIT:
        raise ValueError(f"arange: {count} elements are too many: a tensor has fewer than 2^32")
    if count and dtype.kind in "iu":
        info = dt.iinfo(dtype)
        for end in (start, start + (count - 1) * step):
            if not info.min <= int(end) <= info.max:
                raise OverflowError(f"{int(end)} is outside the range of {dtype}")
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
    n_rows = _whole("n_rows", n_rows, 0)
    columns = n_rows if n_cols is None else _whole("n_cols", n_cols, 0)
    k = _whole("k", k)
    # Diagonals outside all have nothing.
    k = builtins.max(-n_rows, builtins.min(k, columns))
    ones_ = (
        reshape(arange(columns, device=device), (1, columns)) - reshape(arange(n_rows, device=device), (n_rows, 1)) == k
    )
    return _native.cast(ones_, dt.DEFAULT_FLOAT if dtype is None else as_dtype(dtype))


def full(shape, fill_value, *, dtype=None, device=None) -> Tensor:
    """A tensor in which every element is `fill_value`."""
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    elif isinstance(fill_value, (str, complex)) or not hasattr(fill_value, "__float__"):
        raise TypeError(f"full: fill_value must be a number, not {type(fill_value).__name__}")
    if dtype is None:
        dtype = as_dtype(type(fill_value))
    return _native.full(_shape(shape), fill_value, as_dtype(dtype), _name(device))


def full_like(x: Tensor, /, fill_value, *, dtype=None, device=None) -> Tensor:
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device or x._device)


def linspace(start, stop, /, num: int, *, dtype=None, device=None, endpoint: bool = True) -> Tensor:
    """`num` numbers at equal distances from `start` to `stop`."""
    num = _whole("num", num, 0, _LIMIT - 1)
    for name, number in (("start", start), ("stop", stop)):
        if isinstance(number, complex) or not hasattr(number, "__float__"):
            raise TypeError(f"linspace: {name} must be a number, not {type(number).__name__}")
    parts = num - 1 if endpoint else num
    dtype = dt.DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    step = (stop - start) / parts if parts > 0 else 0.0
    if num > _LONG:
        line = _native.arange(start, step, num, dtype if dtype.kind == "f" else "float64", _name(device))
        last = _native.full([1], stop, line.dtype, line._device)
        return _native.cast(_native.concat([line[:-1], last], 0) if endpoint else line, dtype)
    if math.isfinite(step):
        values = [start + i * step for i in range(num)]
    else:
        # The distance overflows, its parts do not.
        values = [start + i * (stop / parts) - i * (start / parts) for i in range(num)]
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


def _triangle(x: Tensor, k: int, keep) -> Tensor:
    if x.ndim < 2:
        raise ValueError("a triangle takes at least two dimensions")
    rows, columns = x.shape[-2:]
    # Diagonals outside the matrix are as far as they need to be.
    k = builtins.max(-rows - 1, builtins.min(k, columns + 1))
    column, row = arange(columns, device=x._device), arange(rows, device=x._device)
    mask = keep(reshape(column, (1, columns)), reshape(row, (rows, 1)), k)
    return where(mask, x, 0) if x.dtype.kind != "b" else x & mask


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangle, zeros above diagonal `k`."""
    return _triangle(x, k, lambda column, row, k: column - row <= k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangle, zeros below diagonal `k`."""
    return _triangle(x, k, lambda column, row, k: column - row >= k)


def astype(x: Tensor, dtype, /, *, copy: bool = True, device=None) -> Tensor:
    """The elements converted to another type."""
    dtype = as_dtype(dtype)
    result = _native.cast(x, dtype)
    if device is not None:
        result = _native.to_device(result, _name(device))
    if dtype == x.dtype and result._device == x._device:
        return _native.elementwise("copy", x) if copy else x
    return result


check_all(globals())
