"""What `torch.compile(backend="hologram")` costs: the time of a call of a graph that does almost nothing, the time of
the first call of a small GPT-2, and that of its training step beside torch's eager one. With `gpu`, GPT-2 124M's step
on an NVIDIA GPU instead, in bf16 autocast, beside Inductor's as well, which needs a C compiler.

    python python/benches/torch_overhead.py [gpu]
"""

import contextlib
import statistics
import sys
import time

import torch
from torch import nn


def microseconds(call, seconds=0.3):
    """The median time of a call."""
    for _ in range(20):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def overhead():
    x, other = torch.ones(16), torch.ones(16)

    def nothing(x):
        return x

    def one(x, y):
        return x + y

    with torch.no_grad():
        for name, function, args in (("empty graph", nothing, (x,)), ("x + y of 16", one, (x, other))):
            rows = [("eager", function)]
            for backend in ("eager", "aot_eager", "hologram"):
                rows.append((f"compiled, {backend}", torch.compile(function, backend=backend)))
            for kind, call in rows:
                torch._dynamo.reset() if kind == "eager" else None
                print(f"{name}: {kind}: {microseconds(lambda call=call: call(*args)):.1f} µs")
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
    call = torch.compile(model, backend="hologram")
    with torch.no_grad():
        y = torch.ones(2, 4)
        eager, own = (microseconds(lambda f=f: f(y)) for f in (model, call))
        print(f"50 layers of 4 × 4: eager {eager:.0f} µs, compiled {own:.0f} µs")


def training(device="cpu", seconds=3, batch=8, **sizes):
    """Training steps of a GPT-2 of these sizes without dropout, with fused AdamW; on a GPU in bf16 autocast."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=2, **sizes)
    torch.manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (batch, config.n_positions), device=device)
    gpu = device == "cuda"
    results = {}
    for kind in ("eager", "hologram", "inductor") if gpu else ("eager", "hologram"):
        torch._dynamo.reset()
        model = GPT2LMHeadModel(config).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        call = model if kind == "eager" else torch.compile(model, backend=kind)

        def step(call=call, optimizer=optimizer):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16) if gpu else contextlib.nullcontext():
                loss = call(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            if gpu:
                torch.cuda.synchronize()

        start = time.perf_counter()
        step()
        first = time.perf_counter() - start
        results[kind] = microseconds(step, seconds)
        what = f"GPT-2, {config.n_layer} × {config.n_embd}, {batch} × {config.n_positions}"
        print(f"{what}: {kind}: first {first:.2f} s, step {results[kind] / 1e3:.2f} ms")
    print(f"step: {results['hologram'] / results['eager']:.2f} × eager's")


if __name__ == "__main__":
    if sys.argv[1:] == ["gpu"]:
        training("cuda", n_positions=1024)
    elif sys.argv[1:]:
        sys.exit("usage: torch_overhead.py [gpu]")
    else:
        overhead()
        training(n_layer=2, n_head=4, n_embd=128, vocab_size=1000, n_positions=64)
