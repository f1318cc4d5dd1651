"""Tensors in files: NumPy's `.npy`, and safetensors."""

from __future__ import annotations

import os

from . import _native
from ._checks import check_all
from ._native import Tensor


def save(path: str | os.PathLike, tensors: Tensor | dict[str, Tensor]) -> None:
    """Writes a tensor to a `.npy` file, or tensors by their names to a `.safetensors` file; the ending decides."""
    name = os.fspath(path)
    if name.endswith(".npy"):
        if not isinstance(tensors, Tensor):
            raise TypeError("a .npy file holds one tensor")
        _native.save_npy(name, tensors)
    elif name.endswith(".safetensors"):
        if isinstance(tensors, Tensor):
            raise TypeError("a .safetensors file holds tensors by name: give a dict")
        if not isinstance(tensors, dict):
            raise TypeError(f"save: tensors must be a dict of tensors by name, not {type(tensors).__name__}")
        for key, value in tensors.items():
            if not isinstance(key, str) or not isinstance(value, Tensor):
                raise TypeError(f"save: tensors must be tensors by name, but {key!r} is {type(value).__name__}")
        if "__metadata__" in tensors:
            raise ValueError("a .safetensors file has no tensor named __metadata__: the format keeps that name")
        _native.save_safetensors(name, dict(tensors))
    else:
        raise ValueError(f"{name} ends neither in .npy nor in .safetensors")


def load(path: str | os.PathLike, *, device=None) -> Tensor | dict[str, Tensor]:
    """Reads a `.npy` file as a tensor, or a `.safetensors` file as tensors by their names."""
    name = os.fspath(path)
    device = None if device is None else str(device)
    if name.endswith(".npy"):
        return _native.load_npy(name, device)
    if name.endswith(".safetensors"):
        return _native.load_safetensors(name, device)
    raise ValueError(f"{name} ends neither in .npy nor in .safetensors")


check_all(globals())
