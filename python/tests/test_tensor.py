"""Tensors: making, attributes, operators, conversions, errors."""

import copy
import math
import operator
import os
import pickle
import subprocess
import sys
import threading

import pytest

import hologram as hg

ALL = [hg.bool, hg.int8, hg.int16, hg.int32, hg.int64, hg.uint8, hg.uint16, hg.uint32, hg.uint64]
ALL += [hg.float16, hg.bfloat16, hg.float32, hg.float64]


def test_lists_scalars_and_attributes():
    x = hg.asarray([[1, 2, 3], [4, 5, 6]])
    assert (x.shape, x.ndim, x.size, x.dtype, x.nbytes, x.device) == ((2, 3), 2, 6, hg.int64, 48, "cpu")
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert hg.asarray([1, 2.5]).dtype == hg.float32 and hg.asarray(True).dtype == hg.bool
    assert hg.asarray(2**63).dtype == hg.uint64 and hg.asarray([]).shape == (0,)
    assert float(hg.asarray(2.5)) == 2.5 and int(hg.asarray(7)) == 7 and bool(hg.asarray(0)) is False
    assert "shape=(2, 3), dtype=int64" in repr(x) and str(hg.asarray([1.5])) == "[1.5]"
    for dtype in ALL:
        y = hg.asarray([0, 1], dtype=dtype)
        assert y.dtype == dtype and y.tolist() == [0, 1] and y.tobytes() == hg.asarray(y).tobytes()


def test_operators_promote_as_the_standard_says():
    x, f = hg.asarray([7, -7], dtype=hg.int32), hg.asarray([1.0, 2.0])
    table = [
        (x + 1, [8, -6], hg.int32),
        (1 - x, [-6, 8], hg.int32),
        (x // 2, [3, -4], hg.int32),
        (x % 3, [1, 2], hg.int32),
        (x**2, [49, 49], hg.int32),
        (x / 2, [3.5, -3.5], hg.float32),
        (f * 2, [2.0, 4.0], hg.float32),
        (x < 0, [False, True], hg.bool),
        (x & 3, [3, 1], hg.int32),
        (~x, [-8, 6], hg.int32),
        (x << 1, [14, -14], hg.int32),
        (-x, [-7, 7], hg.int32),
        (abs(x), [7, 7], hg.int32),
        (x + hg.asarray([1, 1], dtype=hg.uint8), [8, -6], hg.int32),
        (hg.asarray([1], dtype=hg.int8) + hg.asarray([1], dtype=hg.uint16), [2], hg.int32),
        (hg.asarray([1.0], dtype=hg.float16) + hg.asarray([1.0], dtype=hg.bfloat16), [2.0], hg.float32),
    ]
    for result, want, dtype in table:
        assert result.tolist() == want and result.dtype == dtype, (result, want)
    a = hg.reshape(hg.arange(6.0), (2, 3))
    assert (a @ a.mT).tolist() == [[5.0, 14.0], [14.0, 50.0]]
    view = x[:1]
    x += 1
    assert x.tolist() == [8, -6] and view.tolist() == [7]


def test_wrong_calls_raise_the_right_class():
    x = hg.asarray([1, 2, 3])
    for error, call in [
        (TypeError, lambda: hg.asarray(1j)),
        (TypeError, lambda: hg.asarray("text")),
        (TypeError, lambda: x + "1"),
        (TypeError, lambda: x + hg.asarray([1], dtype=hg.uint64)),
        (TypeError, lambda: hg.asarray([1.0]) & 1),
        (TypeError, lambda: hg.DType("float31")),
        (TypeError, lambda: hg.zeros(2, dtype=object())),
        (TypeError, lambda: x.__index__() if False else hg.asarray([1.5])[0].__index__()),
        (ValueError, lambda: hg.asarray([[1], [1, 2]])),
        (ValueError, lambda: x + hg.asarray([1, 2])),
        (ValueError, lambda: hg.reshape(x, (2, 2))),
        (ValueError, lambda: int(x)),
        (ValueError, lambda: hg.zeros(2**33)),
        (OverflowError, lambda: hg.asarray([300], dtype=hg.uint8)),
        (OverflowError, lambda: hg.asarray([1], dtype=hg.int8) + 1000),
        (IndexError, lambda: x[3]),
        (IndexError, lambda: x[0, 0]),
        (IndexError, lambda: x[hg.asarray([5])]),
        (IndexError, lambda: hg.sum(x, axis=1)),
        (hg.DeviceError, lambda: hg.zeros(1, device="cuda:63")),
        (FileNotFoundError, lambda: hg.load("/nowhere.npy")),
    ]:
        with pytest.raises(error):
            call()


def test_equality_of_types_and_devices_never_raises():
    for other in [None, 1, "float32", object(), float, [], hg.int8]:
        assert (hg.float32 == other) is False and (hg.float32 != other) is True
    assert hg.float32 == hg.DType("float32") and hash(hg.float32) == hash(hg.DType("f32"))
    device = hg.Device("cpu")
    assert device == "cpu" and device != "cuda" and device != 1 and device != None  # noqa: E711


def test_indexing_matches_numpy():
    np = pytest.importorskip("numpy")
    n = np.arange(60).reshape(3, 4, 5)
    x = hg.asarray(n)
    keys = [
        0, -1, (0, 1, 2), slice(1, None), (slice(None), slice(None, None, 2)), (..., -1), (None, 0), (slice(None, None, -1), ...),
        (slice(2, 0, -1), slice(None), slice(None, None, -2)), slice(5, 9), (..., None), (0, ..., 1),
        [0, 2, -1], ([0, 1], [1, 2]), (slice(None), [3, 0]), ([2, 0], slice(None), [1, 4]), (1, slice(None), [0, 0]),
        n > 30, (slice(None), np.array([True, False, True, False])), n[..., 0] > 20, True, (0, False), np.int64(1),
        (np.array([[0, 1], [2, 0]]), slice(1, 3)),
    ]  # fmt: skip
    for key in keys:
        want = n[key]
        got = x[tuple(key)] if isinstance(key, tuple) else x[key]
        assert got.shape == want.shape and got.tolist() == want.tolist(), key
    for key, value in [
        (0, 7),
        (slice(None, None, -2), 1),
        ((..., 1), n[..., 0]),
        (n % 2 == 0, -1),
        ([0, 0, 2], 5),
        ((), 3),
        ((0, 0, 0), 9),
    ]:
        m, y = n.copy(), hg.asarray(n)
        before = y[...]
        m[key] = value
        y[key] = hg.asarray(value) if isinstance(value, np.ndarray) else value
        assert y.tolist() == m.tolist() and before.tolist() == n.tolist(), key


def test_reductions_as_numpy_calls_them():
    np = pytest.importorskip("numpy")
    x = hg.asarray([[0.0, 1.0, 2.0], [3.0, 4.0, 8.0]], device="cpu")
    for name, options in [
        ("sum", {}),
        ("sum", {"axis": 1, "dtype": hg.float64}),
        ("prod", {"axis": 0, "keepdims": True}),
        ("max", {"axis": (0, 1)}),
        ("min", {"axis": -1}),
        ("mean", {"axis": 1, "keepdims": True}),
        ("std", {"axis": 1, "ddof": 1}),
        ("var", {}),
        ("any", {"axis": 1}),
        ("all", {"axis": 0}),
    ]:
        result = getattr(np, name)(x, **options)
        of_numpy = {key: np.float64 if key == "dtype" else option for key, option in options.items()}
        assert isinstance(result, hg.Tensor) and result.dtype == options.get("dtype", result.dtype), name
        np.testing.assert_allclose(np.asarray(result), getattr(np, name)(np.asarray(x), **of_numpy), rtol=1e-6)
    assert x.sum(0).tolist() == [3, 5, 10] and x.max((0, 1), keepdims=True).shape == (1, 1)
    with pytest.raises(TypeError, match="memory of their own"):
        np.sum(x, out=np.zeros(()))


def test_numpy_both_ways():
    np = pytest.importorskip("numpy")
    for dtype in ALL:
        if dtype == hg.bfloat16:
            continue
        n = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype.name)
        for source in (n, n.T, n[:, ::-1], np.asfortranarray(n), n[:0], n[0, 0]):
            x = hg.asarray(source)
            assert x.dtype == dtype and x.shape == source.shape and x.tolist() == source.tolist()
            back = np.asarray(x)
            assert back.dtype == source.dtype and back.tolist() == source.tolist()
        assert memoryview(hg.asarray(n)).tobytes() == n.tobytes() and memoryview(hg.asarray(n)).shape == n.shape
    shared = np.asarray(hg.arange(4, device="cpu"))
    assert not shared.flags.writeable and np.array(hg.arange(4, device="cpu")).flags.writeable
    ml_dtypes = pytest.importorskip("ml_dtypes")
    b = np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16)
    assert hg.asarray(b).dtype == hg.bfloat16 and np.asarray(hg.asarray(b)).dtype == ml_dtypes.bfloat16
    assert np.asarray(hg.asarray(b)).tolist() == [1.5, -2.0]
    assert hg.asarray(np.array([[1.5, -2.0]] * 3, dtype=ml_dtypes.bfloat16)[::-2].T).tolist() == [[1.5] * 2, [-2.0] * 2]


def test_large_arrays_are_copied_whole():
    # More than one piece of 32 MiB, and lines that cross from one to the next.
    np = pytest.importorskip("numpy")
    n = np.arange(3 * 7_000_003, dtype=np.int32).reshape(3, 7_000_003)
    for source in (n, n[:, ::-1], n[:, 1::2], n.T):
        x = np.asarray(hg.asarray(source).to_device("cpu"))
        assert x.shape == source.shape and (x == source).all()
        assert (np.asarray(pickle.loads(pickle.dumps(hg.asarray(source[:2]))).to_device("cpu")) == source[:2]).all()
    assert (np.asarray(hg.asarray(n[0].tolist(), dtype=hg.int32).to_device("cpu")) == n[0]).all()
    backwards = hg.from_dlpack(n[::-1], copy=True)
    assert (np.asarray(backwards) == n[::-1]).all()


def test_pickles_and_copies():
    for dtype in ALL:
        x = hg.asarray([[1, 0]], dtype=dtype)
        for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x.mT.mT)):
            assert y.dtype == dtype and y.tolist() == x.tolist() and y is not x
    assert pickle.loads(pickle.dumps((hg.float32, hg.Device("cpu")))) == (hg.float32, hg.Device("cpu"))


def test_nan_and_rounding():
    x = hg.asarray([math.nan, 1.0])
    assert math.isnan(hg.max(x)) and math.isnan(hg.maximum(x, 2.0)[0]) and math.isnan(hg.clip(x, 0.0, 1.0)[0])
    assert hg.floor_divide(hg.asarray([-7.0]), 2.0).tolist() == [-4.0]
    # A finite number by an infinite one: 0 with the quotient's sign, as the standard asks.
    for dtype in (hg.float32, hg.float64):
        numbers = hg.asarray([3.0, -3.0, 3.0, -3.0], dtype=dtype)
        by_infinity = numbers // hg.asarray([math.inf, math.inf, -math.inf, -math.inf], dtype=dtype)
        assert by_infinity.tolist() == [0.0] * 4
        assert hg.signbit(by_infinity).tolist() == [False, True, True, False]
    assert hg.asarray([2**62 + 1]).tolist() == [2**62 + 1]


def run(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def test_the_import_opens_no_device_and_needs_no_numpy():
    code = """
import sys, threading
import hologram as hg
assert threading.active_count() == 1 and "numpy" not in sys.modules
try:
    tasks = len(__import__("os").listdir("/proc/self/task"))
except OSError:
    tasks = 1
assert tasks == 1, tasks
hg.devices()
assert hg.asarray([1.0], device="cpu").tolist() == [1.0] and "numpy" not in sys.modules
"""
    done = run(code)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_a_fork_is_said_aloud():
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    code = """
import os, sys
import hologram as hg
x = hg.ones(3, device="cpu")
child = os.fork()
if child == 0:
    try:
        x + 1
    except RuntimeError as e:
        fine = "spawn" in str(e) and hg.ones(2, device="cpu").tolist() == [1.0, 1.0]
        os._exit(0 if fine else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert (x + 1).tolist() == [2.0, 2.0, 2.0]
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_threads_share_a_device():
    from concurrent.futures import ThreadPoolExecutor

    x = hg.arange(1000.0)

    def work(i):
        return sum(float(hg.sum(x * i + j)) for j in range(50))

    serial = [work(i) for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == serial


@pytest.mark.parametrize("dtype", [hg.float16, hg.bfloat16, hg.float32, hg.float64])
def test_the_first_nan_is_the_extreme(dtype):
    nan, inf = math.nan, math.inf
    lines = [[-inf, nan], [inf, nan], [1.0, -inf, nan, 2.0], [1.0, inf, nan, nan], [nan, 2.0, -inf], [nan] * 3]
    for line in [*lines, [inf, -inf]]:
        first = next((i for i, v in enumerate(line) if math.isnan(v)), None)
        for long in (line, line + [0.0] * 5000):
            row = hg.asarray(long, dtype=dtype)
            columns = hg.stack([row] * 3, axis=1)
            for function, extreme in ((hg.argmin, min), (hg.argmax, max)):
                want = first if first is not None else long.index(extreme(long))
                assert function(row).item() == want, (function, line)
                assert function(columns, axis=0).tolist() == [want] * 3, (function, line)
            if first is not None:
                assert math.isnan(hg.min(row).item()) and math.isnan(hg.max(row).item())


def test_ranges_that_a_type_lacks():
    for arguments in [(300,), (-1, 3), (0, 300, 299), (3, -2, -1)]:
        with pytest.raises(OverflowError, match="uint8"):
            hg.arange(*arguments, dtype=hg.uint8)
    assert hg.arange(256, dtype=hg.uint8)[-1].item() == 255
    assert hg.arange(127, -129, -1, dtype=hg.int8)[-1].item() == -128


def test_threads_that_write_to_one_tensor():
    x = hg.zeros(200)

    def write(start):
        for i in range(start, 200, 8):
            x[i] = float(i)

    threads = [threading.Thread(target=write, args=(start,)) for start in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert x.tolist() == [float(i) for i in range(200)]


def test_numpy_numbers_are_numbers():
    np = pytest.importorskip("numpy")
    for dtype in (hg.float16, hg.float32, hg.int16):
        x = hg.asarray([1, 2], dtype=dtype)
        for number in (np.float32(1.5), np.float64(1.5), np.int8(3), np.uint64(3), np.bool_(True), np.array(2)):
            for operate in (operator.add, operator.mul, operator.truediv, operator.lt, operator.eq, operator.pow):
                for a, b in ((x, number), (number, x)):
                    plain = [one.item() if one is number else one for one in (a, b)]
                    # Arrays keep their operators.
                    if isinstance(a, np.ndarray):
                        continue
                    found, want = operate(a, b), operate(*plain)
                    assert isinstance(found, hg.Tensor), (a, b, operate)
                    assert (found.dtype, found.tolist()) == (want.dtype, want.tolist()), (a, b, operate)
    assert isinstance(hg.ones(2) + np.ones(2), np.ndarray)
    assert hg.grad(lambda x: x * np.float32(3) + np.float64(2) * x)(hg.asarray(1.0)).item() == 5.0


def test_formats_and_ranges():
    assert f"{hg.asarray(1.25):.1f} {hg.asarray(7):03d} {hg.asarray(True)}" == "1.2 007 true"
    assert f"{hg.arange(2)}" == str(hg.arange(2))
    with pytest.raises(TypeError, match="'.2f'"):
        f"{hg.ones(2):.2f}"
    assert bytes(hg.asarray([1, 2], dtype="uint8")) == b"\1\2" and hg.arange(4)[: 2**70 : 2**66].tolist() == [0]
    assert hg.clip(hg.arange(5), 1.5, 3.5).tolist() == [1.5, 1.5, 2.0, 3.0, 3.5]
    assert hg.clip(hg.arange(5, dtype="int8"), -1000, hg.asarray(3)).dtype == hg.int8
    with pytest.raises(OverflowError):
        hg.ones(1) * 10**400
    assert hg.asarray(range(2, 7, 2)).tolist() == [2, 4, 6]
    assert hg.asarray(range(0)).shape == (0,) and hg.asarray(range(0)).dtype == hg.int64
    with pytest.raises(OverflowError):
        hg.asarray(range(300), dtype=hg.int8)
    assert "a" not in hg.ones(3)
    with pytest.raises(TypeError, match="arange: dtype"):
        hg.arange(2, dtype="bool")
    with pytest.raises(ValueError, match="matmul takes"):
        hg.asarray(1.0) @ hg.ones(2)
