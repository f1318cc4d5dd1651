#!/usr/bin/env python3
"""Train the BitNet b1.58 demo model (one GPU, a few minutes).

    python train.py CORPUS_DIR OUT_DIR [--seconds 440] [--help]

CORPUS_DIR holds tokens.npz (tokenizer.py). Writes OUT_DIR/master-N.safetensors (the master
weights of the best checkpoint by validation loss, float16; export.py quantises them) and OUT_DIR/train.json (settings, the loss curve, figures, samples).

The network is Microsoft's BitNet b1.58 2B-4T topology (transformers: BitNetForCausalLM):

    h += o_proj(attn_sub_norm(attention(attn_norm(h))))
    h += down(ffn_sub_norm(relu(gate(x))^2 * up(x))),   x = ffn_norm(h)

with half-split rotary embedding, grouped-query attention and a tied embedding. The seven
matrices of a block are ternary in the forward pass (gamma = mean|W|; round(W/gamma)
clamped to -1..1, times gamma) and their inputs are int8 per token; gradients pass straight
through both roundings.

The corpus is small, so the run makes many passes over it; dropout, weight decay and the
checkpoint choice hold the overfitting back, and larger float models trained on the same
text first (--float) teach the ternary one (--teacher). Matrices are trained with Muon, the embedding
and the norms with AdamW; the learning rate is warmed up, held, and taken linearly to zero.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


COMPUTE = [torch.float32]  # what the products take; bfloat16 while training on a GPU


class BitMatmul(torch.autograd.Function):
    """y = int8(x) @ ternary(w).T, both quantised here; straight-through backward."""

    @staticmethod
    def forward(ctx, x, w, dt):
        xf = x.float()
        s = 127.0 / xf.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        xq = (xf * s).round().clamp(-128, 127)
        gamma = w.abs().mean().clamp(min=1e-5)
        gamma = gamma.half().float()  # as the exported file holds it
        wq = (w / gamma).round().clamp(-1, 1)
        # The integers are exact in bfloat16 and the sums are taken in float32.
        y = (xq.to(dt) @ wq.to(dt).t()).float() * (gamma / s)
        ctx.save_for_backward((xq / s).to(dt), (wq * gamma).to(dt))
        return y.to(dt)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.to(x.dtype)
        return (g @ w).float(), (g.flatten(0, -2).t() @ x.flatten(0, -2)).float(), None


class BitLinear(nn.Module):
    ternary = True

    def __init__(self, n_in, n_out, std):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * std)

    def forward(self, x):
        if not self.ternary:
            return F.linear(x.to(COMPUTE[0]), self.weight.to(COMPUTE[0]))
        return BitMatmul.apply(x.float(), self.weight, COMPUTE[0])


class RMSNorm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        xf = x.float()
        return xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f, kv = c["embd"], c["ffn"], c["kv_heads"] * c["head_dim"]
        out = 0.7 * d ** -0.5 / math.sqrt(2 * c["layers"])
        std = 0.7 * d ** -0.5
        self.c = c
        self.attn_norm, self.ffn_norm = RMSNorm(d), RMSNorm(d)
        self.attn_sub_norm, self.ffn_sub_norm = RMSNorm(d), RMSNorm(f)
        self.attn_q, self.attn_output = BitLinear(d, d, std), BitLinear(d, d, out)
        self.attn_k, self.attn_v = BitLinear(d, kv, std), BitLinear(d, kv, std)
        self.ffn_gate, self.ffn_up = BitLinear(d, f, std), BitLinear(d, f, std)
        self.ffn_down = BitLinear(f, d, out * (d / f) ** 0.5)
        for m in self.children():
            m.ternary = c["ternary"]

    def forward(self, h, cos, sin, drop):
        B, T, _ = h.shape
        hd = self.c["head_dim"]
        x = self.attn_norm(h)
        q, k, v = (m(x).view(B, T, -1, hd).transpose(1, 2)
                   for m in (self.attn_q, self.attn_k, self.attn_v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        a = a.transpose(1, 2).reshape(B, T, -1)
        a = self.attn_output(self.attn_sub_norm(a))
        h = h + F.dropout(a, drop, self.training)
        x = self.ffn_norm(h)
        f = F.relu(self.ffn_gate(x)).square() * self.ffn_up(x)
        f = self.ffn_down(self.ffn_sub_norm(f))
        return h + F.dropout(f, drop, self.training)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.token_embd = nn.Embedding(c["vocab"], c["embd"])
        nn.init.normal_(self.token_embd.weight, std=0.02)
        self.blk = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.output_norm = RMSNorm(c["embd"])
        inv = c["rope_base"] ** -(torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        ang = torch.arange(c["context"]).float()[:, None] * inv
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def forward(self, ids, targets=None, mask=None, soft=None):
        T = ids.shape[1]
        drop = self.c["dropout"]
        h = F.dropout(self.token_embd(ids).float(), drop, self.training)
        for b in self.blk:
            h = b(h, self.cos[:T], self.sin[:T], drop)
        dt = COMPUTE[0]
        logits = F.linear(self.output_norm(h).to(dt), self.token_embd.weight.to(dt)).float()
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        if soft is not None:  # the teachers' probabilities
            logp = F.log_softmax(logits.flatten(0, 1), -1)
            share = self.c["soft"]
            loss = (1 - share) * loss - share * (soft.flatten(0, 1).float() * logp).sum(-1)
        if mask is None:
            return loss.mean()
        return (loss * mask.flatten()).sum()


# -- optimiser -----------------------------------------------------------------------------


def orthogonal(g):
    """Newton-Schulz iteration towards the nearest orthogonal matrices; g: [n, a, b]."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; parameters of one shape are stepped together."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        by_shape = {}
        for p in params:
            by_shape.setdefault(tuple(p.shape), []).append(p)
        super().__init__([{"params": ps} for ps in by_shape.values()],
                         dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        self.step_fn = torch.compile(self.update) if torch.cuda.is_available() else self.update

    @staticmethod
    def update(g, buf, momentum):
        buf.lerp_(g, 1 - momentum)
        return orthogonal(g.lerp(buf, momentum)).float()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            ps = group["params"]
            g = torch.stack([p.grad for p in ps])
            st = self.state[ps[0]]
            if "buf" not in st:
                st["buf"] = torch.zeros_like(g)
            u = self.step_fn(g, st["buf"], group["momentum"])
            rows, cols = ps[0].shape
            torch._foreach_mul_(ps, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(ps, list(u.unbind(0)),
                                alpha=-group["lr"] * max(1, rows / cols) ** 0.5)


# -- data ----------------------------------------------------------------------------------


def documents(stream, bos):
    return np.split(stream, np.flatnonzero(stream == bos)[1:])


class Batches:
    """Windows of the shuffled documents; the first token of each window is bos."""

    def __init__(self, docs, context, batch, bos, device, seed):
        self.docs, self.n, self.batch, self.bos = docs, context, batch, bos
        self.device = device
        self.rng = np.random.default_rng(seed)
        self.epochs = -1
        self.queue = []

    def refill(self):
        self.epochs += 1
        order = self.rng.permutation(len(self.docs))
        flat = np.concatenate([self.docs[i] for i in order]).astype(np.int64)
        flat = np.roll(flat, -int(self.rng.integers(self.n)))
        rows = (len(flat) - 1) // self.n
        x = flat[: rows * self.n].reshape(rows, self.n).copy()
        y = flat[1: rows * self.n + 1].reshape(rows, self.n)
        x[:, 0] = self.bos
        perm = self.rng.permutation(rows)
        x = torch.from_numpy(x[perm]).to(self.device)
        y = torch.from_numpy(y[perm]).to(self.device)
        self.queue = [(x[i:i + self.batch], y[i:i + self.batch])
                      for i in range(0, rows - self.batch + 1, self.batch)]

    def next(self):
        if not self.queue:
            self.refill()
        return self.queue.pop()


def windows(docs, context, bos):
    """Evaluation windows: every token after a document's bos is scored once.

    A document is cut into runs of context tokens; each window is bos followed by the run
    without its last token, so the window of a continuation starts with bos as well.
    """
    xs, ys, ms = [], [], []
    for d in docs:
        body = d[1:].astype(np.int64)
        for i in range(0, len(body), context):
            run = body[i:i + context]
            pad = context - len(run)
            xs.append(np.concatenate(([bos], run[:-1], np.zeros(pad, np.int64))))
            ys.append(np.concatenate((run, np.zeros(pad, np.int64))))
            ms.append(np.concatenate((np.ones(len(run), np.float32), np.zeros(pad, np.float32))))
    return tuple(torch.from_numpy(np.stack(a)) for a in (xs, ys, ms))


@torch.no_grad()
def evaluate(model, data, device, batch=32):
    model.eval()
    total = count = 0.0
    for i in range(0, len(data[0]), batch):
        x, y, m = (a[i:i + batch].to(device) for a in data)
        total += model(x, y, m).item()
        count += m.sum().item()
    model.train()
    return total / count


@torch.no_grad()
def sample(model, prompt, n, temperature, seed, eos):
    model.eval()
    gen = torch.Generator(device=prompt.device).manual_seed(seed)
    ids = prompt[None]
    for _ in range(n):
        logits = model(ids[:, -model.c["context"]:])[0, -1]
        if temperature == 0:
            nxt = logits.argmax()
        else:
            v, i = logits.topk(40)
            nxt = i[torch.multinomial((v / temperature).softmax(0), 1, generator=gen)][0]
        ids = torch.cat((ids, nxt.view(1, 1)), 1)
        if nxt == eos:
            break
    model.train()
    return ids[0].tolist()


# -- main ----------------------------------------------------------------------------------


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("corpus")
    ap.add_argument("out")
    ap.add_argument("--seconds", type=float, default=440, help="of training, compilation not counted")
    ap.add_argument("--steps", type=int, default=0, help="steps instead of seconds (repeatable)")
    ap.add_argument("--layers", type=int, default=7)
    ap.add_argument("--embd", type=int, default=512)
    ap.add_argument("--ffn", type=int, default=1024)
    ap.add_argument("--kv-heads", type=int, default=4)
    ap.add_argument("--context", type=int, default=1024)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--wd", type=float, default=0.3)
    ap.add_argument("--lr", type=float, default=0.02, help="Muon's")
    ap.add_argument("--adam-lr", type=float, default=0.003)
    ap.add_argument("--embd-wd", type=float, default=0.1)
    ap.add_argument("--decay", type=float, default=0.6, help="final share of the run over which the rate falls")
    ap.add_argument("--source", type=int, default=1, help="1: also train on the library source")
    ap.add_argument("--source-until", type=float, default=0.7,
                    help="share of the run after which the library source is left out")
    ap.add_argument("--float", action="store_true",
                    help="no quantisation: train a teacher; writes OUT_DIR/teacher.pt")
    ap.add_argument("--teacher", nargs="+", metavar="teacher.pt",
                    help="learn from the mean of these models' predictions as well")
    ap.add_argument("--soft", type=float, default=0.7,
                    help="their share of the loss")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--evals", type=int, default=24)
    args = ap.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    os.makedirs(args.out, exist_ok=True)
    data = np.load(os.path.join(args.corpus, "tokens.npz"))
    with open(os.path.join(args.corpus, "tokenizer.json"), encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    bos, eos = vocab["<|begin_of_text|>"], vocab["<|end_of_text|>"]
    c = dict(vocab=len(vocab), embd=args.embd, layers=args.layers, ffn=args.ffn,
             kv_heads=args.kv_heads, head_dim=64, context=args.context, rope_base=10000.0,
             dropout=args.dropout, ternary=not args.float, soft=args.soft)
    model = Model(c).to(device)
    n_params = sum(p.numel() for p in model.parameters())
    matrices = [p for p in model.blk.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    muon = Muon(matrices, lr=args.lr, weight_decay=args.wd)
    adam = torch.optim.AdamW(
        [{"params": [model.token_embd.weight], "weight_decay": args.embd_wd},
         {"params": norms, "weight_decay": 0.0}],
        lr=args.adam_lr, betas=(0.9, 0.98), fused=device == "cuda")
    opts = [muon, adam]
    base = [[g["lr"] for g in o.param_groups] for o in opts]

    docs = documents(data["train"], bos)
    doc_batches = Batches(docs, args.context, args.batch, bos, device, args.seed)
    if args.source:
        both = Batches(docs + documents(data["source"], bos), args.context, args.batch, bos,
                       device, args.seed + 1)
    valid = windows(documents(data["valid"], bos), args.context, bos)
    teachers = []
    for path in args.teacher or []:
        saved = torch.load(path, map_location=device)
        t = Model(saved["config"]).to(device).eval().requires_grad_(False)
        t.load_state_dict(saved["weights"])
        teachers.append(t)
    fast = model
    if device == "cuda":
        COMPUTE[0] = torch.bfloat16
        fast = torch.compile(model)

    def predictions(x):
        return (sum(t(x).softmax(-1) for t in teachers) / len(teachers)).to(COMPUTE[0])

    if teachers and device == "cuda":
        predictions = torch.compile(predictions)

    def loss_of(x, y):
        if not teachers:
            return fast(x, y)
        with torch.no_grad():
            soft = predictions(x)
        return fast(x, y, None, soft)

    t0 = time.time()
    doc_batches.refill()
    x, y = doc_batches.queue[-1]
    loss_of(x, y).backward()  # compiles, outside the clock
    for o in opts:
        for g in o.param_groups:
            g["lr"] = 0.0
        o.step()
        o.zero_grad(set_to_none=True)
    evaluate(model, valid, device)
    for st in list(muon.state.values()) + list(adam.state.values()):
        for v in st.values():
            v.zero_()
    if device == "cuda":
        torch.cuda.synchronize()
    print(f"{n_params / 1e6:.2f} M parameters, vocabulary {len(vocab)}, "
          f"start-up {time.time() - t0:.0f} s", flush=True)

    start = time.time()
    step, tokens, best, curve = 0, 0, (float("inf"), None, 0), []
    next_eval, running, count = 1 / args.evals, 0.0, 0
    while True:
        frac = step / args.steps if args.steps else (time.time() - start) / args.seconds
        last = frac >= 1.0
        if frac >= next_eval or last:
            next_eval += 1 / args.evals
            v = evaluate(model, valid, device)
            tr = float(running) / max(count, 1)
            running, count = 0.0, 0
            epochs = doc_batches.epochs + (both.epochs if args.source else 0)
            print(f"{time.time() - start:6.0f} s  step {step}  epoch {epochs}  "
                  f"train {tr:.4f}  valid {v:.4f}", flush=True)
            curve.append([step, round(tr, 4), round(v, 4)])
            if v < best[0]:
                best = (v, {k: t.detach().to("cpu", torch.float32, copy=True)
                            for k, t in model.state_dict().items()}, step)
        if last:
            break
        scale = min(1.0, (step + 1) / 100, max(0.0, (1 - frac) / args.decay))
        for o, lrs in zip(opts, base):
            for g, lr in zip(o.param_groups, lrs):
                g["lr"] = lr * scale
        x, y = (both if args.source and frac < args.source_until else doc_batches).next()
        loss = loss_of(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], 1.0)
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        running, count = running + loss.detach(), count + 1
        step += 1
        tokens += x.numel()
    took = time.time() - start

    if args.float:
        torch.save(dict(config=c, weights=best[1]), os.path.join(args.out, "teacher.pt"))
        return

    # The figures below are of the exported weights in float32, except the embedding's
    # Q8_0 rounding, which export.py and reference.py add.
    master = {k: v.half().contiguous() for k, v in best[1].items()}
    model.load_state_dict(master)
    COMPUTE[0] = torch.float32
    torch.set_float32_matmul_precision("highest")
    figures = {}
    for part in ("valid", "heldout"):
        w = windows(documents(data[part], bos), args.context, bos)
        nll = evaluate(model, w, device, batch=8)
        n = float(w[2].sum())
        figures[part] = dict(tokens=int(n), nats_per_token=nll, perplexity=math.exp(nll),
                             bits_per_byte=nll * n / math.log(2) / float(data[part + "_bytes"]))
    print(json.dumps(figures, indent=1))
    samples = []
    try:
        from tokenizers import Tokenizer
        tok = Tokenizer.from_file(os.path.join(args.corpus, "tokenizer.json"))
        for i, prompt in enumerate(("# Struct std::", "The `Iterator` trait", "## What is ownership?\n\n",
                                    "# Function std::mem::", "A closure", "```rust\nfn main() {\n")):
            ids = torch.tensor([bos] + tok.encode(prompt).ids, device=device)
            out = sample(model, ids, 160, 0.7, i, eos)
            samples.append(tok.decode(out, skip_special_tokens=True))
            print("-----", samples[-1], sep="\n", flush=True)
    except ImportError:
        pass
    from safetensors.torch import save_file
    shards, size = [{}], 0
    for k in sorted(master):
        size += master[k].nbytes
        if size > 15e6:
            shards.append({})
            size = master[k].nbytes
        shards[-1][k] = master[k]
    for i, shard in enumerate(shards):
        save_file(shard, os.path.join(args.out, f"master-{i}.safetensors"))
    with open(os.path.join(args.out, "train.json"), "w") as f:
        json.dump(dict(config=c, settings=vars(args), parameters=n_params, steps=step,
                       tokens=tokens, seconds=round(took, 1), best_step=best[2],
                       torch_figures=figures, curve=curve, samples=samples), f, indent=1)


if __name__ == "__main__":
    main()
