#!/usr/bin/env python3
"""Times this project's command and llama.cpp's llama-bench on the same GGUF files, taking turns, and prints medians and ratios.

Usage: llama_cpp.py --hologram target/release/hologram --llama llama-bench [--llama "other/llama-bench --repack 0"] \\
           [--threads 1,2] [-p 512] [-n 64] [-d 0] [--rounds 5] MODEL.gguf...

Of several llama.cpp commands the best median counts. A model of the form SHAPE:TYPE=FILE is made by `hologram bench --shape SHAPE
--type TYPE` on this side, and read from FILE by the peer. Ratios are of the medians; in brackets the least and the greatest ratio of a
round.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr.strip()[-500:]}")
    return done.stdout


def ours(command, model, threads, a):
    made = model.partition("=")[0].split(":") if "=" in model else None
    what = ["--shape", made[0], "--type", made[1]] if made else [model]
    tests = ["-p", str(a.prompt), "-n", str(a.tokens), "-d", str(a.depth), "-r", "1", "--threads", str(threads), "--json"]
    lines = run([*command, "bench", *what, "--device", "cpu", *tests]).splitlines()
    speeds = {r["test"][:2]: r["tokens_per_s"] for r in map(json.loads, lines) if "test" in r}
    return speeds.get("pp"), speeds.get("tg")


def theirs(command, model, threads, a):
    tests = ["-p", str(a.prompt), "-n", str(a.tokens), "-d", str(a.depth), "-r", "1", "-t", str(threads), "-o", "json"]
    results = json.loads(run([*command, "-m", model.rpartition("=")[2], *tests]))
    speed = lambda key, other: next((r["avg_ts"] for r in results if r[key] > 0 and r[other] == 0), None)
    return speed("n_prompt", "n_gen"), speed("n_gen", "n_prompt")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--hologram", required=True)
    p.add_argument("--llama", action="append", required=True)
    p.add_argument("--threads", default="2")
    p.add_argument("-p", dest="prompt", type=int, default=512)
    p.add_argument("-n", dest="tokens", type=int, default=64)
    p.add_argument("-d", dest="depth", type=int, default=0)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    print(f"{'model':<28} thr  test   hologram  llama.cpp  ratio", flush=True)
    for model in a.models:
        for threads in map(int, a.threads.split(",")):
            rounds = []
            for _ in range(a.rounds):
                mine = ours(shlex.split(a.hologram), model, threads, a)
                rounds.append((mine, [theirs(shlex.split(c), model, threads, a) for c in a.llama]))
            for index, test in enumerate((f"pp{a.prompt}", f"tg{a.tokens}")):
                if rounds[0][0][index] is None:
                    continue
                mine = statistics.median(r[0][index] for r in rounds)
                peers = [statistics.median(r[1][c][index] for r in rounds) for c in range(len(a.llama))]
                best = peers.index(max(peers))
                each = [r[0][index] / r[1][best][index] for r in rounds]
                name = model.rpartition("=")[2].rpartition("/")[2][:28]
                print(f"{name:<28} {threads:>3}  {test:<5} {mine:>9.1f} {peers[best]:>10.1f}  {mine / peers[best]:.2f} "
                      f"[{min(each):.2f}–{max(each):.2f}]", flush=True)


if __name__ == "__main__":
    main()
