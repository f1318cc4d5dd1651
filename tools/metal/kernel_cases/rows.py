"""Cases of kernels of rows and elements: norms, softmax, sums, codes, elementwise operations, the greatest."""
import array, math, struct

from kernel_cases.case import Case, FIXED
from kernel_data import RNG, bfloats, floats, halves, of_bfloats, of_halves, quantized, rows_of, uints


def rms_norm():
    # The last: a row is one group, so the norm and the scale of its codes are maxima and sums of the same threads.
    for n, rows, threads, v in [(512, 3, 64, 2), (2048, 2, 256, 2), (4096, 1, 128, 8), (260, 2, 64, 2), (1024, 2, 128, 2)]:
        x, w = floats(n * rows), floats(n)
        want = []
        for row in rows_of(x, n):
            scale = 1 / math.sqrt(sum(a * a for a in row) / n + 1e-5)
            want += [a * scale * b for a, b in zip(row, w)]
        tail = [uints(0), FIXED, rows, 1, n, 1e-5]
        for ty, out, read, bound in [("f32", floats(n * rows + 4), list, 1e-6), ("f16", halves([0] * n * rows), of_halves, 1e-3),
                                     ("bf16", bfloats([0] * n * rows), of_bfloats, 5e-3)]:
            yield Case("rms_norm.k", f"rms_norm_{ty}_{v}", (rows + 1,), (threads,), [x, w, out, *tail], {2: want}, {2: read}, bound, [0])
        group = n if n == 1024 else 32 if n % 64 else 64
        if n % group == 0:
            codes, scales, _ = quantized(want, group)
            out = array.array("b", bytes(n * rows))
            yield Case("rms_norm.k", f"rms_norm_i8_{v}", (rows,), (threads,), [x, w, out, floats(len(scales)), *tail, group, 0.0],
                       {2: codes, 3: scales}, {}, 1.01 / 127, [0])
    x, w, n = [floats(3 * 128), floats(2 * 128)], [floats(128), floats(128)], 128
    want = [[a / math.sqrt(sum(b * b for b in row) / n + 1e-5) * c for row in rows_of(values, n) for a, c in zip(row, gain)] for values, gain in zip(x, w)]
    # A token of three rows and of two, and room for another.
    for each, groups in [(1, 10), (4, 3)]:
        args = [x[0], w[0], floats(6 * 128), x[1], w[1], floats(4 * 128), uints(9, 1), 1, 2, 1, 3, 2, 6, n, 1e-5, each]
        yield Case("rms_norm.k", "rms_norms_2", (groups,), (32 * each,), args, {2: want[0], 5: want[1]}, bound=1e-6)
    for n, rows, threads, each in [(128, 3, 32, 1), (260, 2, 64, 1), (128, 11, 256, 8)]:
        x, w, gate = floats(n * rows), floats(n), floats(n * rows)
        want = []
        for row, own in zip(rows_of(x, n), rows_of(gate, n)):
            scale = 1 / math.sqrt(sum(a * a for a in row) / n + 1e-5)
            want += [a * scale * b * c / (1 + math.exp(-c)) for a, b, c in zip(row, w, own)]
        args = [x, w, gate, floats(n * rows), uints(0), FIXED, rows, 1, n, 1e-5, each]
        yield Case("rms_norm.k", "rms_norm_gate", (rows // each + 1,), (threads,), args, {3: want}, streams=[0, 2])
    x, w, n = floats(3 * 37), floats(37), 37
    want = [a / math.sqrt(sum(b * b for b in row) / n + 1e-5) * c for row in rows_of(x, n) for a, c in zip(row, w)]
    yield Case("rms_norm.k", "rms_norm_any", (3,), (64,), [x, w, floats(111), uints(0), FIXED, 3, 1, n, 1e-5], {2: want}, bound=1e-6)
    # The number of rows is word 1 of the step block.
    yield Case("rms_norm.k", "rms_norm_any", (3,), (64,), [x, w, floats(111), uints(9, 2), 1, 3, 1, n, 1e-5], {2: want[:74]}, bound=1e-6)


def biases():
    tokens, widths = 3, (300, 20)
    x, b = [floats(tokens * m) for m in widths], [floats(m) for m in widths]
    want = [[v + own[i % m] for i, v in enumerate(values)] for values, own, m in zip(x, b, widths)]
    args = [x[0], b[0], floats(len(x[0])), x[1], b[1], floats(len(x[1])), None, None, None, uints(9, tokens), 1, tokens + 1, 1, *widths, 0]
    yield Case("biases.k", "biases", (2, tokens + 1), (256,), args, {2: want[0], 5: want[1]}, bound=1e-6)
    added = floats(len(x[0]))
    args = [x[0], b[0], added, floats(len(x[0])), uints(9, tokens), 1, tokens + 1, 1, widths[0]]
    yield Case("biases.k", "biased", (2, tokens + 1), (256,), args, {3: [v + r for v, r in zip(want[0], added)]}, bound=1e-6)


def layer_norm():
    for n, rows, threads, v in [(512, 3, 64, 2), (4096, 1, 128, 8), (260, 2, 64, 2), (37, 3, 64, "any")]:
        x, w, bias = floats(n * rows), floats(n), floats(n)
        want = []
        for row in rows_of(x, n):
            mean = sum(row) / n
            scale = 1 / math.sqrt(sum((a - mean) ** 2 for a in row) / n + 1e-5)
            want += [(a - mean) * scale * b + c for a, b, c in zip(row, w, bias)]
        # A workgroup more than rows, whose number is fixed or word 1 of the step block.
        for step, slot, most in [(uints(0), FIXED, rows), (uints(9, rows), 1, rows + 1)]:
            args = [x, w, bias, floats(n * rows), step, slot, most, 1, n, 1e-5]
            yield Case("layer_norm.k", f"layer_norm_{v}", (rows + 1,), (threads,), args, {3: want}, bound=2e-6)


def softmax():
    for n, threads, kernel, streams in [(512, 64, "softmax_2", [0]), (4096, 128, "softmax_8", [0]), (33, 64, "softmax_any", [])]:
        x, want = floats(3 * n, 3), []
        for row in rows_of(x, n):
            most = max(row)
            total = sum(math.exp(v - most) for v in row)
            want += [math.exp(v - most) / total for v in row]
        yield Case("softmax.k", kernel, (3,), (threads,), [x, floats(3 * n), uints(0), FIXED, 3, 1, n], {1: want}, streams=streams)


def reduce():
    for n, chunk, fours in [(1000, 256, 1), (777, 300, 0)]:
        x, chunks = floats(2 * n), -(-n // chunk)
        parts = [row[c * chunk:(c + 1) * chunk] for row in rows_of(x, n) for c in range(chunks)]
        for kernel, f in [("reduce_sum", sum), ("reduce_max", max)]:
            yield Case("reduce.k", kernel, (2 * chunks,), (64,), [x, floats(2 * chunks), uints(0), FIXED, 2, 1, n, chunk, chunks, fours],
                       {1: [f(p) for p in parts]}, streams=[0])


def quantize():
    for n, group, threads, kernel in [(1024, 32, 128, "quantize_2"), (1024, 256, 128, "quantize_2"), (512, 512, 64, "quantize_2"),
                                      (4096, 128, 128, "quantize_8")]:
        x = floats(2 * n)
        codes, scales, _ = quantized(x, group)
        yield Case("quantize.k", kernel, (2,), (threads,), [x, array.array("b", bytes(2 * n)), floats(len(scales)), uints(0), FIXED, 2, 1, n, group, 0.0],
                   {1: codes, 2: scales}, {}, 1e-6, [0])
    x = floats(6 * 48)
    codes, scales, _ = quantized(x, 48)
    yield Case("quantize.k", "quantize_any", (2,), (128,), [x, array.array("b", bytes(288)), floats(6), uints(0), FIXED, 6, 1, 48, 0.0], {1: codes, 2: scales})


def elementwise():
    silu = lambda v: v / (1 + math.exp(-v))
    unary = [("neg", lambda v: -v), ("abs", abs), ("exp", math.exp), ("tanh", math.tanh), ("relu", lambda v: max(v, 0.0)),
             ("sigmoid", lambda v: 1 / (1 + math.exp(-v))), ("silu", silu)]
    binary = [("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b), ("div", lambda a, b: a / b), ("maximum", max),
              ("minimum", min), ("swiglu", lambda a, b: silu(a) * b), ("relu2_mul", lambda a, b: max(a, 0.0) ** 2 * b)]
    for n, fours in [(1500, 1), (1501, 0)]:
        a, b, groups = floats(n), floats(n), (-(-n // 1024),)
        for name, f in unary:
            yield Case("elementwise.k", "map_" + name, groups, (256,), [a, floats(n), uints(0), FIXED, n, 1, fours], {1: list(map(f, a))}, streams=[0])
        for name, f in binary:
            yield Case("elementwise.k", "map_" + name, groups, (256,), [a, b, floats(n), uints(0), FIXED, n, 1, 0, 0, fours], {2: list(map(f, a, b))}, streams=[0, 1])
        yield Case("elementwise.k", "cast_f16", groups, (256,), [a, halves([0] * n), uints(0), FIXED, n, 1, fours], {1: list(a)}, {1: of_halves}, 1e-3)
        yield Case("elementwise.k", "cast_bf16", groups, (256,), [a, bfloats([0] * n), uints(0), FIXED, n, 1, fours], {1: list(a)}, {1: of_bfloats}, 4e-3)
    repeated = [x + y for x, y in zip(a[:1200], list(b[:300]) * 4)]
    yield Case("elementwise.k", "map_add", (2,), (256,), [a, b, floats(1200), uints(0), FIXED, 1200, 1, 0, 300, 1], {2: repeated})
    data = bytearray(RNG.randbytes(1333))
    yield Case("elementwise.k", "copy_bytes", (2,), (256,), [data, bytearray(1333), uints(0), FIXED, 1333, 1], {1: list(data)}, streams=[0])


def top_k():
    n, k, rows = 1000, 7, 2
    x = floats(rows * n)
    x[3] = x[500] = 9.0
    groups = -(-n // 128)
    keys = array.array("I", bytes(4 * rows * groups))

    def key(v):
        bits = struct.unpack("<I", struct.pack("<f", v + 0.0))[0]
        return ~bits & 0xffffffff if bits >> 31 else bits | 0x80000000

    found = [max(map(key, row[g * 128:(g + 1) * 128])) for row in rows_of(x, n) for g in range(groups)]
    want = [i for row in rows_of(x, n) for i in sorted(range(n), key=lambda i: (-row[i], i))[:k]]
    yield Case("top_k.k", "top_k_groups", (rows, -(-groups // 8)), (256,), [x, keys, uints(0), FIXED, rows, 1, n, groups], {1: found}, bound=0, streams=[0])
    yield Case("top_k.k", "top_k", (rows,), (1024,), [x, uints(*found), uints(*[0] * rows * k), uints(0), FIXED, rows, 1, n, groups, k], {2: want}, bound=0)


def sample():
    """The greatest logit, and one of the greatest two."""
    n, rows = 700, 2
    x = floats(n * rows)
    pieces = -(-n // 32)
    best = [max(range(n), key=lambda i, row=row: row[i]) for row in rows_of(x, n)]

    def key(v):
        bits = struct.unpack("<I", struct.pack("<f", v))[0]
        return bits ^ (0xffffffff if bits >> 31 else 0x80000000)

    keys = [key(max(row[p * 32:(p + 1) * 32])) for row in rows_of(x, n) for p in range(pieces)]
    numbers, words = array.array("f", [0.0, 1.0, -math.inf] * rows), uints(*[0, 1, 2, 3] * rows)
    yield Case("sample.k", "sample_scan", (-(-pieces // 32), rows), (256,), [x, numbers, words, array.array("I", bytes(4 * len(keys))), floats(len(keys)), uints(0), FIXED, rows, 1, n],
               {3: keys}, bound=0, streams=[0])
    # The greatest by a temperature of 0; and drawn, where min-p leaves nothing else.
    for numbers in numbers, array.array("f", [1.0, 1.0, 0.0] * rows):
        yield Case("sample.k", "sample_choose", (rows,), (1024,), [x, numbers, words, uints(*keys), floats(len(keys)), uints(*[0] * rows), uints(0), FIXED, rows, 1, n], {5: best}, bound=0)
