// only sm_90a
// What one workgroup writes others read.
#define ARGUMENTS_OVERLAP
#include "dialect.h"
#include "stream.h"
#include "exchange.h"
// Many launches of a decoding step as one: products of one token with ternary weights and attention over f32 caches, in the order in which each
// needs what the one before it gives. A workgroup a multiprocessor, all there at the same time; the weights of what comes next are read into
// shared memory while values are on their way.
//
// A phase is what a launch was (attention is two). `exchange.h` says how values pass on.

constexpr uint THREADS = 480, ALL_THREADS = THREADS + 32, WARPS = THREADS / 32, PARTS = 16, BARS = 8; // threads that compute; all, with the warp that reads weights
constexpr uint PRODUCTS = 0, ATTENTION = 1, COMBINE = 2;
static_assert(COMBINE == ATTENTION + 1, "the parts of attention put together follow it");
constexpr uint GATED = 1, RELU2 = 2;
constexpr uint MOST_ROWS = 256;                 // of a workgroup in a phase

struct __align__(16) Phase {
    uint kind, flags;
    uint in_at, out_at, in_tag, out_tag;        // places in the exchange; bit 0 of a tag: the bit in even runs, bit 1: whether it turns with each run
    uint k, each, over;                         // elements of a row; rows of a workgroup, and how many workgroups have one more
    uint chunks, together, magic;               // 64 elements each in a row; rows that the workgroup takes at a time; ⌊65536 / chunks⌋ + 1
    uint ring, scales, bytes, needs;            // where weights lie in the ring, from there their scales, all of it; how many phases must have ended before
    float eps, least, per, scale;
    uint m0, m1, stats_at, pad;
    const float *x, *norm, *residual;           // x null: from the exchange
    const uchar *w[3], *s[3];
    float *y[3];
    float *keys, *values;
};
constexpr uint WORDS = sizeof(Phase) / 16;
static_assert(sizeof(Phase) == 208, "the host writes phases");

struct Run {
    const Phase *phases; float *exchange; uint *run;
    const uint *positions, *sequences, *slots, *table; const float *freqs; uint *fault;
    uint count, heads, kv_heads, shift, blocks, rows, columns, pairs, adjacent, splits;
};

struct Shared {
    Phase phases[6];
    unsigned long long bars[BARS];
    uint done; uint pad[3];                     // phases whose weights have been read
    float2 part[PARTS];
    float angles[256];
    int biases[64];                             // sums of 128 codes each
    float stats[2 * 4 * PARTS];
    float sums[8192];
    uchar codes[8192];
};
static_assert(sizeof(Shared) == 44208, "the host counts them");
HOST(Phase, Shared, THREADS, ALL_THREADS, BARS, PRODUCTS, ATTENTION, COMBINE, GATED, RELU2, MOST_ROWS)

FN void bar() { asm volatile("bar.sync 1, %0;" :: "n"(THREADS) : "memory"); }
// Four codes, as matvec_i8.k makes them.
FN uint codes4(float4 v, float inverse)
{
    const float big = 12582912.0f;
    const uint a = as_u32(rounded_product(v.x, inverse) + big), b = as_u32(rounded_product(v.y, inverse) + big);
    const uint c = as_u32(rounded_product(v.z, inverse) + big), d = as_u32(rounded_product(v.w, inverse) + big);
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// One warp: reads the weights of all phases, each as soon as its place is free, writes down where the scales of each row lie, and has the L2
// fetch the norms' weights and this workgroup's rows of the caches.
FN void fetch(const Run &a, Shared &sh, uchar *ring, uint group, uint lane, uint position, const uint *blocks, uint kv, uint first_position, uint end_position)
{
    const ulong policy = stream_policy();
    uint n = 0;
    for (uint p = 0; p < a.count; ++p) {
        const Phase *f = a.phases + p;
        if (f->kind == ATTENTION) {
            for (uint i = lane; first_position + i / 4 < end_position; i += 32) {
                const uint q = first_position + i / 4, block = blocks[q >> a.shift];
                const ulong at = ulong((block * a.kv_heads + kv) << a.shift | (q & ((1u << a.shift) - 1))) * 128 + i % 4 * 32;
                if (block < a.blocks) { PREFETCH(f->keys + at); PREFETCH(f->values + at); }
            }
        }
        if (f->kind != PRODUCTS) continue;
        if (f->norm) for (uint i = group * 32 + lane * 32 * gridDim.x; i < f->k; i += 32 * 32 * gridDim.x) PREFETCH(f->norm + i);
        const uint needs = f->needs, k = f->k, m0 = f->m0, m2 = m0 + f->m1;
        const uint begin = group * f->each + min(group, f->over), rows = f->each + (group < f->over ? 1 : 0), end = begin + rows, row = k / 4, scales = k / 128;
        const bool gated = f->flags & GATED;
        // Lane i < 3: this workgroup's rows of matrix i.
        const uint first = lane == 0 || gated ? begin : lane == 1 ? max(begin, m0) : max(begin, m2);
        const uint after = gated ? (lane < 2 ? end : 0) : lane == 0 ? min(end, m0) : lane == 1 ? min(end, m2) : lane == 2 ? end : 0;
        const uint len = lane < 3 && after > first ? after - first : 0, from = first - (gated || lane == 0 ? 0 : lane == 1 ? m0 : m2);
        // Copies begin at multiples of 16 bytes: scales bring some of their neighbours.
        const ulong s = len ? (ulong)(f->s[lane] + ulong(from) * scales) : 0;
        const uint bytes = len ? (uint)(((s + len * scales + 15) & ~15ul) - (s & ~15ul)) : 0;
        const uint l0 = simd_shuffle(len, 0), l1 = simd_shuffle(len, 1), b0 = simd_shuffle(bytes, 0), b1 = simd_shuffle(bytes, 1);
        const uint total = simd_sum(len * row + bytes), start = lane == 0 ? 0 : lane == 1 ? l0 : l0 + l1;
        const uint scale_to = f->ring + f->scales + (lane == 0 ? 0 : lane == 1 ? b0 : b0 + b1);
        // The word is in shared memory and nobody waits for this warp yet: asleep between looks it takes no turns from those that compute.
        if (lane == 0) while (*(volatile uint *)&sh.done < needs) __nanosleep(20);
        __syncwarp();
        uint *table = (uint *)(ring + f->ring + f->bytes) - MOST_ROWS;
        for (uint m = 0; m < 3; ++m) {
            const uint many = simd_shuffle(len, m), to_row = simd_shuffle(start, m), at = simd_shuffle(scale_to + (uint)(s & 15), m);
            for (uint r = lane; r < many; r += 32) table[to_row + r] = at + r * scales;
        }
        // What was read and written here comes before the copies.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        const uint bar = shared_address(&sh.bars[n % BARS]);
        if (lane == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(total) : "memory");
        __syncwarp();
        if (len) {
            const uint base = shared_address(ring);
            bulk(base + f->ring + start * row, f->w[lane] + ulong(from) * row, len * row, bar, policy);
            bulk(base + scale_to, (const uchar *)(s & ~15ul), bytes, bar, policy);
        }
        ++n;
    }
}

// HELD: the fours of activations that a thread has. n: how many such phases came before; finished: phases with this one.
// All warps do the same at the same time, so every instruction between the last activation's arrival and the first result counts: what can be known
// before is computed before, and the first row's weights are in registers.
template <uint HELD> FN void products(const Run &a, Shared &sh, const Phase &f, uchar *ring, uint group, uint tid, uint run, uint n, uint finished)
{
    const uint lane = tid % 32, warp = tid / 32, fours = f.k / 4;
    // The first look, which is on its way while the rest is prepared. Rows are whole numbers of a warp's fours.
    const float *x = f.x;
    const float4 *from = (const float4 *)(x ? x : a.exchange + f.in_at) + tid;
    float4 v[HELD];
    UNROLL for (uint j = 0; j < HELD; ++j) { v[j] = make_float4(0, 0, 0, 0); if ((j * WARPS + warp) * 32 < fours) v[j] = peek(from + j * THREADS); }
    const uint begin = group * f.each + min(group, f.over), rows = f.each + (group < f.over ? 1 : 0);
    const uint flags = f.flags, chunks = f.chunks, together = f.together;
    const bool gated = __any_sync(~0u, flags & GATED), squared = flags & RELU2;
    const uint tag = tag_of(f.in_tag, run), out_tag = tag_of(f.out_tag, run);
    const float eps = f.eps, least = f.least, per = f.per;
    wait(shared_address(&sh.bars[n % BARS]), n / BARS & 1);
    const float *norm = f.norm;
    float4 gain[HELD];
    UNROLL for (uint j = 0; j < HELD; ++j) gain[j] = norm ? constant4(norm + min(j * THREADS + tid, fours - 1) * 4) : make_float4(1, 1, 1, 1);
    // At the end 16 lanes add up a row, of a gate 8 two.
    const uint e = gated ? tid / 8 : tid / 16, sub = gated ? tid % 8 : tid % 16;
    float residual = 0;
    if (f.residual && e < rows) residual = fresh(f.residual + begin + e);
    float *out = a.exchange + f.out_at + begin + e, *y = f.y[0];
    {
        uint i = begin + e;
        if (!gated && i >= f.m0) { i -= f.m0; y = f.y[1]; if (i >= f.m1) { i -= f.m1; y = f.y[2]; } }
        y += i;
    }
    // A thread keeps a chunk of activations and multiplies it with that chunk of every `together`-th row: number r0 · chunks + c is the thread's own.
    const uint r0 = tid * f.magic >> 16, c = tid - r0 * chunks, block = c / 4, all = r0 < together ? gated ? 2 * rows : rows : 0;
    const uchar *w = ring + f.ring + c * 16 + r0 * fours, *scales = ring + block * 2;
    const uint *table = (const uint *)(ring + f.ring + f.bytes) - MOST_ROWS;
    uint4 q = make_uint4(0, 0, 0, 0);
    uint half = 0;
    if (r0 < all) { q = *(const uint4 *)w; half = *(const ushort *)(scales + table[r0]); }
    const uint codes_to = lane / 8 * fours + (warp * 2 + lane / 4 % 2) * 16 + lane % 4 * 4;
    for (uint polls = 0; !x; ++polls) {
        uint missing[HELD], some = 0;
        UNROLL for (uint j = 0; j < HELD; ++j) { missing[j] = (j * WARPS + warp) * 32 < fours ? others(v[j], tag) : 0; some |= missing[j]; }
        if (__all_sync(~0u, some == 0)) break;
        UNROLL for (uint j = 0; j < HELD; ++j) if (missing[j]) v[j] = peek(from + j * THREADS);
        if (polls == PATIENCE) __trap();
    }
    // The sum of squares and the greatest magnitude of the whole row, then codes.
    float s = 0, most = 0;
    UNROLL for (uint j = 0; j < HELD; ++j) if (j == 0 || (j * WARPS + warp) * 32 < fours) {
        s = fma(v[j].w, v[j].w, fma(v[j].z, v[j].z, fma(v[j].y, v[j].y, fma(v[j].x, v[j].x, s))));
        v[j] = make_float4(v[j].x * gain[j].x, v[j].y * gain[j].y, v[j].z * gain[j].z, v[j].w * gain[j].w);
        most = wider(most, widest4(v[j]));
    }
    most = as_f32(simd_max(as_u32(most)));
    s = simd_sum(s);
    if (lane == 0) sh.part[warp] = make_float2(s, most);
    bar();
    {
        // Four of the warps' results a lane, then of four lanes.
        const float2 p0 = sh.part[lane % 4], p1 = sh.part[lane % 4 + 4], p2 = sh.part[lane % 4 + 8], p3 = sh.part[lane % 4 + 12];
        s = (p0.x + p2.x) + (p1.x + p3.x);
        most = wider(wider(p0.y, p2.y), wider(p1.y, p3.y));
    }
    s += simd_shuffle_xor(s, 2); s += simd_shuffle_xor(s, 1);
    const float factor = norm ? inverse_root(s * per + eps) : 1.0f;
    most = wider(as_f32(simd_max(as_u32(most))) * factor, least);
    const float inverse = most == 0.0f ? 0.0f : 127.0f / most, scale = most * (1.0f / 127.0f);
    UNROLL for (uint j = 0; j < HELD; ++j) if (j == 0 || (j * WARPS + warp) * 32 < fours) {
        // Elements 4i and on go to the chunk and the bits that weights have of them: 16 elements with the same bits, then the next chunk.
        const uint codes = codes4(v[j] * factor, inverse);
        const int bias = int(simd_sum(uint(dot4(codes, 0x01010101u, 0))));
        if (j > 0 || warp * 32 < fours) *(uint *)(sh.codes + codes_to + j * (WARPS * 32)) = codes;
        if (lane == 0) sh.biases[j * WARPS + warp] = bias;
    }
    bar();
    uint4 x4[4];
    UNROLL for (uint l = 0; l < 4; ++l) x4[l] = *(const uint4 *)(sh.codes + l * fours + c * 16);
    // Codes of weights are stored with a bias of 1: the sum of a block's activations is taken off once.
    const int2 biases = *(const int2 *)(sh.biases + block * 2);
    const int bias = c % 4 == 0 ? -biases.x - biases.y : 0;
    float *to = sh.sums + tid;
    _Pragma("unroll 2") for (uint r = r0; r < all;) {
        const uint4 p = q;
        const float by = half_bits(half);
        r += together;
        w += together * fours;
        if (r < all) { q = *(const uint4 *)w; half = *(const ushort *)(scales + table[r]); }
        int d[4];
        UNROLL for (uint l = 0; l < 4; ++l) {
            const uint mask = 0x03030303u << (2 * l);
            d[l] = dot4_unsigned(p.x & mask, x4[l].x, l == 0 ? bias : 0);
            d[l] = dot4_unsigned(p.y & mask, x4[l].y, d[l]);
            d[l] = dot4_unsigned(p.z & mask, x4[l].z, d[l]);
            d[l] = dot4_unsigned(p.w & mask, x4[l].w, d[l]);
        }
        const int total = d[0] + ((d[1] + ((d[2] + (d[3] >> 2)) >> 2)) >> 2);
        *to = float(total) * by;
        to += together * chunks;
    }
    bar();
    if (tid == THREADS - 1) *(volatile uint *)&sh.done = finished;
    // All sums are read before the first is added.
    const float *first = sh.sums + min(e, rows - 1) * chunks + sub;
    float z = 0, up = 0;
    if (gated) {
        constexpr uint MOST = HELD == 2 ? 8 : 15;
        const float *other = first + rows * chunks;
        float t[MOST], u[MOST];
        UNROLL for (uint i = 0; i < MOST; ++i) { t[i] = i * 8 + sub < chunks ? first[i * 8] : 0.0f; u[i] = i * 8 + sub < chunks ? other[i * 8] : 0.0f; }
        UNROLL for (uint i = 0; i < MOST; ++i) { z += t[i]; up += u[i]; }
    } else {
        constexpr uint MOST = HELD == 2 ? 4 : 8;
        float t[MOST];
        UNROLL for (uint i = 0; i < MOST; ++i) t[i] = i * 16 + sub < chunks ? first[i * 16] : 0.0f;
        UNROLL for (uint i = 0; i < MOST; ++i) z += t[i];
    }
    UNROLL for (uint m = 1; m < 8; m <<= 1) { z += simd_shuffle_xor(z, m); up += simd_shuffle_xor(up, m); }
    if (!gated) z += simd_shuffle_xor(z, 8);
    if (sub == 0 && e < rows) {
        z *= scale;
        if (gated) {
            up *= scale;
            if (squared) z = relu2(z, up);
            else z = z * (1.0f / (1.0f + exp(-z))) * up;
        }
        z += residual;
        give(out, tagged(z, out_tag));
        keep(y, z);
    }
}

// Attention of a workgroup's positions for the 4 query heads of one key/value head, of 128 elements: a warp a position, on its own.
FN void attention(const Run &a, Shared &sh, const Phase &f, uint tid, uint run, uint position, uint slot, const uint *blocks, uint kv, uint split, uint begin, uint end)
{
    constexpr uint D = 128, G = 4, AT_ONCE = 2;
    const uint lane = tid % 32, warp = tid / 32;
    const uint tag = tag_of(f.in_tag, run), out_tag = tag_of(f.out_tag, run), mask = (1u << a.shift) - 1, part = kv * a.splits + split;
    if (begin >= end) {
        // Each part is given in every run, for its tag's sake.
        const float none = tagged(0.0f, out_tag);
        if (split < a.splits && tid < G * D / 4) give(a.exchange + f.out_at + part * (G * D) + tid * 4, make_float4(none, none, none, none));
        if (split < a.splits && tid < G) give(a.exchange + f.stats_at + (part * G + tid) * 2, make_float2(tagged(LOWEST, out_tag), none));
        return;
    }
    const float4 *keys = (const float4 *)f.keys + lane, *values = (const float4 *)f.values + lane;
    const uint fresh_at = ((slot >> a.shift) * a.kv_heads + kv) << a.shift | (slot & mask);
    float4 k[AT_ONCE], v[AT_ONCE];
    uint at[AT_ONCE];
    auto load = [&](uint p0) {
        UNROLL for (uint i = 0; i < AT_ONCE; ++i) {
            const uint p = p0 + i * WARPS, block = p < end ? blocks[p >> a.shift] : ~0u;
            const bool there = block < a.blocks;
            if (p < end && !there) note_fault(a.fault, block, a.blocks);
            at[i] = there ? (block * a.kv_heads + kv) << a.shift | (p & mask) : ~0u;
            k[i] = there && at[i] != fresh_at ? keys[at[i] * (D / 4)] : make_float4(0, 0, 0, 0);
            v[i] = there && at[i] != fresh_at ? values[at[i] * (D / 4)] : make_float4(0, 0, 0, 0);
        }
    };
    // Queries, and where the token's own position is this workgroup's its rows of k and v; caches are read while they come.
    float *raw = (float *)sh.codes;
    const bool last = end == position + 1, takes = tid < G * D / 4 + (last ? D / 2 : 0);
    const uint i = tid - G * D / 4, row = i >= D / 4 ? a.kv_heads : 0;
    const float4 *from = (const float4 *)(a.exchange + f.in_at + (tid < G * D / 4 ? kv * G * D + tid * 4 : (a.heads + row + kv) * D + i % (D / 4) * 4));
    float4 t = make_float4(0, 0, 0, 0);
    if (takes) t = peek(from);
    load(begin + warp);
    if (takes) {
        for (uint polls = 0; __any_sync(~0u, !fits(t, tag)); ++polls) {
            if (!fits(t, tag)) t = peek(from);
            if (polls == PATIENCE) __trap();
        }
        *((float4 *)raw + tid) = t;
    }
    bar();
    static_assert((G + 1) * (D / 2) <= THREADS, "a pair a thread");
    if (const uint u = tid; u < (G + (last ? 1 : 0)) * (D / 2)) {
        // A pair of elements of a query, or of the new row of k; those that are not rotated are pairs too.
        float *row = raw + u / (D / 2) * D;
        const uint i = u % (D / 2);
        const bool turns = i < a.pairs;
        const uint e = a.adjacent ? 2 * i : turns ? i : i + a.pairs, o = a.adjacent ? e + 1 : turns ? i + a.pairs : i + D / 2;
        const float by = u < G * (D / 2) ? f.scale : 1.0f, p = row[e] * by, q = row[o] * by;
        const float cosine = turns ? sh.angles[i] : 1.0f, sine = turns ? sh.angles[128 + i] : 0.0f;
        row[e] = p * cosine - q * sine;
        row[o] = p * sine + q * cosine;
    }
    bar();
    if (last && tid < D / 2) {
        // The workgroup of the token's own position stores its rows.
        const float4 t = *((const float4 *)(raw + G * D) + tid);
        keep((tid < D / 4 ? f.keys : f.values) + ulong(fresh_at) * D + tid % (D / 4) * 4, t);
    }
    float4 q[G];
    UNROLL for (uint g = 0; g < G; ++g) q[g] = *((const float4 *)(raw + g * D) + lane);
    // The greatest score and the sum of weights so far, of head lane / 8; the sums of values of all heads.
    float m = LOWEST, l = 0;
    float4 sums[G];
    UNROLL for (uint g = 0; g < G; ++g) sums[g] = make_float4(0, 0, 0, 0);
    for (uint p0 = begin + warp; p0 < end; p0 += AT_ONCE * WARPS) {
        float score[AT_ONCE];
        UNROLL for (uint i = 0; i < AT_ONCE; ++i) {
            if (at[i] == fresh_at && last) {
                k[i] = *((const float4 *)(raw + G * D) + lane);
                v[i] = *((const float4 *)(raw + (G + 1) * D) + lane);
            }
            float s[G];
            UNROLL for (uint g = 0; g < G; ++g) s[g] = dot(q[g], k[i]);
            // Each half of the lanes keeps two of the four sums, each quarter one.
            const bool upper = lane & 16, odd = lane & 8;
            const float s0 = (upper ? s[2] : s[0]) + simd_shuffle_xor(upper ? s[0] : s[2], 16);
            const float s1 = (upper ? s[3] : s[1]) + simd_shuffle_xor(upper ? s[1] : s[3], 16);
            float t = (odd ? s1 : s0) + simd_shuffle_xor(odd ? s0 : s1, 8);
            t += simd_shuffle_xor(t, 4); t += simd_shuffle_xor(t, 2); t += simd_shuffle_xor(t, 1);
            score[i] = at[i] != ~0u ? t : LOWEST;
        }
        float most = m;
        UNROLL for (uint i = 0; i < AT_ONCE; ++i) most = max(most, score[i]);
        const float correction = exp2f(m - most);
        m = most;
        l *= correction;
        UNROLL for (uint i = 0; i < AT_ONCE; ++i) { score[i] = score[i] == LOWEST ? 0.0f : exp2f(score[i] - most); l += score[i]; }
        UNROLL for (uint g = 0; g < G; ++g) {
            sums[g] = sums[g] * simd_shuffle(correction, g * 8);
            UNROLL for (uint i = 0; i < AT_ONCE; ++i) sums[g] = sums[g] + v[i] * simd_shuffle(score[i], g * 8);
        }
        if (p0 + AT_ONCE * WARPS < end) load(p0 + AT_ONCE * WARPS);
    }
    if (lane % 8 == 0) { sh.stats[lane / 8 * PARTS + warp] = m; sh.stats[(G + lane / 8) * PARTS + warp] = l; }
    UNROLL for (uint g = 0; g < G; ++g) *((float4 *)(sh.sums + warp * (G * D) + g * D) + lane) = sums[g];
    bar();
    if (tid < G * D / 2) {
        const uint g = tid / (D / 2);
        const bool there = lane % PARTS < WARPS;
        const float mine = there ? sh.stats[g * PARTS + lane % PARTS] : LOWEST;
        float most = mine;
        UNROLL for (uint i = PARTS / 2; i; i >>= 1) most = max(most, simd_shuffle_xor(most, i));
        // Weights are those of the greatest score as it is given, without its last bit.
        most = tagged(most, out_tag);
        const float factor = exp2f(mine - most);
        float total = there ? sh.stats[(G + g) * PARTS + lane % PARTS] * factor : 0.0f;
        UNROLL for (uint i = PARTS / 2; i; i >>= 1) total += simd_shuffle_xor(total, i);
        float2 y = make_float2(0, 0);
        UNROLL for (uint w = 0; w < WARPS; ++w) y = y + *((const float2 *)(sh.sums + w * (G * D)) + tid) * simd_shuffle(factor, w);
        give(a.exchange + f.out_at + part * (G * D) + 2 * tid, make_float2(tagged(y.x, out_tag), tagged(y.y, out_tag)));
        if (tid % (D / 2) == 0) give(a.exchange + f.stats_at + (part * G + g) * 2, make_float2(most, tagged(total, out_tag)));
    }
}

// The parts of attention put together: a warp four elements, a lane a part.
FN void combine(const Run &a, const Phase &f, uint group, uint tid, uint run)
{
    constexpr uint D = 128, G = 4;
    const uint lane = tid % 32, warp = tid / 32, begin = group * f.each + min(group, f.over), n = f.each + (group < f.over ? 1 : 0);
    const uint tag = tag_of(f.in_tag, run), out_tag = tag_of(f.out_tag, run);
    for (uint j = warp; j < n; j += WARPS) {
        const uint e = (begin + j) * 4, h = e / D, part = h / G * a.splits + lane;
        const float4 *from = (const float4 *)(a.exchange + f.in_at + part * (G * D) + h % G * D + e % D);
        const float2 *stats = (const float2 *)(a.exchange + f.stats_at + (part * G + h % G) * 2);
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
        const float factor = exp2f(t.x - simd_max(t.x)), total = simd_sum(t.y * factor);
        v = v * factor;
        v = make_float4(simd_sum(v.x), simd_sum(v.y), simd_sum(v.z), simd_sum(v.w)) * (1.0f / total);
        if (lane == 0) {
            give(a.exchange + f.out_at + e, make_float4(tagged(v.x, out_tag), tagged(v.y, out_tag), tagged(v.z, out_tag), tagged(v.w, out_tag)));
            keep(f.y[0] + e, v);
        }
    }
    bar();
}

KERNEL_ALONE(decode_stack, ALL_THREADS, IN(0, Phase, phases), OUT(1, float, exchange), OUT(2, uint, runs), IN(3, uint, positions), IN(4, uint, sequences), IN(5, uint, slots),
    IN(6, uint, table), IN(7, float, freqs), FAULT(8), IN(9, uint, step), VAL(10, uint, step_slot), VAL(11, uint, count), VAL(12, uint, heads), VAL(13, uint, kv_heads),
    VAL(14, uint, shift), VAL(15, uint, blocks), VAL(16, uint, rows), VAL(17, uint, columns), VAL(18, uint, pairs), VAL(19, uint, adjacent), VAL(20, uint, splits))
{
    extern __shared__ __align__(128) uchar bytes[];
    Shared &sh = *(Shared *)bytes;
    uchar *ring = bytes + (sizeof(Shared) + 127) / 128 * 128;
    const Run a = {phases, exchange, runs, positions, sequences, slots, table, freqs, fault, count, heads, kv_heads, shift, blocks, rows, columns, pairs, adjacent, splits};
    const uint tid = threadIdx.x, group = blockIdx.x;
    if (tid == 0) {
        for (uint i = 0; i < BARS; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&sh.bars[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        sh.done = 0;
    }
    if (tid < PARTS) sh.part[tid] = make_float2(0, 0);
    if (tid < 2 * WORDS) ((uint4 *)sh.phases)[tid] = ((const uint4 *)a.phases)[tid];
    DEPENDENCY_WAIT();
    // No token, nothing to do; all workgroups see the same.
    if (step && fresh(step + step_slot) == 0) return;
    const uint run = fresh(a.run), position = positions ? fresh(positions) : 0, sequence = positions ? fresh(sequences) : 0, slot = positions ? fresh(slots) : 0;
    if (positions && (sequence >= rows || position >= columns << shift || slot >= blocks << shift)) {
        if (group == 0 && tid == 0) {
            if (slot >= blocks << shift) note_fault(fault, slot, blocks << shift);
            else note_fault(fault, sequence >= rows ? sequence : position, sequence >= rows ? rows : columns << shift);
        }
        return;
    }
    if (tid < pairs) {
        const float t = float(position) * freqs[tid];
        sh.angles[tid] = cosf(t);
        sh.angles[128 + tid] = sinf(t);
    }
    __syncthreads();
    // The positions are shared by the workgroups of a key/value head.
    const uint len = position + 1, each = (len + splits - 1) / splits;
    const uint kv = group % kv_heads, split = group / kv_heads, begin = split < splits ? split * each : len, end = min(begin + each, len);
    const uint *blocks_of = table + sequence * columns;
    if (tid >= THREADS) {
        fetch(a, sh, ring, group, tid - THREADS, position, blocks_of, kv, begin, end);
        return;
    }
    // Descriptions are read two phases before they are needed, into the place of one that every warp has left: some phase in between has a barrier.
    uint n = 0, place = 0;
    uint4 next;
    if (tid < WORDS) next = ((const uint4 *)(a.phases + min(2, count - 1)))[tid];
    for (uint p = 0; p < count; ++p) {
        const Phase &f = sh.phases[place];
        if (tid < WORDS) {
            ((uint4 *)&sh.phases[place >= 4 ? place - 4 : place + 2])[tid] = next;
            next = ((const uint4 *)(a.phases + min(p + 3, count - 1)))[tid];
        }
        place = place == 5 ? 0 : place + 1;
        const uint kind = f.kind;
        if (kind == PRODUCTS) {
            if (f.k <= 2 * 4 * THREADS) products<2>(a, sh, f, ring, group, tid, run, n, p + 1);
            else products<4>(a, sh, f, ring, group, tid, run, n, p + 1);
            ++n;
        } else if (kind == ATTENTION) attention(a, sh, f, tid, run, position, slot, blocks_of, kv, split, begin, end);
        else combine(a, f, group, tid, run);
    }
    if (group == 0 && tid == 0) *a.run = run + 1;
}
