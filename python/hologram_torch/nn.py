"""torch's modules, computed by Hologram: they hold torch's parameters, learn with torch's optimisers, and load and save
torch's state. Each takes `backend`, as the functions of `hologram_torch.functional` do.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from . import functional as f

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "Embedding",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
]


class _OnBackend:
    """A module with the name of the device that computes it."""

    def __init__(self, *args: Any, backend: str | None = None, **options: Any):
        super().__init__(*args, **options)
        self.backend = backend


class Linear(_OnBackend, nn.Linear):
    """`torch.nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return f.linear(input, self.weight, self.bias, backend=self.backend)


class Embedding(_OnBackend, nn.Embedding):
    """`torch.nn.Embedding`, without `max_norm`, `padding_idx`, `scale_grad_by_freq` and `sparse`."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        if self.padding_idx is not None or self.max_norm is not None or self.scale_grad_by_freq or self.sparse:
            raise ValueError("Embedding takes no padding_idx, max_norm, scale_grad_by_freq or sparse")

    def forward(self, input: Tensor) -> Tensor:
        return f.embedding(input, self.weight, backend=self.backend)


class LayerNorm(_OnBackend, nn.LayerNorm):
    """`torch.nn.LayerNorm`."""

    def forward(self, input: Tensor) -> Tensor:
        return f.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps, backend=self.backend)


class ReLU(_OnBackend, nn.Module):
    """max(x, 0)."""

    def forward(self, input: Tensor) -> Tensor:
        return f.relu(input, backend=self.backend)


class Sigmoid(_OnBackend, nn.Module):
    """1 / (1 + e⁻ˣ)."""

    def forward(self, input: Tensor) -> Tensor:
        return f.sigmoid(input, backend=self.backend)


class Tanh(_OnBackend, nn.Module):
    """The hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        return f.tanh(input, backend=self.backend)


class SiLU(_OnBackend, nn.Module):
    """x · sigmoid(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return f.silu(input, backend=self.backend)


class GELU(_OnBackend, nn.GELU):
    """`torch.nn.GELU`."""

    def forward(self, input: Tensor) -> Tensor:
        return f.gelu(input, self.approximate, backend=self.backend)


class Softmax(_OnBackend, nn.Module):
    """eˣ over its sum along a dimension."""

    def __init__(self, dim: int = -1, backend: str | None = None):
        super().__init__(backend=backend)
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return f.softmax(input, self.dim, backend=self.backend)


class LogSoftmax(Softmax):
    """The logarithm of `Softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return f.log_softmax(input, self.dim, backend=self.backend)


class MSELoss(_OnBackend, nn.MSELoss):
    """`torch.nn.MSELoss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return f.mse_loss(input, target, self.reduction, backend=self.backend)


class CrossEntropyLoss(_OnBackend, nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss`, without `weight`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self.weight is not None:
            raise ValueError("CrossEntropyLoss takes no weight")
        options = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        return f.cross_entropy(input, target, self.reduction, **options, backend=self.backend)
