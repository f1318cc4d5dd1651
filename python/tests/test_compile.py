"""Compiled functions give what the function gives, in fewer launches."""

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
