"""Random calls, most of them wrong: each returns or raises an exception of a documented class, and nothing crashes."""

import math
import random

import hologram as hg
from hologram import _native

ALLOWED = (
    OSError,
    TypeError,
    ValueError,
    IndexError,
    OverflowError,
    MemoryError,
    BufferError,
    hg.DeviceError,
    NotImplementedError,
)

# They wait for something, end the process' devices, write files, or are no functions.
LEFT_OUT = {
    "command",
    "forked",
    "set_default_device",
    "save_npy",
    "save_safetensors",
    "begin_recording",
    "end_recording",
}


def values(draw):
    dtype = draw.choice(["bool", "int8", "int64", "uint8", "uint64", "float16", "bfloat16", "float32", "float64"])
    shape = tuple(draw.choice([0, 1, 2, 3]) for _ in range(draw.randrange(4)))
    return draw.choice(
        [
            lambda: hg.ones(shape, dtype=dtype),
            lambda: hg.reshape(hg.arange(math.prod(shape)), shape),
            lambda: hg.zeros(shape, dtype=dtype).mT if len(shape) > 1 else hg.zeros(shape, dtype=dtype),
            lambda: draw.choice([0, 1, -1, 5, 2**32, 2**63, -(2**63), 2**70]),
            lambda: draw.choice([0.0, -1.5, math.nan, math.inf, 1e300]),
            lambda: draw.choice([None, True, "x", "float32", b"", (), [], {}, object(), 1j, ..., slice(None)]),
            lambda: draw.choice([[0], [1, 0], [2, 3], (-1,), [0, 0], [[1, 2], [3]], [2**40], [(1, 1)], [None]]),
        ]
    )()


def test_random_calls_raise_documented_errors():
    draw = random.Random(5)
    names = [n for n in hg._functions.__all__ if callable(getattr(hg, n))]
    functions = [getattr(hg, n) for n in names] + [getattr(hg.linalg, n) for n in hg.linalg.__all__]
    functions += [
        getattr(_native, n) for n in _native.__all__ if callable(getattr(_native, n)) and n not in LEFT_OUT | {"Model"}
    ]
    methods = [n for n in dir(hg.Tensor) if n not in ("__class__", "__init_subclass__", "__subclasshook__", "__new__")]
    done = 0
    for _ in range(6000):
        arguments = [values(draw) for _ in range(draw.randrange(1, 5))]
        tensor = next((a for a in arguments if isinstance(a, hg.Tensor)), None)
        function = draw.choice(functions)
        named = {}
        if draw.random() < 0.3:
            named[draw.choice(["axis", "dtype", "keepdims", "device", "k", "correction"])] = values(draw)
        method = draw.choice(methods) if tensor is not None and draw.random() < 0.3 else None
        try:
            if method is not None:
                function, arguments = getattr(tensor, method), arguments[1:]
            function(*arguments, **named)
            done += 1
        except ALLOWED:
            pass
        except (AttributeError, StopIteration):
            # Python's own functions, given objects of other kinds.
            pass
    assert done > 200
    assert (hg.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]
