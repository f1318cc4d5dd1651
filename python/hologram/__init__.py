"""Tensors, kernels and language models on CPUs, NVIDIA GPUs and Apple GPUs.

    >>> import hologram as hg
    >>> x = hg.asarray([1.0, 2.0, 3.0], device="cpu")
    >>> hg.sum(x * 2)
    Tensor(12.0, shape=(), dtype=float32, device="cpu")

The package is a namespace of the Python array API standard 2024.12, without complex numbers. Importing it opens no
device: the first tensor does.
"""

from . import _methods
from ._compile import compile
from ._devices import Device, default_device, devices, set_default_device, set_float32_precision, synchronize
from ._dtypes import (
    bfloat16,
    bool,
    can_cast,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    result_type,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ._files import load, save
from ._functions import *  # noqa: F403
from ._gradients import grad, stop_gradient, straight_through, value_and_grad
from ._info import namespace_info as __array_namespace_info__
from ._native import DeviceError, DType, Kernel, Tensor, __version__
from ._native import Kernel as kernel
from ._seeds import BackendType, Buffer, Executor, get_default_backend, is_cuda_available, is_metal_available

__array_api_version__ = "2024.12"

_methods.attach()


def __getattr__(name):
    # Loaded when it is first used, so that the import stays short.
    if name in ("compat", "linalg", "llm", "nn", "ops", "optim", "random"):
        import importlib

        return importlib.import_module(f"hologram.{name}")
    raise AttributeError(f"module 'hologram' has no attribute {name!r}")
