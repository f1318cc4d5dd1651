#!/usr/bin/env python3
"""Tests mslc.py: texts that are and are not MSL; a kernel that is right and runs clean; the same with one bug each of every class
that the checked mode names."""
import array, math, os, random, shutil, sys, tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import mslc  # First: it says where bytecode goes.
import kernels
from runner import Fault, Library
from snippets import SNIPPETS

# C = A·B on tiles of 8 × 8 in threadgroup memory; d is {M, N, K}.
MATMUL = """#include <metal_stdlib>
using namespace metal;
kernel void matmul(device const float *A [[buffer(0)]], device const float *B [[buffer(1)]], device float *C [[buffer(2)]],
                   constant uint *d [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]], uint2 tid [[thread_position_in_threadgroup]]) {
    threadgroup float As[8][8];
    threadgroup float Bs[8][8];
    const uint M = d[0], N = d[1], K = d[2], row = group.y * 8 + tid.y, col = group.x * 8 + tid.x;
    float sum = 0;
    for (uint k0 = 0; k0 < K; k0 += 8) {
        As[tid.y][tid.x] = row < M && k0 + tid.x < K ? A[row * K + k0 + tid.x] : 0.0f;
        Bs[tid.y][tid.x] = k0 + tid.y < K && col < N ? B[(k0 + tid.y) * N + col] : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < 8; ++k) sum = fma(As[tid.y][k], Bs[k][tid.x], sum);
        threadgroup_barrier(mem_flags::mem_threadgroup);  // second
    }
    if (row < M && col < N) C[row * N + col] = sum;
}
"""
# Sums of rows, by SIMD-groups and then across them; each row is one group's.
ROWS = """#include <metal_stdlib>
using namespace metal;
kernel void rows(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], constant uint &n [[buffer(2)]], device atomic_uint *hits [[buffer(3)]],
                 uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float part[4];
    float sum = 0;
    for (uint i = tid; i < n; i += 128) sum += x[group * n + i];
    sum = simd_sum(sum);
    if (lane == 0) part[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = simd_sum(lane < 4 ? part[lane] : 0.0f);
    if (tid == 0) { y[group] = sum; atomic_fetch_add_explicit(&hits[0], 1u, memory_order_relaxed); }
}
"""
# The same sums by four, in an array behind one of nine floats: it needs the alignment of its accesses.
FOURS = ROWS.replace("    threadgroup float part[4];\n", "    threadgroup float odd[9];\n    alignas(16) threadgroup float part[4];\n    if (tid == 0) odd[8] = 0;\n") \
    .replace("lane < 4 ? part[lane] : 0.0f", "lane == 0 ? dot(*(threadgroup const float4 *)part, float4(1.0f)) : 0.0f")
# A bug of a native kernel: file, what is changed in it, the cases that must find it with the kernels that they are of, and what they must
# say. Bugs of the code that launches them are in host_mutants.py.
MUTANTS = [
    ("attention_prefill.metal", "            BARRIER();\n            float w[4]", "            float w[4]", kernels.attention_prefill, "float_64", "race: threadgroup memory"),
    ("attention_prefill.metal", "p > own || p < begin", "p > own || p <= begin", kernels.attention_prefill, "half_64", "argument 8, element"),
    ("attention_prefill.metal", "block = p < len ?", "block = p <= len ?", kernels.attention_prefill, "", "read out of bounds: buffer(7)"),
    ("rms_norm.k", "part + 32, LANE", "part, LANE", kernels.rms_norm, "i8", "race: threadgroup memory"),
    ("matmul_simdgroup.h", "ws + at_w);\n            BARRIER();", "ws + at_w);", kernels.matmul_simdgroup, "f32_f16", "race: threadgroup memory"),
    ("attention.h", "                BARRIER_DEVICE();", "                BARRIER();", kernels.attention_append, "float_64", "race: buffer"),
    ("softmax.k", "#define SOFTMAX(name, V) KERNEL(name, 1024", "#define SOFTMAX(name, V) KERNEL(name, 64", kernels.softmax, "softmax_8", "128 threads in a threadgroup of a kernel for at most 64"),
    ("top_k.k", "count_keys(keys, n, next, tid), part + i % 2 * 32", "count_keys(keys, n, next, tid), part", kernels.top_k, "top_k", "race: threadgroup memory"),
    ("matvec.k", "g, part + t % 2 * 32, chunks", "g, part, chunks", kernels.matvec, "q8_i8_t4", "race: threadgroup memory"),
    ("rows.h", "simd_sum(lane < nsimd ?", "simd_sum(lane <= nsimd ?", kernels.softmax, "softmax_2", "threadgroup memory"),
    ("sample.k", "v = simd_op(v); \\\n    BARRIER(); \\\n", "v = simd_op(v); \\\n", kernels.sample, "sample_choose", "threadgroup memory"),
    ("matvec_i8.h", "if (i >= a.m1) { i -= a.m1; w = a.w2;", "if (i > a.m1) { i -= a.m1; w = a.w2;", kernels.matvec_i8, "q8_rows", "out of bounds"),
    # New to the kernels of few tokens for codes and f32.
    ("matvec_floats.metal", "min(row + r % EACH, m - 1)", "(row + r % EACH)", kernels.matvec_floats, "q8_rows", "out of bounds"),
]
TINY = """#include <metal_stdlib>
using namespace metal;
kernel void tiny(device float *x [[buffer(0)]]) { x[0] *= 0.5f; }
"""
EXPS = """#include <metal_stdlib>
using namespace metal;
kernel void exps(device float *x [[buffer(0)]], uint i [[threadgroup_position_in_grid]]) { x[i] = exp(x[i]); }
"""
# A text, what is changed in it, and what the fault must say.
BUGS = [
    (MATMUL, "        threadgroup_barrier(mem_flags::mem_threadgroup);\n        for", "        for", "threadgroup memory byte"),
    (MATMUL, "        threadgroup_barrier(mem_flags::mem_threadgroup);  // second\n", "", "read/write race: threadgroup memory"),
    (MATMUL, "mem_flags::mem_threadgroup", "mem_flags::mem_device", "race: threadgroup memory"),
    (MATMUL, "    float sum", "    if (row >= M) return;\n    float sum", "have returned"),
    (MATMUL, "    if (row < M &&", "    if (tid.x < 4) threadgroup_barrier(mem_flags::mem_threadgroup);\n    if (row < M &&", "threadgroup_barrier at line"),
    (MATMUL, "Bs[tid.y][tid.x] = k0", "if (tid.y) Bs[tid.y][tid.x] = k0", "read before it is written"),
    (MATMUL, "row < M && k0 + tid.x", "row <= M && k0 + tid.x", "read out of bounds: buffer(0)"),
    (MATMUL, "if (row < M && col < N) C", "if (row <= M && col < N) C", "write out of bounds: buffer(2)"),
    (MATMUL, "C[row * N + col] = sum", "C[row * N + col / 2] = sum", "write/write race: buffer(2)"),
    (MATMUL, "A[row * K", "A[row * K - 30", "read out of bounds"),
    (ROWS, "    threadgroup_barrier(mem_flags::mem_threadgroup);\n", "", "threadgroup memory"),
    (ROWS, "y[group]", "y[group / 2]", "race between threadgroups: buffer(1)"),
    (ROWS, "sum = simd_sum(sum)", "if (tid < 77) sum = simd_sum(sum)", "divergent SIMD-group operation"),
    (ROWS, "atomic_fetch_add_explicit(&hits[0], 1u, memory_order_relaxed)", "((device uint *)hits)[0] += 1", "race between threadgroups: buffer(3)"),
    (FOURS, "alignas(16) ", "", "misaligned access: threadgroup memory"),
    (ROWS, "part[4]", "part[8000], more[8000]", "threadgroup memory: 64000 bytes"),
]


def launch(library, text, seed):
    """Runs a kernel of the two above, and compares its results; gives the launch."""
    rng = random.Random(3)
    numbers = lambda n: array.array("f", (rng.uniform(-1, 1) for _ in range(n)))
    if "void matmul" in text:
        M, N, K = 21, 19, 13
        a, b, c = numbers(M * K), numbers(K * N), numbers(M * N)
        done = library.run("matmul", ((N + 7) // 8, (M + 7) // 8), (8, 8), [a, b, c, array.array("I", [M, N, K])], seed=seed)
        want = [sum(a[i * K + k] * b[k * N + j] for k in range(K)) for i in range(M) for j in range(N)]
        got = c
    else:
        n, rows = 300, 6
        x, got, hits = numbers(n * rows), numbers(rows), array.array("I", [0])
        done = library.run("rows", (rows,), (128,), [x, got, array.array("I", [n]), hits], seed=seed)
        want = [sum(x[r * n:(r + 1) * n]) for r in range(rows)]
        assert hits[0] == rows, hits
    worst = max(abs(g - w) for g, w in zip(got, want))
    assert worst < 1e-5, f"wrong by {worst}"
    return done


def mutant(file, old, new, cases, only, want):
    """What is wrong with the search for a bug of a kernel, in runs that count subnormals as 0, as Apple's GPUs do."""
    with tempfile.TemporaryDirectory() as folder:
        folders = [shutil.copytree(f, os.path.join(folder, os.path.basename(f))) for f in kernels.FOLDERS]
        path = next(p for p in (os.path.join(f, file) for f in folders) if os.path.exists(p))
        with open(path, encoding="utf-8") as f:
            text = f.read()
        assert text.count(old) == 1, (file, old, text.count(old))
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(old, new))
        cases = [case for case in cases() if only in case.kernel]
        found = kernels.run(cases[0].source, cases, folders, [(0, True), (3, True)])
        if not any(want in line for line in found):
            return f"{file}: not found: {old!r} as {new!r}: {found}"
    return None


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        def write(name, text):
            path = os.path.join(folder, name + ".metal")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            return path

        mslc.check(write("first", MATMUL))  # Makes what is made once.
        good = [write(name, text) for name, text in SNIPPETS.items() if name.startswith("ok_")]

        def among_good(item):
            first, message, last = mslc.check_all([good[0], write(*item), good[-1]])
            return first + last or message

        for name, message in zip(SNIPPETS, pool.map(among_good, SNIPPETS.items())):
            if name.startswith("ok_") == bool(message):
                wrong.append(f"{name}: {message or 'accepted'}")

        def planted(i, bug):
            text, old, new, _ = bug
            assert old in text, old
            out = os.path.join(folder, f"bug{i}.so")
            mslc.build(write(f"bug{i}", text.replace(old, new)), out, checked=True)
            return out

        def built(item):
            return planted(*item)

        for name, text, checked in [("matmul", MATMUL, True), ("rows", ROWS, True), ("fours", FOURS, True), ("matmul0", MATMUL, False)]:
            path, out = write(name, text), os.path.join(folder, name + ".so")
            if mslc.check(path):
                wrong.append(f"{name}: {mslc.check(path)}")
            mslc.build(path, out, checked=checked)
            for seed in (0, 7):
                done = launch(Library(out), text, seed)
            if checked and name in ("rows", "fours") and (done.loaded[0], done.unique[0]) != (7200, 7200):
                wrong.append(f"rows loads {done.loaded[0]} bytes, {done.unique[0]} different")
        try:
            Library(os.path.join(folder, "rows.so")).run("rows", (6,), (128,), [array.array("f", [0] * 1800), None, array.array("I", [300]), array.array("I", [0])])
            wrong.append("not found: a buffer that is not bound")
        except Fault as e:
            if "nothing is bound to buffer(1)" not in str(e):
                wrong.append(f"a buffer that is not bound: {e}")
        # A kernel sees subnormal numbers, and counts them as 0 where the launch flushes.
        mslc.build(write("tiny", TINY), os.path.join(folder, "tiny.so"))
        for flush, want in [(False, 5e-41), (True, 0.0)]:
            x = array.array("f", [1e-40])
            Library(os.path.join(folder, "tiny.so")).run("tiny", (1,), (1,), [x], flush=flush)
            if not abs(x[0] - want) < 1e-42:
                wrong.append(f"flush {flush}: half of 1e-40 is {x[0]}")
        # Where the launch flushes, functions err as much as Metal allows: exp by 4 units in the last place, and 1 stays.
        mslc.build(write("exps", EXPS), os.path.join(folder, "exps.so"))
        for flush in (False, True):
            x = array.array("f", [i / 100 - 5 for i in range(1000)])
            want = array.array("f", map(math.exp, x))
            Library(os.path.join(folder, "exps.so")).run("exps", (1000,), (1,), [x], flush=flush)
            off = [abs(a - b) for a, b in zip(array.array("i", x.tobytes()), array.array("i", want.tobytes()))]
            if x[500] != 1 or (max(off) not in (3, 4) if flush else max(off) > 1):
                wrong.append(f"flush {flush}: exp errs by up to {max(off)} units, exp(0) is {x[500]}")
        with ProcessPoolExecutor(os.cpu_count()) as others:
            wrong += filter(None, others.map(mutant, *zip(*MUTANTS)))
        for (text, old, new, want), out in zip(BUGS, list(pool.map(built, enumerate(BUGS)))):
            try:
                launch(Library(out), text, 5)
                wrong.append(f"not found: {old!r} as {new!r}")
            except Fault as e:
                if want not in str(e):
                    wrong.append(f"{old!r} as {new!r}: {e}")
            except AssertionError as e:
                wrong.append(f"not found, but wrong numbers: {old!r} as {new!r}: {e}")
    print("\n".join(wrong))
    print(f"{len(SNIPPETS)} texts, {len(BUGS)} planted bugs, {len(MUTANTS)} of kernels: {len(wrong)} judged wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
