"""The backend of `torch.compile`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.attention import sdpa_kernel

from . import _attention, _call
from ._lowerings import TABLE
from ._translate import check, is_supported

_OPTIONS = {"device", "fallback"}


#: Decompositions that are not used: torch makes constants part of a graph before them, and the one of attention gives
#: its backward pass another second result than the operation.
_WITHOUT = dict.fromkeys(
    ["aten.lift.default", "aten.lift_fresh.default", "aten._scaled_dot_product_flash_attention_for_cpu.default"]
)


@functools.cache
def decompositions() -> dict[Any, Any]:
    """torch's decompositions of the operations that have no translation."""
    return {op: rule for op, rule in decomposition_table.items() if str(op) not in TABLE | _WITHOUT}


def _partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    _attention.simplify(joint)
    return min_cut_rematerialization_partition(joint, *args, **kwargs)


def _compile_fx(device: str | None, fallback: bool, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable:
    _attention.simplify(module)
    if fallback and not all(map(is_supported, module.graph.nodes)):
        return _split(device, module)
    check(module)
    return _call.Callable(module, inputs, device)


def _split(device: str | None, module: fx.GraphModule) -> Callable:
    """Compiles the parts of a graph that have translations, and leaves the rest to torch."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
            return node.op == "call_function" and is_supported(node)

    names = sorted({str(node.target) for node in module.graph.nodes if not is_supported(node)})
    partitioner = CapabilityBasedPartitioner(module, Support(), allows_single_node_partition=True)
    fused = partitioner.fuse_partitions(partitioner.propose_partitions())
    parts = [name for name, _ in fused.named_children() if name.startswith("fused_")]
    warnings.warn(
        f"hologram: torch runs {', '.join(names)}; the graph is split into {len(parts)} compiled parts", stacklevel=2
    )
    for name in parts:
        setattr(fused, name, _Part(getattr(fused, name), device))
    fused.recompile()

    def run(args: list[Any]) -> Any:
        outputs = fused(*args)
        args.clear()
        return outputs

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _compilers(device: str | None, fallback: bool) -> dict[str, Any]:
    compile_fx = functools.partial(_compile_fx, device, fallback)
    return {
        "fw_compiler": compile_fx,
        "bw_compiler": compile_fx,
        "inference_compiler": compile_fx,
        "decompositions": decompositions(),
        "partition_fn": _partition,
    }


class _Part(torch.nn.Module):
    """A part of a split graph."""

    def __init__(self, module: fx.GraphModule, device: str | None):
        super().__init__()
        output = module.graph.output_node()
        self.single = isinstance(output.args[0], fx.Node)
        if self.single:
            output.args = ((output.args[0],),)
        inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
        self.call = _call.Callable(module, inputs, device)

    def forward(self, *args: Any) -> Any:
        outputs = self.call(list(args))
        return outputs[0] if self.single else tuple(outputs)


def backend(module: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable:
    """Compiles a model's graphs, forward and backward: `torch.compile(model, backend="hologram")`.

    Options: `device`, where to compute (default: where the tensors are, without copies); `fallback="eager"`, to leave
    operations without a translation to torch, with a warning, instead of an error.
    """
    options = kwargs.get("options") or {}
    if unknown := set(options) - _OPTIONS:
        raise ValueError(f"hologram has no option {', '.join(sorted(unknown))}: use {', '.join(sorted(_OPTIONS))}")
    if options.get("fallback", "error") not in ("error", "eager"):
        raise ValueError(f'fallback is "error" or "eager", not {options["fallback"]!r}')
    # Of torch's fused attention only some has a translation.
    with sdpa_kernel(_attention.kinds(options.get("device"), module, inputs)):
        return aot_autograd(**_compilers(options.get("device"), options.get("fallback") == "eager"))(module, inputs)


def compiled_function(function: Callable, device: str | None) -> Callable:
    """A function of tensors, compiled with its gradients for the types and shapes of its first call."""
    return aot_function(function, **_compilers(device, fallback=False))
