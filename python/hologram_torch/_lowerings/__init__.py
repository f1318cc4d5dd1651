"""Translations of ATen's operations."""

# Each enters its translations into the table.
from . import _attention, _elementwise, _indices, _networks, _reductions, _shapes  # noqa: F401
from ._table import RANDOM, TABLE, Context

__all__ = ["RANDOM", "TABLE", "Context"]
