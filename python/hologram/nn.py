"""Layers of neural networks, and the functions that go with them.

>>> import hologram as hg
>>> from hologram import nn, optim
>>> model = nn.Sequential(nn.Linear(2, 8), hg.tanh, nn.Linear(8, 1))
>>> x = hg.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
>>> y = hg.asarray([[0.0], [1.0], [1.0], [2.0]])
>>> step = nn.value_and_grad(model, lambda: nn.mse_loss(model(x), y))
>>> optimizer = optim.Adam(0.05)
>>> for _ in range(200):
...     loss, grads = step()
...     optimizer.step(model, grads)
>>> float(loss) < 0.01
True
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from . import _dtypes as dt
from . import _functions as f
from . import _gradients, _native, random
from ._checks import check_all
from ._common import _axis, _number, _several, _whole
from ._indexing import is_at_hand
from ._native import Tensor

__all__ = [
    "Conv2d",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "RMSNorm",
    "Sequential",
    "attention",
    "bce_with_logits",
    "cross_entropy",
    "gelu",
    "log_softmax",
    "mse_loss",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "value_and_grad",
]


class Module:
    """Something with parameters: the tensors among its attributes, and those of modules, lists and dicts in them.

    Attributes that begin with an underscore do not count.
    """

    training = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    def parameters(self) -> dict[str, Any]:
        """The parameters as nested dicts and lists, by attribute."""
        parts = {name: _parameters(part) for name, part in vars(self).items() if not name.startswith("_")}
        return {name: part for name, part in parts.items() if part is not None}

    def update(self, parameters: dict[str, Any]) -> Module:
        """Sets parameters; those that are left out stay."""
        for name, value in parameters.items():
            if not hasattr(self, name):
                raise KeyError(f"{type(self).__name__} has no parameter {name!r}")
            setattr(self, name, _updated(getattr(self, name), value))
        return self

    def modules(self) -> list[Module]:
        """This module and all in it."""
        found: list[Module] = []
        _modules(self, found)
        return found

    def train(self, mode: bool = True) -> Module:
        """Sets the mode: dropout is active in training only."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Ends the training mode."""
        return self.train(False)

    def state_dict(self) -> dict[str, Tensor]:
        """The parameters by names such as "layers.0.weight", for `hg.save`."""
        flat: dict[str, Tensor] = {}
        _named("", self.parameters(), flat)
        return flat

    def load_state_dict(self, tensors: dict[str, Tensor]) -> Module:
        """Sets all parameters by name; the names and shapes must be those of `state_dict`."""
        own = self.state_dict()
        if own.keys() != tensors.keys():
            raise KeyError(f"names that differ: {sorted(own.keys() ^ tensors.keys())}")
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape:
                raise ValueError(f"{name} has the shape {own[name].shape}, not {tensor.shape}")
        return self.update(_filled("", self.parameters(), tensors))


def _parameters(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part
    if isinstance(part, Module):
        return part.parameters() or None
    if isinstance(part, (list, tuple)):
        parts = [_parameters(one) for one in part]
        # A place without parameters keeps the others' numbers.
        return [{} if one is None else one for one in parts] if any(one is not None for one in parts) else None
    if isinstance(part, dict):
        parts = {key: _parameters(one) for key, one in part.items()}
        return {key: one for key, one in parts.items() if one is not None} or None
    return None


def _updated(part: Any, value: Any) -> Any:
    if isinstance(part, Module):
        return part.update(value)
    if isinstance(part, (list, tuple)):
        return _like(part, [_updated(one, new) for one, new in zip(part, value, strict=True)])
    if isinstance(part, dict):
        return {key: _updated(one, value[key]) if key in value else one for key, one in part.items()}
    return value if isinstance(part, Tensor) else part


def _modules(part: Any, found: list[Module]) -> None:
    if isinstance(part, Module):
        found.append(part)
        part = vars(part)
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for one in part:
            _modules(one, found)


def _named(prefix: str, part: Any, flat: dict[str, Tensor]) -> None:
    if isinstance(part, Tensor):
        flat[prefix] = part
        return
    for key, one in part.items() if isinstance(part, dict) else enumerate(part):
        _named(f"{prefix}.{key}" if prefix else str(key), one, flat)


def _filled(prefix: str, part: Any, tensors: dict[str, Tensor]) -> Any:
    def inner(key: Any, one: Any) -> Any:
        return _filled(f"{prefix}.{key}" if prefix else str(key), one, tensors)

    if isinstance(part, Tensor):
        return tensors[prefix]
    if isinstance(part, dict):
        return {key: inner(key, one) for key, one in part.items()}
    return [inner(key, one) for key, one in enumerate(part)]


def value_and_grad(module: Module, function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A function of the same arguments that gives the function's value and its gradients by the module's parameters.

    What the function sets in the module, such as a running mean, stays.
    """
    if not isinstance(module, Module):
        raise TypeError(f"value_and_grad: module must be a Module, not {type(module).__name__}")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        parameters = module.parameters()
        stand_ins: list[tuple[Tensor, Tensor, int]] = []

        def inner(replaced: Any) -> Any:
            pairs = zip(_leaves(replaced), _leaves(parameters), strict=True)
            stand_ins.extend((one, own, one._id) for one, own in pairs)
            module.update(replaced)
            return function(*args, **kwargs)

        try:
            return _gradients.value_and_grad(inner)(parameters)
        finally:
            owners: dict[int, Tensor] = {}
            for one, own, number in stand_ins:
                # Changed in place.
                if one._id != number:
                    own._rebind(one)
                owners[id(one)] = own
            _restored(module, owners)

    return call


def _leaves(part: Any) -> list[Tensor]:
    """The tensors of parameters."""
    if isinstance(part, Tensor):
        return [part]
    return [leaf for one in (part.values() if isinstance(part, dict) else part) for leaf in _leaves(one)]


def _restored(part: Any, owners: dict[int, Tensor]) -> Any:
    """The part of a module with the tensors for which others stood in, by the ids of those."""
    if isinstance(part, Tensor):
        return owners.get(id(part), part)
    if isinstance(part, Module):
        for name, one in list(vars(part).items()):
            restored = one if name.startswith("_") else _restored(one, owners)
            if restored is not one:
                setattr(part, name, restored)
    elif isinstance(part, list):
        part[:] = [_restored(one, owners) for one in part]
    elif isinstance(part, dict):
        part.update({key: _restored(one, owners) for key, one in part.items()})
    elif isinstance(part, tuple):
        return _like(part, [_restored(one, owners) for one in part])
    return part


def _like(part: Any, parts: list[Any]) -> Any:
    """A list, a tuple or a named tuple, as this one is."""
    return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)


def _check_numbers(name: str, x: Tensor, count: int) -> None:
    """Checks numbers below `count`, where their values are known without a wait for a device."""
    if not isinstance(x, Tensor) or x.dtype.kind not in "iu":
        raise TypeError(f"{name} must be a tensor of integers, not {getattr(x, 'dtype', type(x).__name__)}")
    for one in (int(f.min(x)), int(f.max(x))) if is_at_hand(x) else ():
        if not 0 <= one < count:
            raise IndexError(f"{name} must be from 0 to {count - 1}, but one is {one}")


def relu(x: Tensor, /) -> Tensor:
    """max(x, 0)."""
    return _native.elementwise("relu", x)


def gelu(x: Tensor, /, *, approximate: bool = False) -> Tensor:
    """x/2 · (1 + erf(x/√2)), or its approximation by tanh."""
    return _native.elementwise("gelu_tanh" if approximate else "gelu", x)


def silu(x: Tensor, /) -> Tensor:
    """x · sigmoid(x)."""
    return _native.elementwise("silu", x)


def sigmoid(x: Tensor, /) -> Tensor:
    """1 / (1 + e⁻ˣ)."""
    return _native.elementwise("sigmoid", x)


def softmax(x: Tensor, /, *, axis: int = -1) -> Tensor:
    """e^x over its sum along an axis."""
    return _native.softmax(x, _axis(x, axis))


def log_softmax(x: Tensor, /, *, axis: int = -1) -> Tensor:
    """The logarithm of the softmax."""
    return _native.log_softmax(x, _axis(x, axis))


def mse_loss(x: Tensor, target: Tensor, /, *, reduction: str = "mean") -> Tensor:
    """Squared errors: their mean, their sum, or each ("none")."""
    return _native.loss("mse", x, target, reduction)


def bce_with_logits(x: Tensor, target: Tensor, /, *, reduction: str = "mean") -> Tensor:
    """The binary cross-entropy of logits and probabilities."""
    return _native.loss("bce_with_logits", x, target, reduction)


def cross_entropy(x: Tensor, target: Tensor, /, *, reduction: str = "mean") -> Tensor:
    """The cross-entropy of logits [.., classes] and the classes [..], whole numbers."""
    if x.ndim > 0:
        _check_numbers("target (the classes)", target, x.shape[-1])
    return _native.loss("cross_entropy", x, _native.cast(target, dt.uint32), reduction)


def attention(q: Tensor, k: Tensor, v: Tensor, /, *, scale: float | None = None, causal: bool = False) -> Tensor:
    """Scaled dot-product attention of [.., heads, tokens, size]; keys and values may have fewer heads."""
    return _native.attention(q, k, v, scale, causal)


def _uniform(shape: tuple[int, ...], inputs: int, device: Any) -> Tensor:
    bound = 1 / math.sqrt(max(inputs, 1))
    return random.uniform(shape, low=-bound, high=bound, device=device)


class Linear(Module):
    """x · weightᵀ + bias, with `weight` [outputs, inputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, *, device: Any = None):
        self.weight = _uniform((outputs, inputs), inputs, device)
        self.bias = _uniform((outputs,), inputs, device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ f.matrix_transpose(self.weight) if x.ndim > 1 else f.matmul(x[None], f.matrix_transpose(self.weight))[0]
        return y if self.bias is None else y + self.bias


class Embedding(Module):
    """Rows of `weight` [count, size] by their numbers."""

    def __init__(self, count: int, size: int, *, device: Any = None):
        self.weight = random.normal((count, size), std=1 / math.sqrt(size), device=device)

    def __call__(self, ids: Tensor) -> Tensor:
        _check_numbers("ids (the numbers of rows)", ids, self.weight.shape[0])
        flat = _native.cast(f.reshape(ids, (-1,)), dt.uint32)
        return f.reshape(_native.take_along(self.weight, flat, 0), (*ids.shape, self.weight.shape[1]))


class LayerNorm(Module):
    """Rows of mean 0 and variance 1, scaled and shifted."""

    def __init__(self, size: int, eps: float = 1e-5, *, device: Any = None):
        _number("eps", eps, 0.0)
        self.weight, self.bias = f.ones(size, device=device), f.zeros(size, device=device)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return _native.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Rows divided by their root mean square, and scaled."""

    def __init__(self, size: int, eps: float = 1e-5, *, device: Any = None):
        _number("eps", eps, 0.0)
        self.weight = f.ones(size, device=device)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return _native.rms_norm(x, self.weight, self.eps)


class MultiHeadAttention(Module):
    """Attention of [batch, tokens, size] with itself, in heads; `key_heads` of them have keys and values."""

    def __init__(
        self,
        size: int,
        heads: int,
        *,
        key_heads: int | None = None,
        causal: bool = False,
        bias: bool = False,
        device: Any = None,
    ):
        key_heads = heads if key_heads is None else _whole("key_heads", key_heads, 1)
        heads = _whole("heads", heads, 1)
        if size % heads or heads % key_heads:
            raise ValueError(
                f"size is {size}, no multiple of {heads} heads, or these are none of {key_heads} key_heads"
            )
        self.heads, self.key_heads, self.causal = heads, key_heads, causal
        of_keys = size // heads * key_heads
        self.query = Linear(size, size, bias, device=device)
        self.key = Linear(size, of_keys, bias, device=device)
        self.value = Linear(size, of_keys, bias, device=device)
        self.output = Linear(size, size, bias, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim != 3:
            raise ValueError(f"MultiHeadAttention: x must be [batch, tokens, size], not of {x.ndim} dimensions")
        batch, tokens, size = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return f.permute_dims(f.reshape(y, (batch, tokens, heads, size // self.heads)), (0, 2, 1, 3))

        q = split(self.query(x), self.heads)
        k, v = split(self.key(x), self.key_heads), split(self.value(x), self.key_heads)
        y = attention(q, k, v, causal=self.causal)
        return self.output(f.reshape(f.permute_dims(y, (0, 2, 1, 3)), (batch, tokens, size)))


def _pair(name: str, value: int | tuple[int, int], low: int) -> tuple[int, int]:
    both = [_whole(name, n, low) for n in _several(name, value)]
    if len(both) not in (1, 2):
        raise ValueError(f"{name} is one number or two, not {len(both)}")
    return (both[0], both[-1])


class Conv2d(Module):
    """Convolves images [n, inputs, h, w] with `weight` [outputs, inputs / groups, kh, kw]."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
    ):
        size, groups = _pair("kernel", kernel, 1), _whole("groups", groups, 1)
        if inputs % groups or outputs % groups:
            raise ValueError(f"groups is {groups}, but must divide {inputs} inputs and {outputs} outputs")
        of_kernel = inputs // groups * size[0] * size[1]
        self.weight = _uniform((outputs, inputs // groups, *size), of_kernel, device)
        self.bias = _uniform((outputs,), of_kernel, device) if bias else None
        self.stride, self.padding = _pair("stride", stride, 1), _pair("padding", padding, 0)
        self.dilation, self.groups = _pair("dilation", dilation, 1), groups

    def __call__(self, x: Tensor) -> Tensor:
        return _native.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Dropout(Module):
    """In training, elements are 0 with probability `p` and the others are divided by 1 − p."""

    def __init__(self, p: float = 0.5):
        if not 0 <= p < 1:
            raise ValueError(f"p is {p}, but must be a probability below 1")
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = random.bernoulli(1 - self.p, x.shape, device=x.device)
        return f.where(keep, x / (1 - self.p), f.zeros_like(x))


class Sequential(Module):
    """Modules and functions, one after another."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]):
        self.layers = list(layers)

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


check_all(globals())
