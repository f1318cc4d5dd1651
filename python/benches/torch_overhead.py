"""What `torch.compile(backend="hologram")` costs: the time of a call of a graph that does almost nothing, the time of
the first call of a small GPT-2, and that of its training step beside torch's eager one.

    python python/benches/torch_overhead.py
"""

import statistics
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


def training(layers=2, width=128, tokens=64, batch=8):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_head=4, n_embd=width, vocab_size=1000, n_positions=tokens, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    ids = torch.randint(0, 1000, (batch, tokens))
    results = {}
    for kind in ("eager", "hologram"):
        model = GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        call = model if kind == "eager" else torch.compile(model, backend=kind)

        def step(call=call, optimizer=optimizer):
            optimizer.zero_grad()
            call(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()

        start = time.perf_counter()
        step()
        first = time.perf_counter() - start
        results[kind] = microseconds(step, 3)
        step_ms = results[kind] / 1e3
        print(f"GPT-2, {layers} × {width}, {batch} × {tokens}: {kind}: first {first:.2f} s, step {step_ms:.2f} ms")
    print(f"step: {results['hologram'] / results['eager']:.2f} × eager's")


if __name__ == "__main__":
    overhead()
    training()
