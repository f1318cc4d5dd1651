"""Random numbers by the counter-based generator Philox4x32-10: the same on every device."""

from __future__ import annotations

import os
import threading

from . import _dtypes as dt
from . import _native
from ._native import Tensor

_lock = threading.Lock()
_seed = int.from_bytes(os.urandom(8), "little")
_counter = 0


def seed(value: int) -> None:
    """Starts the sequence of a seed."""
    global _seed, _counter
    with _lock:
        _seed, _counter = value % 2**64, 0


def _draw(normal: bool, shape, dtype, device) -> Tensor:
    global _counter
    from ._functions import _name, _shape

    shape = _shape(shape)
    count = 1
    for n in shape:
        count *= n
    with _lock:
        at, _counter = _counter, _counter + (count + 3) // 4
    dtype = dt.DEFAULT_FLOAT if dtype is None else dt.as_dtype(dtype)
    return _native.random(normal, shape, dtype, _seed, at, _name(device))


def uniform(shape=(), *, low: float = 0.0, high: float = 1.0, dtype=None, device=None) -> Tensor:
    """Numbers from `low` up to, without, `high`, all equally probable."""
    x = _draw(False, shape, dtype, device)
    return x if (low, high) == (0.0, 1.0) else x * (high - low) + low


def normal(shape=(), *, mean: float = 0.0, std: float = 1.0, dtype=None, device=None) -> Tensor:
    """Numbers of a normal distribution."""
    x = _draw(True, shape, dtype, device)
    return x if (mean, std) == (0.0, 1.0) else x * std + mean


def randint(low: int, high: int, shape=(), *, dtype=None, device=None) -> Tensor:
    """Whole numbers from `low` up to, without, `high`, of at most 2^24 values."""
    if not 0 < high - low <= 2**24:
        raise ValueError(f"{low} to {high} has no numbers, or more than 2^24")
    from ._functions import floor

    whole = floor(_draw(False, shape, dt.float32, device) * (high - low))
    return _native.cast(whole, dt.DEFAULT_INT) + low if dtype is None else _native.cast(_native.cast(whole, dt.DEFAULT_INT) + low, dt.as_dtype(dtype))


def bernoulli(p: float = 0.5, shape=(), *, device=None) -> Tensor:
    """True with probability `p`."""
    return _draw(False, shape, dt.float32, device) < p
