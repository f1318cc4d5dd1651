#!/usr/bin/env python3
"""Predicts the cycles of the products of few tokens with quantised weights on Apple's GPUs: instructions of a chunk's product, as clang
optimises them for no machine in particular, weighted by the cycles of a SIMD-group that github.com/philipturner/metal-benchmarks measured
(throughput of M1's). Beside them the same by products of bytes, which these GPUs have no instruction for. Fails where a type takes more
than its bound. A prediction: Apple's compiler chooses other instructions, and memory may be slower than all of them.

    cycles.py
"""
import os, re, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import mslc
from kernels import FOLDERS

# Cycles by LLVM's instruction: logic and float arithmetic in 1, what moves or converts bits in 4, 32-bit products of integers in 4.
# A 32-bit float instruction takes 16-bit operands as they are.
CYCLES = {"and": 1, "or": 1, "xor": 1, "fadd": 1, "fsub": 1, "fmul": 1, "fneg": 0, "add": 1, "sub": 1, "icmp": 1, "select": 1, "shl": 4, "lshr": 4, "ashr": 4,
          "mul": 4, "uitofp": 4, "sitofp": 4, "fptoui": 4, "fptosi": 4, "fptrunc": 4, "fpext": 0, "trunc": 0, "zext": 0, "sext": 4, "bitcast": 0,
          "load": 1, "getelementptr": 0, "extractelement": 0, "insertelement": 0, "shufflevector": 0, "ret": 0, "alloca": 0, "store": 0, "br": 0}
CALLS = {"llvm.fma": 1, "llvm.fmuladd": 1, "llvm.fshl": 4, "llvm.lifetime": 0, "llvm.vector.reduce": 4, "llvm.umin": 1, "llvm.memcpy": 0, "llvm.memset": 0, "msl_rt_simd_xchg": 4, "msl_rt_lane": 0}
# The most cycles for a weight, of types that models are mostly in; and those that are shown.
BOUNDS = {"Q4": 4.5, "Q8": 5.5, "Q4_K": 5.0, "Q4_1": 5.0, "Q2_K": 5.5, "Q5_K": 9.0, "Q6_K": 9.0}

PROBE = """
extern "C" float floats_{W}(thread const Piece<{W}> &p, thread const float4 *x, thread const float2 &sums, threadgroup const float *table) {{ return product<{W}>(p, x, sums, table); }}
"""
BYTES = """
extern "C" float bytes_{W}(thread const Block<{W}> &b, threadgroup const uchar *xs, threadgroup const uint2 *meta) {{ float sum[rows_of<{W}>()] = {{}}; multiply<{W}>(sum, b, xs, meta, 8192, 0, 0); return (sum[0] + sum[1]) + (sum[2] + sum[3]); }}
"""


def counted(source, probes):
    """Cycles of each function of `probes` that a text gets."""
    path = next(p for p in (os.path.join(f, source) for f in FOLDERS) if os.path.exists(p))
    with tempfile.TemporaryDirectory() as folder:
        probe = os.path.join(folder, "probe.metal")
        with open(path, encoding="utf-8") as f, open(probe, "w", encoding="utf-8") as out:
            out.write(f.read() + probes)
        result = mslc.lowered(probe, ["ONLY"], FOLDERS)
    flags = [*mslc.BASE, "-O2"]
    text = mslc.run([*flags, *mslc.precompiled(flags, False, False), "-fno-vectorize", "-fno-slp-vectorize",
                     "-S", "-emit-llvm", "-x", "c++", "-", "-o", "-"], input=result.body)
    found = {}
    for name, body in re.findall(r"^define [^@]*@(\w+)\([^{]*\{\n(.*?)^\}", text, re.M | re.S):
        if not name.startswith(("floats_", "bytes_")):
            continue
        cycles = 0
        for line in body.splitlines():
            m = re.match(r"\s+(?:%\S+ = )?(?:tail |musttail |notail )?(\w+)(.*)", line)
            if not m:
                continue
            op, rest = m[1], m[2]
            lanes = re.match(r"[^<%@]*<(\d+) x ", rest)
            lanes = int(lanes[1]) if lanes and op not in ("load", "store") else 1
            if op == "call":
                known = next((c for c in CALLS if f"@{c}" in rest), None)
                if known is None:
                    sys.exit(f"{name}: a call that has no cycles: {line}")
                cycles += CALLS[known] * lanes
            elif op in CYCLES:
                # Half a word at a time: f16 arithmetic, and logic on words that was not widened, count for each lane.
                cycles += CYCLES[op] * lanes
            else:
                sys.exit(f"{name}: an instruction that has no cycles: {line}")
        found[name] = cycles
    return found


def main():
    types = ["Q8", "Q4", "Q4_1", "Q5_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
    floats = counted("matvec_floats.metal", "".join(PROBE.format(W=w) for w in types))
    # Of four rows at a time; a lane has 32 elements of each, of Q8 16.
    codes = counted("matvec_i8.k", "".join(BYTES.format(W=w) for w in ("Q8", "Q4"))) | counted("matvec_packed.k", "".join(BYTES.format(W=w) for w in types[2:]))
    wrong = []
    for w in types:
        mine, other = floats[f"floats_{w}"] / 32, codes[f"bytes_{w}"] / (4 * (16 if w == "Q8" else 32))
        print(f"{w:5} {mine:5.2f} cycles a weight with f32, {other:5.2f} by products of bytes")
        if mine > BOUNDS.get(w, 99):
            wrong.append(f"{w}: {mine:.2f} cycles, more than {BOUNDS[w]}")
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
