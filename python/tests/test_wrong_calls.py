"""Random calls, most of them wrong: each returns or raises an exception of a documented class, and nothing crashes."""

import math
import random

import pytest

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
    "set_float32_precision",
    "save_npy",
    "save_safetensors",
    "begin_recording",
    "end_recording",
    "record_input",
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


def test_wrong_calls_and_their_classes(tmp_path):
    x, whole = hg.ones(3), hg.asarray([0, 9])
    kernel = hg.kernel("kernel nothing() workgroup(1) {\n}\n")
    executor = hg.Executor(backend="cpu")
    three, four = executor.allocate(3), executor.allocate(4)
    table = [
        (IndexError, "index 9", lambda: hg.take_along_axis(x, whole)),
        (IndexError, "rows", lambda: hg.nn.Embedding(3, 2)(whole)),
        (IndexError, "rows", lambda: hg.nn.Embedding(3, 2)(hg.asarray([-1]))),
        (IndexError, "classes", lambda: hg.nn.cross_entropy(hg.ones((2, 3)), whole)),
        (TypeError, "rows", lambda: hg.nn.Embedding(3, 2)(hg.asarray([1.0]))),
        (TypeError, "axis", lambda: hg.sum(x, axis=1.5)),
        (TypeError, "size", lambda: hg.zeros(1.5)),
        (ValueError, "size is -1", lambda: hg.zeros(-1)),
        (ValueError, "n_rows", lambda: hg.eye(-1)),
        (TypeError, "without dimensions", lambda: iter(hg.asarray(1))),
        (ValueError, "grid", lambda: kernel(grid=-1)),
        (ValueError, "grid", lambda: kernel(grid=2**33)),
        (ValueError, "grid", lambda: kernel(grid=())),
        (TypeError, "grid", lambda: kernel(grid=1.5)),
        (TypeError, "grid", lambda: kernel(grid="x")),
        (TypeError, "buffers", lambda: hg.ops.vector_add(executor, None, four, four)),
        (TypeError, "Executor", lambda: hg.ops.vector_add(None, four, four, four)),
        (ValueError, "3 elements", lambda: hg.ops.vector_add(executor, four, three, four)),
        (ValueError, "3 elements", lambda: hg.ops.vector_add(executor, four, four, three)),
        (ValueError, "n is 9", lambda: hg.ops.vector_add(executor, four, four, four, 9)),
        (ValueError, "2 elements", lambda: four.from_numpy([1.0, 2.0])),
        (ValueError, "std", lambda: hg.random.normal(3, std=-1)),
        (ValueError, "p is", lambda: hg.random.bernoulli(2.0)),
        (TypeError, "seed", lambda: hg.random.seed("a")),
        (TypeError, "float64", lambda: hg.random.normal(3, dtype=hg.float64)),
        (TypeError, "function", lambda: hg.compile(3)),
        (FileNotFoundError, "none", lambda: hg.save(tmp_path / "none" / "x.npy", x)),
    ]
    for error, text, call in table:
        with pytest.raises(error, match=text) as caught:
            call()
        assert caught.type is error, (text, caught.type)
    hg.ops.vector_add(executor, four, three, four, 3)
    kernel(grid=(1, 1, 1))
