"""Cases of rotary embeddings, of new rows in caches, and of rows that are gathered."""
import array, math

from kernel_cases.case import Case, FIXED
from kernel_data import RNG, floats, halves, of_float_bytes, of_four_bits, of_halves, rows_of, uints, values_of_bytes, weights


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


def rope():
    heads, d, pairs, tokens = 3, 64, 24, 4
    x, positions, freqs = floats(tokens * heads * d), uints(5, 0, 700, 3), array.array("f", (10 ** (-i / pairs) for i in range(pairs)))
    for adjacent in (0, 1):
        want = rotated(x, positions, freqs, heads, d, pairs, adjacent)
        grid = (-(-tokens * heads * (d - pairs) // 256),)
        yield Case("rope.k", "rope", grid, (256,), [x, positions, freqs, floats(len(x)), uints(0), FIXED, tokens * heads, 1, heads, d, pairs, adjacent], {3: want}, bound=1e-4)


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
