// Attention over f16 caches as phases of `decode_layers.cu`, which has the structures.
#pragma once
FN uint2 halves_of(float4 v)
{
    const half2 a = __floats2half2_rn(v.x, v.y), b = __floats2half2_rn(v.z, v.w);
    return make_uint2(*(const uint *)&a, *(const uint *)&b);
}

// Attention of a workgroup's positions for the query heads of one key/value head. D / 8 lanes have a position, for four heads.
template <uint D> FN void attention(const Run &a, Shared &sh, const Phase &f, uint tid)
{
    constexpr uint LANES = D / 8, HIGH = LANES / 2, LOW = LANES / 4;
    const uint lane = tid % 32, warp = tid / 32, heads = a.heads / a.kv_heads, wide = heads > 4, run = sh.run, len = sh.len, kv = sh.kv, split = sh.split;
    const uint tag = tag_of(f.in_tag, run), mask = (1u << a.shift) - 1;
    const uint first = f.window != 0 && len > f.window ? len - f.window : 0, each = (len - first + a.splits - 1) / a.splits;
    const uint begin = first + split * each, end = min(begin + each, len);
    if (split >= a.splits) return;
    if (begin >= end) {
        // Each part is given in every run, for its tag's sake.
        const uint out_tag = tag_of(f.out_tag, run);
        const uint part = kv * a.splits + split;
        const float none = tagged(0.0f, out_tag);
        if (tid < heads * D / 4) give(a.exchange + f.out_at + part * (heads * D) + tid * 4, make_float4(none, none, none, none));
        if (tid < heads) give(a.exchange + f.stats_at + (part * heads + tid) * 2, make_float2(tagged(LOWEST, out_tag), none));
        return;
    }
    const uint warps = wide ? WARPS / 2 : WARPS, group = wide ? warp / warps : 0, stream = (warp - group * warps) * (32 / LANES) + lane / LANES, streams = warps * (32 / LANES);
    // The row of the token's own position: computed when it is asked for, because registers are scarce.
    auto fresh_row = [&] { const uint slot = *(volatile uint *)&sh.slot; return ((slot >> a.shift) * a.kv_heads + *(volatile uint *)&sh.kv) << a.shift | (slot & mask); };
    // The row of a position in the caches; ~0: none.
    auto row_of = [&](uint p) {
        const uint block = p < end ? ((const uint *)sh.blocks)[p >> a.shift] : ~0u;
        if (p < end && block >= a.blocks) note_fault(a.fault, block, a.blocks);
        return block < a.blocks ? (block * a.kv_heads + kv) << a.shift | (p & mask) : ~0u;
    };
    auto read = [&](const half *cache, uint row) { return row != ~0u ? ((const uint4 *)cache)[ulong(row) * LANES + lane % LANES] : make_uint4(0, 0, 0, 0); };
    uint at = row_of(begin + stream);
    uint4 k = read(f.keys, at == fresh_row() ? ~0u : at), v;
    // Queries, and where the token's own position is this workgroup's its rows of k and v.
    float *raw = (float *)sh.codes;
    static_assert((MOST_HEADS + 2) * D * 4 <= MOST_LENGTH && (MOST_HEADS + 2) * D / 4 <= THREADS && WARPS * 4 * D <= MOST_SUMS, "rows have room");
    const bool last = end == len, takes = tid < (heads + (last ? 2 : 0)) * (D / 4);
    const uint row = tid / (D / 4), at_row = row < heads ? kv * heads + row : row == heads ? a.heads + kv : a.heads + a.kv_heads + kv;
    const float4 *from = (const float4 *)(a.exchange + f.in_at + at_row * D) + tid % (D / 4);
    float4 t = make_float4(0, 0, 0, 0);
    if (takes) t = peek(from);
    ROLLED for (uint polls = 0; __any_sync(~0u, takes && !fits(t, tag)); ++polls) {
        if (takes && !fits(t, tag)) t = peek(from);
        if (polls == PATIENCE) __trap();
    }
    if (takes) ((float4 *)raw)[tid] = t;
    bar();
    if (warp < heads + (last ? 2 : 0)) {
        // A warp has a row: its norm, and pairs of its elements, which are rotated; those that are not are pairs too. Rows of k and v are as the cache has them.
        float *own = raw + warp * D;
        const float *weights = warp < heads ? f.q_norm : warp == heads ? f.k_norm : nullptr;
        float p[D / 64], q[D / 64], squares = 0;
        uint e[D / 64], o[D / 64];
        UNROLL for (uint j = 0; j < D / 64; ++j) {
            const uint i = j * 32 + lane;
            const bool turns = i < a.pairs;
            e[j] = a.adjacent ? 2 * i : turns ? i : i + a.pairs;
            o[j] = a.adjacent ? e[j] + 1 : turns ? i + a.pairs : i + D / 2;
            p[j] = own[e[j]];
            q[j] = own[o[j]];
            squares += p[j] * p[j] + q[j] * q[j];
        }
        if (weights) {
            const float by = 1.0f / sqrtf(simd_sum(squares) / D + f.eps);
            UNROLL for (uint j = 0; j < D / 64; ++j) { p[j] *= by * weights[e[j]]; q[j] *= by * weights[o[j]]; }
        }
        UNROLL for (uint j = 0; j < D / 64; ++j) {
            const uint i = j * 32 + lane;
            const bool turns = i < a.pairs && warp <= heads;
            const float cosine = turns ? sh.angles[i] : 1.0f, sine = turns ? sh.angles[128 + i] : 0.0f, by = warp < heads ? f.scale : 1.0f;
            float y = (p[j] * cosine - q[j] * sine) * by, z = (p[j] * sine + q[j] * cosine) * by;
            if (warp >= heads) { y = __half2float(__float2half_rn(y)); z = __half2float(__float2half_rn(z)); }
            own[e[j]] = y;
            own[o[j]] = z;
        }
    }
    bar();
    if (last) {
        // The workgroup of the token's own position stores its rows before it reads them.
        if (tid < D / 2) {
            half *to = (tid < D / 4 ? f.keys : f.values) + ulong(fresh_row()) * D + tid % (D / 4) * 4;
            *(uint2 *)to = halves_of(((const float4 *)(raw + heads * D))[tid]);
        }
        bar();
        if (at == fresh_row()) k = read(f.keys, at);
    }
    k = read(f.keys, at);
    v = read(f.values, at);
    // Queries stay in shared memory: registers are scarce. Heads that there are not are the last one's again, and nobody reads their results.
    const uint query = shared_address(raw + group * 4 * D + lane % LANES * 8), others_of = heads - 1 - group * 4;
    // The greatest score and the sum of weights so far, of the lane's head; the sums of values of all four.
    float m = LOWEST, l = 0;
    float4 sums[4][2];
    UNROLL for (uint h = 0; h < 4; ++h) UNROLL for (uint i = 0; i < 2; ++i) sums[h][i] = make_float4(0, 0, 0, 0);
    const uint of_head = lane & ~(LANES - 1);   // + h / 2 · HIGH + h % 2 · LOW: a lane that has head h
    ROLLED for (uint p0 = begin + (warp - group * warps) * (32 / LANES); p0 < end; p0 += streams) {
        const uint next = row_of(p0 + lane / LANES + streams);
        const uint4 next_k = read(f.keys, next), next_v = read(f.values, next);
        float s[4];
        {
            const float2 a0 = halves(k.x), a1 = halves(k.y), a2 = halves(k.z), a3 = halves(k.w);
            UNROLL for (uint h = 0; h < 4; ++h) {
                const uint of = query + min(h, others_of) * (D * 4);
                const float4 q0 = shared4(of), q1 = shared4(of + 16);
                s[h] = dot(q0, make_float4(a0.x, a0.y, a1.x, a1.y)) + dot(q1, make_float4(a2.x, a2.y, a3.x, a3.y));
            }
        }
        // Each half of the lanes keeps two of the four sums, each quarter one.
        const bool upper = lane & HIGH, odd = lane & LOW;
        const float s0 = (upper ? s[2] : s[0]) + simd_shuffle_xor(upper ? s[0] : s[2], HIGH);
        const float s1 = (upper ? s[3] : s[1]) + simd_shuffle_xor(upper ? s[1] : s[3], HIGH);
        float score = (odd ? s1 : s0) + simd_shuffle_xor(odd ? s0 : s1, LOW);
        UNROLL for (uint x = LOW / 2; x; x >>= 1) score += simd_shuffle_xor(score, x);
        const bool there = at != ~0u;
        const float most = there ? max(m, score) : m, correction = exp2f(m - most), weight = there ? exp2f(score - most) : 0.0f;
        m = most;
        l = fma(l, correction, weight);
        const float2 a0 = halves(v.x), a1 = halves(v.y), a2 = halves(v.z), a3 = halves(v.w);
        const float4 low = make_float4(a0.x, a0.y, a1.x, a1.y), high = make_float4(a2.x, a2.y, a3.x, a3.y);
        UNROLL for (uint h = 0; h < 4; ++h) {
            const uint of = of_head + h / 2 * HIGH + h % 2 * LOW;
            const float by = simd_shuffle(weight, of), old = simd_shuffle(correction, of);
            sums[h][0] = sums[h][0] * old + low * by;
            sums[h][1] = sums[h][1] * old + high * by;
        }
        at = next;
        k = next_k;
        v = next_v;
    }
    // The warp's streams together.
    UNROLL for (uint x = LANES; x < 32; x *= 2) {
        const float most = max(m, simd_shuffle_xor(m, x)), by = exp2f(m - most);
        m = most;
        l = l * by;
        l += simd_shuffle_xor(l, x);
        UNROLL for (uint h = 0; h < 4; ++h) {
            const float own = simd_shuffle(by, of_head + h / 2 * HIGH + h % 2 * LOW);
            UNROLL for (uint j = 0; j < 2; ++j) {
                const float4 u = sums[h][j] * own;
                sums[h][j] = u + make_float4(simd_shuffle_xor(u.x, x), simd_shuffle_xor(u.y, x), simd_shuffle_xor(u.z, x), simd_shuffle_xor(u.w, x));
            }
        }
    }
    if (lane < LANES && lane % LOW == 0) {
        const uint of = wide ? warp / (WARPS / 2) : 0, h = of * 4 + lane / LOW, w = warp - of * (WARPS / 2);
        sh.stats[h * WARPS + w] = m;
        sh.stats[(MOST_HEADS + h) * WARPS + w] = l;
    }
    if (lane < LANES) UNROLL for (uint h = 0; h < 4; ++h) UNROLL for (uint j = 0; j < 2; ++j) ((float4 *)sh.sums)[(warp * 4 + h) * (D / 4) + lane * 2 + j] = sums[h][j];
    bar();
    if (tid < heads * (D / 2)) {
        const uint h = tid / (D / 2), w = lane % WARPS, out_tag = tag_of(f.out_tag, sh.run), part = sh.kv * a.splits + sh.split;
        const float mine = w < warps ? sh.stats[h * WARPS + w] : LOWEST;
        float most = mine;
        UNROLL for (uint i = WARPS / 2; i; i >>= 1) most = max(most, simd_shuffle_xor(most, i));
        // Weights are those of the greatest score as it is given, without its last bit.
        most = tagged(most, out_tag);
        const float by = exp2f(mine - most);
        float total = w < warps ? sh.stats[(MOST_HEADS + h) * WARPS + w] * by : 0.0f;
        UNROLL for (uint i = WARPS / 2; i; i >>= 1) total += simd_shuffle_xor(total, i);
        float2 y = make_float2(0, 0);
        for (uint from = 0; from < warps; from += 8) UNROLL for (uint j = 0; j < 8; ++j) { const uint i = from + j; y = y + ((const float2 *)sh.sums)[((h / 4 * warps + i) * 4 + h % 4) * (D / 2) + tid % (D / 2)] * simd_shuffle(by, i); }
        give(a.exchange + f.out_at + part * (heads * D) + 2 * tid, make_float2(tagged(y.x, out_tag), tagged(y.y, out_tag)));
        if (tid % (D / 2) == 0) give(a.exchange + f.stats_at + (part * heads + h) * 2, make_float2(most, tagged(total, out_tag)));
    }
}

// The parts of attention put together: a warp four elements, a lane a part.
FN void combine(const Run &a, const Shared &sh, const Phase &f, uint d, uint group, uint tid)
{
    const uint lane = tid % 32, warp = tid / 32, begin = group * f.each + min(group, f.over), n = f.each + (group < f.over ? 1 : 0), heads = a.heads / a.kv_heads;
    const uint tag = tag_of(f.in_tag, sh.run), out_tag = tag_of(f.out_tag, sh.run);
    for (uint j = warp; j < n; j += WARPS) {
        const uint e = (begin + j) * 4, h = e / d, part = h / heads * a.splits + lane;
        const float4 *from = (const float4 *)(a.exchange + f.in_at + part * (heads * d) + h % heads * d + e % d);
        const float2 *stats = (const float2 *)(a.exchange + f.stats_at + (part * heads + h % heads) * 2);
        const bool wanted = lane < a.splits;
        float4 v = make_float4(0, 0, 0, 0);
        float2 t = make_float2(LOWEST, 0);
        if (wanted) { v = peek(from); t = peek(stats); }
        for (uint polls = 0;; ++polls) {
            const bool missing = wanted && !(fits(v, tag) && fits(t, tag));
            if (!__any_sync(~0u, missing)) break;
            if (missing) { v = peek(from); t = peek(stats); }
            if (polls == PATIENCE) __trap();
        }
        const float sink = f.sinks ? f.sinks[h] * 1.44269504f : LOWEST, most = max(simd_max(t.x), sink);
        const float by = exp2f(t.x - most), total = simd_sum(t.y * by) + (f.sinks ? exp2f(sink - most) : 0.0f);
        v = v * by;
        v = make_float4(simd_sum(v.x), simd_sum(v.y), simd_sum(v.z), simd_sum(v.w)) * (1.0f / total);
        if (lane == 0) {
            give(a.exchange + f.out_at + e, make_float4(tagged(v.x, out_tag), tagged(v.y, out_tag), tagged(v.z, out_tag), tagged(v.w, out_tag)));
            keep(f.y[0] + e, v);
        }
    }
    bar();
}
