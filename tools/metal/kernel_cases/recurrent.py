"""Cases of recurrent layers: states that runs of tokens go through."""
import math

from kernel_cases.case import Case
from kernel_data import floats, rows_of, uints


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
