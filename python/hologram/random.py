"""Random numbers by the counter-based generator Philox4x32-10: the same on every device."""

from __future__ import annotations

import math
import os
import threading

from . import _dtypes as dt
from . import _native
from ._checks import check_all
from ._common import _name, _number, _shape, _whole
from ._compile import drawn
from ._native import Tensor

_lock = threading.Lock()
_seed = int.from_bytes(os.urandom(8), "little")
_counter = 0


def seed(value: int) -> None:
    """Starts the sequence of a seed."""
    global _seed, _counter
    number = _whole("seed", value)
    with _lock:
        _seed, _counter = number % 2**64, 0


def _draw(normal: bool, shape, dtype, device) -> Tensor:
    shape = _shape(shape)
    count = math.prod(shape)
    dtype = dt.DEFAULT_FLOAT if dtype is None else dt.as_dtype(dtype)
    if dtype not in (dt.float16, dt.bfloat16, dt.float32):
        raise TypeError(f"random numbers are float16, bfloat16 or float32, not {dtype}: convert them by astype")

    def draw() -> Tensor:
        global _counter
        with _lock:
            at, _counter = _counter, (_counter + (count + 3) // 4) % 2**64
        return _native.random(normal, shape, dtype, _seed, at, _name(device))

    return drawn(draw(), draw)


def uniform(shape=(), *, low: float | Tensor = 0.0, high: float | Tensor = 1.0, dtype=None, device=None) -> Tensor:
    """Numbers from `low` up to, without, `high`, all equally probable. Rounding may give `high` where it is not 1."""
    _number("low", low)
    _number("high", high)
    x = _draw(False, shape, dtype, device)
    return x if (low, high) == (0.0, 1.0) else x * (high - low) + low


def normal(shape=(), *, mean: float | Tensor = 0.0, std: float | Tensor = 1.0, dtype=None, device=None) -> Tensor:
    """Numbers of a normal distribution."""
    _number("mean", mean)
    _number("std", std, 0.0)
    x = _draw(True, shape, dtype, device)
    return x if (mean, std) == (0.0, 1.0) else x * std + mean


def randint(low: int, high: int, shape=(), *, dtype=None, device=None) -> Tensor:
    """Whole numbers from `low` up to, without, `high`, of at most 2^24 values."""
    low, high = _whole("low", low), _whole("high", high)
    if not 0 < high - low <= 2**24:
        raise ValueError(f"{low} to {high} has no numbers, or more than 2^24")
    from ._elementwise import floor

    whole = floor(_draw(False, shape, dt.float32, device) * (high - low))
    return (
        _native.cast(whole, dt.DEFAULT_INT) + low
        if dtype is None
        else _native.cast(_native.cast(whole, dt.DEFAULT_INT) + low, dt.as_dtype(dtype))
    )


def bernoulli(p: float | Tensor = 0.5, shape=(), *, device=None) -> Tensor:
    """True with probability `p`."""
    _number("p", p, 0.0, 1.0)
    return _draw(False, shape, dt.float32, device) < p


check_all(globals())
