"""torch's fused attention: where a graph may have it, and what a translation need not know of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.attention import SDPBackend

_EFFICIENT = "aten._scaled_dot_product_efficient_attention"
_FLASH = "aten._scaled_dot_product_flash_attention"
#: Arguments that have no meaning without dropout and without sequences of different lengths.
_UNUSED = {
    f"{_EFFICIENT}_backward.default": ["philox_seed", "philox_offset"],
    f"{_FLASH}_backward.default": ["cum_seq_q", "cum_seq_k", "philox_seed", "philox_offset"],
}
_BIASED = {f"{_EFFICIENT}.default", f"{_EFFICIENT}_backward.default"}
#: Elements of a mask that is computed to see what it hides.
_MOST = 1 << 28


def kinds(device: str | None, module: fx.GraphModule, inputs: Sequence[Any]) -> list[SDPBackend]:
    """What torch may make of attention: on a GPU fused operations, whose gradients need no scores in memory. With
    dropout, and with sizes that are not known yet, its definition."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    fused = device in (None, "cuda") and any(x.is_cuda for x in tensors)
    fixed = not any(isinstance(x, torch.SymInt) for x in inputs)
    fixed = fixed and all(isinstance(n, int) for x in tensors for n in x.shape)
    if fused and fixed and not any(map(_drops, module.graph.nodes)):
        return [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return [SDPBackend.MATH]


def _drops(node: fx.Node) -> bool:
    if node.target is not torch.nn.functional.scaled_dot_product_attention:
        return False
    dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0)
    return dropout != 0


def simplify(module: fx.GraphModule) -> None:
    """Drops arguments of fused attention that have no meaning here, so that no pass computes or keeps them, and
    replaces masks that hide the keys after a query by the operation's own way to say so."""
    known: dict[fx.Node, Any] = {}
    causal: dict[fx.Node, bool] = {}
    changed = False
    for node in module.graph.nodes:
        name = str(node.target)
        for unused in _UNUSED.get(name, ()):
            changed |= _argument(node, unused) is not None
            _set(node, unused, None)
        mask = _argument(node, "attn_bias") if name in _BIASED else None
        if not isinstance(mask, fx.Node):
            continue
        if mask not in causal:
            causal[mask] = _is_causal(module, mask, known)
        if causal[mask] and not _argument(node, "is_causal"):
            _set(node, "attn_bias", None)
            _set(node, "is_causal", True)
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _index(node: fx.Node, name: str) -> int:
    return [argument.name for argument in node.target._schema.arguments].index(name)


def _argument(node: fx.Node, name: str) -> Any:
    index = _index(node, name)
    return node.args[index] if index < len(node.args) else node.kwargs.get(name)


def _set(node: fx.Node, name: str, value: Any) -> None:
    index = _index(node, name)
    if index < len(node.args):
        node.update_arg(index, value)
    else:
        node.update_kwarg(name, value)


def _is_causal(module: fx.GraphModule, mask: fx.Node, known: dict[fx.Node, Any]) -> bool:
    """Whether a mask is known without arguments, and adds nothing up to a query's own position, and −∞ after it."""
    fake = mask.meta.get("val")
    if not isinstance(fake, torch.Tensor) or fake.ndim < 2 or fake.shape[-1] != fake.shape[-2]:
        return False
    if not fake.is_floating_point() or not _is_constant(mask) or fake.numel() > _MOST:
        return False
    with unset_fake_temporarily(), torch.no_grad():
        values = _value(module, mask, known)
        if not isinstance(values, torch.Tensor) or type(values) is not torch.Tensor:
            return False
        n = values.shape[-1]
        hidden = torch.ones(n, n, dtype=torch.bool, device=values.device).triu(1)
        least = torch.finfo(values.dtype).min
        return bool(torch.where(hidden, values <= least, values == 0).all())


def _is_constant(node: fx.Node) -> bool:
    """Whether a value depends on no argument of the graph, and not on chance."""
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            return False
        if node.op == "call_function":
            target = node.target
            if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
                return False
        new = [n for n in node.all_input_nodes if n not in seen]
        seen.update(new)
        waiting.extend(new)
    return True


def _value(module: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """The value of a node without arguments."""
    waiting = [node]
    while waiting:
        node = waiting[-1]
        missing = [n for n in node.all_input_nodes if n not in known]
        if missing:
            waiting.extend(missing)
            continue
        waiting.pop()
        if node in known:
            continue
        if node.op == "get_attr":
            known[node] = getattr(module, node.target)
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
            known[node] = node.target(*args, **kwargs)
    return known[node]
