#!/usr/bin/env python3
"""Checks and measures Hologram on a machine with a GPU, from a folder that pack.sh made: needs no Rust, no network, no packages.

    check.py [--out FILE.json] [--device D] [--only SECTION[,SECTION…]] [--programs N]

Sections, in order: devices, selftest, tests, fixtures, perplexity, generations, start, ops, models. What each found goes into FILE.json
(default: results.json), which is written anew after each section. The exit code is 1 when a check failed; speeds are only reported.
"""
import argparse
import array
import ast
import ctypes
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.join(HERE, "tree")
HOLOGRAM = os.path.join(HERE, "hologram")
MODEL = os.path.join(TREE, "crates", "hologram-cli", "assets", "rust-docs-bitnet.gguf")
FIXTURES = os.path.join(TREE, "crates", "hologram-llm", "tests", "fixtures")
# Model file without its ending -> greatest relative error of its logits.
MODELS = {"llama-tiny": 1e-3, "llama3-tiny": 1e-3, "bitnet-tiny": 1e-3}
# Greatest relative difference of perplexity between the CPU and the device.
PERPLEXITY = 0.005
# Shape and type of random weights.
SHAPES = [("llama-8b", "BF16"), ("llama-8b", "Q8_0"), ("llama-8b", "Q4_0"), ("llama-1b", "BF16"), ("llama-1b", "Q4_0"),
          ("bitnet-2b", "TQ2_0")]
# The last characters of a program's output that are kept when it fails.
TAIL = 3000


def run(command, timeout=600, **environment):
    """Runs a program; its result with its time. A timeout is a failure with exit code None."""
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout,
                              env={**os.environ, **environment})
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as e:
        text = [t.decode(errors="replace") if isinstance(t, bytes) else t or "" for t in (e.stdout, e.stderr)]
        code, (out, err) = None, text
    return code, out, err, time.perf_counter() - started


def lines(text):
    """The JSON objects of a text with one a line."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def outcome(code, out, err, seconds, **more):
    """A section's result of one program."""
    result = {"ok": code == 0, "seconds": round(seconds, 2), **more}
    if code != 0:
        result["exit_code"] = code
        result["output"] = (out + err)[-TAIL:]
    return result


def npy(path):
    """Shape and elements of a .npy file of 4-byte little-endian numbers."""
    with open(path, "rb") as file:
        magic = file.read(8)
        size = int.from_bytes(file.read(2 if magic[6] == 1 else 4), "little")
        header = ast.literal_eval(file.read(size).decode("latin1"))
        if magic[:6] != b"\x93NUMPY" or header["fortran_order"] or header["descr"] not in ("<f4", "<u4", "<i4"):
            raise ValueError(f"{path}: {header}")
        data = array.array({"f": "f", "u": "I", "i": "i"}[header["descr"][1]])
        data.frombytes(file.read())
    return header["shape"], data


def logits(model, tokens, device):
    """The logits of tokens: their number of columns and the values; or the error."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "logits.npy")
        ids = ",".join(map(str, tokens))
        code, out, err, _ = run([HOLOGRAM, "logits", model, "--tokens", ids, "--out", path, "--device", device])
        if code != 0:
            raise RuntimeError((out + err)[-TAIL:])
        shape, data = npy(path)
    return shape[1], data


def devices(args):
    code, out, err, seconds = run([HOLOGRAM, "devices", "--json"])
    found = lines(out)
    _, smi, _, _ = run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version,clocks.max.sm,clocks.max.memory",
                        "--format=csv,noheader"]) if has("nvidia-smi") else (0, "", "", 0)
    return outcome(code, out, err, seconds, devices=found, nvidia_smi=smi.strip().splitlines())


def has(program):
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in os.get_exec_path())


def selftest(args):
    code, out, err, seconds = run([HOLOGRAM, "selftest", "--device", args.device, "--json"])
    result = lines(out)
    count = {key: sum(line[key] for line in result) for key in ("cases", "failed")}
    return outcome(code, out if code is None else "", err, seconds, **count, lines=result)


def test_binaries():
    """The paths of the test binaries by name; they are unpacked the first time."""
    folder = os.path.join(HERE, "tests")
    if not os.path.isdir(folder):
        with tarfile.open(os.path.join(HERE, "tests.tar.xz")) as archive:
            archive.extractall(HERE)
    return {name: os.path.join(folder, name) for name in sorted(os.listdir(folder))}


def tests(args):
    """The tests that need a GPU, from binaries that look for their files where they were built."""
    with open(os.path.join(HERE, "root")) as file:
        root = file.read().strip()
    if not os.path.exists(root):
        try:
            os.makedirs(os.path.dirname(root), exist_ok=True)
            os.symlink(TREE, root)
        except OSError as e:
            print(f"note: tests that read files will fail: {root}: {e}", file=sys.stderr)
    result = {}
    for name, path in test_binaries().items():
        code, out, err, seconds = run([path, "--ignored", "--skip", "nightly_"], timeout=900,
                                      HOLOGRAM_RANDOM_PROGRAMS=str(args.programs))
        passed = [line for line in out.splitlines() if line.startswith("test result:")]
        result[name] = outcome(code, out, err, seconds, result=passed[-1][13:] if passed else "")
    return {"ok": bool(result) and all(r["ok"] for r in result.values()), "programs": args.programs, "binaries": result}


def fixtures(args):
    """Logits of small models against those of the reference implementations."""
    result = {}
    for model, bound in MODELS.items():
        for sequence in "ab":
            name = os.path.join(FIXTURES, model)
            _, tokens = npy(f"{name}.tokens-{sequence}.npy")
            _, want = npy(f"{name}.logits-{sequence}.npy")
            _, got = logits(f"{name}.gguf", tokens, args.device)
            error = math.sqrt(sum((g - w) ** 2 for g, w in zip(got, want)) / sum(w * w for w in want))
            greatest = max(abs(g - w) for g, w in zip(got, want))
            ok = len(got) == len(want) and error <= bound
            result[f"{model} {sequence}"] = {"ok": ok, "relative_error": error, "bound": bound, "greatest": greatest}
    return {"ok": all(r["ok"] for r in result.values()), "logits": result}


def perplexity_on(device):
    """Perplexity of the shipped model for the held-out text; the first token of a run is not scored."""
    with open(os.path.join(HERE, "held-out.json")) as file:
        runs = json.load(file)["runs"]
    nats, count = 0.0, 0
    for tokens in runs:
        vocab, values = logits(MODEL, tokens, device)
        for i, token in enumerate(tokens[1:]):
            row = values[i * vocab:(i + 1) * vocab]
            most = max(row)
            nats += most + math.log(sum(math.exp(v - most) for v in row)) - row[token]
            count += 1
    return math.exp(nats / count)


def perplexity(args):
    cpu, device = perplexity_on("cpu"), perplexity_on(args.device)
    difference = abs(device / cpu - 1)
    return {"ok": difference <= PERPLEXITY, "cpu": cpu, "device": device, "relative_difference": difference,
            "bound": PERPLEXITY}


def used_memory(pid):
    """MiB of device memory that a process holds, as the driver counts them."""
    _, out, _, _ = run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"])
    rows = [line.split(",") for line in out.splitlines() if "," in line]
    own = [int(used) for p, used in rows if used.strip().isdigit() and int(p) == pid]
    if own:
        return own[0]
    # In a container process ids differ: then all the memory in use stands for it, on a machine of its own.
    _, out, _, _ = run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"])
    used = [int(line) for line in out.splitlines() if line.strip().isdigit()]
    return sum(used) if used else None


def generations(args):
    """The test of the shipped model, which ends with a thousand generations in one process, its memory watched from outside."""
    test = test_binaries().get("shipped")
    if test is None:
        return {"ok": False, "output": "the test binary `shipped` is missing"}
    command = [test, "--ignored", "--exact", "an_nvidia_gpu_agrees"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    samples, ended = [], threading.Event()

    def watch():
        while not ended.wait(0.1):
            used = used_memory(process.pid)
            if used is not None and not ended.is_set():
                samples.append(used)

    watcher = threading.Thread(target=watch)
    if has("nvidia-smi"):
        watcher.start()
    try:
        out, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    ended.set()
    if watcher.is_alive():
        watcher.join()
    # The first samples see the model being loaded, the last one the process going.
    steady = samples[len(samples) // 4:-1]
    flat = not steady or max(steady) - min(steady) <= 4
    return {"ok": process.returncode == 0 and "1 passed" in out and flat, "seconds": round(time.perf_counter() - started, 2),
            "used_mib": samples, "flat": flat, **({} if process.returncode == 0 else {"output": out[-TAIL:]})}


def driver_start():
    """Seconds that the driver itself takes to start: loading it, cuInit, a context. For a process of its own."""
    started = time.perf_counter()
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    if cuda.cuInit(0) != 0 or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) != 0:
        sys.exit("cuInit or cuDevicePrimaryCtxRetain failed")
    print(time.perf_counter() - started)


def first_token(device, **environment):
    """Seconds from starting the command to the first text of the shipped model."""
    command = [HOLOGRAM, "run", "# Struct std::vec::Vec\n\n", "--max-tokens", "4", "--temperature", "0", "--device", device]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment})
    first = os.read(process.stdout.fileno(), 1)
    seconds = time.perf_counter() - started
    _, err = process.communicate(timeout=60)
    if process.returncode != 0 or not first:
        raise RuntimeError(err.decode(errors="replace")[-TAIL:])
    return seconds


def start(args):
    """Start to first token beyond the driver's own start: the first run on a machine, and later ones."""
    median = lambda values: sorted(values)[len(values) // 2]
    driver = [run([sys.executable, os.path.abspath(__file__), "--driver-start"]) for _ in range(5)]
    driver = [float(out) for code, out, _, _ in driver if code == 0]
    with tempfile.TemporaryDirectory() as cache:
        fresh = {"HOLOGRAM_CACHE": os.path.join(cache, "hologram"), "CUDA_CACHE_PATH": os.path.join(cache, "driver")}
        first = first_token(args.device, **fresh)
        later = [first_token(args.device, **fresh) for _ in range(5)]
    result = {"ok": True, "first_run_s": first, "later_runs_s": median(later)}
    if driver:
        result["driver_s"] = median(driver)
        result["first_beyond_driver_s"] = first - result["driver_s"]
        result["later_beyond_driver_s"] = result["later_runs_s"] - result["driver_s"]
    return result


def ops(args):
    code, out, err, seconds = run([HOLOGRAM, "bench", "ops", "--device", args.device, "--json"])
    return outcome(code, "", err, seconds, lines=lines(out))


def models(args):
    """Prefill of 512 tokens, and decoding of 128 after 512, for each shape."""
    result = {}
    for shape, kind in SHAPES:
        base = [HOLOGRAM, "bench", "--shape", shape, "--type", kind, "--device", args.device, "--json"]
        prefill = run(base + ["-p", "512", "-n", "0"])
        decode = run(base + ["-p", "0", "-n", "128", "-d", "512"])
        ok = prefill[0] == 0 and decode[0] == 0
        entry = {"ok": ok, "lines": lines(prefill[1]) + lines(decode[1])}
        if not ok:
            entry["output"] = (prefill[2] + decode[2])[-TAIL:]
        result[f"{shape} {kind}"] = entry
    return {"ok": all(r["ok"] for r in result.values()), "models": result}


SECTIONS = [devices, selftest, tests, fixtures, perplexity, generations, start, ops, models]


def main():
    if sys.argv[1:] == ["--driver-start"]:
        return driver_start()
    names = [section.__name__ for section in SECTIONS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="results.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(names), help="sections, separated by commas: " + ", ".join(names))
    parser.add_argument("--programs", type=int, default=1000, help="random programs of the tests")
    args = parser.parse_args()
    wanted = args.only.split(",")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"no such section: {', '.join(unknown)}")
    results = {"command": " ".join(sys.argv), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with open(os.path.join(HERE, "revision")) as file:
        results["revision"] = file.read().strip()
    for section in SECTIONS:
        if section.__name__ not in wanted:
            continue
        started = time.perf_counter()
        try:
            result = section(args)
        except Exception as e:  # One section's failure is its result, and the others still run.
            result = {"ok": False, "error": f"{type(e).__name__}: {e}"}
        results[section.__name__] = result
        with open(args.out, "w") as file:
            json.dump(results, file, indent=1)
        print(f"{section.__name__:<12} {'ok' if result['ok'] else 'FAILED':<7} {time.perf_counter() - started:6.1f} s", flush=True)
    failed = [name for name in wanted if not results[name]["ok"]]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see {args.out}")


if __name__ == "__main__":
    main()
