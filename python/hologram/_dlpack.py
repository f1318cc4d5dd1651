"""Tensors over other libraries' memory."""

from __future__ import annotations

from typing import Any

from . import _native
from ._native import Tensor


def from_dlpack(x: Any, *, device=None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of an array of another library, which shares it unless `copy=True`."""
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise TypeError(f"{type(x).__name__} has no __dlpack__ and __dlpack_device__")
    tensor = _native.from_dlpack(x, copy)
    if device is None:
        return tensor
    moved = _native.to_device(tensor, str(device))
    if copy is False and moved._device != tensor._device:
        raise ValueError(f"the array is on {tensor._device}: another device needs a copy")
    return moved
