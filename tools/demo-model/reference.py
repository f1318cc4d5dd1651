#!/usr/bin/env python3
"""A plain numpy forward pass of the exported GGUF file: the reference to test against.

    python reference.py MODEL.gguf CORPUS_DIR [--expected OUT.json] [--perplexity]

Everything is read from the file: weights are dequantised from their blocks, the input of
each ternary matrix is rounded to int8 per token, the rest is float32.

--perplexity  the figures of the validation and the held-out part (some minutes)
--expected    greedy continuation, logits and tokenizer cases, as JSON
--generate P  sample a continuation of the prompt P
"""
import argparse
import json
import math
import os

import gguf
import numpy as np
from tokenizers import Tokenizer

EPS = np.float32(1e-5)


class Gguf:
    def __init__(self, path):
        r = gguf.GGUFReader(path)
        self.kv = {k: f.contents() for k, f in r.fields.items()}
        self.t = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
                  for t in r.tensors}
        self.gamma = {}
        for t in r.tensors:
            if t.tensor_type == gguf.GGMLQuantizationType.TQ2_0:
                d = np.ascontiguousarray(t.data.reshape(-1, 66)[:, 64:]).view(np.float16)
                assert (d == d[0]).all(), f"{t.name}: one scale per matrix"
                self.gamma[t.name] = np.float32(d[0, 0])
                self.t[t.name] = np.rint(self.t[t.name] / self.gamma[t.name])
        a = "bitnet-b1.58."
        self.layers = self.kv[a + "block_count"]
        self.heads = self.kv[a + "attention.head_count"]
        self.kv_heads = self.kv[a + "attention.head_count_kv"]
        self.hd = self.kv[a + "rope.dimension_count"]
        self.base = self.kv[a + "rope.freq_base"]
        self.context = self.kv[a + "context_length"]
        self.bos = self.kv["tokenizer.ggml.bos_token_id"]
        self.eos = self.kv["tokenizer.ggml.eos_token_id"]


def norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def bit_linear(g, x, name):
    s = np.float32(127) / np.maximum(np.abs(x).max(-1, keepdims=True), EPS)
    q = np.clip(np.rint(x * s), -128, 127)
    return (q @ g.t[name].T) * (g.gamma[name] / s)  # q and t are integers: the sums are exact


def rotate(x, pos, base):
    """x: [T, heads, hd]; the pairs are (i, i + hd / 2)."""
    half = x.shape[-1] // 2
    ang = pos[:, None] * base ** -(np.arange(half) / half)
    c, s = np.cos(ang)[:, None].astype(np.float32), np.sin(ang)[:, None].astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate((a * c - b * s, b * c + a * s), -1)


def forward(g, ids, cache=None):
    """Logits [T, vocab] of the tokens `ids`; `cache` (a list) holds earlier keys, values."""
    cache = [] if cache is None else cache
    fresh = not cache
    past = 0 if fresh else len(cache[0][0])
    T = len(ids)
    pos = np.arange(past, past + T)
    h = g.t["token_embd.weight"][np.asarray(ids)]
    for i in range(g.layers):
        p = f"blk.{i}."
        x = norm(h, g.t[p + "attn_norm.weight"])
        q, k, v = (bit_linear(g, x, p + n + ".weight").reshape(T, -1, g.hd)
                   for n in ("attn_q", "attn_k", "attn_v"))
        q, k = rotate(q, pos, g.base), rotate(k, pos, g.base)
        if fresh:
            cache.append((k, v))
        else:
            k, v = (np.concatenate(kv) for kv in zip(cache[i], (k, v)))
            cache[i] = (k, v)
        rep = g.heads // g.kv_heads
        kk, vv = (np.repeat(a, rep, 1).transpose(1, 0, 2) for a in (k, v))
        s = q.transpose(1, 0, 2) @ kk.transpose(0, 2, 1) / np.float32(math.sqrt(g.hd))
        s = np.where(np.arange(past + T)[None, :] <= pos[:, None], s, np.float32(-np.inf))
        s = np.exp(s - s.max(-1, keepdims=True))
        a = (s / s.sum(-1, keepdims=True)) @ vv
        a = norm(a.transpose(1, 0, 2).reshape(T, -1), g.t[p + "attn_sub_norm.weight"])
        h = h + bit_linear(g, a, p + "attn_output.weight")
        x = norm(h, g.t[p + "ffn_norm.weight"])
        f = np.maximum(bit_linear(g, x, p + "ffn_gate.weight"), 0) ** 2
        f = f * bit_linear(g, x, p + "ffn_up.weight")
        h = h + bit_linear(g, norm(f, g.t[p + "ffn_sub_norm.weight"]), p + "ffn_down.weight")
    return norm(h, g.t["output_norm.weight"]) @ g.t["token_embd.weight"].T


def perplexity(g, stream, nbytes):
    """As train.py measures: a document is scored in runs of context_length tokens, each
    predicted from bos and the tokens of the run before it; bos itself is not scored."""
    nll, count = 0.0, 0
    for doc in np.split(stream, np.flatnonzero(stream == g.bos)[1:]):
        body = doc[1:].astype(np.int64)
        for i in range(0, len(body), g.context):
            run = body[i:i + g.context]
            z = forward(g, np.concatenate(([g.bos], run[:-1]))).astype(np.float64)
            m = z.max(-1)
            nll += (m + np.log(np.exp(z - m[:, None]).sum(-1)) - z[np.arange(len(run)), run]).sum()
            count += len(run)
    return dict(tokens=count, bytes=int(nbytes), nats_per_token=nll / count,
                perplexity=math.exp(nll / count), bits_per_byte=nll / math.log(2) / float(nbytes))


def generate(g, ids, n, temperature=0.0, top_k=40, seed=0):
    rng = np.random.default_rng(seed)
    cache, out, feed = [], [], list(ids)
    for _ in range(n):
        z = forward(g, feed, cache)[-1]
        if temperature == 0:
            t = int(z.argmax())
        else:
            top = np.argsort(-z)[:top_k]
            p = np.exp((z[top] - z[top[0]]).astype(np.float64) / temperature)
            t = int(rng.choice(top, p=p / p.sum()))
        out.append(t)
        if t == g.eos:
            break
        feed = [t]
    return out


CASES = [
    "Hello, world!",
    "fn main() {\n    println!(\"Hello, {name}!\");\n}\n",
    "let mut v: Vec<Option<&'static str>> = Vec::with_capacity(1024);",
    "    if x != 0 && y >= 0x_ff_u32 {\n\t\treturn Err(io::Error::last_os_error());\n    }",
    "It's what they'RE saying: I'LL don't, we'd've; rock 'n' roll",
    "1 12 123 1234 12345.678 3,141,592 2026-11-21 v1.95.0",
    "emoji: \U0001F980 \U0001F468\u200D\U0001F469\u200D\U0001F467 \U0001F1E8\U0001F1ED \u2764\uFE0F!",
    "\u041F\u0440\u0438\u0432\u0435\u0442, \u4E16\u754C! \u3053\u3093\u306B\u3061\u306F \u0645\u0631\u062D\u0628\u0627 \u05E9\u05DC\u05D5\u05DD \uC548\uB155 \u0928\u092E\u0938\u094D\u0924\u0947",
    "na\u00EFve caf\u00E9 Stra\u00DFe \u017B\u00F3\u0142\u0107; e\u0301 (decomposed), \uFB01 ligature, \u216B, \u00BD, \u0663\u0664",
    "  two leading spaces",
    "trailing spaces   ",
    "a  b   c    d\te\t\tf",
    "\n\n\nthree newlines, then two\n\n",
    "line one\r\nline two\r\n\r\nline four\r",
    " \n  \n   x",
    "\u00A0no-break\u2003em space\u3000ideographic",
    "",
    " ",
    "\n",
    "...!!!???---===>>><<<&&&|||",
    "// SAFETY: `ptr` is non-null.\n/// # Examples\n///\n/// ```\n#[derive(Debug, Clone)]",
    "snake_case_name camelCaseName SCREAMING_SNAKE r#type 'a '\\n' b\"bytes\\x7f\"",
    "https://doc.rust-lang.org/std/vec/struct.Vec.html#method.push?x=1&y=%20",
    "zero\u0000byte \u0007bell \u001b[0m \uFFFD \U0010FFFF",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


# Chosen so that no greedy step is a near tie (greedy_smallest_margin, in logits).
PROMPTS = ["# Struct std::vec::Vec\n\n```rust\n", "```rust\nfn main() {\n    let mut",
           "The Rust compiler", "This function will"]


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("gguf")
    ap.add_argument("corpus")
    ap.add_argument("--expected")
    ap.add_argument("--perplexity", action="store_true")
    ap.add_argument("--parts", default="valid,heldout")
    ap.add_argument("--generate", metavar="PROMPT")
    ap.add_argument("--tokens", type=int, default=200)
    ap.add_argument("--temperature", type=float, default=0.7)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    g = Gguf(args.gguf)
    tok = Tokenizer.from_file(os.path.join(args.corpus, "tokenizer.json"))
    encode = lambda text: tok.encode(text, add_special_tokens=False).ids
    figures = {}
    if args.perplexity:
        data = np.load(os.path.join(args.corpus, "tokens.npz"))
        for part in args.parts.split(","):
            figures[part] = perplexity(g, data[part], data[part + "_bytes"])
            print(part, json.dumps(figures[part]), flush=True)
    if args.generate:
        ids = [g.bos] + encode(args.generate)
        print(args.generate + tok.decode(
            generate(g, ids, args.tokens, args.temperature, seed=args.seed)))
    if args.expected:
        runs = []
        for prompt in PROMPTS:
            ids = [g.bos] + encode(prompt)
            greedy = generate(g, ids, 16)
            # the distance to the second-best token says how much rounding can change
            z = forward(g, ids + greedy[:-1])[len(ids) - 1:]
            two = np.sort(z, -1)[:, -2:]
            last = z[0]
            top = np.argsort(-last)[:5]
            runs.append(dict(
                prompt=prompt, ids=ids, greedy=greedy, greedy_text=tok.decode(greedy),
                greedy_smallest_margin=round(float((two[:, 1] - two[:, 0]).min()), 4),
                top5=[dict(id=int(t), logit=round(float(last[t]), 4)) for t in top]))
        for text in CASES:
            assert tok.decode(encode(text), skip_special_tokens=False) == text, text
        if not figures and os.path.exists(args.expected):  # keep those measured before
            with open(args.expected, encoding="utf-8") as f:
                figures = json.load(f)["perplexity"]
        with open(args.expected, "w", encoding="utf-8") as f:
            json.dump(dict(
                about="What tools/demo-model/reference.py computes from the model beside this "
                      "file: `top5` are the logits after the whole prompt; `tokenizer` holds "
                      "text -> ids without bos.",
                perplexity=figures, runs=runs,
                tokenizer=[dict(text=t, ids=encode(t)) for t in CASES]), f, indent=1)
            f.write("\n")
        print(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
