#!/usr/bin/env python3
"""Operations of `hologram bench ops` beside numpy, numexpr and numpy's OpenBLAS, with the same sizes and threads.

    python3 -m venv venv && venv/bin/pip install numpy numexpr
    cargo build --release
    venv/bin/python benches/peers.py [--threads 2] [--rounds 5] [--hologram target/release/hologram]

Program and peers take turns; in every round each is the median of several calls (the program's: 11), and what is printed is the
median over the rounds, with the median of the rounds' ratios. The environment variable OPENBLAS_CORETYPE, which forces OpenBLAS to kernels
for another processor, is removed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--hologram", default="target/release/hologram")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()
os.environ.pop("OPENBLAS_CORETYPE", None)
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMEXPR_MAX_THREADS"):
    os.environ[name] = str(args.threads)

import numexpr  # noqa: E402  (reads the environment)
import numpy as np  # noqa: E402

numexpr.set_num_threads(args.threads)
ELEMENTS, SIDE = 64 << 20, 2048
random = np.random.default_rng(1)
x, y, out = (random.standard_normal(ELEMENTS, dtype=np.float32) for _ in range(3))
a, b = (random.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(2))
product = np.empty((SIDE, SIDE), np.float32)
zero, one, quarter = np.float32(0), np.float32(1), np.float32(0.25)
# A subexpression that occurs twice is computed once by numexpr.
LEFT = "one / (one + exp(-(x * y + x))) - quarter * tanh(y)"
EXPRESSION = f"where({LEFT} > zero, {LEFT}, zero) * exp(-abs(x))"


def numpy_chain():
    left = one / (one + np.exp(-(x * y + x)))
    return np.maximum(left - quarter * np.tanh(y), zero) * np.exp(-np.abs(x))


def numexpr_chain():
    numexpr.evaluate(EXPRESSION, out=out)


def openblas():
    np.matmul(a, b.T, out=product)


def median_time(call, calls):
    call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ours():
    """Seconds of the chain and of the product."""
    command = [args.hologram, "bench", "ops", "--device", "cpu", "--threads", str(args.threads), "--json"]
    done = subprocess.run([*command, "--only", "chain,matmul"], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    def seconds(op, dtype, shape):
        return next(l["ns"] for l in lines if (l["op"], l["dtype"], l["shape"]) == (op, dtype, shape)) / 1e9

    return (
        seconds("chain", "f32", str(ELEMENTS)),
        seconds("matmul", "f32 × f32", f"{SIDE} × {SIDE} × {SIDE}"),
    )


assert np.allclose(numpy_chain()[:1000], (numexpr_chain(), out)[1][:1000], atol=1e-6), "the expressions differ"
rows = {"chain, numpy": [], "chain, numexpr": [], f"matmul f32 {SIDE}³, OpenBLAS": []}
for _ in range(args.rounds):
    chain, matmul = ours()
    peers = (median_time(numpy_chain, 3), median_time(numexpr_chain, 3), median_time(openblas, 7))
    for times, pair in zip(rows.values(), zip((chain, chain, matmul), peers)):
        times.append(pair)

print(f"numpy {np.__version__}, numexpr {numexpr.__version__}, {args.threads} threads, {args.rounds} rounds")
print(f"{'operation, peer':<28} {'hologram ms':>12} {'peer ms':>10} {'times as fast':>14}")
for name, pairs in rows.items():
    mine, peer = (statistics.median(p[i] for p in pairs) * 1e3 for i in (0, 1))
    ratio = statistics.median(p[1] / p[0] for p in pairs)
    print(f"{name:<28} {mine:>12.1f} {peer:>10.1f} {ratio:>14.2f}")
sys.stdout.flush()
