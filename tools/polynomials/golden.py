"""Writes values of the functions on binary64 that `crates/hologram-isa/tests/interp_functions.rs` compares with: `python3 golden.py FILE
[COUNT]`, with about COUNT inputs a function. Needs mpmath only.

A line has the function, the bits of x and of the binary64 number nearest to the value, and how far the value lies from that number, in
thousandths of the spacing there.
"""
import math
import random
import struct
import sys
from mpmath import mp, mpf, erf, exp, log, sin, cos, tanh

mp.prec = 1300
FUNCTIONS = {
    "exp": (exp, -760, 720),
    "exp2": (lambda x: mpf(2) ** x, -1090, 1030),
    "log": (log, None, None),
    "log2": (lambda x: log(x, 2), None, None),
    "sin": (sin, None, None),
    "cos": (cos, None, None),
    "tanh": (tanh, -23, 23),
    "erf": (erf, -6.5, 6.5),
}
# Where the definitions change, and the number that lies closest to a multiple of π/2.
PLACES = [5e-324, 2.0**-1022, 2.0**-54, 1e-9, 0.5, math.sqrt(0.5), 0.75, 0.875, 1.0, math.sqrt(2), 2.0, 3.0, 6.0, 36.0, 512.0]
PLACES += [708.3964185322641, 709.782712893384, 744.4400719213812, 745.1332191019411, 746.0, 1022.0, 1024.0, 1074.0, 1075.0, 1076.0]
PLACES += [2.0**30, 6381956970095103 * 2.0**797, 2.0**1000, sys.float_info.max]
PLACES += [k * math.pi / 4 for k in list(range(1, 12)) + [1000, 99999, 683565275, 683565276]]


def bits(v):
    return struct.unpack("<Q", struct.pack("<d", v))[0]


def number(b):
    return struct.unpack("<d", struct.pack("<Q", b))[0]


def nearest(v):
    """The nearest binary64, rounded once, with results below the least normal number in the steps that these have."""
    if abs(v) >= mpf(2) ** 1024 - mpf(2) ** 970:
        return math.copysign(math.inf, v)
    step = mpf(2) ** (max(mp.mag(v) if v else -2000, -1021) - 53)
    return float(mp.nint(v / step) * step)


def inputs(name, low, high, count, rng):
    xs = [number(bits(p) + d) for p in PLACES for d in (-1, 0, 1)]
    for _ in range(count // 2):
        xs.append(number(rng.getrandbits(63) % 0x7FF0000000000000))
    for _ in range(count // 2):
        if low is not None:
            xs.append(rng.uniform(low, high))
        elif name.startswith("log"):
            xs.append(2 ** rng.uniform(-1.5, 1.5))
        else:
            xs.append(2 ** rng.uniform(-4, 40))
    signs = (1,) if name.startswith("log") else (1, -1)
    return [math.copysign(x, rng.choice(signs)) for x in xs if x != 0 and math.isfinite(x)]


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 120
    rng = random.Random(7)
    with open(sys.argv[1], "w") as file:
        for name, (function, low, high) in FUNCTIONS.items():
            for x in inputs(name, low, high, count, rng):
                # Far outside, the result is a limit, which need not be worked out from a number of 10^308.
                reach = {"exp": 2000, "exp2": 2000, "tanh": 400, "erf": 30}.get(name)
                value = function(mpf(x if reach is None else max(-reach, min(reach, x))))
                near = nearest(value)
                file.write(f"{name} {bits(x):016x} {bits(near):016x} {units(value, near)}\n")


def units(value, near):
    if math.isinf(near):
        return 0
    spacing = mpf(2) ** (max(mp.mag(mpf(near)) if near else -2000, -1021) - 53)
    return int(mp.nint((value - mpf(near)) / spacing * 1000))


if __name__ == "__main__":
    main()
