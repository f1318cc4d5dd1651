#!/usr/bin/env python3
"""Runs the native kernels that serve Metal (crates/hologram-gpu/kernels/shared/*.k and .../metal/*.metal) in checked mode:
right numbers, no data race, no access out of bounds, no barrier that some threads miss; and of those that only read their weights or
rows once, that they load at most a tenth more than they must.

    kernels.py [NAME…]      runs all cases, or those of sources whose name begins so
"""
import glob, os, sys, tempfile, time
from concurrent.futures import ProcessPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import mslc
from kernel_cases.attention import attention, attention_append, attention_prefill
from kernel_cases.caches import caches, gather, rope
from kernel_cases.case import RUNS
from kernel_cases.experts import experts, route
from kernel_cases.products import matmul_simdgroup, matvec, matvec_floats, matvec_i8, matvec_packed, packed
from kernel_cases.recurrent import causal_conv, recurrence
from kernel_cases.rows import biases, elementwise, layer_norm, quantize, reduce, rms_norm, sample, softmax, top_k
from kernel_data import RNG
from runner import Fault, Library

ROOT = os.path.normpath(os.path.join(HERE, "..", "..", "crates", "hologram-gpu", "kernels"))
FOLDERS = [os.path.join(ROOT, "shared"), os.path.join(ROOT, "metal")]
GROUPS = [matmul_simdgroup, attention, attention_append, attention_prefill, sample, rms_norm, biases, layer_norm, softmax, reduce, quantize,
          elementwise, rope, caches, gather, top_k, matvec, matvec_i8, matvec_packed, matvec_floats, route, experts, packed, recurrence,
          causal_conv]


def run(source, cases, folders=FOLDERS, runs=RUNS):
    """What is wrong with the cases of a source, which with its headers is in one of these folders."""
    path = next((p for p in (os.path.join(f, source) for f in folders) if os.path.exists(p)), source)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "kernels.so")
        try:
            # Only the kernels that run: what the others are compiled for is checked apart.
            defines = ["ONLY", *(f"WANT_{name}=~," for name in sorted({case.kernel for case in cases}))]
            mslc.build(path, out, defines, folders, checked=True)
        except mslc.Failure as e:
            return [f"{source}: {e}"]
        library, wrong = Library(out), []
        for case in cases:
            try:
                found = case.run(library, runs)
            except Fault as e:
                found = str(e)
            if found:
                wrong.append(f"{source} {case.kernel} on {case.grid} x {case.threads}: {found}")
        return wrong


def main():
    start, by_source = time.time(), {}
    names = tuple(sys.argv[1:])
    for group in GROUPS:
        RNG.seed(group.__name__)  # Another group's cases do not change these.
        for case in group():
            if not names or case.source.startswith(names):
                by_source.setdefault(case.source, []).append(case)
    paths = sorted(p for f in FOLDERS for p in glob.glob(f + "/*.k") + glob.glob(f + "/*.metal"))
    wrong = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        # The longest first.
        runs = [pool.submit(run, *item) for item in sorted(by_source.items(), key=lambda item: -len(item[1]))]
        checks = [pool.submit(mslc.check, p, (), FOLDERS, p.endswith(".k")) for p in paths if not names]
        wrong = [m for c in checks for m in [c.result()] if m] + [m for r in runs for m in r.result()]
    print("\n".join(wrong))
    count = sum(map(len, by_source.values()))
    print(f"{len(paths)} sources, {count} launches of {len(by_source)} in {time.time() - start:.0f} s: {len(wrong)} wrong")
    untested = sorted({os.path.basename(p) for p in paths} - set(by_source))
    if untested and not names:
        print("checked, but not run: " + ", ".join(untested))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
