"""Cases of products: of few tokens by codes and floats, of many in tiles, and of matrices that are unpacked."""
import array, math

from kernel_cases.case import Case, FIXED, NO_NORM, QUANTISED
from kernel_data import ALL_PACKED, PACKED, bfloats, dots, floats, of_bfloats, packed_weights, quantized, rows_of, uints, weights


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
