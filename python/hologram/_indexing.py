"""Reading and writing elements by index."""

from __future__ import annotations

import os
import threading

from . import _native
from ._native import Tensor


_writing = [threading.Lock()]


def _forked() -> None:
    # The thread that held the lock stayed with the parent.
    _writing[0] = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _is_mask(key) -> bool:
    return isinstance(key, bool) or (isinstance(key, Tensor) and key.dtype.kind == "b")


def _is_array(key) -> bool:
    return isinstance(key, Tensor) and (key.ndim > 0 or key.dtype.kind == "b")


def _convert(key):
    """An entry of a key as None, Ellipsis, a slice, an int or a tensor of integers or bools."""
    if key is None or key is Ellipsis or isinstance(key, (slice, int)):
        return key
    if isinstance(key, (list, tuple)) or hasattr(key, "__array__") or hasattr(key, "__dlpack__"):
        from ._creation import asarray

        if not isinstance(key, Tensor):
            key = asarray(key)
            if key.size == 0:
                key = _native.cast(key, "int64")
        if key.dtype.kind == "f":
            raise IndexError("indices must be integers or bools, not floats")
        return int(key) if key.ndim == 0 and key.dtype.kind != "b" else key
    if hasattr(key, "__index__"):
        return key.__index__()
    raise IndexError(
        f"an index is an integer, a slice, None, ... or a tensor of integers or bools, not {type(key).__name__}"
    )


def _entries(x: Tensor, key) -> list:
    """The entries of a key, one per dimension apart from None; ... is written out."""
    entries = [_convert(k) for k in (key if isinstance(key, tuple) else (key,))]
    if sum(k is Ellipsis for k in entries) > 1:
        raise IndexError("an index has at most one ...")
    used = 0
    for k in entries:
        if k is None or k is Ellipsis:
            continue
        used += k.ndim if isinstance(k, Tensor) and _is_mask(k) else 0 if isinstance(k, bool) else 1
    if used > x.ndim:
        raise IndexError(f"there are {used} indices for {x.ndim} dimensions")
    rest = [slice(None)] * (x.ndim - used)
    if Ellipsis in [k for k in entries if not isinstance(k, Tensor)]:
        at = next(i for i, k in enumerate(entries) if k is Ellipsis)
        return entries[:at] + rest + entries[at + 1 :]
    return entries + rest


def _take_slice(x: Tensor, dim: int, key: slice) -> Tensor:
    places = range(*key.indices(x.shape[dim]))
    if not places:
        return _native.slice(x, dim, 0, 0)
    if places.step == 1 or len(places) == 1:
        return _native.slice(x, dim, places.start, places.start + len(places))
    return _native.slice_step(x, dim, places.start, places.step, len(places))


def _int(key: int, dim: int, size: int) -> int:
    if not -size <= key < size:
        raise IndexError(f"index {key} is out of bounds for dimension {dim} of size {size}")
    return key % size


def _check(index: Tensor, dim: int, size: int) -> None:
    """Checks indices before the device does, so that a wrong one is an IndexError here and not an error of the run.
    Those of a function that is being compiled are not known, and are left to the device."""
    if index.size == 0 or _native.is_recorded(index):
        return
    flat = _native.cast(_native.reshape(index, [index.size]), "int64")
    for name in ("min", "max"):
        _int(_native.reduce(name, flat, [0], False).item(), dim, size)


def is_at_hand(x: Tensor) -> bool:
    """Whether there are elements, known without a wait for a device."""
    return x.size > 0 and x._device in ("cpu", "reference") and not _native.is_recorded(x)


def check_on_host(index: Tensor, dim: int, size: int) -> None:
    """As `_check`, where it costs no wait for a device."""
    if is_at_hand(index):
        _check(index, dim, size)


def getitem(x: Tensor, key) -> Tensor:
    """`x[key]`, with NumPy's rules. Integers and slices of step 1 give views."""
    entries = _entries(x, key)
    arrays = any(_is_array(k) or isinstance(k, bool) for k in entries)
    # The shape after slices; dimensions that integers leave out have size 1 until the end.
    dim, shape, chosen = 0, [], []
    for k in entries:
        if k is None:
            shape.append(1)
            continue
        if isinstance(k, bool):
            # A dimension of size 1, or of 0.
            chosen.append((len(shape), _native.full([int(k)], 0, "int64", x._device)))
            shape.append(1)
            continue
        if isinstance(k, slice):
            x = _take_slice(x, dim, k)
            shape.append(x.shape[dim])
            dim += 1
        elif isinstance(k, int):
            at = _int(k, dim, x.shape[dim])
            if arrays:
                chosen.append((len(shape), _native.full([], at, "int64", x._device)))
                shape.append(x.shape[dim])
            else:
                x = _native.slice(x, dim, at, at + 1)
            dim += 1
        elif k.dtype.kind == "b":
            # A mask without elements along a dimension fits any, as in NumPy.
            if any(m not in (n, 0) for m, n in zip(k.shape, x.shape[dim:], strict=False)):
                raise IndexError(f"a mask of shape {k.shape} does not fit {tuple(x.shape[dim : dim + k.ndim])}")
            if k.ndim == 0:
                chosen.append((len(shape), _native.full([int(bool(k))], 0, "int64", x._device)))
                shape.append(1)
            for column in _native.nonzero(k) if k.ndim else ():
                chosen.append((len(shape), column))
                shape.append(x.shape[dim])
                dim += 1
        else:
            _check(k, dim, x.shape[dim])
            chosen.append((len(shape), k))
            shape.append(x.shape[dim])
            dim += 1
    x = _native.reshape(x, shape)
    return _take_places(x, chosen) if chosen else x


def _take_places(x: Tensor, chosen: list[tuple[int, Tensor]]) -> Tensor:
    """Elements at places in some dimensions, which broadcast against each other."""
    from ._common import broadcast_shapes

    dims = [dim for dim, _ in chosen]
    rest = [dim for dim in range(x.ndim) if dim not in dims]
    common = broadcast_shapes(*[index.shape for _, index in chosen])
    place: Tensor = _native.full([], 0, "int64", x._device)
    total = 1
    for dim, index in reversed(chosen):
        size = x.shape[dim]
        index = _native.cast(index, "int64")
        if index.dtype.kind == "i":
            index = _native.select(index < 0, index + size, _native.broadcast_to(index, list(index.shape)))
        place = place + index * total
        total *= size
    count = 1
    for n in common:
        count *= n
    outer = [x.shape[dim] for dim in rest]
    if total == 0 and count > 0:
        raise IndexError("an index is out of bounds for a dimension of size 0")
    if count == 0 or 0 in outer:
        taken = _native.full([*common, *outer], 0, x.dtype, x._device)
    else:
        flat = _native.reshape(_native.permute(x, dims + rest), [total, *outer])
        places = _native.reshape(_native.broadcast_to(place, list(common)), [count])
        taken = _native.reshape(
            _native.take_along(flat, _native.contiguous(_native.cast(places, "uint32")), 0), [*common, *outer]
        )
    # Places in neighbouring dimensions stay where those were; otherwise they come first.
    if dims == list(range(dims[0], dims[0] + len(dims))) and dims[0] > 0:
        n = len(common)
        order = [n + i for i in range(dims[0])] + list(range(n)) + [n + i for i in range(dims[0], len(rest))]
        taken = _native.permute(taken, order)
    return taken


def setitem(x: Tensor, key, value) -> None:
    """`x[key] = value`. The object gets new memory: views of the old elements do not see the change."""
    from ._creation import asarray

    if isinstance(value, Tensor):
        if value.dtype.kind == "f" and x.dtype.kind != "f":
            raise TypeError(f"elements of {value.dtype} do not fit a tensor of {x.dtype}: convert them by astype")
        value = _native.cast(value, x.dtype)
    else:
        value = asarray(value, dtype=x.dtype, device=x._device)
    count = x.size
    places = getitem(_native.reshape(_native.arange(0, 1, count, "uint32", x._device), list(x.shape)), key)
    if value.ndim > places.ndim:
        extra = value.ndim - places.ndim
        if any(n != 1 for n in value.shape[:extra]):
            raise ValueError(f"a value of shape {value.shape} does not fit elements of shape {places.shape}")
        value = _native.reshape(value, list(value.shape[extra:]))
    value = _native.broadcast_to(value, list(places.shape))
    if places.size == 0:
        return
    places = _native.contiguous(_native.reshape(places, [places.size]))
    value = _native.contiguous(_native.reshape(value, [value.size]))
    # Threads that write to one tensor do not lose each other's elements.
    with _writing[0]:
        flat = _native.contiguous(_native.reshape(x, [count]))
        x._rebind(_native.reshape(_native.scatter(flat, places, value, 0), list(x.shape)))
