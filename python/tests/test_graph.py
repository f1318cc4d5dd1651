"""The graphs that other packages build value by value (`hologram_torch` does)."""

import ctypes

import pytest

import hologram as hg
from hologram import _native


class Foreign:
    """What a call reads of a torch tensor."""

    def __init__(self, numbers, strides=None):
        # At a multiple of 64 bytes, as torch's allocator has it.
        self.memory = (ctypes.c_float * (len(numbers) + 16))()
        self.address = -(-ctypes.addressof(self.memory) // 64) * 64
        self.numbers = (ctypes.c_float * len(numbers)).from_address(self.address)
        self.numbers[:] = numbers
        self.strides = strides

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return self.strides is None

    def stride(self):
        return self.strides


def doubled_sum():
    graph = _native.Graph("cpu")
    x = graph.argument("float32", [2, 3])
    two = graph.scalar("float32", 2.0)
    y = graph.elementwise("mul", [x, two])
    return graph, y, graph.reduce("sum", y, 1)


def test_a_graph_reads_and_writes_memory_by_address():
    graph, y, total = doubled_sum()
    assert graph.type_of(total) == (hg.float32, (2,))
    compiled = graph.finish([total, y])
    for strides, numbers in ((None, [1, 2, 3, 4, 5, 6]), ((1, 2), [1, 4, 2, 5, 3, 6])):
        sums, all_ = Foreign([0.0] * 2), Foreign([0.0] * 6)
        compiled.call([Foreign(numbers, strides)], [sums, all_])
        assert list(sums.numbers) == [12.0, 30.0]
        assert list(all_.numbers) == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    results = compiled.call_tensors([hg.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device="cpu")])
    assert results[0].tolist() == [12.0, 30.0]


def test_wrong_graphs_and_calls_are_errors():
    graph, y, total = doubled_sum()
    with pytest.raises(ValueError, match="before operations"):
        graph.argument("float32", [1])
    with pytest.raises(ValueError, match="no value 99"):
        graph.cast(99, "int32")
    with pytest.raises(ValueError, match="no reduction median"):
        graph.reduce("median", y, 0)
    with pytest.raises(ValueError, match="matmul"):
        graph.matmul(y, y, False, False)
    with pytest.raises(ValueError, match="as many strides"):
        _native.Graph("cpu").argument("float32", [2, 3], [1])
    with pytest.raises(TypeError, match="no element type"):
        _native.Graph("cpu").argument("complex64", [2])
    compiled = graph.finish([total])
    with pytest.raises(ValueError, match="takes 1 arguments and memory for 1"):
        compiled.call([], [])
    odd = Foreign([0.0] * 2)
    odd.address += 4
    with pytest.raises(ValueError, match="multiple of 64 bytes"):
        compiled.call([Foreign([0.0] * 6)], [odd])
