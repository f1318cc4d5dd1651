"""Methods of `Tensor` that are written in Python: indexing, conversions, and the functions as methods."""

from __future__ import annotations

import sys

from . import _dtypes as dt
from . import _functions as f
from . import _indexing, _native
from ._devices import Device
from ._native import Tensor


def _namespace(self: Tensor, *, api_version: str | None = None):
    """The namespace of the array API standard: this package."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"version {api_version} of the array API standard is not supported: use 2024.12")
    return sys.modules["hologram"]


def _to_device(self: Tensor, device: Device | str, /, *, stream=None) -> Tensor:
    """A copy on a device, or the tensor itself if it is there."""
    if stream is not None:
        raise ValueError("to_device takes no stream: copies are ordered with the device's work")
    return _native.to_device(self, str(device))


def _array(self: Tensor, dtype=None, copy: bool | None = None):
    """A NumPy array: `bfloat16` by the package ml_dtypes."""
    import numpy

    if self.dtype == dt.bfloat16:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError("NumPy has no bfloat16: install ml_dtypes, or convert by astype(hologram.float32)") from None
        array = numpy.frombuffer(self._tobytearray(), dtype=ml_dtypes.bfloat16).reshape(self.shape)
    elif copy is False:
        array = numpy.asarray(memoryview(self))
    else:
        array = numpy.frombuffer(self._tobytearray(), dtype=self.dtype.name).reshape(self.shape)
    return array if dtype is None else array.astype(dtype, copy=False)


def _iter(self: Tensor):
    return iter(f.unstack(self))


def _contains(self: Tensor, value) -> bool:
    return bool(f.any(self == value))


def _reduce(self: Tensor):
    return _unpickled, (self.tobytes(), self.dtype.name, self.shape)


def _unpickled(data: bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return _native.from_bytes(data, dt.DType(dtype), list(shape))


def _copy(self: Tensor, memo=None) -> Tensor:
    return _native.elementwise("copy", self)


def _transposed(self: Tensor) -> Tensor:
    """The matrix with rows and columns swapped, as a view."""
    if self.ndim != 2:
        raise ValueError(f"T is of a matrix, not of {self.ndim} dimensions: use mT or permute_dims")
    return f.matrix_transpose(self)


def _reshape(self: Tensor, *shape) -> Tensor:
    """The elements in another shape."""
    return f.reshape(self, shape[0] if len(shape) == 1 else shape)


def _inplace(operator: str):
    def method(self: Tensor, other):
        result = getattr(Tensor, operator)(self, other)
        if result is NotImplemented:
            return result
        if result.shape != self.shape:
            raise ValueError(f"the result has the shape {result.shape}, not {self.shape}")
        if result.dtype != self.dtype:
            raise TypeError(f"the result has the type {result.dtype}, not {self.dtype}")
        self._rebind(result)
        return self

    method.__doc__ = f"As {operator}, and the object becomes the result: views keep the old elements."
    return method


def attach() -> None:
    """Gives `Tensor` these methods."""
    Tensor.__array_namespace__ = _namespace
    Tensor.__array__ = _array
    Tensor.__contains__ = _contains
    Tensor.__copy__ = _copy
    Tensor.__deepcopy__ = _copy
    Tensor.__getitem__ = _indexing.getitem
    Tensor.__hash__ = None
    Tensor.__iter__ = _iter
    Tensor.__reduce__ = _reduce
    Tensor.__setitem__ = _indexing.setitem
    Tensor.T = property(_transposed)
    Tensor.mT = property(f.matrix_transpose)
    Tensor.device = property(lambda self: Device._of(self._device), doc="The device.")
    Tensor.copy = _copy
    Tensor.numpy = _array
    Tensor.reshape = _reshape
    Tensor.to_device = _to_device
    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
        setattr(Tensor, f"__i{name}__", _inplace(f"__{name}__"))
    for name in "all any argmax argmin argsort astype max mean min prod sort std sum var".split():
        setattr(Tensor, name, getattr(f, name))
