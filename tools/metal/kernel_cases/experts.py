"""Cases of mixtures of experts: the router, and products with the chosen matrices."""
import array, math

from kernel_cases.case import Case, FIXED
from kernel_data import PACKED, bfloats, dots, floats, of_bfloats, packed_weights, quantized, rows_of, uints, weights


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
