#!/usr/bin/env python3
"""Products of matrices beside torch, in one run: rows of a table for benches/RESULTS.md or its history.

    python3 -m venv venv && venv/bin/pip install torch
    cargo build --release -p hologram-core --example product_bench
    venv/bin/python benches/products.py [--threads 1,2] [--rounds 7] [--only f32] [--sides 256,1024] [--bench PROGRAM]
    venv/bin/python benches/products.py --device cuda    # by the Python package, which must be installed
    venv/bin/python benches/products.py --device cuda --only conv2d    # ResNet-50's layers of 32 images, f16

Both sides take turns: in every round each has the least of a few runs of a case, and printed are the medians over the
rounds, in GFLOP/s, with the median of the rounds' ratios. The share is of multiplications alone on as many threads,
measured in the same rounds. On a GPU figures are of calls that are not waited for one by one, so that small products cost
what a call costs; f32 is exact on both sides.
"""

import argparse
import statistics
import subprocess
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--bench", default="target/release/examples/product_bench")
parser.add_argument("--threads", default="1,2")
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--only", default="", help="types, separated by commas")
parser.add_argument("--sides")
parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
args = parser.parse_args()

LAYOUTS = ("NN", "NT", "TN")
default = "64,128,256,512,1024" if args.device == "cpu" else "256,512,1024,2048,4096,8192"
sides = [int(n) for n in (args.sides or default).split(",")]
cases = [("f32", 1, n, layout) for n in sides for layout in LAYOUTS]
cases += [("f32", 512, 64, layout) for layout in LAYOUTS] + [("f32", 64, 256, layout) for layout in LAYOUTS]
cases += [(ty, 1, n, "NN") for ty in ("bf16", "f16", "f64", "i8", "i32") for n in (256, 1024)]
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


def torch_seconds(ty, batch, n, layout, count):
    make = lambda turned: (torch.randn(batch, n, n).to(TYPES[ty]).squeeze(0), turned)
    a, b = (x.mT if turned else x for x, turned in (make(layout[0] == "T"), make(layout[1] == "T")))
    out = torch.empty(a.shape, dtype=TYPES[ty])
    torch.matmul(a, b, out=out)
    least = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            torch.matmul(a, b, out=out)
        least = min(least, time.perf_counter() - start)
    return least / count


# ResNet-50's convolutions: channels, kernels, their side, stride, side of the images.
LAYERS = [
    (3, 64, 7, 2, 224), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56),
    (256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28), (256, 512, 1, 2, 56), (512, 128, 1, 1, 28),
    (128, 128, 3, 1, 28), (512, 256, 1, 1, 28), (256, 256, 3, 2, 28), (256, 1024, 1, 1, 14), (512, 1024, 1, 2, 28),
    (1024, 256, 1, 1, 14), (256, 256, 3, 1, 14), (1024, 512, 1, 1, 14), (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7),
    (1024, 2048, 1, 2, 14), (2048, 512, 1, 1, 7), (512, 512, 3, 1, 7),
]


def gpu_seconds(call, wait, count):
    wait()
    start = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - start) / count


def convolutions_on_gpu():
    """The layers beside cuDNN, whose images lie as [n, c, h, w] as ours, or with channels last."""
    import hologram as hg

    torch.backends.cudnn.benchmark = True
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, medians of {args.rounds} rounds, µs")
    print("| layer | Hologram | torch | ratio | torch, channels last | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for channels, kernels, side, stride, image in LAYERS:
        x = torch.randn(32, channels, image, image, device="cuda").half()
        w = (torch.randn(kernels, channels, side, side, device="cuda") * 0.05).half()
        layer = hg.nn.Conv2d(channels, kernels, side, stride=stride, padding=side // 2, bias=False, device="cuda")
        layer.weight, own = hg.from_dlpack(w), hg.from_dlpack(x)
        last = [t.to(memory_format=torch.channels_last) for t in (x, w)]
        convolve = torch.nn.functional.conv2d
        calls = [
            (lambda: layer(own), lambda: hg.synchronize("cuda")),
            (lambda: convolve(x, w, None, stride, side // 2), torch.cuda.synchronize),
            (lambda: convolve(*last, None, stride, side // 2), torch.cuda.synchronize),
        ]
        got, want = torch.from_dlpack(calls[0][0]()).double(), calls[1][0]().double()
        error = ((got - want).abs().max() / want.abs().max()).item()
        if not error < 0.005:
            raise SystemExit(f"conv2d {channels} to {kernels}, {side}², {image}²: off by {error}")
        rows = []
        for _ in range(args.rounds):
            one, *others = (gpu_seconds(call, wait, 50) for call, wait in calls)
            rows.append((one, *(figure for other in others for figure in (other, other / one))))
        one, first, ratio, second, ratio2 = (statistics.median(column) for column in zip(*rows))
        name = f"{channels} → {kernels}, {side}²{f' / {stride}' if stride > 1 else ''}, {image}²"
        figures = f"{one * 1e6:.1f} | {first * 1e6:.1f} | {ratio:.2f} | {second * 1e6:.1f} | {ratio2:.2f}"
        print(f"| {name} | {figures} |", flush=True)


def on_gpu():
    """The table of a GPU."""
    import hologram as hg

    torch.backends.cuda.matmul.allow_tf32 = False
    types = TYPES | {"i8": torch.int8}
    device = torch.device("cuda")
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, medians of {args.rounds} rounds, TFLOP/s")
    print("| product | Hologram | torch | ratio |")
    print("| --- | --- | --- | --- |")
    table = [(ty, 1, n, layout) for ty in ("bf16", "f16") for n in sides for layout in LAYOUTS]
    table += [(ty, b, n, layout) for ty in ("bf16", "f16") for b, n in ((512, 64), (64, 256)) for layout in LAYOUTS]
    table += [("f32", 1, n, layout) for n in sides if n <= 4096 for layout in LAYOUTS]
    table += [("f32", 512, 64, "NN"), ("f32", 64, 256, "NN")]
    table += [("f64", 1, n, "NN") for n in sides if n <= 4096] + [("i8", 1, n, "NT") for n in sides]

    for ty, batch, n, layout in table:
        if args.only and ty not in args.only.split(","):
            continue
        shape = (batch, n, n) if batch > 1 else (n, n)
        if ty == "i8":
            numbers = [torch.randint(-9, 9, shape, device=device, dtype=torch.int8) for _ in range(2)]
        else:
            numbers = [torch.randn(shape, device=device).to(types[ty]) for _ in range(2)]
        a, b = (x.mT if turned == "T" else x for x, turned in zip(numbers, layout))
        own = [hg.from_dlpack(x) for x in numbers]
        x, y = (hg.matrix_transpose(x) if turned == "T" else x for x, turned in zip(own, layout))
        ours = lambda: hg.matmul(x, y)
        theirs = (lambda: torch._int_mm(a, b)) if ty == "i8" else (lambda: a @ b)
        got = torch.from_dlpack(ours())
        # The array API's products of bytes are bytes.
        got, want = got.double(), theirs().to(got.dtype).double()
        error = ((got - want).abs().max() / want.abs().max()).item()
        if not error < 0.01:
            raise SystemExit(f"{ty} {shape} {layout}: off by {error}")
        del got, want
        flop = 2 * batch * n**3
        count = max(1, min(200, int(2e11 / flop)))
        rows = []
        for _ in range(args.rounds):
            one = gpu_seconds(ours, lambda: hg.synchronize("cuda"), count)
            other = gpu_seconds(theirs, torch.cuda.synchronize, count)
            rows.append((flop / one, flop / other, other / one))
        one, other, ratio = (statistics.median(column) for column in zip(*rows))
        size = f"{batch} × {n}³" if batch > 1 else f"{n}³"
        print(f"| {ty} {size} {layout} | {one / 1e12:.1f} | {other / 1e12:.1f} | {ratio:.2f} |", flush=True)


if args.device == "cuda":
    convolutions_on_gpu() if args.only == "conv2d" else on_gpu()
    raise SystemExit

for threads in args.threads.split(","):
    torch.set_num_threads(int(threads))
    bench = subprocess.Popen([args.bench, threads], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(line):
        bench.stdin.write(line + "\n")
        bench.stdin.flush()
        return float(bench.stdout.readline())

    print(f"\ntorch {torch.__version__}, threads: {threads}, medians of {args.rounds} rounds")
    print("| product | Hologram | torch | ratio | share of the multiplications' rate |")
    print("| --- | --- | --- | --- | --- |")
    for ty, batch, n, layout in cases:
        if args.only and ty not in args.only.split(","):
            continue
        flop = 2 * batch * n**3
        count = max(1, min(64, int(2e7 / flop)))
        rows = []
        for _ in range(args.rounds):
            peak, ours = ask("peak"), ask(f"{ty} {batch} {n} {n} {n} {layout} {count}")
            # torch multiplies no integers of 8 and 32 bits to 32 on a CPU as fast as floats: no peer.
            theirs = torch_seconds(ty, batch, n, layout, count) if ty in TYPES else float("inf")
            rows.append((flop / ours, flop / theirs, theirs / ours, flop / ours / peak))
        ours, theirs, ratio, share = (statistics.median(column) for column in zip(*rows))
        peer = f"{theirs / 1e9:.1f} | {ratio:.2f}" if ty in TYPES else "– | –"
        size = f"{batch} × {n}³" if batch > 1 else f"{n}³"
        print(f"| {ty} {size} {layout} | {ours / 1e9:.1f} | {peer} | {100 * share:.0f} % |", flush=True)
    bench.stdin.close()
    bench.wait()
