"""Keeps a server busy for hours and watches that it stays as it was.

    tools/server/soak.py [--hours H] hologram serve [OPTIONS]

Starts the server, then sends at once: replies whole and streamed, several per request, probabilities, clients that
leave, and faulty requests. Once a minute prints a line; at the end fails if the server died or answered with a status of
5xx other than 503, if its memory grew by more than 10 % after the first tenth of the time (and two minutes), or if its
cache is not empty when all is done. Needs Python alone, and Linux.
"""

import argparse
import http.client
import json
import random
import subprocess
import sys
import threading
import time

WORKERS = 12
WORDS = "a the of to and in is it that was for on are as with his they be at one have this".split()


def memory(pid):
    """Resident memory in MiB."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


class Soak:
    def __init__(self, host):
        self.host, self.end, self.lock = host, False, threading.Lock()
        self.counts, self.faults = {}, []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def request(self, draw):
        """The body of a request, and whether its client leaves early."""
        prompt = " ".join(draw.choices(WORDS, k=draw.choice([1, 5, 40, 200])))
        body = {"prompt": prompt, "max_tokens": draw.choice([1, 8, 32]), "temperature": draw.choice([0, 0.8, 1.5])}
        kind = draw.randrange(10)
        if kind < 4:
            body["stream"] = True
        elif kind == 4:
            body["max_tokens"] = "many"
        elif kind == 5:
            body["n"] = 3
        elif kind == 6:
            body["logprobs"] = 5
        return body, kind == 0

    def work(self, number):
        draw = random.Random(number)
        while not self.end:
            body, leaves = self.request(draw)
            connection = http.client.HTTPConnection(self.host, timeout=120)
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
                answer = connection.getresponse()
                if leaves:
                    answer.read(20)
                    self.count("left")
                else:
                    text = answer.read()
                    self.count(str(answer.status))
                    if answer.status >= 500 and answer.status != 503:
                        self.faults.append(f"{body}: {answer.status} {text[:200]}")
                    if body.get("stream") and answer.status == 200 and not text.rstrip().endswith(b"[DONE]"):
                        self.faults.append(f"{body}: the stream has no end")
            except OSError as e:
                self.faults.append(f"{body}: {e}")
            finally:
                connection.close()


def used(host):
    """The share of the cache in use, and the texts that run or wait."""
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    wanted = ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    server = subprocess.Popen([*args.command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    host = server.stdout.readline().split()[0].removeprefix("http://")
    soak, start, seconds = Soak(host), time.monotonic(), args.hours * 3600
    workers = [threading.Thread(target=soak.work, args=(i,)) for i in range(WORKERS)]
    for worker in workers:
        worker.start()
    base = None
    while time.monotonic() - start < seconds and server.poll() is None and not soak.faults:
        # The interval of the samples.
        time.sleep(min(60, seconds / 20))
        passed = time.monotonic() - start
        print(f"{passed / 60:8.1f} min  {memory(server.pid):8.1f} MiB  {soak.counts}", flush=True)
        # The first minutes compile steps of each size.
        if base is None and passed >= max(seconds / 10, 120):
            base = memory(server.pid)
    soak.end = True
    for worker in workers:
        worker.join()
    # The server notices that the clients have gone.
    time.sleep(1)
    faults = soak.faults[:5]
    if server.poll() is not None:
        faults.append(f"the server ended with {server.returncode}")
    else:
        if used(host) != 0:
            faults.append(f"when idle, {used(host)} of the cache and the queue are in use")
        if base and memory(server.pid) > 1.1 * base:
            faults.append(f"memory grew from {base:.1f} to {memory(server.pid):.1f} MiB")
        server.terminate()
        if server.wait(150) != 0:
            faults.append(f"after SIGTERM it ended with {server.returncode}")
    print("\n".join(faults) or "passed")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
