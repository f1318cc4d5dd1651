#!/usr/bin/env python3
"""Compiles, runs and compares the programs that the example msl_cases of hologram-isa wrote into a directory: every program is MSL,
runs without a data race or an access out of bounds, and gives the interpreter's bits, whichever pattern a NaN has.

    cases.py DIRECTORY [NAME…]
"""
import json, os, struct, sys, time
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
    """Content before and after of each binding."""
    with open(path, "rb") as f:
        data = f.read()
    count, at, out = struct.unpack_from("<Q", data)[0], 8, []
    for _ in range(count):
        n, = struct.unpack_from("<Q", data, at)
        at += 8
        out.append((bytearray(data[at:at + n]), data[at + n:at + 2 * n]))
        at += 2 * n
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


def one(case):
    """What is wrong with a case, or None."""
    directory, name = case
    base = os.path.join(directory, name)
    with open(base + ".json", encoding="utf-8") as f:
        about = json.load(f)
    wrong = mslc.check(base + ".metal")
    if wrong:
        return f"{name} is not MSL: {wrong}"
    try:
        mslc.build(base + ".metal", base + ".so", checked=True)
        held = memories(base + ".bin")
        # One order of threads, and a shuffled one.
        for seed in (0, 9):
            buffers = [bytearray(b) for b, _ in held]
            Library(base + ".so").run(about["entry"], about["grid"], about["threads"], buffers, seed=seed)
            for i, (ty, got, (_, want)) in enumerate(zip(about["types"], buffers, held)):
                found = difference(ty, got, want)
                if found:
                    return f"{name}: buffer({i}) {found}"
    except (Fault, mslc.Failure) as e:
        return f"{name}: {e}"
    finally:
        if os.path.exists(base + ".so"):
            os.unlink(base + ".so")
    return None


def main():
    directory, start = sys.argv[1], time.time()
    names = sys.argv[2:] or sorted(f[:-6] for f in os.listdir(directory) if f.endswith(".metal"))
    if not names:
        sys.exit(f"{directory} has no cases")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        wrong = [w for w in pool.map(one, [(directory, n) for n in names], chunksize=4) if w]
    print("\n".join(wrong))
    print(f"{len(names)} programs in {time.time() - start:.0f} s: {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
