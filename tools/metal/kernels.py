#!/usr/bin/env python3
"""Runs the native kernels that serve Metal (crates/hologram-gpu/kernels/shared/*.k and .../metal/*.metal) in checked mode:
right numbers, no data race, no access out of bounds, no barrier that some threads miss; and of those that only read their weights or
rows once, that they load at most a tenth more than they must.

    kernels.py [NAME…]      runs all cases, or those of sources whose name begins so
"""
import array, glob, math, os, struct, sys, tempfile, time
from concurrent.futures import ProcessPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import mslc
from kernel_data import (ALL_PACKED, PACKED, RNG, bfloats, dots, floats, halves, of_bfloats, of_halves, one, packed_weights, quantized, rows_of, uints,
                         weights)
from runner import Fault, Library

ROOT = os.path.normpath(os.path.join(HERE, "..", "..", "crates", "hologram-gpu", "kernels"))
FOLDERS = [os.path.join(ROOT, "shared"), os.path.join(ROOT, "metal")]
FIXED = 0xffffffff  # The slot of a count that is known: no word of the step block.
NO_NORM, QUANTISED = -1.0, -2.0  # What stands for a norm's epsilon.


class Case:
    """A launch. `args`: buffers, numbers, None for a byte that is not used; `results`: the reference by the argument's place, of what
    `read` makes numbers, within `bound` (of the greatest magnitude); `streams`: places that are read once, or tuples of places that
    are so together."""

    def __init__(self, source, kernel, grid, threads, args, results, read=None, bound=1e-5, streams=(), shared=0):
        self.source, self.kernel, self.grid, self.threads = source, kernel, grid, threads
        self.args = [a if a is None or isinstance(a, (array.array, bytearray)) else one(a) for a in args]
        self.results, self.read, self.bound = results, read or {}, bound
        self.streams, self.shared = streams, shared

    def run(self, library):
        """What is wrong, or None."""
        for seed in (0, 3):
            buffers = [bytearray(1) if a is None else a[:] for a in self.args]
            done = library.run(self.kernel, self.grid, self.threads, buffers, [self.shared] if self.shared else (), seed, flush=seed != 0, backwards=seed != 0)
            for place, want in self.results.items():
                got = self.read.get(place, list)(buffers[place])
                size = max(max(map(abs, want)), 1e-30)
                worst = max((abs(g - w), i) for i, (g, w) in enumerate(zip(got, want)))
                if len(got) < len(want) or not worst[0] <= self.bound * size:
                    i = worst[1]
                    return f"argument {place}, element {i}: {got[i]}, not {want[i]}"
                kept = self.read.get(place, list)(self.args[place])[len(want):]
                if list(got[len(want):]) != list(kept):
                    return f"argument {place}: written behind its end"
            for places in self.streams:
                places = places if isinstance(places, tuple) else (places,)
                loaded, unique = sum(done.loaded[p] for p in places), sum(done.unique[p] for p in places)
                if loaded > 1.1 * unique:
                    return f"argument {places}: {loaded} bytes loaded, {unique} different"
        return None


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


def rope():
    heads, d, pairs, tokens = 3, 64, 24, 4
    x, positions, freqs = floats(tokens * heads * d), uints(5, 0, 700, 3), array.array("f", (10 ** (-i / pairs) for i in range(pairs)))
    for adjacent in (0, 1):
        want = rotated(x, positions, freqs, heads, d, pairs, adjacent)
        grid = (-(-tokens * heads * (d - pairs) // 256),)
        yield Case("rope.k", "rope", grid, (256,), [x, positions, freqs, floats(len(x)), uints(0), FIXED, tokens * heads, 1, heads, d, pairs, adjacent], {3: want}, bound=1e-4)


def rotated(x, positions, freqs, heads, d, pairs, adjacent):
    want = []
    for r, row in enumerate(rows_of(x, d)):
        row = list(row)
        for i in range(pairs):
            angle = positions[r // heads] * freqs[i]
            p, q = (2 * i, 2 * i + 1) if adjacent else (i, i + pairs)
            a, b = row[p], row[q]
            row[p], row[q] = a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)
        want += row
    return want


def of_four_bits(x):
    """Codes of 4 bits, two in a byte, their scales and the values, of a cache."""
    codes, scales, values = bytearray(), [], []
    for start in range(0, len(x), 32):
        block = x[start:start + 32]
        extreme = max(block, key=abs)
        scale = of_halves(halves([extreme / -8]))[0]
        of = [min(max(round(v * -8 / extreme), -8), 7) for v in block]
        codes += bytes(of[i] + 8 | of[i + 16] + 8 << 4 for i in range(16))
        scales.append(scale)
        values += [c * scale for c in of]
    return array.array("B", codes), halves(scales), values


FLOAT_BYTES = [(c & 7) / 512 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) for c in range(127)]


def of_float_bytes(x):
    """The codes of the nearest floats of a byte, the even one of two, and their values."""
    codes = [min(range(127), key=lambda c: (abs(FLOAT_BYTES[c] - abs(v)), c & 1)) | (128 if v < 0 else 0) for v in x]
    return array.array("B", codes), values_of_bytes(codes)


def values_of_bytes(codes):
    return [math.copysign(FLOAT_BYTES[c & 127] if c & 127 < 127 else math.inf, -1 if c & 128 else 1) for c in codes]


def caches():
    # In 4 bits, a scale for 32 elements, by workgroups that have a part of a token's.
    x, slots = floats(2 * 3 * 32), uints(9, 2)
    codes, scales, _ = of_four_bits(x)
    stored, of_scales = [0] * (4 * 3 * 4 * 16), [0.0] * (4 * 3 * 4)
    for t, slot in enumerate(slots):
        for h in range(3):
            to = ((slot >> 2) * 3 + h) * 4 + slot % 4
            stored[to * 16:to * 16 + 16] = codes[(t * 3 + h) * 16:][:16]
            of_scales[to] = of_halves(scales)[t * 3 + h]
    args = [array.array("B", bytes(len(stored))), halves([0] * len(of_scales)), x, slots, uints(0), FIXED, 2, 1, 4, 3, 4, 32, uints(*[0] * 8)]
    yield Case("kv_append.k", "kv_append_four", (2, 1), (256,), args, {0: stored, 1: of_scales}, {1: of_halves}, 1e-3, [2])
    tokens, heads, kv, d, shift, blocks = 3, 4, 2, 16, 2, 5
    x, slots = floats(tokens * kv * d), uints(7, 19, 0)
    where = lambda slot, head, e: ((slot >> shift) * kv + head) * (1 << shift) * d + (slot & (1 << shift) - 1) * d + e
    size = blocks * kv * (1 << shift) * d
    stored = [0.0] * size
    for t in range(tokens):
        for h in range(kv):
            for e in range(d):
                stored[where(slots[t], h, e)] = x[(t * kv + h) * d + e]
    tail = [x, slots, uints(0), FIXED, tokens, 1, blocks, kv, 1 << shift, d, uints(*[0] * 8)]
    yield Case("kv_append.k", "kv_append_f8", (tokens, 1), (256,), [array.array("B", bytes(size)), *tail], {0: of_float_bytes(stored)[1]}, {0: values_of_bytes}, 1e-7, [1])
    for ty, cache, read, bound in [("f32", array.array("f", bytes(4 * size)), list, 1e-7), ("f16", halves([0] * size), of_halves, 1e-3)]:
        yield Case("kv_append.k", f"kv_append_{ty}", (tokens, 1), (256,), [cache, *tail], {0: stored}, {0: read}, bound, [1])
        q, k, freqs, pairs, positions = floats(tokens * heads * d), floats(tokens * kv * d), floats(8), 8, uints(0, 9, 30)
        for adjacent in (0, 1):
            turned, keys = rotated(k, positions, freqs, kv, d, pairs, adjacent), [0.0] * size
            for t in range(tokens):
                for h in range(kv):
                    for e in range(d):
                        keys[where(slots[t], h, e)] = turned[(t * kv + h) * d + e]
            args = [q, k, x, positions, slots, freqs, floats(len(q)), cache, cache[:], uints(0), FIXED, tokens, 1, heads, kv, d, shift, blocks, pairs, adjacent, uints(*[0] * 8)]
            yield Case("rope_append.k", f"rope_append_{ty}", (tokens,), (256,), args, {6: rotated(q, positions, freqs, heads, d, pairs, adjacent), 7: keys, 8: stored},
                       {7: read, 8: read}, max(bound, 1e-5))


def gather():
    d, rows, ids = 512, 5, uints(4, 0, 2)
    for format in ("f32", "f16", "bf16", "q8", "q4", "t2"):
        data, scales, values = weights(format, rows, d)
        want = [v for i in ids for v in values[i * d:(i + 1) * d]]
        tail = [uints(0), FIXED, 3, 1, FIXED, rows, d, uints(*[0] * 8)]
        if scales is None:
            yield Case("gather.k", f"gather_{format}", (3, 1), (256,), [data, ids, floats(3 * d), *tail], {2: want}, streams=[0])
            continue
        yield Case("gather.k", f"gather_{format}_planes", (3, 1), (256,), [data, scales, ids, floats(3 * d), *tail], {3: want})
        # The same in blocks as files have them: the scale first, or last.
        block, size = (256, 64) if format == "t2" else (32, 32 if format == "q8" else 16)
        file = bytearray()
        for b in range(rows * d // block):
            parts = [scales[2 * b:2 * b + 2], data[b * size:(b + 1) * size]]
            file += parts[1] + parts[0] if format == "t2" else parts[0] + parts[1]
        yield Case("gather.k", f"gather_{format}", (3, 1), (256,), [file, file, ids, floats(3 * d), *tail], {3: want})
        words = size // 2 + 1
        planes = [array.array("H", bytes(p)) for p in (data, scales)]
        yield Case("repack.k", "repack", (-(-len(file) // 512),), (256,), [file, array.array("H", bytes(len(data))), array.array("H", bytes(len(scales))), words,
                   words - 1 if format == "t2" else 0, len(file) // 2], {1: list(planes[0]), 2: list(planes[1])}, streams=[0])
    x, indices = floats(4 * 50), uints(*[RNG.randrange(50) for _ in range(12)])
    yield Case("gather.k", "take", (1,), (256,), [x, indices, floats(12), uints(0), FIXED, 12, 1, 50, 3, uints(*[0] * 8)],
               {2: [x[i // 3 * 50 + indices[i]] for i in range(12)]})


def runs_of(counts):
    """Runs of tokens with two slots each, the first without a state before it: their fields, and per token its run."""
    fields, tokens = [], []
    for i, count in enumerate(counts):
        fields += [len(tokens), count, 2 * i if i else 1 << 20, 2 * i + 1]
        tokens += [i] * count
    return fields, tokens


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def recurrence():
    NEW_STATE, RESULTS, GIVEN, NORMS, TIMED, SIGMOID, SCALED, SKIP, TILED = 1, 2, 4, 24, 32, 64, 128, 256, 512
    both = NEW_STATE | RESULTS | GIVEN
    for h, g, v, k, counts, delta, parts in [(2, 1, 33, 24, [3, 0, 18], 1, both), (2, 2, 34, 128, [1, 9], 1, both | NORMS | TIMED | SIGMOID),
                                             (2, 1, 40, 256, [5, 1], 0, both | TIMED | SCALED | SKIP), (4, 2, 32, 64, [17], 1, both | TILED),
                                             (3, 1, 64, 128, [1, 1], 0, both), (2, 1, 36, 60, [1, 17], 1, both | NORMS), (2, 2, 32, 64, [3], 0, NEW_STATE),
                                             (2, 2, 32, 64, [3], 1, RESULTS)]:
        fields, tokens = runs_of(counts)
        n, slots, eps = len(tokens), 2 * len(counts), 1e-3
        # What models prepare comes in one tensor, with something else before and after it.
        lens = [g * k, g * k, h * v]
        if parts & (NORMS | SCALED):
            stride = sum(lens) + 8
            ats = [4, 4 + lens[0], 4 + lens[0] + lens[1]]
            queries = keys = values = floats(n * stride)
            strides = [stride] * 3
        else:
            queries, keys, values = (floats(n * of, k ** -0.5) for of in lens)
            ats, strides = [0] * 3, lens
        decay, strength, skip = floats(n * h, 0.5), floats(n * h, 0.5), floats(h)
        norms, bias, factor = [floats(k), floats(k)], floats(h), floats(h, 0.3)
        state = floats(slots * h * v * k)

        def vector(x, which, t, head):
            row = x[t * strides[which] + ats[which] + head * k:][:k]
            if parts & NORMS:
                scale = 1 / math.sqrt(sum(a * a for a in row) / k + eps)
                row = [a * scale * w for a, w in zip(row, norms[which])]
            return row

        after, y = list(state), [0.0] * (n * h * v)
        for first, count, before, to in rows_of(fields, 4):
            for head in range(h) if count else []:
                of_key = head % g if parts & TILED else head // (h // g)
                vectors = [(vector(queries, 0, t, of_key), vector(keys, 1, t, of_key)) for t in range(first, first + count)]
                for j in range(v):
                    at = ((before * h + head) * v + j) * k
                    row = list(state[at:at + k]) if before < slots else [0.0] * k
                    for t, (query, key) in zip(range(first, first + count), vectors):
                        value = u = values[t * strides[2] + ats[2] + head * v + j]
                        d, s = decay[t * h + head], strength[t * h + head]
                        if parts & TIMED:
                            time = softplus(d + bias[head])
                            d = math.exp(factor[head] * time)
                            u *= time if parts & SCALED else 1
                        if parts & SIGMOID:
                            s = 1 / (1 + math.exp(-s))
                        if delta:
                            u = s * (u - d * sum(a * b for a, b in zip(row, key)))
                        row = [d * s + u * a for s, a in zip(row, key)]
                        y[(t * h + head) * v + j] = sum(a * b for a, b in zip(row, query)) + (value * skip[head] if parts & SKIP else 0)
                    at = ((to * h + head) * v + j) * k
                    after[at:at + k] = row
        name = "recurrence_" + ("delta_" if delta else "") + str(next(e for e in (64, 128, 256) if k <= e))
        # The numbers of tokens and runs are words of the step block.
        args = [state, keys, values, decay, strength if delta else skip if parts & SKIP else None, uints(*fields), queries,
                floats(n * h * v) if parts & RESULTS else None, norms[1], norms[0], bias, factor, uints(n, len(counts)), 0, n + 4, 1, 1,
                len(counts) + 1, ats[1], ats[0], strides[1], ats[2], strides[2], slots, h, g, v, k, parts, eps, uints(*[0] * 8)]
        results = ({0: after} if parts & NEW_STATE else {}) | ({7: y} if parts & RESULTS else {}) | {30: [0] * 8}
        yield Case("recurrence.k", name, ((v + 31) // 32 * h * (len(counts) + 1),), (128,), args, results)


def causal_conv():
    for width, c, counts, each, parts in [(4, 300, [3, 0, 9], 1, 7), (3, 256, [1], 1, 3), (2, 264, [2, 11, 4], 8, 1), (4, 256, [1, 1, 1], 1, 0)]:
        fields, tokens = runs_of(counts)
        n, slots = len(tokens), 2 * len(counts)
        state, x, w, bias = floats(slots * (width - 1) * c), floats(n * c), floats(c * width), floats(c)
        after, y = list(state), []
        for first, count, before, to in rows_of(fields, 4):
            old = state[before * (width - 1) * c:][:(width - 1) * c] if before < slots else [0.0] * ((width - 1) * c)
            inputs = list(old) + list(x[first * c:(first + count) * c])
            for t in range(count):
                for i in range(c):
                    sum_ = sum(inputs[(t + j) * c + i] * w[i * width + j] for j in range(width)) + (bias[i] if parts & 4 else 0)
                    y.append(sum_ / (1 + math.exp(-sum_)) if parts & 2 else sum_)
            if count and parts & 1:
                after[to * (width - 1) * c:(to + 1) * (width - 1) * c] = inputs[count * c:]
        args = [state, x, w, uints(*tokens), uints(*fields), bias if parts & 4 else None, floats(n * c), uints(n, len(counts)), 0, n + 1, 1,
                1, len(counts) + 1, slots, c, each, parts, uints(*[0] * 8)]
        grid = ((c // 4 + 63) // 64, (n + each) // each)
        yield Case("causal_conv.k", f"causal_conv_{width}", grid, (64,), args, {0: after, 6: y, 17: [0] * 8})


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


def activations(format, x, k):
    """Activations as a kernel takes them, and the values that it then multiplies."""
    if format == "bf16":
        return list(of_bfloats(bfloats(x)))
    if format.startswith("i8"):
        return quantized(x, k if format == "i8row" else 32)[2]
    return list(x)


def matvec():
    """Few tokens: one matrix; three; a gate; with a norm, and with an addition."""
    for w, a in [("bf16", "bf16"), ("q8", "i8"), ("q4", "i8"), ("t2", "i8row"), ("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("f8", "f32")]:
        for tokens, form in [(1, "one"), (2, "three"), (1, "gate"), (4, "norm"), (1, "add")]:
            if (w, a) in [("f32", "f32"), ("f16", "f32")] and form in ("three", "add"):
                continue
            k, rows = 512, {"three": [8, 5, 7], "gate": [9, 9]}.get(form, [21])
            data = [weights(w, m, k) for m in rows]
            x, gain, added = floats(tokens * k), floats(k), floats(tokens * rows[0])
            read = []
            for row in rows_of(x, k):
                if form == "norm":
                    scale = 1 / math.sqrt(sum(v * v for v in row) / k + 1e-5)
                    row = [v * scale * g for v, g in zip(row, gain)]
                read += activations(a, row, k)
            products = [dots(read, values, k) for _, _, values in data]
            after, results = 0, products
            if form == "gate":
                after, results = 1, [[g / (1 + math.exp(-g)) * u for g, u in zip(*products)]]
            elif form == "add":
                after, results = 3, [[p + r for p, r in zip(products[0], added)]]
            outputs = [floats(len(r)) for r in results] + [None] * (3 - len(results))
            x_bytes = {"bf16": 2, "f32": 4}.get(a, 1)
            chunk = {"f32": 4, "f16": 8, "bf16": 8, "q8": 16, "f8": 16, "q4": 32, "t2": 64}[w]
            ternary, gated = w == "t2", form == "gate"
            wide_tokens = next(t for t in (1, 2, 4, 8) if t >= tokens)
            fast = (w, a) == ("bf16", "bf16") and wide_tokens == 1
            r = 1 if fast and not gated else 2
            # Two workgroups of 128 threads, 16 of them along a row.
            size, lanes, groups = 128, 4, 2
            total = rows[0] if gated else sum(rows)
            each, over = total // groups, total % groups
            share, chunks = each + (1 if over else 0), k // chunk
            shared = 0 if a == "f32" and form != "norm" else k * x_bytes * wide_tokens
            if a.startswith("i8"):
                shared += (wide_tokens * chunks + 1) // 2 * 16
            shared += (68 + (share * (2 if gated else 1) * (1 + (after == 3)) * wide_tokens + 3) // 4 * 4) * 4
            pad = [None] * (3 - len(rows))
            name = f"{w}_{'i8' if a.startswith('i8') else a}_t{wide_tokens}_r{r}"
            args = [x, None, gain if form == "norm" else None, *[d[0] for d in data], *pad, *[d[1] for d in data], *pad, *outputs,
                    added if form == "add" else None, None, FIXED, tokens, k, *(rows + [0, 0])[:3], each, over, lanes, after,
                    int(a == "f32" and form != "norm"), k if ternary else 32, 1e-5 if form == "norm" else NO_NORM, 0.0]
            # A last pair that is half a pair reads its row twice.
            streams = [3 + i for i in range(len(rows))] if each % r == 0 or share > 10 else []
            yield Case("matvec.k", name, (groups, 1), (size,), args, {9 + i: v for i, v in enumerate(results)}, bound=3e-3 if a != "f32" else 2e-5, streams=streams,
                       shared=shared)


def matvec_i8():
    for w in ("q8", "q4", "t2"):
        # Whole tiles, whose weights are read once, and ones with rows missing.
        for form, rows, whole, norm in [("gate", [32, 32], True, True), ("gate", [37, 37], False, False), ("rows", [40, 11, 13], True, False),
                                        ("rows", [20, 11, 9], False, True)]:
            k, groups = 512, 2
            data = [weights(w, m, k) for m in rows]
            x, gain, added = floats(k), floats(k), floats(rows[0])
            row = x
            if norm:
                scale = 1 / math.sqrt(sum(v * v for v in x) / k + 1e-5)
                row = [v * scale * g for v, g in zip(x, gain)]
            values = quantized(row, k if w == "t2" else 32)[2]
            products = [dots(values, v, k) for _, _, v in data]
            results = [[g / (1 + math.exp(-g)) * u for g, u in zip(*products)]] if form == "gate" else products
            total = rows[0] if form == "gate" else sum(rows)
            each, over = total // groups, total % groups
            tiles = -(-(-(-total // groups)) // (8 if form == "gate" else 16))
            teams = min(tiles, 16)
            slices = 16 // teams
            shared = (k // 128 * 160 if w == "t2" else k) + (k // (256 if w == "t2" else 32) + 1) // 2 * 16 + 8 * 16 + slices * tiles * 64
            pad = [None] * (3 - len(rows))
            args = [x, gain if norm else None, *[d[0] for d in data], *pad, *[d[1] for d in data], *pad, *[floats(len(r)) for r in results],
                    *[None] * (3 - len(results)), None, None, FIXED, k, rows[0], rows[1], each, over, teams, slices, 256 // teams + 1,
                    1 if form == "gate" else 0, 1e-5 if norm else NO_NORM, 0.0, 1.0 / k]
            yield Case("matvec_i8.k", f"{w}_{form}_h2", (groups,), (512,), args, {8 + i: v for i, v in enumerate(results)}, bound=3e-3,
                       streams=[(2 + i, 5 + i) for i in range(len(rows))] if whole else [], shared=shared)


def matvec_packed():
    """Each type alone with two matrices, with the norm, from codes, of several tokens and with an addition; gates of the types that have them."""
    gated = ("q5_0", "iq4_xs", "mxfp4", "q3_k", "q4_k", "q5_k", "q6_k")
    for w in PACKED:
        for form, rows, whole, norm, tokens, ready in [("rows", [40, 24], True, False, 1, False), ("rows", [21, 11], False, True, 2, False),
                                                       ("rows", [20], False, False, 3, True), ("gate", [37, 37], False, True, 1, False),
                                                       ("gate", [32, 32], True, False, 1, False), ("long", [32], True, False, 1, False)]:
            if form == "gate" and w not in gated or form == "long" and w != "q6_k":
                continue
            k, groups, gate = 512, 2, form == "gate"
            if PACKED[w][2] < 256 and not whole:
                k = 416 if PACKED[w][2] == 32 else 448   # Rows that end within a block.
            data = [packed_weights(w, m, k) for m in rows]
            x, gain, added = floats(k * tokens), floats(k), floats(rows[0] * tokens) if form == "rows" and not whole else None
            row = x
            if norm:
                row = []
                for part in rows_of(x, k):
                    scale = 1 / math.sqrt(sum(v * v for v in part) / k + 1e-5)
                    row += [v * scale * g for v, g in zip(part, gain)]
            codes, x_scales, values = quantized(row, 32)
            if len(rows) > 1:
                added = None
            products = [dots(values, d[3], k) for d in data]
            results = products
            if gate:
                results = [[g / (1 + math.exp(-g)) * u for g, u in zip(*products)]]
            elif added:
                results = [[p + r for p, r in zip(products[0], added)]]
            total = rows[0] if gate else sum(rows)
            each, over = total // groups, total % groups
            tiles = -(-(-(-total // groups)) // (8 if gate else 16))
            teams = min(tiles, 16)
            slices = 16 // teams
            shared = k + -(-(k // 32) // 2) * 16 + 8 * 16 + slices * tiles * 64
            pad = [None] * (3 - len(rows))
            planes = lambda i: [d[i] for d in data] + pad
            args = [array.array("b", codes) if ready else x, gain if norm else None, *planes(0), *planes(2), *[floats(len(r)) for r in results],
                    *[None] * (3 - len(results)), added, None, FIXED, k, rows[0], (rows + [0])[1], each, over, teams, slices, 256 // teams + 1,
                    1 if gate else 3 if added else 0, 1e-5 if norm else QUANTISED if ready else NO_NORM, 0.0, 1.0 / k, *planes(1), array.array("f", x_scales) if ready else None, 0]
            streams = [tuple(p + i for p in ((2, 5, 26) if data[i][1] else (2, 5))) for i in range(len(rows))] if whole else []
            yield Case("matvec_packed.k", f"{w}_{form}", (groups, tokens), (512,), args, {8 + i: v for i, v in enumerate(results)}, bound=3e-3,
                       streams=streams, shared=shared)


def matvec_floats():
    """Each type alone with two matrices, with the norm, of several tokens and with an addition; gates of the types that have them. Weights are read once."""
    gated = ("q8", "q4", "q5_0", "iq4_xs", "mxfp4", "q3_k", "q4_k", "q5_k", "q6_k")
    for w in ["q8", "q4", *PACKED]:
        for form, rows, k, norm, tokens in [("rows", [12, 8], 1024, False, 1), ("rows", [9, 6, 2], 1280, True, 1), ("rows", [10], 416, False, 3), ("gate", [13, 13], 512, True, 2)]:
            if form == "gate" and w not in gated:
                continue
            if w in PACKED and PACKED[w][2] > 32 and k == 416:
                k = 448 if PACKED[w][2] == 64 else 512
            data = []
            for m in rows:
                if w in PACKED:
                    data.append(packed_weights(w, m, k))
                else:
                    codes, scales, values = weights(w, m, k)
                    data.append((codes, None, scales, values))
            x, gain, added = floats(k * tokens), floats(k), floats(rows[0] * tokens) if len(rows) == 1 else None
            row = x
            if norm:
                row = []
                for part in rows_of(x, k):
                    scale = 1 / math.sqrt(sum(v * v for v in part) / k + 1e-5)
                    row += [v * scale * g for v, g in zip(part, gain)]
            products = [dots(row, d[3], k) for d in data]
            results, after = products, 0
            if form == "gate":
                results, after = [[g / (1 + math.exp(-g)) * u for g, u in zip(*products)]], 1
            elif added:
                results, after = [[p + r for p, r in zip(products[0], added)]], 3
            pad, groups = [None] * (3 - len(rows)), 2
            planes = lambda i: [d[i] for d in data] + pad
            args = [x, gain if norm else None, *planes(0), *planes(2), *planes(1), *[floats(len(r)) for r in results], *[None] * (3 - len(results)), added,
                    uints(9, tokens), 1, tokens + 1, 1, *(rows + [0, 0])[:3], k, after, groups, 1e-5 if norm else NO_NORM]
            # A tile's rows that there are not are read like its last one, for nothing.
            streams = [tuple(p + i for p in ((2, 5, 8) if data[i][1] else (2, 5))) for i in range(len(rows))] if k == 1024 else []
            yield Case("matvec_floats.metal", f"{w}_{form}", (groups, tokens + 1), (128,), args, {11 + i: v for i, v in enumerate(results)}, bound=1e-5, streams=streams)


def route():
    for n, k, v in [(60, 4, 4), (200, 32, 8), (512, 10, 32)]:
        rows = 9
        x = floats(n * rows)
        x[n + 3] = x[n + 1]  # Of equal ones the first is chosen first.
        chosen = [sorted(range(n), key=lambda i: (-row[i], i))[:k] for row in rows_of(x, n)]
        for form in (0, 1, 2):
            weights = []
            for row, ids in zip(rows_of(x, n), chosen):
                among = [row[i] for i in ids] if form == 1 else list(row)
                total = sum(math.exp(a - max(row)) for a in among)
                weights += [math.exp(row[i] - max(row)) / total for i in ids]
            want = {1: [i for ids in chosen for i in ids]}
            if form:
                want[2] = weights
            args = [x, uints(*[0] * rows * k), floats(rows * k), uints(9, rows), 1, rows + 1, 1, n, k, form]
            yield Case("route.k", f"route_{v}", (2,), (256,), args, want, bound=1e-5)


def experts():
    """Each pair of weights and activations: products alone, with a gate, with the sum and an addition; activations of
    tokens and of slots; with and without biases. Sums of products with codes quantise their activations."""
    pairs = [("f32", "f32"), ("f16", "f32"), ("f16", "bf16"), ("bf16", "bf16")]
    pairs += [(w, a) for w in ["q8", "q4", *PACKED] for a in ("i8", "bf16", "f32")]
    for i, (w, a) in enumerate(pairs):
        forms = ["store", "gate", "clamped", "sum"] if a == "i8" or i < 4 else [("store", "gate", "sum")[i % 3]]
        for form in forms:
            gated = form in ("gate", "clamped")
            k, m, count, slots, tokens = 1280 if form == "store" and i < 6 else 256, 21 if gated else 38, 3, 2, 2
            of_slots = form == "sum"
            ids = [2, 0, 1, 2]
            matrices = []
            for _ in range(2 if gated else 1):
                if w in PACKED:
                    matrices.append(packed_weights(w, count * m, k))
                else:
                    codes, scales, values = weights(w, count * m, k)
                    matrices.append((codes, None, scales, values))
            rows = tokens * slots if of_slots else tokens
            x = floats(rows * k)
            codes, x_scales, read = x, None, list(x)
            if a == "bf16":
                codes = bfloats(x)
                read = list(of_bfloats(codes))
            elif a == "i8":
                codes, x_scales, read = quantized(x, 32)
                codes, x_scales = array.array("b", codes), array.array("f", x_scales)
            biases = [floats(count * m) for _ in matrices] if form in ("clamped", "sum") and i % 2 == 0 else []
            products = []
            for number, (_, _, _, values) in enumerate(matrices):
                all_slots = []
                for slot, expert in enumerate(ids):
                    row = slot if of_slots else slot // slots
                    own = dots(read[row * k:(row + 1) * k], values[expert * m * k:(expert + 1) * m * k], k)
                    all_slots += [v + b for v, b in zip(own, biases[number][expert * m:])] if biases else own
                products.append(all_slots)
            factors, added, after, want = floats(tokens * slots), floats(tokens * m), 0, products[0]
            grid = (-(-m // 32), tokens * slots)
            if form == "gate":
                after, want, grid = 1, [g / (1 + math.exp(-g)) * u for g, u in zip(*products)], (-(-m // 16), tokens * slots)
            elif form == "clamped":
                after, grid = 3, (-(-m // 16), tokens * slots)
                clamped = [(min(g, 7), min(max(u, -7), 7)) for g, u in zip(*products)]
                want = [g / (1 + math.exp(-1.702 * g)) * (u + 1) for g, u in clamped]
            elif form == "sum":
                want = [sum(factors[t * slots + s] * products[0][(t * slots + s) * m + c] for s in range(slots)) + added[t * m + c] for t in range(tokens) for c in range(m)]
                few = w == "q8" or w in PACKED and (PACKED[w][4] or PACKED[w][1])
                # Teams have rows of their own: more of them where many rows are quantised for.
                teams = 8 if a == "i8" and not few else 4
                grid = (-(-m // ((4 if few else 8) * teams)), tokens)
                args = [x if a == "i8" else codes, *matrices[0][:3], uints(*ids), factors, added, *(biases or [None]), floats(len(want)), uints(0), FIXED, tokens, 1,
                        k, m, slots, count, 1, 1, int(bool(biases)), 0.0, uints(*[0] * 8)]
                name = f"sums_{w}_{'codes' if a == 'i8' else a}"
                yield Case("expert_sums.k", name, grid, (teams * 64,), args, {8: want}, bound=3e-3 if a != "f32" else 2e-5, shared=slots * (k + k // 64 * 16))
                continue
            second = matrices[1][:3] if gated else [None] * 3
            args = [codes, x_scales, *matrices[0][:3], *second, uints(*ids), *(biases + [None] * 2)[:2], floats(len(want)), uints(0), FIXED, tokens, 1, k, m, slots,
                    count, int(of_slots), after, int(bool(biases)), uints(*[0] * 8)]
            yield Case("experts.k", f"experts_{w}_{a}", grid, (256,), args, {11: want}, bound=3e-3 if a != "f32" else 2e-5, shared=16)
    x, factors = floats(3 * 5 * 300), floats(3 * 5)
    want = [sum(factors[t * 5 + s] * x[(t * 5 + s) * 300 + c] for s in range(5)) for t in range(3) for c in range(300)]
    yield Case("expert_sums.k", "expert_sum", (2, 4), (256,), [x, factors, floats(900), uints(9, 3), 1, 4, 1, 300, 5], {2: want}, bound=1e-6)


def packed():
    d, rows, ids = 512, 5, uints(4, 0, 2)
    for w in ALL_PACKED:
        low, high, records, values = packed_weights(w, rows, d)
        # The last workgroup has threads without work.
        total = rows * d // 8
        yield Case("packed.k", f"unpack_{w}", (-(-total // 256),), (256,), [low, high, records, bfloats([0] * rows * d), total], {3: values}, {3: of_bfloats}, 4e-3)
        want = [v for i in ids for v in values[i * d:(i + 1) * d]]
        yield Case("packed.k", f"gather_{w}", (3, 1), (256,), [low, high, records, ids, floats(3 * d), uints(0), FIXED, 3, 1, FIXED, rows, d, uints(*[0] * 8)], {4: want},
                   bound=1e-6)


def attention():
    """Over a paged cache; what several workgroups found for a token is joined by a launch of its own, tested on parts made here."""
    for i, (ty, heads, kv, d, of, tile, window) in enumerate([("float", 4, 2, 64, 4, 64, 0), ("half", 2, 2, 64, 1, 128, 0), ("float", 2, 1, 24, 1, 16, 0), ("half", 8, 1, 128, 8, 64, 0),
                                                              ("float", 4, 2, 64, 4, 64, 70), ("half", 2, 1, 24, 4, 32, 40), ("eight", 8, 2, 64, 4, 128, 0),
                                                              ("eight", 2, 1, 128, 4, 64, 100), ("eight", 3, 1, 32, 4, 32, 0), ("four_bits", 8, 2, 64, 4, 128, 0),
                                                              ("four_bits", 2, 1, 128, 4, 64, 100), ("four_bits", 3, 1, 96, 4, 32, 0),
                                                              ("float_byte", 8, 2, 64, 4, 128, 0), ("float_byte", 2, 1, 128, 4, 64, 100), ("float_byte", 3, 1, 24, 4, 32, 0)]):
        # With sinks and a cap, and without a window with the first position that each token sees.
        varied, coded = i in (1, 4, 6, 8, 9, 12), ty in ("eight", "four_bits", "float_byte")
        # The second token is the last that its row of the table has a block for, and the row is the table's last.
        shift, columns, tokens, positions, sequences = 3, 26, 3, uints(5, 207, 66), uints(0, 1, 0)
        blocks, of_kv = 2 * columns, heads // kv
        table = uints(*RNG.sample(range(blocks), blocks))
        q, size = floats(tokens * heads * d), blocks * kv * (1 << shift) * d
        cache = [halves(floats(size)) if ty == "half" else floats(size) for _ in range(2)]
        keys, values = [of_halves(c) if ty == "half" else c for c in cache]
        if ty == "eight":
            codes, scales = zip(*[quantized(c, 32)[:2] for c in cache])
            cache, scales = [array.array("b", c) for c in codes], [halves(s) for s in scales]
            keys, values = [[c * s for c, s in zip(c, (s for s in of_halves(s) for _ in range(32)))] for c, s in zip(codes, scales)]
        if ty == "four_bits":
            cache, scales, (keys, values) = zip(*map(of_four_bits, cache))
        if ty == "float_byte":
            cache, (keys, values), scales = *zip(*map(of_float_bytes, cache)), [None, None]
        want, parts, stats = [], {}, {}
        firsts = uints(*[p // 3 for p in positions]) if varied and not window else None
        sinks, cap = (floats(heads), 1.5) if varied else (None, 0.0)
        begins = [firsts[t] if firsts else max(p + 1 - window, 0) if window else 0 for t, p in enumerate(positions)]
        # splits 1: one workgroup a token and head; 2: every second tile of positions each.
        for t in range(tokens):
            for h in range(heads):
                at = [((table[sequences[t] * columns + (p >> shift)] * kv + h // of_kv) * (1 << shift) + p % (1 << shift)) * d for p in range(positions[t] + 1)]
                own = q[(t * heads + h) * d:(t * heads + h + 1) * d]
                scores = [sum(map(float.__mul__, own, map(float, keys[a:a + d]))) / math.sqrt(d) for a in at]
                scores = [cap * math.tanh(s / cap) for s in scores] if cap else scores
                seen, sink = range(begins[t], len(at)), [sinks[h]] if varied else []
                mean = lambda chosen, most: [sum(math.exp(scores[p] - most) * values[at[p] + e] for p in chosen) for e in range(d)]
                most = max([scores[p] for p in seen] + sink)
                total = sum(math.exp(s - most) for s in [scores[p] for p in seen] + sink)
                want += [v / total for v in mean(seen, most)]
                for split in range(2):
                    chosen = [p for p in seen if (p // tile - seen[0] // tile) % 2 == split]
                    if chosen:
                        of_part = [scores[p] for p in chosen] + (sink if split == 0 else [])
                        most = max(of_part)
                        parts[t, h, split] = mean(chosen, most)
                        stats[t, h, split] = [most * math.log2(math.e), sum(math.exp(s - most) for s in of_part)]
        slices = -(-of_kv // of)
        width = of * d * 2 * kv * slices * tokens
        name = f"attention_decode_{ty}_{d if d in (64, 128) else 0}_{of}"
        tail = [uints(0), FIXED, tokens, 1, heads, kv, d, shift, blocks, 2, columns, window << 5 | (8 if firsts else 0) | (16 if varied else 0)]
        more = [*([firsts] if coded else []), sinks, cap * math.log2(math.e)]
        head = [q, *cache, *scales, positions, sequences, table] if coded else [q, None, None, positions, sequences, firsts, table, None, *cache]
        result = len(head)
        head += [floats(len(q)), floats(width), floats(width // d * 2), None, uints(*[0] * 8)]
        scale = math.log2(math.e) / math.sqrt(d)
        bound = 2e-5
        yield Case("attention_decode.k", name, (1, kv, tokens * slices), (256,), [*head, *tail, 1, scale, *more], {result: want}, bound=bound)
        # Of one token whose heads fit keys and values are read once.
        if slices == 1 and not window:
            one = list(tail)
            one[2] = 1
            yield Case("attention_decode.k", name, (1, kv, slices), (256,), [*head[:result], head[result][:], *head[result + 1:], *one, 1, scale, *more],
                       {result: want[:heads * d]}, bound=bound, streams=[] if ty == "four_bits" else [1, 2] if ty == "float_byte" else [(1, 3), (2, 4)] if coded else [8, 9])
        # The parts that the first launch leaves, where a token has more than one.
        partial, two = [0.0] * width, [0.0] * (width // d * 2)
        for (t, h, split), part in parts.items():
            g, in_kv = h // of_kv, h % of_kv
            place = (((t * slices + in_kv // of) * kv + g) * 2 + split) * of + in_kv % of
            partial[place * d:(place + 1) * d] = part
            two[2 * place:2 * place + 2] = stats[t, h, split]
        # Whether a token's positions are more than one tile.
        several = [p // tile > begin // tile for p, begin in zip(positions, begins)]
        joined = [w if several[i // (heads * d)] else 0.0 for i, w in enumerate(want)]
        yield Case("attention_decode.k", f"attention_join_{of}", (kv, tokens * slices), (256,),
                   [array.array("f", partial), array.array("f", two), positions, array.array("f", bytes(4 * len(want))), uints(0), FIXED, tokens, 1, heads, kv, d, 2, tile, window,
                    firsts, 1 if firsts else 0],
                   {3: joined}, bound=bound)
        # Tokens whose positions are one tile are written as a whole, the others not at all.
        before = floats(len(want))
        whole = [before[i] if several[i // (heads * d)] else w for i, w in enumerate(want)]
        head[result] = before
        yield Case("attention_decode.k", name, (2, kv, tokens * slices), (256,), [*head, *tail, 2, scale, *more], {result: whole}, bound=bound)


def attention_append():
    """One token whose row is new: rotated, stored and read by the same launch. Tiles of several rows, the last of which is the new one."""
    for ty, heads, kv, d, of, adjacent in [("float", 4, 1, 64, 4, 0), ("half", 2, 1, 128, 4, 1), ("half", 1, 1, 64, 1, 0), ("float", 2, 1, 48, 4, 1)]:
        shift, columns, position, pairs = 3, 9, 69, d // 2
        table = uints(*RNG.sample(range(columns), columns))
        size = columns * kv * (1 << shift) * d
        cache = [halves(floats(size)) if ty == "half" else floats(size) for _ in range(2)]
        q, k, v, freqs = floats(heads * d), floats(kv * d), floats(kv * d), array.array("f", [50000 ** (-2 * i / d) for i in range(pairs)])
        place = lambda p: ((table[p >> shift] * kv) * (1 << shift) + p % (1 << shift)) * d
        stored = [list(of_halves(c)) if ty == "half" else list(c) for c in cache]
        for s, row in zip(stored, (rotated(k, [position], freqs, kv, d, pairs, adjacent), v)):
            s[place(position):place(position) + d] = row
        want, turned = [], rotated(q, [position], freqs, heads, d, pairs, adjacent)
        for own in rows_of(turned, d):
            scores = [sum(map(float.__mul__, own, stored[0][place(p):place(p) + d])) / math.sqrt(d) for p in range(position + 1)]
            w = [math.exp(s - max(scores)) for s in scores]
            want += [sum(w[p] * stored[1][place(p) + e] for p in range(position + 1)) / sum(w) for e in range(d)]
        read, bound = ({8: of_halves, 9: of_halves}, 1e-3) if ty == "half" else ({}, 1e-4)
        slot = table[position >> shift] << shift | position % (1 << shift)
        yield Case("attention_decode.k", f"attention_decode_{ty}_{d if d in (64, 128) else 0}_{of}", (1, kv, 1), (256,),
                   [q, k, v, uints(position), uints(0), uints(slot), table, freqs, *cache, floats(len(q)), floats(of * d * 2), floats(of * 4), None, uints(*[0] * 8),
                    uints(0), FIXED, 1, 1, heads, kv, d | pairs << 16, shift, columns, 1, columns, 1 | adjacent << 1, 1, math.log2(math.e) / math.sqrt(d), None, 0.0],
                   {8: stored[0], 9: stored[1], 10: want}, read, bound)


def attention_prefill():
    """Tokens of several sequences, in runs that a workgroup meets in part, with heads that share keys and values and windows."""
    for i, (ty, d, heads, kv, window, runs) in enumerate([("float", 64, 4, 2, 0, [(1, 0, 40), (0, 33, 9)]), ("half", 128, 2, 2, 0, [(0, 60, 20)]), ("eight", 64, 7, 1, 0, [(1, 30, 12)]),
                                           ("float", 80, 3, 1, 20, [(0, 50, 25), (1, 0, 2), (0, 10, 3)]), ("half", 64, 8, 2, 45, [(1, 84, 20)]),
                                           ("half", 96, 1, 1, 0, [(0, 0, 66)]), ("eight", 128, 4, 1, 33, [(0, 20, 17)]), ("float", 128, 4, 2, 0, [(1, 31, 2)]),
                                           ("half", 80, 2, 1, 0, [(0, 5, 9)]), ("float", 96, 2, 1, 7, [(0, 0, 30)]), ("eight", 96, 2, 1, 0, [(1, 31, 4)]),
                                           ("four_bits", 64, 7, 1, 0, [(1, 30, 12)]), ("four_bits", 128, 4, 1, 33, [(0, 20, 17)]),
                                           ("float_byte", 64, 7, 1, 0, [(1, 30, 12)]), ("float_byte", 96, 2, 1, 0, [(1, 31, 4)]), ("float_byte", 128, 4, 1, 33, [(0, 20, 17)])]):
        # As in `attention`.
        varied = i in (1, 2, 4, 9, 11)
        shift, columns, of_kv = 3, 13, heads // kv
        blocks = 2 * columns
        table = uints(*RNG.sample(range(blocks), blocks))
        sequences = uints(*[s for s, _, n in runs for _ in range(n)])
        positions = uints(*[p for _, start, n in runs for p in range(start, start + n)])
        tokens, size = len(positions), blocks * kv * (1 << shift) * d
        q, caches, scales, values = floats(tokens * heads * d), [], [None, None], []
        for i in range(2):
            x = floats(size)
            if ty == "eight":
                codes, s, _ = quantized(x, 32)
                scales[i] = halves(s)
                caches.append(array.array("b", codes))
                values.append([c * s for c, s in zip(codes, (s for s in of_halves(scales[i]) for _ in range(32)))])
            elif ty == "four_bits":
                codes, scales[i], x = of_four_bits(x)
                caches.append(codes)
                values.append(x)
            elif ty == "float_byte":
                codes, x = of_float_bytes(x)
                caches.append(codes)
                values.append(x)
            else:
                caches.append(halves(x) if ty == "half" else x)
                values.append(list(of_halves(caches[i]) if ty == "half" else x))
        want = []
        firsts = uints(*[p // 3 for p in positions]) if varied and not window else None
        sinks, cap = (floats(heads), 1.5) if varied else (None, 0.0)
        for t in range(tokens):
            for h in range(heads):
                seen = range(firsts[t] if firsts else max(positions[t] + 1 - window, 0) if window else 0, positions[t] + 1)
                at = [((table[sequences[t] * columns + (p >> shift)] * kv + h // of_kv) * (1 << shift) + p % (1 << shift)) * d for p in seen]
                own = list(map(float, q[(t * heads + h) * d:(t * heads + h + 1) * d]))
                scores = [sum(map(float.__mul__, own, values[0][a:a + d])) / math.sqrt(d) for a in at]
                scores = [cap * math.tanh(s / cap) for s in scores] if cap else scores
                sink = [sinks[h]] if varied else []
                most = max(scores + sink)
                w, total = [math.exp(s - most) for s in scores], sum(math.exp(s - most) for s in scores + sink)
                rows = [values[1][a:a + d] for a in at]
                want += [sum(map(float.__mul__, w, column)) / total for column in zip(*rows)]
        per = 64 // of_kv
        fault, kept = uints(*[0] * 8), floats(len(q))
        if (ty, d) == ("float", 80):
            # A token of no sequence is a fault; its result is not written, those of others are.
            sequences[27] = 2
            start = 27 * heads * d
            want[start:start + heads * d] = kept[start:start + heads * d]
        yield Case("attention_prefill.metal", f"attention_prefill_{ty}_{d}", (kv, -(-tokens // per) + 1), (512,),
                   [q, *caches, *scales, positions, sequences, table, kept, fault, uints(0), FIXED, tokens, 1, heads, kv, shift, blocks, 2, columns,
                    math.log2(math.e) / math.sqrt(d), window or FIXED, firsts, sinks, (1 if firsts else 0) | (2 if varied else 0), cap * math.log2(math.e)], {8: want, 9: [1, 0, 2, 2, 0, 0, 0, 0] if 2 in sequences else [0] * 8}, bound=2e-5)


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


def matmul_simdgroup():
    """One matrix, and what is added to it; three; a gate, in bf16 too."""
    plain = ["f32", "f16", "bf16", "q8", "q4", "t2"]
    pairs = [(a, w) for a in ("f32", "bf16", "i8") for w in plain if a != "bf16" or w != "f32"] + [(a, w) for w in PACKED for a in ("f32", "bf16")]
    forms = [("one", [12]), ("three", [9, 4, 70]), ("gate", [36, 36]), ("add", [13]), ("narrow", [33, 33])]
    for i, (a, w) in enumerate(pairs):
        large = (a, w) in [("f32", "f16"), ("i8", "t2"), ("bf16", "q4"), ("f32", "q4_k")]
        for form, rows in [("add", [133])] if large else [forms[(i + j) % 5] for j in range(2)]:
            n, k, gate, wide = 70 if large else 5, 256, form in ("gate", "narrow"), not large and i % 3 != 0
            if form == "gate" and w in ("f32", "q4_k"):
                rows = [75, 75]
            if (a, w) == ("bf16", "bf16"):
                k = 27
            group = k if w == "t2" else 32
            x, scales = floats(n * k), None
            if a == "i8":
                codes, scales, values = quantized(x, group)
                x, scales = array.array("b", codes), array.array("f", scales)
            elif a == "bf16":
                x = bfloats(x)
                values = of_bfloats(x)
            else:
                values = x
            if w in PACKED:
                data = [packed_weights(w, m, k) for m in rows]
            else:
                data = [(codes, None, s, v) for codes, s, v in (weights(w, m, k) for m in rows)]
            rounded = lambda v: of_bfloats(bfloats(v)) if a == "bf16" else v
            products = [dots(values, rounded(d[3]), k) for d in data]
            added, results, mode = None, products, 0
            if form == "add":
                added, mode = floats(n * rows[0]), 1
                results = [[p + v for p, v in zip(products[0], added)]]
            elif gate:
                mode = 2 + i % 2
                act = (lambda g: g / (1 + math.exp(-g))) if mode == 2 else (lambda g: max(g, 0.0) ** 2)
                results = [[act(g) * u for g, u in zip(*products)]]
            outputs = [bfloats([0] * len(r)) if form == "narrow" else floats(len(r)) for r in results]
            pad = [None] * (3 - len(rows))
            planes = lambda i: [d[i] for d in data] + pad
            own = [rows[0], 0, 0] if gate else rows + [0] * (3 - len(rows))
            tiles = -(-rows[0] // (64 if wide else 32)) if gate else sum(-(-m // (128 if wide else 64)) for m in rows)
            yield Case("matmul_packed.metal" if w in PACKED else "matmul_simdgroup.metal", f"matmul_{a}_{w}", (-(-n // 64), tiles), (128,),
                       [x, scales, *planes(0), *planes(2), *planes(1), added, *outputs, *[None] * (3 - len(outputs)), uints(0), FIXED, n, 1, *own, k, group, mode,
                        int(form == "narrow"), int(wide)], {12 + i: r for i, r in enumerate(results)}, {12: of_bfloats} if form == "narrow" else {},
                       5e-3 if form == "narrow" else 1e-5, [2 + i for i in range(len(rows))] if n <= 64 and w not in ("q4", "t2", *PACKED) else [])


GROUPS = [matmul_simdgroup, attention, attention_append, attention_prefill, sample, rms_norm, biases, layer_norm, softmax, reduce, quantize, elementwise, rope, caches, gather, top_k, matvec, matvec_i8, matvec_packed, matvec_floats, route, experts, packed, recurrence, causal_conv]


def run(source, cases, folders=FOLDERS):
    """What is wrong with the cases of a source, which with its headers is in one of these folders."""
    path = next((p for p in (os.path.join(f, source) for f in folders) if os.path.exists(p)), source)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "kernels.so")
        try:
            # Only the kernels that run: what the others are compiled for is checked apart.
            defines = ["ONLY", *(f"WANT_{name}=~," for name in sorted({case.kernel for case in cases}))]
            mslc.build(path, out, defines, folders, checked=True)
        except mslc.Failure as e:
            return [f"{source}: {e}"]
        library, wrong = Library(out), []
        for case in cases:
            try:
                found = case.run(library)
            except Fault as e:
                found = str(e)
            if found:
                wrong.append(f"{source} {case.kernel} on {case.grid} x {case.threads}: {found}")
        return wrong


def main():
    start, by_source = time.time(), {}
    names = tuple(sys.argv[1:])
    for group in GROUPS:
        RNG.seed(group.__name__)  # Another group's cases do not change these.
        for case in group():
            if not names or case.source.startswith(names):
                by_source.setdefault(case.source, []).append(case)
    paths = sorted(p for f in FOLDERS for p in glob.glob(f + "/*.k") + glob.glob(f + "/*.metal"))
    wrong = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        # The longest first.
        runs = [pool.submit(run, *item) for item in sorted(by_source.items(), key=lambda item: -len(item[1]))]
        checks = [pool.submit(mslc.check, p, (), FOLDERS, p.endswith(".k")) for p in paths if not names]
        wrong = [m for c in checks for m in [c.result()] if m] + [m for r in runs for m in r.result()]
    print("\n".join(wrong))
    count = sum(map(len, by_source.values()))
    print(f"{len(paths)} sources, {count} launches of {len(by_source)} in {time.time() - start:.0f} s: {len(wrong)} wrong")
    untested = sorted({os.path.basename(p) for p in paths} - set(by_source))
    if untested and not names:
        print("checked, but not run: " + ", ".join(untested))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
