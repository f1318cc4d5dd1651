"""Wrong calls found by Hypothesis: each is refused by an exception of the right class, and the process goes on."""

import math

import pytest

import hologram as hg

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, assume, example, given, settings, strategies as st  # noqa: E402

# 10 tests of 20 calls.
CALLS = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

sizes = st.lists(st.integers(0, 4), min_size=1, max_size=4)
floats = st.sampled_from([hg.float16, hg.bfloat16, hg.float32, hg.float64])
integers = st.sampled_from([hg.int8, hg.int16, hg.int32, hg.int64, hg.uint8, hg.uint16, hg.uint32, hg.uint64])
no_tensors = st.one_of(st.none(), st.text(), st.binary(), st.builds(object), st.complex_numbers(), st.just({}))
ARITHMETIC = [hg.add, hg.subtract, hg.multiply, hg.divide, hg.pow, hg.maximum, hg.atan2, hg.less, hg.equal]
OF_FLOATS = [hg.exp, hg.log, hg.sqrt, hg.sin, hg.tanh, hg.acosh, hg.expm1]
ALONG = [hg.sum, hg.max, hg.prod, hg.argmax, hg.cumulative_sum, hg.sort, hg.argsort, hg.flip, hg.all, hg.mean]


def fine():
    """The process still computes."""
    assert (hg.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]


def broadcast(a, b):
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1]))


@CALLS
@given(st.sampled_from(ARITHMETIC), sizes, sizes)
def test_shapes_that_do_not_broadcast(function, a, b):
    assume(not broadcast(a, b))
    with pytest.raises(ValueError, match="shape|broadcast"):
        function(hg.ones(a), hg.ones(b))
    fine()


@CALLS
@given(st.sampled_from(ARITHMETIC + OF_FLOATS), no_tensors, st.booleans())
def test_what_is_no_tensor(function, wrong, first):
    one = hg.ones(2)
    arguments = [wrong] if function in OF_FLOATS else [wrong, one] if first else [one, wrong]
    with pytest.raises(TypeError):
        function(*arguments)
    fine()


@CALLS
@given(st.sampled_from(ALONG), sizes, st.integers(-(2**70), 2**70))
@example(hg.sum, [2], 1)
@example(hg.sum, [2], -2)
def test_axes_that_are_not_there(function, shape, axis):
    assume(not -len(shape) <= axis < len(shape))
    with pytest.raises((IndexError, ValueError, OverflowError)):
        function(hg.ones(shape), axis=axis)
    fine()


@CALLS
@given(st.sampled_from([hg.bitwise_and, hg.bitwise_or, hg.bitwise_xor, hg.bitwise_left_shift]), floats, integers)
def test_bits_of_floats(function, a, b):
    with pytest.raises(TypeError):
        function(hg.ones(3, dtype=a), hg.ones(3, dtype=b))
    fine()


@CALLS
@given(sizes, st.lists(st.integers(-3, 9), max_size=4))
def test_reshaping_to_another_size(shape, to):
    known = math.prod(n for n in to if n != -1)
    fits = math.prod(shape) == known if -1 not in to else known > 0 and math.prod(shape) % known == 0
    assume(to.count(-1) > 1 or min(to, default=0) < -1 or not fits)
    with pytest.raises(ValueError):
        hg.reshape(hg.ones(shape), tuple(to))
    fine()


@CALLS
@given(sizes, st.integers(-(2**66), 2**66), st.integers(0, 5))
def test_indices_out_of_range(shape, index, extra):
    assume(not -shape[0] <= index < shape[0])
    x = hg.ones(shape)
    with pytest.raises(IndexError):
        x[index]
    with pytest.raises(IndexError):
        x[(0,) * (len(shape) + 1 + extra)]
    # As NumPy's.
    with pytest.raises(IndexError):
        x["a"]
    fine()


@CALLS
@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_products_of_matrices_that_do_not_fit(a, b, c, d):
    assume(b != c)
    with pytest.raises(ValueError):
        hg.matmul(hg.ones((a, b)), hg.ones((c, d)))
    with pytest.raises(ValueError):
        hg.linalg.solve(hg.ones((b, b)), hg.ones((c, d)))
    with pytest.raises(ValueError):
        hg.linalg.inv(hg.ones((b, c)))
    fine()


@CALLS
@given(integers, st.integers(-(2**80), 2**80), st.integers(1, 3))
def test_numbers_that_a_type_lacks(dtype, number, count):
    of = hg.iinfo(dtype)
    assume(not of.min <= number <= of.max)
    with pytest.raises(OverflowError):
        hg.asarray([number] * count, dtype=dtype)
    with pytest.raises(OverflowError):
        hg.full((count,), number, dtype=dtype)
    fine()


@CALLS
@given(st.lists(st.lists(st.floats(width=32), max_size=3), min_size=2, max_size=4))
def test_ragged_lists(rows):
    assume(len({len(row) for row in rows}) > 1)
    with pytest.raises(ValueError):
        hg.asarray(rows)
    fine()


@CALLS
@given(st.one_of(st.text(min_size=1), st.integers(), st.none()), st.text(min_size=1))
def test_types_and_devices_that_are_not_there(dtype, device):
    assume(dtype is not None and (not isinstance(dtype, str) or not hasattr(hg, dtype)))
    with pytest.raises((TypeError, ValueError)):
        hg.zeros(2, dtype=dtype)
    assume(device not in ("cpu", "reference", "auto") and not device.startswith(("cuda", "metal", "cpu")))
    with pytest.raises((ValueError, hg.DeviceError)):
        hg.zeros(2, device=device)
    fine()
