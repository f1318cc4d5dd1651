"""Compiled functions give what the function gives, in fewer launches."""

import pickle
import types

import pytest

import hologram as hg
from hologram import _native


def model(x, w, bias, *, slope=0.5):
    h = x @ w + bias
    h = hg.where(h > 0, h, slope * h)
    mean = hg.mean(h, axis=-1, keepdims=True)
    spread = hg.std(h, axis=(0, 1))
    parts = hg.concat([h[:, :2], hg.flip(h, axis=1)[:, :1] if False else h[:, 2:3]], axis=1)
    counts = hg.sum(hg.astype(h > mean, hg.uint8), axis=0)
    return {
        "h": h - mean,
        "all": [spread, parts, counts],
        "any": hg.any(h > 1e9),
        "n": 3,
        "x": +x,
        "i": hg.argmax(h, axis=1),
    }


def close(a, b):
    if isinstance(a, hg.Tensor):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert float(hg.max(abs(hg.astype(a, hg.float64) - hg.astype(b, hg.float64)))) < 1e-5
    elif isinstance(a, dict):
        assert a.keys() == b.keys() and all(close(a[k], b[k]) is None for k in a)
    elif isinstance(a, list):
        [close(p, q) for p, q in zip(a, b, strict=True)]
    else:
        assert a == b


def test_results_are_the_functions():
    compiled = hg.compile(model)
    hg.random.seed(3)
    for rows in (4, 5):
        for slope in (0.5, 0.0):
            for _ in range(3):
                arguments = [hg.random.normal((rows, 6)), hg.random.normal((6, 5)), hg.random.normal((5,))]
                close(compiled(*arguments, slope=slope), model(*arguments, slope=slope))


def test_a_chain_is_one_launch_and_runs_once():
    calls = []

    def chain(x):
        calls.append(1)
        for _ in range(8):
            x = x * 1.5 + 0.25
        return x

    compiled = hg.compile(chain)
    x = hg.arange(16.0)
    want = chain(x).tolist()
    calls.clear()
    assert [compiled(x).tolist() for _ in range(5)] == [want] * 5 and len(calls) == 1
    own = [hg.reshape(x, (16,))]
    _native.begin_recording(own)
    try:
        graph = _native.end_recording(own[0], [chain(own[0])])
    finally:
        _native.cancel_recording()
    graph.call(own)
    assert graph.launches(own) == 1


def test_what_cannot_be_compiled_says_so():
    x = hg.asarray([1.0, -2.0])
    for function in [
        lambda x: x if x[0] > 0 else -x,
        lambda x: x * x.tolist()[0],
        lambda x: x[x > 0],
        lambda x: hg.unique_values(x),
    ]:
        compiled = hg.compile(function)
        for _ in range(2):
            with pytest.raises(ValueError, match="compile"):
                compiled(x)
    assert (x + 1).tolist() == [2.0, -1.0]


def test_writes_by_index_and_outside_tensors():
    weights = hg.asarray([10.0, 20.0, 30.0])

    @hg.compile
    def changed(x):
        x[1:] = weights[1:]
        x += 1
        return x * weights

    for first in (1.0, 2.0):
        x = hg.asarray([first, 0.0, 0.0])
        assert changed(x).tolist() == [(first + 1) * 10, 21.0 * 20, 31.0 * 30]
        assert x.tolist() == [first, 0.0, 0.0]


def readers(folder):
    """Everything that tells a tensor's elements."""
    np = pytest.importorskip("numpy")
    readers = {
        "item": lambda x: x[0].item(),
        "tolist": lambda x: x.tolist(),
        "tobytes": lambda x: x.tobytes(),
        "bool": lambda x: bool(x[0]),
        "int": lambda x: int(x[0]),
        "float": lambda x: float(x[0]),
        "complex": lambda x: complex(x[0]),
        "contains": lambda x: 1.0 in x,
        "repr": repr,
        "str": str,
        "format": lambda x: f"{x}",
        "asarray": np.asarray,
        "array": np.array,
        "__array__": lambda x: x.__array__(copy=False),
        "numpy": lambda x: x.numpy(),
        "memoryview": memoryview,
        "bytes": bytes,
        "from_dlpack": np.from_dlpack,
        "own from_dlpack": hg.from_dlpack,
        "dlpack copy": lambda x: np.from_dlpack(x, copy=True),
        "data_ptr": lambda x: x.data_ptr,
        "npy": lambda x: hg.save(folder / "x.npy", x),
        "safetensors": lambda x: hg.save(folder / "x.safetensors", {"x": x}),
        "pickle": pickle.dumps,
        "svd": lambda x: hg.linalg.svdvals(hg.reshape(x, (1, -1))),
        "full": lambda x: hg.full(2, x[0]),
        "from_objects": lambda x: hg.asarray([x[0], x[1]]),
        "unique": hg.unique_values,
        "nonzero": hg.nonzero,
        "kernel": lambda x: DOUBLED(x, hg.zeros(2), 2, grid=1),
        "sampler": lambda x: _native.Sampler({"temperature": 0.0}).sample(x, [], 0),
        "function": lambda x: RECORDED(x),
    }
    buffer = hg.Executor(backend="cpu").allocate(2)
    for name, read in {"to_list": buffer.to_list, "to_bytes": buffer.to_bytes, "to_numpy": buffer.to_numpy}.items():
        readers[f"buffer's {name}"] = lambda x, read=read: (buffer.copy_from(types.SimpleNamespace(tensor=x)), read())
    return readers


DOUBLED = hg.kernel("""
kernel doubled(x: buffer<f32>, y: buffer<f32, write>, n: u32) workgroup(64) {
  %i = global.x
  %inside = lt.u32 %i, n
  if %inside {
    %v = load.f32 x[%i]
    %v2 = add.f32 %v, %v
    store.f32 y[%i], %v2
  }
}
""")


def RECORDED(x):
    """The native form of a compiled function, without what Python does around it."""
    graph = _native.Graph("cpu")
    value = graph.argument("float32", [2])
    return graph.finish([graph.elementwise("neg", [value])]).call_tensors([x])


def test_no_reader_of_elements_is_baked_in(tmp_path, cpu):
    x = hg.asarray([1.0, 2.0])
    for name, read in readers(tmp_path).items():
        # Outside, and of what does not depend on the arguments, it works.
        read(hg.asarray([1.0, 2.0]))

        def function(x, read=read):
            read(x * 2)
            return x + 1

        compiled = hg.compile(function)
        for _ in range(2):
            with pytest.raises(ValueError, match="compile"):
                compiled(x)
        with pytest.raises(ValueError, match="compile|grad"):
            hg.grad(lambda x, read=read: hg.sum(function(x, read)))(x)
        assert compiled is not None and (x + 1).tolist() == [2.0, 3.0], name


def test_a_kernel_says_that_it_cannot_be_compiled():
    @hg.compile
    def function(x):
        y = hg.zeros(2)
        DOUBLED(x, y, 2, grid=1)
        return y + x

    with pytest.raises(ValueError, match="doubled"):
        function(hg.ones(2))


def test_slices_with_steps_and_products_are_compiled():
    x = hg.asarray([[1.0, 2.0, 3.0, 4.0, 5.0], [0.5, -1.0, 2.0, 4.0, -2.0]])
    functions = {
        "step": lambda x: x[:, ::2],
        "negative": lambda x: x[:, 3:0:-2],
        "none": lambda x: x[:, 1:1:-1],
        "one": lambda x: x[::-5],
        "flip": lambda x: hg.flip(x),
        "flip of an axis": lambda x: hg.flip(x, axis=1),
        "products": lambda x: hg.cumulative_prod(x, axis=1),
    }
    for name, function in functions.items():
        compiled = hg.compile(function)
        for _ in range(2):
            assert compiled(x).tolist() == function(x).tolist(), name
            assert compiled(x + 1).tolist() == function(x + 1).tolist(), name

        def loss(x, function=function):
            return hg.sum(function(x) ** 2)

        found, least = hg.grad(loss)(x), 1e-2
        for i in (0, 1):
            for j in range(5):
                up, down = x.copy(), x.copy()
                up[i, j] = up[i, j] + least
                down[i, j] = down[i, j] - least
                want = (loss(up) - loss(down)).item() / (2 * least)
                assert found[i, j].item() == pytest.approx(want, rel=2e-2, abs=2e-2), (name, i, j)
        assert hg.compile(hg.grad(loss))(x).tolist() == found.tolist()


def test_products_of_integers_and_vectors_are_compiled():
    whole = hg.reshape(hg.arange(12), (3, 4)) - 5
    for dtype in ("int8", "uint8", "int64", "uint64", "float64"):
        m = hg.astype(whole, dtype)
        table = [
            (m, m.mT),
            (m, m[0]),
            (m[:, 1], m),
            (m[0], m[1]),
            (hg.broadcast_to(m, (2, 3, 4)), m.mT),
            (hg.broadcast_to(m, (2, 3, 4)), m[0]),
            (m[:, 1], hg.broadcast_to(m, (2, 3, 4))),
            (m[:0], m.mT),
            (m[:, :0], m.mT[:0]),
        ]
        for a, b in table:
            want, found = hg.matmul(a, b), hg.compile(hg.matmul)(a, b)
            assert (found.dtype, found.shape, found.tolist()) == (want.dtype, want.shape, want.tolist())


def test_compiled_functions_inside_compiled_ones():
    inner = hg.compile(lambda x: x * x)
    assert inner(hg.asarray([1.0, 2.0])).tolist() == [1.0, 4.0]
    outer = hg.compile(lambda x, y: inner(x) + inner(y))
    for first in (1.0, 5.0):
        x = hg.asarray([first, 2.0])
        assert outer(x, x + 1).tolist() == [first**2 + (first + 1) ** 2, 13.0]
        assert hg.grad(lambda x: hg.sum(inner(x)))(x).tolist() == [2 * first, 4.0]
        assert hg.compile(hg.grad(lambda x: hg.sum(inner(x))))(x).tolist() == [2 * first, 4.0]


def test_random_numbers_are_new_in_each_call():
    from hologram import nn

    dropout = nn.Dropout(0.5)

    def function(x):
        h = dropout(x) + hg.random.uniform((64,)) + hg.astype(hg.random.randint(0, 9, (64,)), hg.float32)
        return h, hg.random.normal((3,))

    def loss(x):
        return hg.sum(dropout(x) * x)

    for one in (function, hg.grad(loss), hg.value_and_grad(loss)):
        compiled = hg.compile(one)
        results = []
        for run in (one, compiled):
            hg.random.seed(11)
            flat = []
            for _ in range(3):
                out = run(hg.ones(64))
                flat.append([p.tolist() for p in (out if isinstance(out, tuple) else (out,))])
            results.append(flat)
        # As without compiling, and different in each call.
        assert results[0] == results[1] and results[1][0] != results[1][1] != results[1][2]


def test_what_is_no_function():
    for wrong in (3, None, "x", hg.ones(2)):
        with pytest.raises(TypeError, match="function"):
            hg.compile(wrong)


def test_arguments_that_are_no_values_are_refused() -> None:
    class Holder:
        def __init__(self):
            self.w = hg.ones(1)

    for argument in [Holder(), hg.nn.Linear(2, 2)]:
        with pytest.raises(TypeError, match="later calls would not see"):
            hg.compile(lambda x, h: x * 1)(hg.ones(1), argument)
    with pytest.raises(TypeError, match="neither a tensor nor hashable"):
        hg.compile(lambda x, h: x * 1)(hg.ones(1), bytearray(b"a"))
    divide = hg.compile(lambda x, s: x / s)
    assert [divide(hg.ones(1), s).item() for s in (0.0, -0.0, 0.0)] == [float("inf"), -float("inf"), float("inf")]
    cast = hg.compile(lambda x, dtype, function: function(x.astype(dtype)))
    assert cast(hg.ones(1), hg.int32, hg.negative).tolist() == [-1]
