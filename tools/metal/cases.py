#!/usr/bin/env python3
"""Compiles, runs and compares the programs that the example msl_cases of hologram-isa wrote into a directory: every program is MSL,
runs without a data race or an access out of bounds, and gives the interpreter's bits, whichever pattern a NaN has: on a GPU that keeps
subnormal numbers, and on one that counts them as 0.

    cases.py DIRECTORY [NAME…]
"""
import itertools, json, os, struct, sys, time
from concurrent.futures import ProcessPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import mslc
from runner import Fault, Library

# Bytes of an element, and for floats the bits that are all set in a NaN's exponent, with all bits but the sign.
SIZES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8, "u64": 8}
NANS = {"f16": (0x7c00, 0x7fff), "bf16": (0x7f80, 0x7fff), "f32": (0x7f800000, 0x7fffffff)}
FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def memories(path):
    """Content of each binding before, and after with subnormal numbers kept and flushed."""
    with open(path, "rb") as f:
        data = f.read()
    count, at, out = struct.unpack_from("<Q", data)[0], 8, []
    for _ in range(count):
        n, = struct.unpack_from("<Q", data, at)
        at += 8
        out.append((bytearray(data[at:at + n]), (data[at + n:at + 2 * n], data[at + 2 * n:at + 3 * n])))
        at += 3 * n
    return out


def difference(ty, got, want):
    if got == want:
        return None
    form = f"<{len(want) // SIZES[ty]}{FORMATS[SIZES[ty]]}"
    infinity, magnitude = NANS.get(ty, (0, 0))
    for i, (g, w) in enumerate(zip(struct.unpack(form, got), struct.unpack(form, want))):
        both_nan = magnitude and (g & magnitude) > infinity and (w & magnitude) > infinity
        if g != w and not both_nan:
            return f"element {i} ({ty}) is {g:#x}, the interpreter says {w:#x}"
    return None


def some(directory, names):
    """What is wrong with some cases: each one's name and what it is."""
    texts = [os.path.join(directory, name + ".metal") for name in names]
    libraries = [os.path.join(directory, name + ".so") for name in names]
    wrong = [f"is not MSL: {message}" if message else None for message in mslc.check_all(texts)]
    made = mslc.build_all([(text, library, (), ()) for text, library in zip(texts, libraries)], checked=True)
    for i, (library, result) in enumerate(zip(libraries, made)):
        wrong[i] = wrong[i] or (str(result) if isinstance(result, mslc.Failure) else ran(library))
        if os.path.exists(library):
            os.unlink(library)
    return [f"{name}: {what}" for name, what in zip(names, wrong) if what]


def ran(library):
    """What is wrong with a case's library when it runs, or None."""
    base = library.removesuffix(".so")
    with open(base + ".json", encoding="utf-8") as f:
        about = json.load(f)
    held = memories(base + ".bin")
    try:
        # One order of threads, and a shuffled one.
        for flush, seed in enumerate((0, 9)):
            buffers = [bytearray(b) for b, _ in held]
            Library(library).run(about["entry"], about["grid"], about["threads"], buffers, seed=seed, flush=flush)
            for i, (ty, got, (_, want)) in enumerate(zip(about["types"], buffers, held)):
                found = difference(ty, got, want[flush])
                if found:
                    return f"buffer({i}) {found}" + (" where subnormal numbers count as 0" if flush else "")
    except Fault as e:
        return str(e)
    return None


def main():
    directory, start = sys.argv[1], time.time()
    names = sys.argv[2:] or sorted(f[:-6] for f in os.listdir(directory) if f.endswith(".metal"))
    if not names:
        sys.exit(f"{directory} has no cases")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        groups = [names[i:i + mslc.TOGETHER] for i in range(0, len(names), mslc.TOGETHER)]
        wrong = [w for of in pool.map(some, itertools.repeat(directory), groups) for w in of]
    print("\n".join(wrong))
    print(f"{len(names)} programs in {time.time() - start:.0f} s: {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
