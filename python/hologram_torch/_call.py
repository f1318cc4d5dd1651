"""Calls of compiled graphs with torch tensors."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._C._dynamo.guards import _empty_strided_cpu

import hologram as hg

from ._translate import Translation, device_name

# Sizes of symbolic dimensions for which a graph is kept compiled.
_CAPACITY = 64


class _Copies:
    """Copies of torch's parameters on another device, valid until torch counts a write."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, str], tuple[weakref.ref[torch.Tensor], int, int, Any]] = {}

    def of(self, tensor: torch.Tensor, device: str) -> Any:
        """A tensor's copy. Those of leaves that live on, such as parameters, are kept."""
        if tensor.is_inference():
            return _upload(tensor, device)
        key = (id(tensor), device)
        found = self.kept.get(key)
        version, address = tensor._version, tensor.data_ptr()
        if found is not None and found[0]() is tensor and found[1:3] == (version, address):
            return found[3]
        copy = _upload(tensor, device)
        if isinstance(tensor, torch.nn.Parameter):
            forget = weakref.ref(tensor, lambda _: self.kept.pop(key, None))
            self.kept[key] = (forget, version, address, copy)
        return copy


_COPIES = _Copies()


def _works_in_memory_of(device: str, own: str) -> bool:
    """Whether a device computes in the memory that torch's tensors have on the device `own`."""
    return device in {own, own.removesuffix(":0")} or (device == "reference" and own == "cpu")


def _upload(tensor: torch.Tensor, device: str) -> Any:
    return hg.from_dlpack(tensor.detach().contiguous()).to_device(device)


@functools.cache
def _openmp() -> int:
    """The address of the function by which torch's OpenMP runtime runs something on its threads; 0 without one.

    Those threads wait busily after torch's work, beside which workers of our own would get half of a processor.
    """
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return 0
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


class Callable:
    """A compiled graph as AOTAutograd calls it: with a list of arguments, which it empties."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], device: str | None):
        # AOTAutograd looks for it, also in wrappers that copy an object's attributes.
        self._boxed_call = True
        self.module = module
        self.torch_device = device_name(inputs, module)
        own = str(self.torch_device) if self.torch_device.type == "cpu" else f"cuda:{self.torch_device.index or 0}"
        self.device = device or own
        self.shared = _works_in_memory_of(self.device, own)
        self.cuda = self.torch_device.type == "cuda"
        self.symbolic = [
            i for i, x in enumerate(inputs) if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool))
        ]
        self.by_symbols: dict[tuple[Any, ...], Translation] = {}
        self.fixed = None if self.symbolic else Translation(self.device, module, inputs)
        #: Positions of numbers on the CPU among tensors on a GPU.
        self.strangers = [
            i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.device != self.torch_device
        ]

    def _translation(self, args: list[Any]) -> Translation:
        if self.fixed is not None:
            return self.fixed
        key = tuple(args[i] for i in self.symbolic)
        found = self.by_symbols.get(key)
        if found is None:
            if len(self.by_symbols) >= _CAPACITY:
                self.by_symbols.pop(next(iter(self.by_symbols)))
            found = self.by_symbols[key] = Translation(self.device, self.module, args)
        return found

    def _constants(self, translation: Translation) -> list[torch.Tensor]:
        """A graph's constants. torch makes them on the CPU for any device, and copies nothing while it compiles."""
        kept = translation.constants
        for i, constant in enumerate(kept):
            if constant.device != self.torch_device:
                kept[i] = constant.to(self.torch_device)
        return kept

    def __call__(self, args: list[Any]) -> list[Any]:
        translation = self._translation(args)
        for i in self.strangers:
            args[i] = args[i].to(self.torch_device)
        tensors = [args[i] for i in translation.reads]
        tensors += self._constants(translation)
        if translation.random:
            tensors.append(torch.randint(0, 1 << 32, (2,), device=self.torch_device))
        if self.shared:
            results = self._run(translation, tensors)
        else:
            results = self._run_copies(translation, tensors)
        if translation.asserts:
            for message in reversed(translation.asserts):
                torch._assert_async(results.pop(), message)
        outputs = []
        for kind, what in translation.outputs:
            outputs.append(results[what] if kind == "result" else args[what] if kind == "argument" else what)
        args.clear()
        return outputs

    def _run(self, translation: Translation, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if not translation.results:
            return []
        if self.cuda:
            device = self.torch_device
            results = [
                torch.empty_strided(r.size, r.strides, dtype=r.dtype, device=device) for r in translation.results
            ]
            # 0 is the default stream, which the driver also knows as 1.
            stream = torch.cuda.current_stream(device).cuda_stream or 1
            translation.compiled.call(tensors, results, stream)
        else:
            results = [_empty_strided_cpu(r.size, r.strides, r.dtype) for r in translation.results]
            translation.compiled.call(tensors, results, None, (_openmp(), torch.get_num_threads()))
        return results

    def _run_copies(self, translation: Translation, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        copies = [_COPIES.of(tensor, self.device) for tensor in tensors]
        results = []
        for result, tensor in zip(translation.results, translation.compiled.call_tensors(copies), strict=True):
            flat = torch.from_dlpack(tensor.to_device("cpu"))
            results.append(flat.as_strided(result.size, result.strides).to(self.torch_device))
        return results
