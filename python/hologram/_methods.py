"""Methods of native classes that are written in Python: indexing, conversions, and the functions as methods."""

from __future__ import annotations

import sys
import threading

from . import _dtypes as dt
from . import _functions as f
from . import _indexing, _native
from ._devices import Device, _named
from ._native import Tensor, Tokenizer


def _namespace(self: Tensor, *, api_version: str | None = None):
    """The namespace of the array API standard: this package."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"version {api_version} of the array API standard is not supported: use 2024.12")
    return sys.modules["hologram"]


def _to_device(self: Tensor, device: Device | str, /, *, stream=None) -> Tensor:
    """A copy on a device, or the tensor itself if it is there."""
    if stream is not None:
        raise ValueError("to_device takes no stream: copies are ordered with the device's work")
    return _native.to_device(self, _named(device))


def _array(self: Tensor, dtype=None, copy: bool | None = None):
    """A NumPy array: `bfloat16` by the package ml_dtypes."""
    import numpy

    if self.dtype == dt.bfloat16:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(
                "NumPy has no bfloat16: install ml_dtypes, or convert by astype(hologram.float32)"
            ) from None
        array = numpy.frombuffer(self._tobytearray(), dtype=ml_dtypes.bfloat16).reshape(self.shape)
    elif copy is False:
        array = numpy.asarray(memoryview(self))
    else:
        array = numpy.frombuffer(self._tobytearray(), dtype=self.dtype.name).reshape(self.shape)
    return array if dtype is None else array.astype(dtype, copy=False)


def _iter(self: Tensor):
    if self.ndim == 0:
        raise TypeError("a tensor without dimensions cannot be iterated over")
    return iter(f.unstack(self))


def _contains(self: Tensor, value) -> bool:
    equal = self == value
    return equal if isinstance(equal, bool) else bool(f.any(equal))


def free_later(items: list) -> None:
    """Frees nested lists on another thread, in steps between which this one goes on."""
    if len(items) > 1 << 10 or isinstance(items[0] if items else None, list):
        threading.Thread(target=_free, args=(items,), name="hologram-free").start()


def _free(items: list) -> None:
    while items:
        if isinstance(items[-1], list):
            _free(items.pop())
        else:
            del items[-(1 << 16) :]


def _reduce(self: Tensor):
    return _unpickled, (self.tobytes(), self.dtype.name, self.shape)


def _unpickled(data: bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return _native.from_bytes(data, dt.DType(dtype), list(shape))


def _copy(self: Tensor, memo=None) -> Tensor:
    return _native.elementwise("copy", self)


def _format(self: Tensor, spec: str) -> str:
    """As `str`; with a format, such as ".3f", that of the only element."""
    if not spec:
        return str(self)
    if self.ndim:
        raise TypeError(f"the format {spec!r} is for a tensor without dimensions, not for one of shape {self.shape}")
    return format(self.item(), spec)


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


def _reduction(name: str):
    function = getattr(f, name)

    def method(self: Tensor, /, axis=None, dtype=None, out=None, *, keepdims: bool = False, **options) -> Tensor:
        if out is not None:
            raise TypeError(f"{name}: results get memory of their own, not that of out")
        if dtype is not None and name in ("sum", "prod"):
            options["dtype"] = dtype
        elif dtype is not None:
            self = f.astype(self, dtype)
        if "ddof" in options:
            options["correction"] = options.pop("ddof")
        return function(self, axis=axis, keepdims=keepdims, **options)

    method.__name__ = name
    method.__doc__ = f"As the function {name}. NumPy's function calls this for a tensor, with its own arguments."
    return method


def written(tokenizer: Tokenizer, messages, tools, variables, reply: bool) -> tuple[str, list[int]]:
    """The text and the tokens of a conversation, by the model's chat template."""
    import json

    tools, variables = json.dumps(list(tools or [])), json.dumps(variables or {})
    return tokenizer._chat(json.dumps(list(messages)), tools, variables, reply)


def _apply_chat_template(
    self: Tokenizer, messages, *, tools=None, add_generation_prompt: bool = True, tokenize: bool = True, **variables
):
    """The tokens of a conversation as the model's chat template writes it, or its text with `tokenize=False`."""
    text, tokens = written(self, messages, tools, variables, add_generation_prompt)
    return tokens if tokenize else text


_METHODS = {
    "__array__": _array,
    "__array_namespace__": _namespace,
    # NumPy's numbers leave operators to tensors, its arrays do not.
    "__array_priority__": -1.0,
    "__contains__": _contains,
    "__copy__": _copy,
    "__deepcopy__": _copy,
    "__format__": _format,
    "__getitem__": _indexing.getitem,
    "__hash__": None,
    "__iter__": _iter,
    "__reduce__": _reduce,
    "__setitem__": _indexing.setitem,
    "T": property(_transposed),
    "copy": _copy,
    "device": property(lambda self: Device._of(self._device), doc="The device."),
    "mT": property(f.matrix_transpose),
    "numpy": _array,
    "reshape": _reshape,
    "to_device": _to_device,
}


def attach() -> None:
    """Gives `Tensor` and `Tokenizer` these methods."""
    Tokenizer.apply_chat_template = _apply_chat_template  # type: ignore[method-assign]
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
        setattr(Tensor, f"__i{name}__", _inplace(f"__{name}__"))
    for name in "argmax argmin argsort astype sort".split():
        setattr(Tensor, name, getattr(f, name))
    for name in "all any max mean min prod std sum var".split():
        setattr(Tensor, name, _reduction(name))
