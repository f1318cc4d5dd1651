"""What a long-lived or a large process meets: many tensors, an exit with work under way, and arrays of gigabytes."""

import os
import shutil
import subprocess
import sys

import pytest

import hologram as hg

DEVICE = os.environ.get("HOLOGRAM_TEST_DEVICE", "cpu")


def resident():
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pytest.skip("needs /proc")


def test_a_hundred_thousand_creations_do_not_grow():
    def create(count):
        for i in range(count):
            x = hg.asarray([float(i), 1.0])
            y = hg.zeros((2,)) + x
        assert y.tolist() == [float(count - 1), 1.0]

    create(10_000)
    before = resident()
    create(100_000)
    assert resident() - before < 5_000_000


EXITS = {
    "operations": """
x = hg.ones((512, 512))
for _ in range(50):
    x = x @ x * 1e-3
""",
    "a daemon's operations": """
import threading, time
def work():
    x = hg.ones((256, 256))
    while True:
        x = x @ x * 1e-3
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
""",
    "an exception": """
x = hg.ones((512, 512))
y = x @ x
try:
    raise KeyError("expected")
except KeyError:
    sys.exit(0)
""",
}


@pytest.mark.parametrize("what", EXITS)
def test_the_interpreter_exits_with_work_under_way(what):
    code = f"import sys\nimport hologram as hg\nhg.set_default_device({DEVICE!r})\n{EXITS[what]}"
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
        assert done.returncode == 0 and done.stderr == "", done


def test_more_elements_than_there_can_be_are_an_error():
    for shape in (2**62, (2**31, 2**31), (2**40,)):
        with pytest.raises((ValueError, OverflowError, MemoryError)):
            hg.zeros(shape)
        with pytest.raises((ValueError, OverflowError, MemoryError)):
            hg.ones(shape, dtype=hg.float64)
    assert (hg.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.skipif("HOLOGRAM_LARGE" not in os.environ, reason="takes 11 GB of memory: set HOLOGRAM_LARGE")
@pytest.mark.timeout(600)
def test_arrays_of_five_gigabytes():
    n = (5 << 30) // 4 + 3
    x = hg.ones(n)
    assert x.nbytes > 5 << 30
    x = x + x
    assert x[-1].item() == 2.0 and x[n // 2 - 1 : n // 2 + 2].tolist() == [2.0] * 3
    assert hg.max(x).item() == 2.0 and hg.count_nonzero(x[-5:]).item() == 5
    # Exact in float32: partial sums are powers of two but for the rest.
    assert abs(hg.sum(x[: 1 << 30]).item() - 2.0 * (1 << 30)) <= 1024
    rows = hg.reshape(x[: 5 << 28], (5, -1))
    assert hg.mean(rows, axis=1).tolist() == pytest.approx([2.0] * 5)
    if DEVICE == "cpu":
        np = pytest.importorskip("numpy")
        shared = np.from_dlpack(x)
        assert shared.ctypes.data == x.data_ptr
        shared[-1] = 7.0
        assert x[-1].item() == 7.0


# Work on the CPU, and what makes it. The device of the test is the default.
LONG = {
    "matmul": "x = hg.ones((3000, 3000)); hg.matmul(x, x)",
    "sort": "hg.sort(hg.random.normal((1 << 24,)))",
    "unique": "hg.unique_values(hg.random.normal((1 << 22,)))",
    "svd": "hg.linalg.svd(hg.random.normal((700, 700)))",
    "random": "hg.random.normal((1 << 28,))",
    "exp": "hg.exp(hg.ones((1 << 27,)))",
    "two types": "hg.ones((1 << 27,), dtype=hg.int32) + hg.ones((1 << 27,))",
    "attention": "q = hg.ones((1, 8, 4096, 64)); hg.nn.attention(q, q, q)",
    "loss": "hg.nn.cross_entropy(hg.ones((1 << 13, 1 << 13)), hg.zeros((1 << 13,), dtype=hg.int64))",
    "searchsorted": "hg.searchsorted(hg.arange(1 << 20), hg.arange(1 << 24))",
    "gradient": "hg.grad(lambda x: hg.sum(x @ x @ x))(hg.ones((1200, 1200)))",
    "asarray": "hg.asarray(memory)",
    "asarray of columns": "hg.asarray(memoryview(memory).cast('B', (1 << 10, 1 << 20))[::-1])",
    "asarray of a list": "hg.asarray(numbers)",
    "tolist": "kept[:] = [hg.ones((1 << 25,)).tolist()]",
    "tolist of rows": "kept[:] = [hg.ones((1 << 12, 1 << 13)).tolist()]",
    "tobytes": "hg.ones((1 << 28,)).tobytes()",
    "a view's buffer": "memoryview(hg.ones((1 << 14, 1 << 14)).mT).tobytes()",
    "save": "hg.save(path, hg.ones((1 << 28,)))",
}
# Calls that wait for a GPU, which has work `y` of some seconds.
WAITS = {
    "item": "float(y[0, 0])",
    "a large read": "y.tobytes()",
    "synchronize": "hg.synchronize()",
    "another device": "y.to_device('cpu')",
    "text": "repr(y)",
    "nonzero": "hg.nonzero(y)",
    "launches": "while True: small @ small",
    "numbers": "while True: small * 1.5",
    "a new kernel": "hg.expm1(small); y.wait()",
    "small uploads": "while True: hg.asarray([1.0])",
    "large uploads": "while True: hg.asarray(memory)",
    "a compiled function": "while True: compiled(small)",
}
PRESS = """
import os, signal, time
import hologram as hg
kept = []
# The system's timer in place of Ctrl-C: a thread could not press it while another holds the interpreter.
signal.signal(signal.SIGALRM, signal.default_int_handler)
def late(work, wait):
    signal.setitimer(signal.ITIMER_REAL, wait)
    pressed = time.monotonic() + wait
    try:
        while True:
            work()
    except KeyboardInterrupt:
        return time.monotonic() - pressed
"""


def check_late(code, count, limit=1.0, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PRESS + code],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
    )
    late = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    # 0.2 s where nothing else runs.
    assert done.returncode == 0 and len(late) == count and max(late) < limit, done


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is a signal")
@pytest.mark.skipif(DEVICE != "cpu", reason="work of the CPU")
@pytest.mark.parametrize("what", LONG)
def test_ctrl_c_ends_long_work(what, tmp_path):
    code = f"""
hg.set_default_device("cpu")
what, path = {what!r}, {str(tmp_path / "x.npy")!r}
memory = bytes(1 << 30) if what.startswith("asarray") else b""
numbers = [0.5] * (1 << 25) if what == "asarray of a list" else []
def work():
    {LONG[what]}
for wait in (0.05, 0.3):
    print(late(work, wait))
os._exit(0)
"""
    check_late(code, 2)


def check_waits(n, waits, **environment):
    """Each wait is ended twice: then for what the first one left to the GPU, too."""
    code = f"""
hg.set_default_device("cuda")
x, small, memory = hg.ones(({n}, {n})), hg.ones((64, 64)), bytes(80 << 20)
compiled = hg.compile(lambda x: x @ x * 0.5)
(x @ x).wait()
start = time.monotonic()
(x @ x @ x).wait()
count = max(int(3.0 / (time.monotonic() - start)), 40)  # for 1.5 s; more than a call submits on its own thread
for what, wait in {waits!r}.items():
    hg.synchronize()
    y = x
    for _ in range(count):
        y = y @ x
    for _ in range(2):
        print(what, late(lambda: exec(wait), 0.1))
os._exit(0)
"""
    check_late(code, 2 * len(waits), 0.6, **environment)


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is a signal")
@pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="waits for an NVIDIA GPU")
def test_ctrl_c_ends_waits_for_a_gpu():
    check_waits(8192, WAITS)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="a library that cc builds for Linux")
@pytest.mark.skipif(DEVICE != "cpu", reason="in place of a GPU's driver")
def test_ctrl_c_ends_waits_for_a_busy_driver(tmp_path):
    source = os.path.join(os.path.dirname(__file__), "busy_driver.c")
    subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source, "-lpthread"], check=True)
    folders = [str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")]
    check_waits(
        512,
        {what: WAITS[what] for what in ("item", "launches", "numbers", "a new kernel", "large uploads")},
        LD_LIBRARY_PATH=os.pathsep.join(filter(None, folders)),
        HOLOGRAM_CUBLASLT="0",
        HOLOGRAM_CACHE=str(tmp_path / "cache"),
    )


def test_the_precision_of_products():
    with pytest.raises(ValueError, match='must be "exact" or "tf32"'):
        hg.set_float32_precision("high")
    if DEVICE == "cpu":
        # Permitted, but this device has no other than its own.
        code = (
            "import hologram as hg\nhg.set_float32_precision('tf32')\n"
            "x = hg.full((64, 64), 1 + 2**-20, dtype=hg.float32, device='cpu')\nassert float((x @ x)[0, 0]) != 64.0"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
