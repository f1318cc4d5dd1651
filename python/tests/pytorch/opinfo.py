"""Counts the operations of torch's own database whose f32 samples give torch's values when Hologram compiles them.

    python opinfo.py [--samples N] [--only NAME] [--all] [--least N]

Prints the count, and what the others lack. `--least` makes a lower count an error. Not a test that pytest collects: it
takes minutes.
"""

import argparse
import collections
import sys
import time
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from hologram_torch._backend import compiled_function


def outcome(op, most: int) -> tuple[str, str]:
    """`equal`, `traces` (torch itself cannot trace it), or what went wrong, with details."""
    try:
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))[:most]
    except Exception as error:  # noqa: BLE001
        return "no samples", f"{type(error).__name__}: {error}"
    for sample in samples:
        leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(*tensors, leaves=leaves, places=places, structure=structure):
            own = list(leaves)
            for i, tensor in zip(places, tensors, strict=True):
                own[i] = tensor
            given, args, kwargs = pytree.tree_unflatten(own, structure)
            return op(given, *args, **kwargs)

        try:
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                torch.manual_seed(0)
                expected = function(*(leaves[i].clone() for i in places))
                call = compiled_function(function, None)
                got = call(*(leaves[i].clone() for i in places))
        except Exception as error:  # noqa: BLE001
            kind = type(error).__name__
            text = str(error).strip().splitlines()
            first = text[0] if text else ""
            ours = kind == "UnsupportedOperator" or "hologram" in "".join(getattr(error, "__notes__", []) + text)
            return ("unsupported" if kind == "UnsupportedOperator" else kind if ours else "traces"), first
        try:
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        except AssertionError as error:
            return "differs", " ".join(str(error).split())[:200]
    return ("equal", "") if samples else ("no samples", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=3, help="samples per operation (3)")
    parser.add_argument("--only", help="operations whose name contains this")
    parser.add_argument("--all", action="store_true", help="name every operation that is not equal")
    parser.add_argument("--least", type=int, default=0, help="fail when fewer are equal")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.monotonic()
    found = collections.defaultdict(list)
    missing = collections.Counter()
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if torch.float32 not in op.supported_dtypes("cpu") or (args.only and args.only not in name):
            continue
        kind, text = outcome(op, args.samples)
        found[kind].append(name)
        if kind == "unsupported":
            missing[text.removeprefix("hologram cannot compile the operation ")] += 1
        if args.all and kind != "equal":
            print(f"{kind}: {name}: {text}", flush=True)
    for overload, n in missing.most_common():
        print(f"  {n:3} lack {overload}")
    total = sum(map(len, found.values()))
    traced = total - len(found["traces"]) - len(found["no samples"])
    counts = ", ".join(f"{len(names)} {kind}" for kind, names in sorted(found.items()) if kind != "equal")
    print(f"{len(found['equal'])} of {traced} operations are equal ({counts}) in {time.monotonic() - start:.0f} s")
    return 0 if len(found["equal"]) >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())
