"""The names of the earlier systems, as they wrote them."""

import math

import pytest

import hologram as hg


def test_executors_and_buffers():
    assert hg.BackendType.METAL.value == "metal" and isinstance(hg.is_metal_available(), bool)
    assert isinstance(hg.is_cuda_available(), bool) and hg.get_default_backend() in {"cpu", "metal", "cuda"}
    with hg.Executor(backend="cpu") as executor:
        assert executor.handle > 0 and executor.backend == "cpu"
        buffer = executor.allocate(100)
        assert (buffer.size, len(buffer), buffer.nbytes, buffer.dtype) == (100, 100, 400, hg.float32)
        buffer.fill(42.0)
        other = executor.allocate(100)
        other.copy_from(buffer)
        assert other.to_list() == [42.0] * 100
        other.from_bytes(hg.asarray([1.0, 2.0]).tobytes())
        assert other.to_bytes()[:8] == hg.asarray([1.0, 2.0]).tobytes() and other.to_list()[2] == 42.0
    with pytest.raises(ValueError, match="cleanup"):
        executor.allocate(1)
    with pytest.raises(ValueError, match="Invalid backend"):
        hg.Executor(backend="invalid")


def test_operations():
    with hg.Executor(backend="cpu") as x:

        def buffer(values, size=None):
            out = x.allocate(size or len(values))
            out._set(hg.asarray(values, dtype=hg.float32))
            return out

        a, b = [1.0, -2.0, 3.0, 0.5], [4.0, 0.5, -1.0, 2.0]
        two = {
            "vector_add": lambda p, q: p + q, "vector_sub": lambda p, q: p - q, "vector_mul": lambda p, q: p * q,
            "vector_div": lambda p, q: p / q, "vector_min": min, "vector_max": max,
        }  # fmt: skip
        one = {
            "vector_abs": abs, "vector_neg": lambda p: -p, "vector_relu": lambda p: max(p, 0.0), "relu": lambda p: max(p, 0.0),
            "sigmoid": lambda p: 1 / (1 + math.exp(-p)), "tanh": math.tanh, "buffer_copy": lambda p: p,
            "gelu": lambda p: p / 2 * (1 + math.erf(p / math.sqrt(2))),
        }  # fmt: skip
        checked = set()
        for name, function in (two | one).items():
            c = x.allocate(4)
            arguments = [buffer(a), buffer(b)] if name in two else [buffer(a)]
            getattr(hg.ops, name)(x, *arguments, c)
            want = [function(*pair) for pair in (zip(a, b) if name in two else zip(a))]
            assert c.to_list() == pytest.approx(want, rel=1e-5), name
            checked.add(name)
        c = x.allocate(4)
        hg.ops.softmax(x, buffer(a), c)
        total = sum(map(math.exp, a))
        assert c.to_list() == pytest.approx([math.exp(v) / total for v in a], rel=1e-5)
        hg.ops.scalar_add(x, buffer(a), c, 10.0)
        assert c.to_list() == [11.0, 8.0, 13.0, 10.5]
        hg.ops.scalar_mul(x, buffer(a), c, 2.0, 2)
        assert c.to_list() == [2.0, -4.0, 13.0, 10.5]
        hg.ops.buffer_fill(x, c, 7.0)
        assert c.to_list() == [7.0] * 4
        out = x.allocate(3)
        assert [getattr(hg.ops, f"reduce_{n}")(x, buffer(a), out) for n in ("sum", "min", "max")] == [2.5, -2.0, 3.0]
        assert out.to_list()[0] == 3.0
        hg.ops.gemm(x, buffer(a), buffer(b), c, 2, 2, 2)
        assert c.to_list() == [6.0, -3.5, 11.5, 2.5]
        p, t = [0.2, 0.7, 0.1], [0.0, 1.0, 0.0]
        want = sum((q - s) ** 2 for q, s in zip(p, t)) / 3
        assert hg.ops.mse_loss(x, buffer(p), buffer(t), out) == pytest.approx(want)
        assert hg.ops.cross_entropy_loss(x, buffer(p), buffer(t), out) == pytest.approx(-math.log(0.7))
        want = -(math.log(0.8) + math.log(0.7) + math.log(0.9)) / 3
        assert hg.ops.binary_cross_entropy_loss(x, buffer(p), buffer(t), out) == pytest.approx(want)
        checked |= {
            "softmax",
            "scalar_add",
            "scalar_mul",
            "buffer_fill",
            "reduce_sum",
            "reduce_min",
            "reduce_max",
            "gemm",
        }
        checked |= {"mse_loss", "cross_entropy_loss", "binary_cross_entropy_loss"}
        assert checked == set(hg.ops.__all__)
        with pytest.raises(ValueError):
            hg.ops.vector_add(x, buffer(a), buffer(b), x.allocate(2))


SQUARE = """
kernel square(x: buffer<f32>, y: buffer<f32, write>, n: u32) workgroup(64) {
  %i = global.x
  %inside = lt.u32 %i, n
  if %inside {
    %v = load.f32 x[%i]
    %v2 = mul.f32 %v, %v
    store.f32 y[%i], %v2
  }
}
"""


def test_kernels_of_ones_own():
    square = hg.kernel(SQUARE)
    x, y = hg.arange(100.0), hg.zeros(100)
    square(x, y, 100, grid=2)
    assert y.tolist() == [float(i * i) for i in range(100)]
    assert square.name == "square" and square.workgroup == [64, 1, 1]
    for wrong in [
        lambda: square(x, y, grid=1),
        lambda: square(x, hg.zeros(100, dtype=hg.int32), 100, grid=1),
        lambda: square(x, 1, 2, grid=1),
    ]:
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="line"):
        hg.kernel("kernel broken(x: buffer<f32>) workgroup(1) { %a = nonsense }")
    with pytest.raises(TypeError):
        square(x, y, "n", grid=1)


def test_random_and_files(tmp_path):
    hg.random.seed(7)
    first, second = hg.random.uniform((1000,)), hg.random.normal((1000,))
    hg.random.seed(7)
    assert hg.random.uniform((1000,)).tolist() == first.tolist() and second.tolist() != first.tolist()
    assert 0 <= float(hg.min(first)) and float(hg.max(first)) < 1 and abs(float(hg.mean(second))) < 0.2
    whole = hg.random.randint(3, 6, (500,))
    assert sorted(set(whole.tolist())) == [3, 4, 5] and whole.dtype == hg.int64
    hg.save(tmp_path / "x.npy", first)
    assert hg.load(tmp_path / "x.npy").tolist() == first.tolist()
    hg.save(tmp_path / "w.safetensors", {"a": first, "b": hg.asarray([1], dtype=hg.bfloat16)})
    loaded = hg.load(tmp_path / "w.safetensors")
    assert loaded["a"].tolist() == first.tolist() and loaded["b"].dtype == hg.bfloat16
    with pytest.raises(ValueError):
        hg.save(tmp_path / "x.txt", first)
