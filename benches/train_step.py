#!/usr/bin/env python3
"""A training step of the small GPT of the example `train_gpt` on the CPU beside eager torch, in one run.

    python3 -m venv venv && venv/bin/pip install torch
    cargo build --release -p hologram-core --example train_gpt
    venv/bin/python benches/train_step.py [--rounds 7] [--example target/release/examples/train_gpt]

Both have the same model (4 layers of width 128, 8 texts of 64 tokens, f32), clipping, and AdamW (torch's is fused).
They take turns; printed are the medians over the rounds of the median step of each, and the median of the rounds'
ratios. With `--compiled` torch.compile(backend="hologram") of the installed package takes turns too.
"""

import argparse
import os
import re
import statistics
import subprocess
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--example", default="target/release/examples/train_gpt")
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--compiled", action="store_true")
args = parser.parse_args()
torch.set_num_threads(os.cpu_count())

VOCABULARY, LENGTH, BATCH, WIDTH, HEADS, LAYERS = 256, 64, 8, 128, 4, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.projection(h.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.empty(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, ids, targets):
        x = self.norm(self.blocks(self.tokens(ids) + self.positions))
        logits = nn.functional.linear(x, self.tokens.weight)
        return nn.functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def torch_run(model):
    """The median step in milliseconds of some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids, targets = (torch.randint(0, VOCABULARY, (BATCH, LENGTH)) for _ in range(2))

    def step():
        start = time.perf_counter()
        optimizer.zero_grad()
        model(ids, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return 1e3 * (time.perf_counter() - start)

    return statistics.median([step() for _ in range(args.steps + 5)][5:])


def example_run():
    command = [args.example, os.path.abspath(__file__), str(args.steps), "cpu"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(re.search(r"([\d.]+) ms per step", out)[1])


sides = {"hologram": example_run}
if args.compiled:
    compiled = torch.compile(Gpt(), backend="hologram")
    sides["compiled"] = lambda: torch_run(compiled)
eager = Gpt()
rounds = []
for _ in range(args.rounds):
    rounds.append({"eager": torch_run(eager), **{name: run() for name, run in sides.items()}})
print(f"torch {torch.__version__}, {os.cpu_count()} threads, medians of {args.rounds} rounds")
for name in rounds[0]:
    step = statistics.median(r[name] for r in rounds)
    ratio = statistics.median(r[name] / r["eager"] for r in rounds)
    print(f"{name:<10} {step:8.2f} ms a step, {ratio:.2f} of eager's")
