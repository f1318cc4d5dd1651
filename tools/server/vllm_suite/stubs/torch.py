"""What tests of chat completions use of torch: the range of its integers."""

from types import SimpleNamespace

long = "long"


def iinfo(_):
    return SimpleNamespace(min=-(2**63), max=2**63 - 1)
