"""Cases of attention: of few tokens, of one whose row is new, of prompts."""
import array, math

from kernel_cases.case import Case, FIXED
from kernel_cases.caches import rotated
from kernel_data import RNG, floats, halves, of_float_bytes, of_four_bits, of_halves, quantized, rows_of, uints


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
