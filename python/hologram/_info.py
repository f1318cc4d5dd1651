"""What the array API standard asks a namespace about itself."""

from __future__ import annotations

from . import _dtypes as dt
from . import _native
from ._devices import Device, default_device


class Info:
    """`__array_namespace_info__()`."""

    def capabilities(self) -> dict:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        return default_device()

    def devices(self) -> list[Device]:
        """The devices that can be opened, without the reference interpreter."""
        return [Device._of(d["name"]) for d in _native.devices() if d["available"] and d["name"] != "reference"]

    def default_dtypes(self, *, device=None) -> dict:
        return {"real floating": dt.DEFAULT_FLOAT, "complex floating": None, "integral": dt.DEFAULT_INT, "indexing": dt.DEFAULT_INT}

    def dtypes(self, *, device=None, kind=None) -> dict:
        """The standard's types that a device has: Metal lacks float64."""
        name = str(device) if device is not None else _native.default_device()
        known = {d["name"]: d for d in _native.devices()}
        doubles = known.get(name, {}).get("float64", True)
        names = {t.name: t for t in dt.ALL if t not in (dt.float16, dt.bfloat16) and (doubles or t != dt.float64)}
        return names if kind is None else {name: t for name, t in names.items() if dt.isdtype(t, kind)}


def namespace_info() -> Info:
    return Info()
