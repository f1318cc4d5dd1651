"""Measures how soon a server answers /health while it computes long prompts.

    tools/server/health.py [--seconds S] [--tokens N] [--limit MS] hologram serve [OPTIONS]

Starts the server, keeps it busy with one prompt of N tokens after another, each different, and asks for /health by a
new connection 20 times a second, as a supervisor does. Prints one object: the number of answers, their median, 99th
percentile and longest time in ms, the prompts' tokens per second, and the greatest load of the machine. Fails if the
99th percentile is above the limit, an answer is not 200, or no prompt was computed. Needs Python alone.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time


def ask(host, method, path, body=None):
    connection = http.client.HTTPConnection(host, timeout=600)
    try:
        connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def compute(host, length, end, done):
    number = 0
    while time.monotonic() < end:
        # Distinct from the first token on, so that nothing of them is cached.
        prompt = [3 + (number * 31 + i * i * 7 + i) % 250 for i in range(length)]
        status, text = ask(host, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
        if status != 200:
            done.append((status, text[:300]))
            return
        done.append((status, json.loads(text)["usage"]["prompt_tokens"]))
        number += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--limit", type=float, default=50)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    server = subprocess.Popen([*args.command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        host = server.stdout.readline().strip().split("//")[1]
        begin, done, times, statuses, load = time.monotonic(), [], [], set(), 0.0
        end = begin + args.seconds
        worker = threading.Thread(target=compute, args=(host, args.tokens, end, done))
        worker.start()
        time.sleep(0.5)
        while time.monotonic() < end and worker.is_alive():
            before = time.monotonic()
            statuses.add(ask(host, "GET", "/health")[0])
            times.append((time.monotonic() - before) * 1e3)
            load = max(load, os.getloadavg()[0])
            time.sleep(max(0.0, 0.05 - (time.monotonic() - before)))
        worker.join()
        taken = time.monotonic() - begin
    finally:
        server.terminate()
        server.wait()
    times.sort()
    tokens = sum(n for status, n in done if status == 200)
    at = lambda share: round(times[min(len(times) - 1, int(len(times) * share))], 2) if times else None
    result = {"answers": len(times), "median_ms": at(0.5), "p99_ms": at(0.99), "longest_ms": at(1.0)}
    print(json.dumps(result | {"prompt_tokens_per_s": round(tokens / taken), "prompts": len(done), "load": load}))
    faults = [what for status, what in done if status != 200]
    if faults or statuses != {200} or not tokens or at(0.99) > args.limit:
        sys.exit(f"failed: {faults or statuses if statuses != {200} or faults else 'too slow'}")


if __name__ == "__main__":
    main()
