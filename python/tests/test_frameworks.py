"""The other frameworks' arrays, both ways, on the CPU and on a GPU: the same memory, and work in the order of its streams.

A framework that is not installed is left out; `HOLOGRAM_ROUNDS` sets how often memory goes back and forth."""

import contextlib
import gc
import os

import pytest

import hologram as hg

ROUNDS = int(os.environ.get("HOLOGRAM_ROUNDS", "300"))
DEVICES = ["cpu"] + (["cuda:0"] if hg.is_cuda_available() else [])


class Numpy:
    name, devices = "numpy", ["cpu"]

    def __init__(self, device):
        self.np = pytest.importorskip("numpy")

    def arange(self, n):
        return self.np.arange(n, dtype="float32")

    def take(self, x):
        return self.np.from_dlpack(x)

    def address(self, a):
        return a.__array_interface__["data"][0]

    def values(self, a):
        return a.tolist()

    def stream(self):
        return contextlib.nullcontext()


class Torch(Numpy):
    name, devices = "torch", ["cpu", "cuda:0"]

    def __init__(self, device):
        self.torch, self.device = pytest.importorskip("torch"), device
        if device != "cpu" and not self.torch.cuda.is_available():
            pytest.skip("torch sees no GPU")

    def arange(self, n):
        return self.torch.arange(n, dtype=self.torch.float32, device=self.device)

    def take(self, x):
        return self.torch.from_dlpack(x)

    def address(self, a):
        return a.data_ptr()

    def stream(self):
        return contextlib.nullcontext() if self.device == "cpu" else self.torch.cuda.stream(self.torch.cuda.Stream())


class Cupy(Numpy):
    name, devices = "cupy", ["cuda:0"]

    def __init__(self, device):
        self.np = pytest.importorskip("cupy")

    def address(self, a):
        return a.data.ptr

    def stream(self):
        return self.np.cuda.Stream(non_blocking=True)


class Jax(Numpy):
    name, devices = "jax", ["cpu", "cuda:0"]

    def __init__(self, device):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self.jax = pytest.importorskip("jax")
        kind = "cpu" if device == "cpu" else "cuda"
        try:
            self.device = self.jax.devices(kind)[0]
        except RuntimeError:
            pytest.skip(f"jax has no {kind}")

    def arange(self, n):
        return self.jax.device_put(self.jax.numpy.arange(n, dtype="float32"), self.device)

    def take(self, x):
        return self.jax.numpy.from_dlpack(x)

    def address(self, a):
        return a.unsafe_buffer_pointer()


PAIRS = [(framework, device) for framework in (Numpy, Torch, Cupy, Jax) for device in framework.devices if device in DEVICES]


@pytest.mark.parametrize("framework, device", PAIRS, ids=[f"{f.name}-{d}" for f, d in PAIRS])
def test_memory_is_shared_both_ways(framework, device):
    other = framework(device)
    own = hg.arange(1000.0, device=device) * 2
    taken = other.take(own)
    assert other.address(taken) == own.data_ptr
    del own
    gc.collect()
    assert other.values(taken) == [2.0 * i for i in range(1000)]
    theirs = other.arange(1000)
    x = hg.from_dlpack(theirs)
    assert x.device == device and x.data_ptr == other.address(theirs)
    del theirs
    gc.collect()
    assert (x + 1).tolist() == [i + 1.0 for i in range(1000)]


@pytest.mark.parametrize("framework, device", PAIRS, ids=[f"{f.name}-{d}" for f, d in PAIRS])
def test_work_follows_the_streams(framework, device):
    """Each side reads what the other has just been told to write, and both let go at once."""
    other = framework(device)
    n = 1 << 16
    with other.stream():
        for i in range(ROUNDS):
            theirs = other.arange(n) + i
            own = hg.from_dlpack(theirs) * 2
            del theirs
            back = other.take(own)
            del own
            back = back + 1
            if i % 50 == 0:
                assert other.values(back[-2:]) == [2.0 * (n - 2 + i) + 1, 2.0 * (n - 1 + i) + 1]
        assert other.values(back[:2]) == [2.0 * i + 1, 2.0 * (i + 1) + 1]


@pytest.mark.skipif("cuda:0" not in DEVICES, reason="needs a GPU")
def test_memory_given_back_serves_others_after_the_consumers_work():
    """The consumer drops a tensor while its stream still has to read it."""
    torch = Torch("cuda:0").torch
    n = 1 << 22
    ones = hg.ones(n, device="cuda:0")
    stream = torch.cuda.Stream()
    for i in range(5):
        own = ones * float(i)
        address = own.data_ptr
        with torch.cuda.stream(stream):
            taken = torch.from_dlpack(own)
            # Some tenths of a second before the read.
            torch.cuda._sleep(300_000_000)
            read = taken.clone()
        del own, taken
        gc.collect()
        others = [ones * -1.0 for _ in range(4)]
        assert address in [x.data_ptr for x in others]
        hg.synchronize("cuda:0")
        stream.synchronize()
        assert (read == float(i)).all().item()
