"""PyTorch on Hologram: `torch.compile(model, backend="hologram")`."""

from ._backend import backend
from ._translate import UnsupportedOperator

__all__ = ["UnsupportedOperator", "backend"]
