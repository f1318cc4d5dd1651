"""DLPack and the buffer protocol: the same memory on both sides, kept alive as long as either side needs it."""

import ctypes
import gc
import threading

import pytest

import hologram as hg

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("cpu")

NAMES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("name", NAMES)
def test_numpy_shares_a_tensors_memory(name):
    base = hg.astype(hg.reshape(hg.arange(24), (2, 3, 4)), name)
    for x in (base, base.mT, base[1:], base[..., 1:3], base[1, 2, 3], base[:0], hg.broadcast_to(base[0, 0], (2, 4))):
        n = np.from_dlpack(x)
        assert n.dtype == name and n.shape == x.shape and n.tolist() == x.tolist()
        if x.size:
            assert address(n) == x.data_ptr
        assert np.asarray(x).tolist() == x.tolist()
        if x.size and x.is_contiguous:
            assert address(np.asarray(x)) == x.data_ptr


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_shares_numpys_memory(name):
    base = np.arange(24).reshape(2, 3, 4).astype(name)
    odd = np.arange(25).astype(name)[1:]
    for n in (
        base,
        base.transpose(2, 0, 1),
        base[:, 1:],
        base[..., ::2],
        odd,
        base[1, 1, 1:2],
        base[0, 0, 0, ...],
        np.broadcast_to(base[0], (2, 3, 4)),
    ):
        x = hg.from_dlpack(n)
        assert x.dtype.name == name and x.shape == n.shape and x.tolist() == n.tolist()
        assert x.data_ptr == address(n)
        assert hg.sum(hg.astype(x, hg.int64)).item() == int(n.astype("int64").sum())
    for n in (base[:, ::-1], base[:0]):
        assert hg.from_dlpack(n).tolist() == n.tolist()
    with pytest.raises((BufferError, ValueError)):
        hg.from_dlpack(base[::-1], copy=False)
    assert hg.from_dlpack(base, copy=True).data_ptr != address(base)
    assert hg.asarray(base, copy=False).data_ptr == address(base)
    unaligned = np.frombuffer(b"\0" * 33, dtype="uint8")[1:].view("float32")
    assert hg.from_dlpack(unaligned).tolist() == [0.0] * 8


def test_versions_flags_and_arguments():
    x = hg.arange(4.0)
    assert x.__dlpack_device__() == (1, 0)
    named = ctypes.pythonapi.PyCapsule_GetName
    named.restype, named.argtypes = ctypes.c_char_p, [ctypes.py_object]
    assert named(x.__dlpack__()) == b"dltensor"
    assert named(x.__dlpack__(max_version=(0, 8))) == b"dltensor"
    assert named(x.__dlpack__(max_version=(1, 0))) == b"dltensor_versioned"
    assert np.from_dlpack(x).flags.writeable
    assert address(np.from_dlpack(x, copy=True)) != x.data_ptr
    frozen = np.arange(4.0)
    frozen.flags.writeable = False
    assert hg.from_dlpack(frozen).tolist() == frozen.tolist()
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError):
        x.__dlpack__(stream=5)

    class Once:
        capsule = x.__dlpack__()

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    once = Once()
    assert hg.from_dlpack(once).data_ptr == x.data_ptr
    with pytest.raises(BufferError):
        hg.from_dlpack(once)
    for wrong in (object(), 1, [1.0]):
        with pytest.raises(TypeError):
            hg.from_dlpack(wrong)
    with pytest.raises(BufferError):
        hg.from_dlpack(np.zeros(2, dtype="complex64"))


def test_kernels_write_where_they_may():
    double = hg.kernel(
        "kernel double(x: buffer<f32, readwrite>, n: u32) workgroup(64) {\n"
        "  %i = global.x\n  %inside = lt.u32 %i, n\n  if %inside {\n"
        "    %v = load.f32 x[%i]\n    %w = add.f32 %v, %v\n    store.f32 x[%i], %w\n  }\n}"
    )
    n = np.arange(64, dtype="float32")
    double(hg.from_dlpack(n), 64, grid=1)
    assert n.tolist() == [2.0 * i for i in range(64)]
    n.flags.writeable = False
    with pytest.raises(ValueError):
        double(hg.from_dlpack(n), 64, grid=1)


def test_each_side_keeps_the_memory():
    n = np.from_dlpack(hg.arange(1000.0))
    gc.collect()
    filler = [hg.ones(1000) for _ in range(20)]
    assert n.tolist() == [float(i) for i in range(1000)] and filler
    source = np.arange(1000.0)
    x = hg.from_dlpack(source)
    view = x[10:20]
    del source, x
    gc.collect()
    assert view.tolist() == [float(i) for i in range(10, 20)]
    # The last use ends on another thread.
    held = [hg.from_dlpack(np.arange(10.0))]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


def test_rounds_do_not_grow():
    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    def rounds(count):
        for _ in range(count):
            x = hg.from_dlpack(np.ones(4096, dtype="float32"))
            y = np.from_dlpack(x + x)
            assert y[0] == 2.0
            x.__dlpack__()
            x.__dlpack__(max_version=(1, 1))
            memoryview(x)

    try:
        resident()
    except OSError:
        pytest.skip("needs /proc")
    rounds(300)
    before = resident()
    rounds(3000)
    assert resident() - before < 5_000_000


@pytest.mark.skipif(not hasattr(memoryview, "__buffer__"), reason="needs Python 3.12")
def test_buffers_with_any_flags():
    x = hg.reshape(hg.arange(24), (2, 3, 4))
    for tensor in (x, x[0, 0, 0], x.mT, x[:0]):
        for flags in range(1024):
            try:
                view = tensor.__buffer__(flags)
            except BufferError:
                continue
            assert view.nbytes == tensor.nbytes
            if view.c_contiguous:
                assert bytes(view) == tensor.tobytes()


def test_read_only_memory_stays_read_only():
    base = np.arange(3.0)
    base.flags.writeable = False
    x = hg.from_dlpack(base)
    row = hg.arange(3.0)
    for read_only in (x, x[1:], hg.broadcast_to(row, (2, 3)), hg.broadcast_to(row[0], (4,))):
        back = np.from_dlpack(read_only)
        assert not back.flags.writeable and address(back) == read_only.data_ptr
        # The older form cannot say so, as in NumPy.
        with pytest.raises(BufferError, match="read-only"):
            read_only.__dlpack__()
        for copied in (read_only.__dlpack__(copy=True), np.from_dlpack(read_only, copy=True)):
            assert copied is not None
        changed = np.from_dlpack(read_only, copy=True)
        assert changed.flags.writeable
        changed[...] = 42.0
        assert 42.0 not in hg.reshape(read_only, (-1,))
    for writable in (row, row[1:], hg.broadcast_to(row, (1, 3)), x + 0):
        assert np.from_dlpack(writable).flags.writeable
    assert base.tolist() == [0.0, 1.0, 2.0]
