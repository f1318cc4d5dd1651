"""Random calls, most of them wrong: each returns or raises an exception of a documented class, and nothing crashes."""

import inspect
import math
import pickle
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
    copy = hg.kernel("kernel one(x: buffer<f32, write>, n: u32) workgroup(1) {\n  store.f32 x[n], 1.0\n}\n")
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
        (TypeError, "0 arguments", lambda: kernel(1, grid=1)),
        (TypeError, "x is a buffer", lambda: copy([1.0], 1, grid=1)),
        (TypeError, "x is a buffer of float32", lambda: copy(whole, 1, grid=1)),
        (TypeError, "uint32", lambda: copy(x, 1.5, grid=1)),
        (TypeError, "copy_from", lambda: four.copy_from(3)),
        (ValueError, "3 bytes", lambda: four.from_bytes(b"123")),
        (TypeError, "shape", lambda: range(whole)),
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
    # A tensor without dimensions is a number.
    copy(x, hg.asarray(1), grid=1)
    assert x.tolist() == [1.0, 1.0, 1.0]


def calls():
    """Right calls, whose arguments a test then makes wrong, one at a time."""
    x, v, i, b = hg.ones((2, 2)), hg.ones(2), hg.asarray([0, 1]), hg.asarray([True, False])
    nn, optim, linalg, draw = hg.nn, hg.optim, hg.linalg, hg.random
    yield from ((f, (x,), {"axis": 0, "keepdims": True}) for f in (hg.sum, hg.prod, hg.mean, hg.max, hg.all, hg.argmin))
    yield from ((f, (x,), {"axis": 0, "correction": 1.0}) for f in (hg.var, hg.std))
    yield from ((f, (x,), {"axis": 0, "descending": True, "stable": True}) for f in (hg.sort, hg.argsort))
    yield from (
        (f, ((2,),), {"dtype": "int8", "device": "cpu"}) for f in (hg.zeros, hg.ones, draw.normal, draw.uniform)
    )
    yield from ((f, (x,), {}) for f in (hg.exp, hg.floor, hg.isnan, hg.negative, hg.unique_values, nn.relu, hg.nonzero))
    yield from ((f, (x,), {"axis": 0}) for f in (hg.flip, hg.unstack, hg.expand_dims, nn.softmax, nn.log_softmax))
    yield from [
        (hg.cumulative_sum, (x,), {"axis": 0, "dtype": "float32", "include_initial": True}),
        (hg.diff, (x,), {"axis": 0, "n": 1, "prepend": x, "append": x}),
        (hg.searchsorted, (v, v), {"sorter": i}),
        (hg.where, (b, v, v), {}),
        (hg.take, (x, i), {"axis": 0}),
        (hg.take_along_axis, (x, hg.asarray([[0, 1]])), {"axis": 0}),
        (hg.broadcast_to, (v, (2, 2)), {}),
        (hg.moveaxis, (x, 0, 1), {}),
        (hg.permute_dims, (x, (1, 0)), {}),
        (hg.repeat, (x, 2), {"axis": 0}),
        (hg.reshape, (x, (4,)), {"copy": True}),
        (hg.roll, (x, 1), {"axis": 0}),
        (hg.tile, (x, (2, 1)), {}),
        (hg.tensordot, (x, x), {"axes": 1}),
        (hg.clip, (x,), {}),
        (hg.arange, (0, 4, 1), {"dtype": "int8", "device": "cpu"}),
        (hg.linspace, (0.0, 1.0), {"num": 3, "dtype": "float32", "device": "cpu", "endpoint": True}),
        (hg.eye, (2, 3), {"k": 0, "dtype": "int8", "device": "cpu"}),
        (hg.full, ((2,), 1), {"dtype": "int8", "device": "cpu"}),
        (hg.tril, (x,), {"k": 0}),
        (hg.astype, (x, "int8"), {"copy": True, "device": "cpu"}),
        (linalg.diagonal, (x,), {"offset": 0}),
        (linalg.vector_norm, (x,), {"axis": 0, "keepdims": True, "ord": 2}),
        (linalg.matrix_rank, (x,), {"rtol": 0.1}),
        (linalg.matrix_power, (x, 2), {}),
        (linalg.svd, (x,), {"full_matrices": True}),
        (draw.randint, (0, 4), {"shape": (2,), "dtype": "int8", "device": "cpu"}),
        (draw.bernoulli, (0.5,), {"shape": (2,), "device": "cpu"}),
        (nn.attention, (x[None], x[None], x[None]), {"scale": 1.0, "causal": True}),
        (nn.cross_entropy, (x, i), {"reduction": "mean"}),
        (nn.Linear, (2, 3, True), {"device": "cpu"}),
        (nn.Conv2d, (1, 1, 3), {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True}),
        (nn.MultiHeadAttention, (4, 2), {"key_heads": 1, "causal": True}),
        (nn.LayerNorm, (2, 1e-5), {}),
        (nn.Dropout, (0.5,), {}),
        (optim.SGD, (0.1,), {"momentum": 0.1, "weight_decay": 0.1, "nesterov": True}),
        (optim.Adam, (0.1,), {"betas": (0.9, 0.9), "eps": 1e-8, "weight_decay": 0.1}),
        (hg.grad, (hg.sum,), {"argnums": 0}),
        (hg.set_default_device, ("cpu",), {}),
        (hg.Executor, ("cpu",), {}),
        (hg.isdtype, (hg.int8, "bool"), {}),
    ]


def test_messages_name_the_wrong_argument():
    for function, args, kwargs in calls():
        names = list(inspect.signature(function).parameters)
        if kwargs.get("dtype") != "int8" or function not in (hg.random.normal, hg.random.uniform):
            function(*args, **kwargs)
        for place in [*range(len(args)), *kwargs]:
            name = names[place] if isinstance(place, int) else place
            for wrong in (object(), {}, 1j, slice(None)):
                with_wrong = list(args), dict(kwargs)
                with_wrong[0 if isinstance(place, int) else 1][place] = wrong
                with pytest.raises(TypeError) as caught:
                    function(*with_wrong[0], **with_wrong[1])
                text = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
                native = function.__name__ in text or (function, name) == (hg.grad, "function")
                assert name in text or (native and name in ("x", "function")), (function, name, wrong, text)
    table = [
        (IndexError, "axis", lambda: hg.nn.softmax(hg.ones((2, 2)), axis=7)),
        (ValueError, "correction", lambda: hg.var(hg.ones(3), correction=math.nan)),
        (ValueError, "learning_rate", lambda: hg.optim.SGD(-1.0)),
        (ValueError, "betas", lambda: hg.optim.Adam(0.1, betas=(0.9, 2.0))),
        (ValueError, "stride", lambda: hg.nn.Conv2d(1, 1, 3, stride=0)),
        (ValueError, "padding", lambda: hg.nn.Conv2d(1, 1, 3, padding=-1)),
        (ValueError, "groups", lambda: hg.nn.Conv2d(3, 4, 3, groups=2)),
        (ValueError, "tokens", lambda: hg.nn.MultiHeadAttention(4, 2)(hg.ones((3, 4)))),
        (TypeError, "Linear: x", lambda: hg.nn.Linear(2, 2)([1.0, 2.0])),
        (TypeError, "softmax", lambda: hg.nn.softmax(hg.arange(3))),
        (IndexError, "axis", lambda: hg.nn.softmax(hg.asarray(1.0))),
        (ValueError, "eps", lambda: hg.nn.RMSNorm(3, eps=math.nan)),
        (ValueError, "limit", lambda: hg.optim.clip_grad_norm([hg.ones(2)], math.nan)),
        (ValueError, "argnums", lambda: hg.grad(hg.sum, argnums=())),
        (ValueError, "stop", lambda: hg.arange(0, math.inf)),
        (ValueError, "too many", lambda: hg.arange(0, 2**70)),
        (ValueError, "num", lambda: hg.linspace(0, 1, num=2**40)),
        (ValueError, "shape", lambda: hg.zeros(2**70)),
        (ValueError, "axes", lambda: hg.permute_dims(hg.ones((2, 2)), (0, 0))),
        (TypeError, "device", lambda: hg.synchronize(3)),
        (TypeError, "repeats", lambda: hg.repeat(hg.ones(2), 1.9)),
        (TypeError, "dtype", lambda: hg.zeros(2, dtype=hg.ones(2))),
        (TypeError, "bitwise_and", lambda: hg.bitwise_and(hg.ones(2), 1)),
        (TypeError, "nextafter.*float16", lambda: hg.nextafter(hg.ones(2, dtype="float16"), 2.0)),
        (TypeError, "nextafter.*bfloat16", lambda: hg.nextafter(hg.ones(2, dtype="bfloat16"), 2.0)),
    ]
    for error, text, call in table:
        with pytest.raises(error, match=text) as caught:
            call()
        assert caught.type is error, (text, caught.type)
    # A wrong size does not end the sequence of random numbers.
    hg.random.seed(3)
    with pytest.raises(ValueError):
        hg.random.normal((2**60, 2**60))
    assert hg.random.normal(3).shape == (3,)
    assert (hg.exp.__name__, pickle.loads(pickle.dumps(hg.exp)), hg.nextafter(hg.asarray(0), 1.0).dtype) == (
        "exp",
        hg.exp,
        hg.float32,
    )


def test_a_devices_error_belongs_to_its_tensors():
    x = hg.ones(3)
    # What is compiled leaves indices to the device.
    wrong = hg.compile(lambda x, i: hg.take_along_axis(x, i) * 2)(x, hg.asarray([7]))
    after = x + 1
    assert after.tolist() == [2.0, 2.0, 2.0]
    for read in (wrong.wait, wrong.tolist, (wrong + after[:1]).item, lambda: memoryview(wrong), wrong.wait):
        with pytest.raises(hg.DeviceError, match="index 7"):
            read()
    assert (after + x).tolist() == [3.0, 3.0, 3.0]
