"""Translations of ATen's operations."""

from . import _elementwise, _indices, _networks, _reductions, _shapes
from ._table import RANDOM, TABLE, Context

__all__ = ["RANDOM", "TABLE", "Context"]
