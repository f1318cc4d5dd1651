"""PyTorch on Hologram: `torch.compile(model, backend="hologram")`, and functions and modules of their own."""

from . import functional, nn
from ._backend import backend
from ._translate import UnsupportedOperator

__all__ = ["UnsupportedOperator", "backend", "functional", "nn"]
