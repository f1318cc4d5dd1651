#!/usr/bin/env python3
"""Families, formats, many sequences and encoders on a CPU beside llama.cpp and ONNX Runtime, in turns; prints rows for
RESULTS.md.

    python3 -m venv venv && venv/bin/pip install numpy gguf onnx onnxruntime
    venv/bin/python benches/families.py --hologram target/release/hologram --llama llama-bench --batched llama-batched-bench \\
        --files FOLDER --state rounds.jsonl [--minutes 12] [--threads 2] [--only TEXT]

Random files in the shapes, which both programs read, are written to FOLDER (14 GB) if they are missing; `--minutes 0`
writes them and prints what is known. Each round measures all cases once, both sides of a case one after the other;
rounds go on until the time is up. Every case is appended to the state file, and a later call goes on from there. A
figure is the median over the rounds, the ratio that of the rounds' ratios, with the least, the greatest and their
number in brackets.

On a busy machine only one thread compares well: the peers' threads wait for each other in loops.
"""
import argparse
import collections
import datetime
import json
import os
import shlex
import statistics
import sys
import time

from llama_cpp import run
from random_model import SHAPES, write

# Shapes, layers of them, and a type each: few, as files and time are bounded; they read more than caches hold.
FAMILIES = [("qwen3-30b-a3b", 6, "Q4_K_M"), ("gpt-oss-20b", 4, "MXFP4"), ("gemma3-4b", 12, "Q4_0")]
SMALL, SMALL_LAYERS = "tinyllama-1.1b", 4
IQ_TYPES = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"]
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", *IQ_TYPES, "MXFP4", "NVFP4",
         "TQ1_0", "TQ2_0"]
ENCODERS = ["bert-base", "bge-m3"]
SEQUENCES, TOKENS, TEXTS = [8, 16, 32], 4, 8
ENCODED = {"F32": [], "Q8_0": ["--int8"]}


def measured(command):
    return [json.loads(line) for line in run(command).splitlines() if line.startswith(("{", "["))]


def ours(a, path, threads, options):
    lines = measured([*a.hologram, "bench", path, "--device", "cpu", "-r", "1", "--threads", str(threads), "--json", *options])
    return [line for line in lines if "test" in line]


def speeds(a, path, threads, prompt, tokens):
    """Prompt and decode of both sides."""
    mine = {r["test"][:2]: r["tokens_per_s"] for r in ours(a, path, threads, ["-p", str(prompt), "-n", str(tokens)])}
    options = ["-p", str(prompt), "-n", str(tokens), "-r", "1", "-t", str(threads), "-o", "json"]
    theirs = json.loads(run([*a.llama, "-m", path, *options]))
    theirs = {"pp" if r["n_gen"] == 0 else "tg": r["avg_ts"] for r in theirs}
    return {test: (mine[test], theirs[test]) for test in mine}


def sequences(a, path, threads):
    """Several sequences decoded together."""
    counts = ",".join(map(str, SEQUENCES))
    mine = {str(r["batch"]): r["tokens_per_s"] for r in ours(a, path, threads, ["-p", "0", "-d", "4", "-n", str(TOKENS), "-b", counts])}
    options = ["-npp", "4", "-ntg", str(TOKENS), "-npl", counts, "-c", "2048", "-t", str(threads), "--output-format", "jsonl"]
    theirs = {str(r["pl"]): r["speed_tg"] for r in measured([*a.batched, "-m", path, *options])}
    return {n: (mine[n], theirs[n]) for n in mine}


def encoder(a, path, threads, shape, options):
    mine = ours(a, path, threads, ["-p", "128", "-b", str(TEXTS)])[0]["texts_per_s"]
    script = os.path.join(os.path.dirname(__file__), "onnx_encoder.py")
    theirs = measured([sys.executable, script, shape, a.files, *options, "-b", str(TEXTS), "-r", "1", "--threads", str(threads)])
    return {"texts": (mine, theirs[0]["texts_per_s"])}


def cases(a):
    """Names, files with what they are made of, and calls that measure both sides."""
    for shape, layers, kind in FAMILIES:
        yield f"{shape} of {layers} layers {kind}", (shape, kind, layers), lambda path: speeds(a, path, a.threads, 512, 32)
    for threads in (1, 2):
        yield f"F16, {threads} thread{'s'[:threads - 1]}", (SMALL, "F16", SMALL_LAYERS), lambda path, n=threads: speeds(a, path, n, 0, 24)
    for kind in IQ_TYPES:
        yield kind, (SMALL, kind, SMALL_LAYERS), lambda path: speeds(a, path, a.threads, 0, 24)
    for shape in ENCODERS:
        for kind, options in ENCODED.items():
            call = lambda path, shape=shape, options=options: encoder(a, path, a.threads, shape, options)
            yield f"{shape} {kind}", (shape, kind, None), call
    for kind in TYPES:
        yield f"{kind}, sequences", (SMALL, kind, SMALL_LAYERS), lambda path: sequences(a, path, a.threads)


def table(rows):
    """The medians of the state's rounds as Markdown."""
    words = {"pp": "prompt of 512", "tg": "decode", "texts": "texts of 128 tokens/s"}
    figures = collections.defaultdict(list)
    for row in rows:
        for test, pair in row["speeds"].items():
            figures[row["case"], test].append(pair)
    print("| what | Hologram | peer | ratio | command | date |\n| --- | --- | --- | --- | --- | --- |")
    for (case, test), pairs in figures.items():
        mine, theirs = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        ratios = [pair[0] / pair[1] for pair in pairs]
        what = f"{case.removesuffix(', sequences')}, {words.get(test, f'{test} sequences')}"
        digits = 1 if mine < 100 else 0
        ratio = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}–{max(ratios):.2f}, {len(ratios)}]"
        print(f"| {what} | {mine:,.{digits}f} | {theirs:,.{digits}f} | {ratio} | `benches/families.py` | {datetime.date.today()} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("hologram", "llama", "batched"):
        p.add_argument("--" + name, required=True, type=shlex.split)
    p.add_argument("--files", required=True)
    p.add_argument("--state", required=True)
    p.add_argument("--minutes", type=float, default=12)
    p.add_argument("--threads", type=int, default=2, help="of all cases that do not name them")
    p.add_argument("--only", default="", help="only cases whose name contains this text")
    a = p.parse_args()
    end = time.monotonic() + 60 * a.minutes
    todo = [case for case in cases(a) if a.only in case[0]]
    paths = {}
    for _, made_of, _ in todo:
        shape, kind, layers = made_of
        paths[made_of] = os.path.join(a.files, f"{shape}-{kind}{f'-{layers}' if layers else ''}.gguf")
        if not os.path.exists(paths[made_of]):
            print(f"writing {paths[made_of]}", file=sys.stderr)
            write(shape, kind, paths[made_of] + ".part", layers)
            os.rename(paths[made_of] + ".part", paths[made_of])
    rows = []
    if os.path.exists(a.state):
        with open(a.state) as state:
            rows = [json.loads(line) for line in state]
    done = collections.Counter(row["case"] for row in rows)
    with open(a.state, "a") as state:
        # The case with the fewest rounds is next, in the order above.
        while time.monotonic() < end:
            name, made_of, call = min(todo, key=lambda case: done[case[0]])
            row = {"case": name, "speeds": call(paths[made_of])}
            print(row, file=sys.stderr, flush=True)
            print(json.dumps(row), file=state, flush=True)
            rows.append(row)
            done[name] += 1
    table(rows)


if __name__ == "__main__":
    main()
