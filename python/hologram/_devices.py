"""Devices: opened when they are first used, never by the import."""

from __future__ import annotations

import os
from typing import Any

from . import _native


class Device:
    """A device by its name: "cpu", "cuda:0", "metal". It equals another with that name, and the name itself."""

    __slots__ = ("name",)

    name: str

    def __init__(self, name: str = "auto"):
        object.__setattr__(self, "name", _native.open_device(None if name == "auto" else _named(name)))

    @classmethod
    def _of(cls, name: str) -> Device:
        device = object.__new__(cls)
        object.__setattr__(device, "name", name)
        return device

    def __setattr__(self, name: str, value: Any):
        raise AttributeError("a device does not change")

    @property
    def type(self) -> str:
        """The kind of device: the name without a number."""
        return self.name.partition(":")[0]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Device):
            return self.name == other.name
        return isinstance(other, str) and other in (self.name, self.name.removesuffix(":0"))

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self):
        return Device._of, (self.name,)


def _named(device: Device | str) -> str:
    if not isinstance(device, (Device, str)):
        raise TypeError(f'device must be a name such as "cpu", not {type(device).__name__}')
    return str(device)


def devices() -> list[dict[str, Any]]:
    """The devices of this machine, best first: name, whether it is available, and its description or what is wrong."""
    return _native.devices()


def default_device() -> Device:
    """The device that `device=None` means. The first call opens it: the best one that works."""
    return Device._of(_native.default_device())


def set_default_device(device: Device | str) -> None:
    """Makes a device the one that `device=None` means; "auto" lets the machine decide."""
    _native.set_default_device(_named(device))


def set_float32_precision(precision: str) -> None:
    """The precision of products of float32 matrices on NVIDIA GPUs: "exact", the default, or "tf32", which rounds their
    elements to 11 bits and is faster. To be called before such a device is used; others stay exact."""
    _native.set_float32_precision(precision)


def synchronize(device: Device | str | None = None) -> None:
    """Waits for all work of a device."""
    _native.synchronize(None if device is None else _named(device))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_native.forked)
