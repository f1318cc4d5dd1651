#!/usr/bin/env python3
"""Compiles the Metal Shading Language for this CPU, without Apple's compiler: to check kernels, and to run them.

    mslc.py check FILE…                       says what is not MSL: address spaces, ambiguous calls, missing attributes, …
    mslc.py build FILE -o LIBRARY             makes a library to run it; with --checked one that names data races, accesses
                                              out of bounds, threadgroup memory read before it is written, and divergence
    mslc.py serve                             builds on request: a line of JSON a request, a line of JSON an answer
    mslc.py lower FILE                        prints the C++ that is compiled

    -D NAME=VALUE   defines a macro; MSL_FC_n=VALUE the function constant n      -I DIR   where #include "…" is looked up
    -O N            optimisation level (default 1)      --dialect   also says what CUDA would read otherwise

A request of `serve` is {"source": FILE, "out": LIBRARY, "checked": bool, "define": [NAME=VALUE, …]}; the answer {"kernels":
[NAME, …]} or {"error": TEXT}. A library has `const Entry *msl_find(const char *)` and `int msl_launch(const Entry *, MslLaunch *)`
(shim/abi.h, shim/runtime.cpp). MSL_CLANG names the compiler (clang++-19 or later). What is built once, the runtime and the
precompiled shim, is kept in MSL_CACHE, by default a folder of the user's in the system's one for temporary files.

Floats are computed as IEEE 754 says, contracted unless `#pragma METAL fp contract(off)`: Apple's compiler may do so too.
"""
import argparse, functools, hashlib, itertools, json, os, queue, re, shlex, subprocess, sys, tempfile, threading
from concurrent.futures import ProcessPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
HOME = os.environ.get("MSL_CACHE") or os.path.join(tempfile.gettempdir(), f"mslc-{os.getuid()}")
sys.pycache_prefix = os.path.join(HOME, "python")
from lints import lint
from lowering import lower

SHIM = os.path.join(HERE, "shim")
CLANG = os.environ.get("MSL_CLANG", "clang++-19")
# The compiler must not take a test of a float's bits for a comparison with 0: a launch may count subnormal numbers as 0.
# Not the processors' own conversion to bf16, which counts numbers below the least normal one as 0.
BASE = [CLANG, "-std=c++17", "-w", "-march=native", "-mno-avx512bf16", "-mno-avxneconvert", "-mno-avx10.1-256",
        "-fno-exceptions", "-fno-rtti", "-fwrapv", "-fno-strict-aliasing",
        "-fno-math-errno", "-fdenormal-fp-math=dynamic", "-Xclang", "-cl-single-precision-constant", "-ferror-limit=0",
        "-ffp-contract=fast-honor-pragmas", "-fPIC"]
SANITIZE = ["-fsanitize=thread", "-g1"]
METAL = ["-undef", "-nostdinc", "-D__METAL_VERSION__=310", "-D__METAL__=1", "-D__METAL_MACOS__=1", "-D__HAVE_BFLOAT__=1"]
# Text that needs no preprocessor: its only directives are these.
PLAIN = re.compile(r"^\s*#(?!\s*(?:include\s*<metal_\w+>|pragma\b))", re.M)

# How many texts the compiler gets at once where they are only checked: to start it takes ten times as long as one of them.
GROUP = 50
# And how many at most where libraries are made of them, each by itself.
TOGETHER = 16


class Failure(Exception):
    """What the compiler says."""


def run(command, **more):
    try:
        done = subprocess.run(command, capture_output=True, text=True, **more)
    except FileNotFoundError as e:
        raise Failure(f"{command[0]} is not installed: clang 19 or later is needed (MSL_CLANG names it)") from e
    if done.returncode:
        raise Failure(done.stderr or f"{command[0]} ended with {done.returncode}")
    return done.stdout


@functools.cache
def cache():
    """The folder of what is built once: one for each state of the tools."""
    digest = hashlib.sha256(CLANG.encode())
    for folder in (HERE, SHIM):
        for name in sorted(os.listdir(folder)):
            if name.endswith((".py", ".h", ".cpp")):
                with open(os.path.join(folder, name), "rb") as f:
                    digest.update(f.read())
    path = os.path.join(HOME, digest.hexdigest()[:16])
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def once(name, command):
    """A file that `command` makes when it gets the path to write; several processes may ask for it at once."""
    path = os.path.join(cache(), name)
    if not os.path.exists(path):
        mine = f"{path}.{os.getpid()}.{threading.get_ident()}"
        run(command(mine))
        os.replace(mine, path)
    return path


def runtime(checked):
    return once(f"runtime{int(checked)}.so", lambda out: [
        CLANG, "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", f"-DMSL_CHECK={int(checked)}",
        f"-Wl,-soname,{os.path.join(cache(), f'runtime{int(checked)}.so')}", "-o", out, os.path.join(SHIM, "runtime.cpp")])


def precompiled(flags, strict, checked):
    name = "-".join(["shim", f"O{flags[-1][2:]}", *(["strict"] if strict else []), *(["checked"] if checked else [])])
    macros = [f"-DMSL_SPACES={int(strict)}", f"-DMSL_CHECK={int(checked)}"]
    header = os.path.join(SHIM, "msl.h")
    return macros + ["-include-pch", once(name + ".pch", lambda out: [*flags, *macros, "-x", "c++-header", header, "-o", out])]


def preprocess(path, defines, includes):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if not PLAIN.search(text) and not defines:
        return f'# 1 "{path}"\n' + re.sub(r"^\s*#\s*include.*$", "", text, flags=re.M)
    return run([CLANG, "-E", "-x", "c++", "-std=c++17", "-w", *METAL, "-I", SHIM, *(f"-I{i}" for i in includes),
                *(f"-D{d}" for d in defines), path])


def lowered(path, defines=(), includes=(), lints=None):
    """The lowered text of a file, with its entries."""
    result = lower(preprocess(path, defines, includes), lints)
    constants = "".join(f"#define {d.replace('=', ' ', 1)}\n" for d in defines if d.startswith("MSL_FC_"))
    result.body = constants + result.body + "\n"
    return result


# MSL copies structs between address spaces freely; clang's C++ has no constructor for it.
COPY = re.compile(r"candidate (?:constructor|function) \(the implicit copy (?:constructor|assignment operator)\) not viable: .*address space")


def without_copies(stderr):
    """The compiler's errors but for those whose only cause is the copy of a struct into or out of an address space."""
    keep, block = [], []

    def flush():
        copy = block and re.search(r"error: (no matching constructor for initialization|no viable overloaded '=')", block[0])
        if block and not (copy and any(COPY.search(line) for line in block)):
            keep.extend(block)

    for line in stderr.splitlines():
        if re.search(r": (fatal )?error: ", line):
            flush()
            block = [line]
        elif re.search(r": warning: |^\d+ errors? generated", line):
            flush()
            block = []
        else:
            block.append(line)
    flush()
    return "\n".join(keep)


def syntax(bodies):
    """What the compiler says to these texts, each in a namespace of its own where they are several."""
    flags = [*BASE, "-O0"]
    spaces = [f"namespace text{i} {{\n{body}}}\n" for i, body in enumerate(bodies)] if len(bodies) > 1 else bodies
    try:
        run([*flags, *precompiled(flags, True, False), "-fsyntax-only", "-x", "c++", "-"], input="".join(spaces))
        return ""
    except Failure as e:
        return without_copies(str(e)).strip()


def check_all(paths, defines=(), includes=(), dialect=False):
    """What is wrong with each file, as text; empty where it is MSL. One start of the compiler serves them all, unless it objects.

    In the namespace of a text its own names hide metal's, where a text alone is ambiguous: that only `build` and a single file show."""
    results, messages = [], []
    for path in paths:
        try:
            results.append(lowered(path, defines, includes, lint(dialect)))
            messages.append([f"{path}:{line}: error: {what}" for line, what in sorted(set(results[-1].problems))])
        except (Failure, SyntaxError) as e:
            results.append(None)
            messages.append([str(e)])
    bodies = [r.body for r in results if r]
    if syntax(bodies):
        for result, of in zip(results, messages):
            of += [m for m in [result and syntax([result.body])] if m]
    return ["\n".join(of) for of in messages]


def check(path, defines=(), includes=(), dialect=False):
    """What is wrong with a file."""
    return check_all([path], defines, includes, dialect)[0]


def unit(result):
    """The whole C++ of a library."""
    waits = int(result.waits)
    entries = "".join(f'{{"{host}", msl_entry_{i}, {waits}, {buffers}, {written}, {threads}, &__ehdr_start, &_end}}, ' for i, (host, _, buffers, written, threads) in enumerate(result.entries))
    return (result.body + "".join(text + "\n" for _, text, *_ in result.entries) +
            f'extern "C" const msl_rt::Entry msl_kernels[] = {{{entries}{{0, 0, 0, 0, 0, 0, 0, 0}}}};\n'
            'extern "C" const msl_rt::Entry *msl_find(const char *name) { for (const msl_rt::Entry *k = msl_kernels; k->name; k++) '
            "if (!__builtin_strcmp(k->name, name)) return k; return nullptr; }\n")


@functools.cache
def compiler(checked, level):
    """A call of the compiler itself: one start makes an object beside each of the C++ files that are added to it."""
    flags = [*BASE, *(SANITIZE if checked else []), f"-O{level}"]
    driver = [*flags, *precompiled(flags, False, checked), "-x", "c++", "-c", "-o", "made", "-###", "-"]
    done = subprocess.run(driver, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    call = next((shlex.split(line) for line in done.stderr.splitlines() if '"-cc1"' in line), None)
    if not call or call[-1] != "-":
        raise Failure(f"{CLANG} does not say how it compiles: {done.stderr}")
    at = call.index("-o")
    return call[:at] + call[at + 2:-1]


def build_all(jobs, checked=False, level=1):
    """Makes the library of each (path, out, defines, includes); gives the names of its kernels, or what failed, for each."""
    results, units = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for i, (path, _, defines, includes) in enumerate(jobs):
            try:
                result = lowered(path, defines, includes)
                results.append([host for host, *_ in result.entries])
                units[i] = os.path.join(folder, str(i))
                with open(units[i] + ".cpp", "w", encoding="utf-8") as f:
                    f.write(unit(result))
            except (Failure, SyntaxError) as e:
                results.append(Failure(str(e)))
        try:
            call = compiler(checked, level)
            try:
                run([*call, *(u + ".cpp" for u in units.values())])
            except Failure:
                for i, made in list(units.items()):
                    try:
                        run([*call, made + ".cpp"])
                    except Failure as e:
                        results[i] = e
                        del units[i]
            for i, made in units.items():
                run(["ld", "-shared", "--hash-style=gnu", "-o", jobs[i][1], made + ".o", runtime(checked), "-lm"])
        except Failure as e:
            return [e] * len(jobs)
    return results


def build(path, out, defines=(), includes=(), checked=False, level=1):
    """Makes the library `out`; gives the names of its kernels."""
    result = build_all([(path, out, defines, includes)], checked, level)[0]
    if isinstance(result, Failure):
        raise result
    return result


def answers(requests):
    """An answer to each request, in order: the one who asks waits for it."""
    try:
        parsed = [json.loads(r) for r in requests]
        kind = lambda r: (r.get("checked", False), r.get("level", 1))
        made = {}
        for key in {kind(r) for r in parsed}:
            those = [i for i, r in enumerate(parsed) if kind(r) == key]
            jobs = [(parsed[i]["source"], parsed[i]["out"], parsed[i].get("define", []), parsed[i].get("include", [])) for i in those]
            made.update(zip(those, build_all(jobs, *key)))
        results = [made[i] for i in range(len(parsed))]
    except Exception as e:
        results = [e] * len(requests)
    return [{"error": str(r) or repr(r)} if isinstance(r, Exception) else {"kernels": r} for r in results]


def serve():
    """What is asked while the compiler works is compiled together next."""
    asked = queue.SimpleQueue()

    def read():
        for line in sys.stdin:
            asked.put(line)
        asked.put(None)

    threading.Thread(target=read, daemon=True).start()
    end = False
    while not end:
        requests = [asked.get()]
        while len(requests) < TOGETHER and requests[-1] is not None and not asked.empty():
            requests.append(asked.get())
        end = requests[-1] is None
        for answer in answers([r for r in requests if r is not None]):
            print(json.dumps(answer))
        sys.stdout.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=["check", "build", "serve", "lower"])
    p.add_argument("file", nargs="*")
    p.add_argument("-o", default="a.so")
    p.add_argument("-D", action="append", default=[])
    p.add_argument("-I", action="append", default=[])
    p.add_argument("-O", type=int, default=1)
    p.add_argument("--checked", action="store_true")
    p.add_argument("--dialect", action="store_true")
    a = p.parse_intermixed_args()
    if a.mode == "serve":
        serve()
        return 0
    if a.mode == "check":
        groups = [a.file[i:i + GROUP] for i in range(0, len(a.file), GROUP)]
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            messages = pool.map(check_all, groups, *map(itertools.repeat, (a.D, a.I, a.dialect)))
            wrong = [m for of in messages for m in of if m]
        print("\n".join(wrong) or f"{len(a.file)} files are MSL")
        return bool(wrong)
    if len(a.file) != 1:
        p.error(f"{a.mode} takes one file")
    try:
        if a.mode == "lower":
            print(unit(lowered(a.file[0], a.D, a.I)))
        else:
            print("\n".join(build(a.file[0], a.o, a.D, a.I, a.checked, a.O)))
    except (Failure, SyntaxError) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
