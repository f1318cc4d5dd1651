"""Operations of the package beside NumPy's and torch's, in one run: the tables of docs/python.md.

    python python/benches/peers.py [--device cpu|cuda] [--rounds 7] [--elements 67108864] [--only sum,sort]

Every side takes a turn in each round; printed are the medians over the rounds, and the peer's median time as a multiple
of Hologram's. All use the processors that the process may use (`taskset`). On a GPU, where torch alone is the peer,
calls are not waited for one by one. Without torch, NumPy alone is the peer.
"""

import argparse
import statistics
import time

import numpy as np

import hologram as hg

try:
    import torch
except ImportError:
    torch = None

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--elements", type=int, default=64 << 20, help="of the large operands")
parser.add_argument("--only", default="", help="operations, separated by commas")
args = parser.parse_args()
GPU = args.device == "cuda"
if GPU and torch is None:
    raise SystemExit("peers.py: on a GPU torch is the peer, and it is not installed")

SIDES = {"Hologram": hg} | ({} if GPU else {"NumPy": np}) | ({"torch": torch} if torch is not None else {})
ROWS = 4096


def chain(of):
    """Eight operations on elements."""
    return lambda x, y: of.tanh(of.abs(x * y + x) * 0.5 - y) * x + 1.0


def sum_of(of, axis):
    """Torch names the dimension otherwise."""
    return (lambda x: of.sum(x, dim=axis)) if of is torch else (lambda x: of.sum(x, axis=axis))


def sort(of):
    return (lambda x: torch.sort(x, dim=-1).values) if of is torch else (lambda x: of.sort(x))


def cases():
    """Name, shapes of the operands, and the function of each side."""
    n, columns, side = args.elements, max(1, args.elements // ROWS), 2048
    for size in (16, n):
        name = f"{size >> 20} Mi" if size >> 20 else str(size)
        yield f"x + y, {name}", [(size,)] * 2, lambda of: lambda x, y: x + y
        yield f"exp(x), {name}", [(size,)], lambda of: lambda x: of.exp(x)
        yield f"chain of 8, {name}", [(size,)] * 2, chain
        yield f"compiled chain of 8, {name}", [(size,)] * 2, lambda of: hg.compile(chain(hg)) if of is hg else chain(of)
        yield f"sum, {name}", [(size,)], lambda of: lambda x: of.sum(x)
    for axis, what in ((0, "columns"), (1, "rows")):
        yield f"sum of {what}, {ROWS} × {columns}", [(ROWS, columns)], lambda of, axis=axis: sum_of(of, axis)
    yield f"transposed copy, {ROWS} × {columns}", [(ROWS, columns)], lambda of: lambda x: x.T + 0.0
    yield f"sort of rows, {ROWS} × 1024", [(ROWS, 1024)], sort
    yield f"x @ y, {side}³", [(side, side)] * 2, lambda of: lambda x, y: x @ y


def synchronize(of):
    if GPU:
        hg.synchronize("cuda") if of is hg else torch.cuda.synchronize()


def seconds(of, call, operands, count):
    synchronize(of)
    start = time.perf_counter()
    for _ in range(count):
        call(*operands)
    synchronize(of)
    return (time.perf_counter() - start) / count


def host(value):
    return value.cpu().numpy() if torch is not None and isinstance(value, torch.Tensor) else np.asarray(value)


def main():
    what = torch.cuda.get_device_name() if GPU else "CPU"
    peers = [name for name in SIDES if name != "Hologram"]
    versions = ", ".join(f"{name} {SIDES[name].__version__}" for name in peers)
    print(f"{what}, {versions}, medians of {args.rounds} rounds; in brackets the peer's time ÷ Hologram's")
    print(f"| operation on float32 | Hologram, µs | {' | '.join(f'{name}, µs' for name in peers)} |")
    print("| --- |" + " --- |" * len(SIDES))
    if torch is not None:
        torch.backends.cuda.matmul.allow_tf32 = False
    for name, shapes, make in cases():
        if args.only and not any(part in name for part in args.only.split(",")):
            continue
        random = np.random.default_rng(1)
        numbers = [random.standard_normal(shape, dtype=np.float32) for shape in shapes]
        calls, results = {}, {}
        for side, of in SIDES.items():
            if of is hg:
                operands = [hg.asarray(x, device=args.device) for x in numbers]
            elif of is np:
                operands = numbers
            else:
                operands = [torch.from_numpy(x).to(args.device) for x in numbers]
            calls[side] = (of, make(of), operands)
            results[side] = host(calls[side][1](*operands))
        for peer in peers:
            scale = max(1.0, float(np.abs(results[peer]).max()))
            off = float(np.abs(results["Hologram"].astype(np.float64) - results[peer]).max())
            if not off <= 1e-3 * scale:
                raise SystemExit(f"{name}: {off} off {peer}'s result")
        del results
        count = max(1, min(2000, int(0.1 / max(1e-6, seconds(*calls["Hologram"], 2)))))
        rounds = [{side: seconds(*call, count) for side, call in calls.items()} for _ in range(args.rounds)]
        median = {side: statistics.median(turn[side] for turn in rounds) for side in calls}
        ratio = {p: statistics.median(turn[p] / turn["Hologram"] for turn in rounds) for p in peers}
        columns = [f"{median['Hologram'] * 1e6:,.1f}"] + [f"{median[p] * 1e6:,.1f} ({ratio[p]:.2f})" for p in peers]
        print(f"| {name} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
