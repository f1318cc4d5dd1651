"""The names of the systems that Hologram descends from: executors, buffers, and questions about backends."""

from __future__ import annotations

import enum
import itertools
from typing import Any

from . import _dtypes as dt
from . import _functions as f
from . import _native
from ._devices import Device
from ._native import DType, Tensor


class BackendType(enum.Enum):
    """Kinds of backend."""

    CPU = "cpu"
    METAL = "metal"
    CUDA = "cuda"
    AUTO = "auto"


_handles = itertools.count(1)


class Executor:
    """A device on which buffers are allocated: "auto" takes the best one, any other that one or an error.

    >>> import hologram as hg
    >>> with hg.Executor(backend="cpu") as executor:
    ...     a, b = executor.allocate(3), executor.allocate(3)
    ...     a.fill(2.0)
    ...     hg.ops.scalar_mul(executor, a, b, 4.0)
    ...     b.to_list()
    [8.0, 8.0, 8.0]
    """

    def __init__(self, backend: str | BackendType = "auto"):
        name = backend.value if isinstance(backend, BackendType) else backend
        if not isinstance(name, str):
            raise TypeError(f'Executor: backend must be a name such as "cpu", not {type(name).__name__}')
        kind = name.partition(":")[0]
        if kind not in ("auto", "cpu", "metal", "cuda", "reference"):
            raise ValueError(f"Invalid backend {name!r}: use auto, cpu, metal or cuda")
        self.device = Device(name)
        self.backend = self.device.type
        self.handle = next(_handles)
        self._freed = False

    def allocate(self, size: int, dtype: DType | str = dt.float32) -> Buffer:
        """A buffer of `size` zeros."""
        return Buffer(self, size, dtype)

    def synchronize(self) -> None:
        """Waits for all work."""
        _native.synchronize(self.device.name)

    def cleanup(self) -> None:
        """Ends the use of this executor. The device stays open for others; unused buffers are freed."""
        self._freed = True

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_) -> None:
        self.cleanup()

    def __repr__(self) -> str:
        return f"Executor(backend={self.backend!r})"

    def __reduce__(self):
        raise TypeError("an executor cannot be pickled: open one where it is needed")


class Buffer:
    """Elements on an executor's device, in one dimension. `tensor` is the tensor of all."""

    def __init__(self, executor: Executor, size: int, dtype: DType | str = dt.float32):
        if not isinstance(executor, Executor):
            raise TypeError(f"Buffer: executor must be an Executor, not {type(executor).__name__}")
        if executor._freed:
            raise ValueError("the executor's cleanup has been called")
        self.executor = executor
        self.tensor: Tensor = f.zeros(size, dtype=dtype, device=executor.device)
        self._freed = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.tensor.size

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.tensor.nbytes

    @property
    def dtype(self) -> DType:
        """The type of the elements; it equals NumPy's of that name only by name."""
        return self.tensor.dtype

    def _set(self, tensor: Tensor) -> None:
        tensor = f.reshape(tensor, (-1,))
        if tensor.size > self.size:
            raise ValueError(f"{tensor.size} elements do not fit a buffer of {self.size}")
        tensor = _native.cast(_native.to_device(tensor, self.executor.device.name), self.dtype)
        if tensor.size < self.size:
            tensor = f.concat([tensor, self.tensor[tensor.size :]])
        self.tensor = tensor

    def from_numpy(self, array: Any) -> None:
        """Takes the elements of an array, or of anything that `hologram.asarray` takes: as many as the buffer has."""
        taken = f.asarray(array)
        if taken.size != self.size:
            raise ValueError(f"an array of {taken.size} elements does not fill a buffer of {self.size}")
        self._set(taken)

    def to_numpy(self):
        """The elements as a NumPy array."""
        return self.tensor.__array__()

    def to_list(self) -> list:
        """The elements as Python's numbers."""
        return self.tensor.tolist()

    def from_bytes(self, data: bytes) -> None:
        """Takes elements as bytes."""
        if len(data) % self.dtype.itemsize:
            raise ValueError(f"{len(data)} bytes are no whole number of elements of {self.dtype}")
        self._set(_native.from_bytes(data, self.dtype, [len(data) // self.dtype.itemsize], self.executor.device.name))

    def to_bytes(self) -> bytes:
        """The elements as bytes."""
        return self.tensor.tobytes()

    def fill(self, value: float) -> None:
        """Sets every element."""
        self.tensor = f.full_like(self.tensor, value)

    def copy_from(self, other: Buffer) -> None:
        """Takes the elements of another buffer."""
        if not isinstance(getattr(other, "tensor", None), Tensor):
            raise TypeError(f"copy_from: other must be a Buffer, not {type(other).__name__}")
        self._set(other.tensor)

    def free(self) -> None:
        """Frees the memory."""
        self.tensor = self.tensor[:0]
        self._freed = True

    def __len__(self) -> int:
        return self.size

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"Buffer({self.size} of {self.dtype} on {self.executor.device})"


def _available(kind: str) -> bool:
    return any(d["available"] for d in _native.devices() if d["name"].partition(":")[0] == kind)


def is_cuda_available() -> bool:
    """Whether an NVIDIA GPU can be used."""
    return _available("cuda")


def is_metal_available() -> bool:
    """Whether an Apple GPU can be used."""
    return _available("metal")


def get_default_backend() -> str:
    """The kind of the best device that works: "cuda", "metal" or "cpu"."""
    return next(d["name"].partition(":")[0] for d in _native.devices() if d["available"])
