"""Shapes, orders and products of tensors."""

from __future__ import annotations

import math

from . import _dtypes as dt
from . import _native
from ._checks import check_all
from ._common import _axes, _axis, _several, _shape, _tensor, _whole, _wide, broadcast_shapes
from ._dtypes import result_type
from ._indexing import getitem
from ._native import Tensor


def _list(name: str, arrays) -> list[Tensor]:
    if not hasattr(arrays, "__iter__"):
        raise TypeError(f"{name}: arrays must be a list or a tuple of tensors, not {type(arrays).__name__}")
    return [_tensor(x, name) for x in arrays]


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """The tensors in the shape that they broadcast to."""
    shape = list(broadcast_shapes(*[x.shape for x in arrays]))
    return [_native.broadcast_to(x, shape) for x in arrays]


def broadcast_to(x: Tensor, /, shape) -> Tensor:
    """A view in which dimensions of size 1, and leading ones that x lacks, repeat."""
    return _native.broadcast_to(x, _shape(shape))


def concat(arrays, /, *, axis: int | None = 0) -> Tensor:
    """The tensors, one behind the other, along an axis; None joins their elements."""
    arrays = _list("concat", arrays)
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
    source = [_axis(x, a, name="source") for a in _several("source", source)]
    destination = [_axis(x, a, name="destination") for a in _several("destination", destination)]
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
    if not isinstance(axes, (tuple, list)):
        raise TypeError(f"permute_dims: axes must be a tuple of whole numbers, not {type(axes).__name__}")
    order = [_axis(x, a) for a in axes]
    if sorted(order) != list(range(x.ndim)):
        raise ValueError(f"permute_dims: axes must name each of the {x.ndim} axes once, not {tuple(axes)}")
    return _native.permute(x, order)


def repeat(x: Tensor, repeats, /, *, axis: int | None = None) -> Tensor:
    """Each element several times along an axis."""
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = _axis(x, axis)
    size = x.shape[axis]
    if isinstance(repeats, Tensor) and repeats.size == 1 and size != 1:
        repeats = repeats.item()
    if isinstance(repeats, Tensor):
        if repeats.dtype.kind not in "iu":
            raise TypeError(f"repeats must be whole numbers, not {repeats.dtype}")
        repeats = reshape(repeats, (-1,)).tolist()
    if isinstance(repeats, (tuple, list)):
        counts = [_whole("repeats", n, 0, 2**32) for n in repeats]
        if len(counts) != size:
            raise ValueError(f"repeats: there are {len(counts)} counts for {size} elements")
    else:
        counts = [_whole("repeats", repeats, 0, 2**32)] * size
    if sum(counts) >= 2**32:
        raise ValueError(f"{sum(counts)} elements are too many: a tensor has fewer than 2^32")
    places = [i for i, n in enumerate(counts) for _ in range(n)]
    return getitem(x, (slice(None),) * axis + (_native.from_objects(places, dt.int64, x._device),))


def reshape(x: Tensor, /, shape, *, copy: bool | None = None) -> Tensor:
    """The elements in another shape: a view where strides allow it. One size may be −1."""
    # -1 stands for the rest.
    shape = _shape(shape, None)
    if shape.count(-1) > 1:
        raise ValueError("only one size can be -1")
    if -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        if rest == 0 or x.size % rest:
            raise ValueError(f"{x.size} elements do not divide into the shape {tuple(shape)}")
        shape[shape.index(-1)] = x.size // rest
    if any(n < 0 for n in shape):
        raise ValueError(f"a size is negative: {tuple(shape)}")
    if copy:
        x = _native.elementwise("copy", x)
    elif copy is False and not x.is_contiguous:
        raise ValueError("this shape needs a copy")
    return _native.reshape(x, shape)


def roll(x: Tensor, /, shift, *, axis=None) -> Tensor:
    """The elements moved along axes, those beyond the end to the front."""
    if axis is None:
        if isinstance(shift, (tuple, list)):
            raise ValueError("roll: several shifts take as many axes")
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = _several("shift", shift)
    if not isinstance(shift, (tuple, list)):
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: there are {len(shifts)} shifts for {len(axes)} axes")
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
    arrays = _list("stack", arrays)
    if not arrays:
        raise ValueError("there are no tensors to stack")
    at = _axis(arrays[0], axis, arrays[0].ndim + 1)
    return concat([expand_dims(x, axis=at) for x in arrays], axis=at)


def tile(x: Tensor, repetitions, /) -> Tensor:
    """The whole tensor several times along its axes."""
    repetitions = [_whole("repetitions", n, 0, 2**32) for n in _several("repetitions", repetitions)]
    ndim = max(x.ndim, len(repetitions))
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
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ValueError(f"axes is {axes}, but the tensors have {x1.ndim} and {x2.ndim} dimensions")
        first, second = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        if not isinstance(axes, (tuple, list)) or len(axes) != 2:
            raise TypeError("tensordot: axes must be a whole number, or two tuples of them")
        first, second = ([_axis(x, a) for a in _several("axes", some)] for x, some in zip((x1, x2), axes))
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
    ndim = min(x1.ndim, x2.ndim)
    if not -ndim <= axis < 0:
        raise ValueError(f"axis is {axis}, but must be from {-ndim} to -1")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"the vectors have {x1.shape[axis]} and {x2.shape[axis]} elements")
    product = x1 * x2
    return _native.cast(_native.reduce("sum", _wide(product, None), [product.ndim + axis], False), product.dtype)


check_all(globals())
