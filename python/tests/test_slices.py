"""Slices as NumPy has them, all of small dimensions."""

import itertools

import pytest

import hologram as hg

np = pytest.importorskip("numpy")

BOUNDS = [None, *range(-7, 8)]
STEPS = [None, 1, 2, 3, -1, -2, -3]


@pytest.mark.parametrize("n", range(6))
def test_every_slice_of_a_small_dimension(n):
    array = np.arange(n, dtype="int32")
    x = hg.asarray(array)
    for start, stop, step in itertools.product(BOUNDS, BOUNDS, STEPS):
        key = slice(start, stop, step)
        want = array[key].tolist()
        assert x[key].tolist() == want, (n, key)
        written, own = array.copy(), x.copy()
        written[key] = 9
        own[key] = 9
        assert own.tolist() == written.tolist(), (n, key)


@pytest.mark.parametrize("step", STEPS)
def test_slices_of_several_dimensions(step):
    array = np.arange(24, dtype="float32").reshape(2, 4, 3)
    x = hg.asarray(array)
    for start, stop in itertools.product([None, -9, -2, 0, 3, 9], repeat=2):
        for key in [(slice(None), slice(start, stop, step)), (slice(None, None, -1), slice(start, stop, step), 1)]:
            assert x[key].tolist() == array[key].tolist(), key
            values = np.arange(array[key].size, dtype="float32").reshape(array[key].shape)
            written, own = array.copy(), x.copy()
            written[key] = values
            own[key] = hg.asarray(values)
            assert own.tolist() == written.tolist(), key
