// only sm_90a
// Attention of many tokens straight from a paged cache of f16 with warpgroup matrix instructions, sums in f32. A warp fetches tiles of keys and
// of values by the bulk tensor copy engine, 32 positions of a block at a time; two warpgroups have 64 rows each: a token's query heads of one
// key/value head, token by token. A warpgroup multiplies the next keys and the last weights with values while it finds the tile's weights, and
// the two take turns, so that tensor cores work while the other one's exponentials are computed (FlashAttention-3, arXiv:2407.08608).
//
// Queries are rounded to f16 after each row's is divided by a power of two, so that its greatest element is about 1; weights are rounded to f16
// after multiplication by 2^15, so that the small ones are not lost.
#include <cuda_fp16.h>
#include "attention_tiles.h"
#include "wgmma.h"
#include "copy_engine.h"

// Keys · queries: both in shared memory, K-major.
#define SCORES(N) \
FN void score(float (&d)[N / 2], ulong a, ulong b, int more) \
{ \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" LAST_##N ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" TEXT##N "}, %" A_##N ", %" B_##N ", p, 1, 1, 0, 0;}" \
        : REGS##N(FLOAT) : "l"(a), "l"(b), "r"(more)); \
}
// Weights · values: weights in registers, values with an element's positions one row after the other.
#define VALUES(N) \
FN void weigh(float (&d)[N / 2], const uint *a, ulong b) \
{ \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" TEXT##N "}, {%" A_##N ", %" B_##N ", %" LAST_##N ", %" FOURTH_##N "}, %" FIFTH_##N ", 1, 1, 1, 1;" \
        : REGS##N(FLOAT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
}
#define A_64 "32"
#define B_64 "33"
#define LAST_64 "34"
#define FOURTH_64 "35"
#define FIFTH_64 "36"
#define A_128 "64"
#define B_128 "65"
#define LAST_128 "66"
#define FOURTH_128 "67"
#define FIFTH_128 "68"
#define A_256 "128"
#define B_256 "129"
#define LAST_256 "130"
#define FOURTH_256 "131"
#define FIFTH_256 "132"
SCORES(64)
SCORES(128)
VALUES(64)
VALUES(128)
VALUES(256)

// Descriptor of values: rows of 128 bytes in the 128-byte swizzle, 64 elements of a position each; the next 64 elements lie `panel` bytes on.
FN ulong describe_values(uint address, uint panel) { return (ulong)(address >> 4 & 0x3fff) | (ulong)(panel >> 4) << 16 | 64ull << 32 | 1ull << 62; }
// The compiler reads or moves none of these before this point.
template <int N> FN void settled(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> FN void settled(uint (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
FN uint pair_f16(float low, float high)
{
    uint w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
}
FN void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The named barrier `id` of the two warpgroups: waited for by one, which the other lets go on.
FN void turn_wait(uint id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
FN void turn_give(uint id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

// KEYS: positions of a tile, of heads of up to 128 elements and of longer ones.
constexpr uint GROUPS = 2, ROWS = 128, THREADS = 384, STAGES = 2, PAGE = 32, KEYS_SHORT = 128, KEYS_LONG = 64;
static_assert(ROWS == GROUPS * 64 && THREADS == GROUPS * 128 + 128);
HOST(ROWS, THREADS, STAGES, PAGE, KEYS_SHORT, KEYS_LONG, MOST_RUNS)
// A warpgroup waits for registers that the others give back: together there must be no more than at the start.
constexpr uint AT_START = 65536 / THREADS / 8 * 8, OF_COPIES = 40, OF_PRODUCTS = 232;
static_assert(GROUPS * OF_PRODUCTS + OF_COPIES <= (GROUPS + 1) * AT_START);
constexpr float SHIFT = 15, LOWEST = -1e38f;

// The tiles of a workgroup's runs, one after the other; all of its warps go through the same.
template <uint KEYS> struct Walk {
    const Rows &rows;
    const Share &share;
    const uint count;
    uint start, from, step, steps; // the run's first token, the next run's
    Run run;
    bool begins; // a run's first tile

    FN Walk of(const Rows &rows, const Share &share, uint count) { return {rows, share, count, 0, 0, 0, 0, {}, false}; }
    __device__ __forceinline__ bool next()
    {
        begins = false;
        if (++step < steps) return true;
        from = share.next(rows, from, count);
        if (from >= count) return false;
        run = next_run(rows, from, count);
        start = from;
        from = run.end;
        step = run.first_least / KEYS;
        steps = run.most / KEYS + 1;
        return begins = true;
    }
};

template <uint D, uint KEYS> struct Layout {
    static constexpr uint PANELS = D / 64, QUERIES = ROWS * D * 2, TILE = KEYS * D * 2, PANEL = KEYS * 128;
    static constexpr uint BYTES = QUERIES + 2 * STAGES * TILE + 1024 + 256; // with the room that alignment takes, and barriers
};

template <uint D, uint KEYS>
FN void attend(const Tokens &t, const TensorMap *k_map, const TensorMap *v_map, const float *q, float *out, float scale, const float *sinks, float cap, uint extra)
{
    using L = Layout<D, KEYS>;
    extern __shared__ uchar shared[];
    __shared__ Rows rows;
    __shared__ float units[ROWS];
    const uint queries = (shared_address(shared) + 1023) & ~1023u, keys = queries + L::QUERIES, values = keys + STAGES * L::TILE;
    // Barriers of the stages: keys there, values there, keys used, values used; and the one for values that end within a page.
    const uint barriers = values + STAGES * L::TILE, partial = barriers + 4 * STAGES * 8;
    const auto barrier = [&](uint which, uint stage) { return barriers + (which * STAGES + stage) * 8; };
    enum { KEYS_THERE, VALUES_THERE, KEYS_USED, VALUES_USED };

    const uint tid = threadIdx.x, group = tid / 128, warp = tid / 32, lane = tid % 32;
    const uint of_kv = t.heads / t.kv_heads, per = ROWS / of_kv, head = blockIdx.x;
    __shared__ Share share;
    if (!find_share<THREADS>(share, rows, t, per, extra)) return;
    const uint first = share.tile * per, count = min(per, t.tokens - first);
    if (tid == 0) {
#pragma unroll
        for (uint s = 0; s < STAGES; ++s) {
            barrier_init(barrier(KEYS_THERE, s), 1);
            barrier_init(barrier(VALUES_THERE, s), 1);
            barrier_init(barrier(KEYS_USED, s), GROUPS);
            barrier_init(barrier(VALUES_USED, s), GROUPS);
        }
        barrier_init(partial, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    Walk<KEYS> walk = Walk<KEYS>::of(rows, share, count);

    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(OF_COPIES));
        if (warp != GROUPS * 4) return;
        const uint mask = (1u << t.shift) - 1, end = (t.blocks * t.kv_heads) << t.shift; // a row that there is not is zeros
        uint stage = 0, phase = 0, parts = 0;
        while (walk.next()) {
            // Where the rows of this lane's page begin.
            const uint p = walk.step * KEYS + lane * PAGE, len = walk.run.most + 1;
            uint at = end;
            if (lane < KEYS / PAGE && p < len) {
                const uint block = t.table[size_t(walk.run.sequence) * t.columns + (p >> t.shift)];
                if (block < t.blocks) at = (block * t.kv_heads + head << t.shift) + (p & mask);
                else note_fault(t.fault, block, t.blocks);
            }
            barrier_wait(barrier(KEYS_USED, stage), phase ^ 1);
            if (lane == 0) barrier_expect(barrier(KEYS_THERE, stage), L::TILE);
            __syncwarp();
            if (lane < KEYS / PAGE)
#pragma unroll
                for (uint i = 0; i < L::PANELS; ++i)
                    copy_tile(keys + stage * L::TILE + i * L::PANEL + lane * PAGE * 128, k_map, i * 64, at, barrier(KEYS_THERE, stage));
            barrier_wait(barrier(VALUES_USED, stage), phase ^ 1);
            // What a page has beyond the last position may be anything, and 0 · NaN would count: it becomes 0.
            const uint beyond = len - walk.step * KEYS;
            const bool ends = beyond < KEYS && beyond % PAGE != 0;
            const uint there = ends ? partial : barrier(VALUES_THERE, stage), to = values + stage * L::TILE;
            if (lane == 0) barrier_expect(there, L::TILE);
            __syncwarp();
            if (lane < KEYS / PAGE)
#pragma unroll
                for (uint i = 0; i < L::PANELS; ++i) copy_tile(to + i * L::PANEL + lane * PAGE * 128, v_map, i * 64, at, there);
            if (ends) {
                barrier_wait(partial, parts & 1);
                ++parts;
                const uint rest = (PAGE - beyond % PAGE) * 8;
                for (uint i = lane; i < rest * L::PANELS; i += 32)
                    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to + i / rest * L::PANEL + beyond * 128 + i % rest * 16), "r"(0) : "memory");
                fence_copies();
                __syncwarp();
                if (lane == 0) barrier_arrive(barrier(VALUES_THERE, stage));
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(OF_PRODUCTS));

    // Queries of a warpgroup's rows, each divided by a power of two: lanes of D / 4 take a row.
    const uint own = queries + group * 64 * 128; // of a panel of ROWS rows
    {
        constexpr uint LANES = D / 4 < 32 ? D / 4 : 32, PER = 32 / LANES, FOURS = D / 4 / LANES, AHEAD = 4 / FOURS;
        const uint member = lane % LANES;
#pragma unroll 1
        for (uint r0 = warp % 4 * 16; r0 < warp % 4 * 16 + 16; r0 += PER * AHEAD) {
            float4 x[AHEAD][FOURS];
#pragma unroll
            for (uint i = 0; i < AHEAD; ++i) {
                const uint r = group * 64 + r0 + i * PER + lane / LANES, token = r / of_kv;
                const bool there = token < count & rows.own[token % ROWS];
                const float4 *from = reinterpret_cast<const float4 *>(q) + (size_t(first + token) * t.heads + head * of_kv + r - token * of_kv) * (D / 4);
#pragma unroll
                for (uint f = 0; f < FOURS; ++f) x[i][f] = there ? from[f * LANES + member] : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (uint i = 0; i < AHEAD; ++i) {
                const uint r = r0 + i * PER + lane / LANES;
                float greatest = 0;
#pragma unroll
                for (uint f = 0; f < FOURS; ++f) greatest = fmaxf(greatest, fmaxf(fmaxf(fabsf(x[i][f].x), fabsf(x[i][f].y)), fmaxf(fabsf(x[i][f].z), fabsf(x[i][f].w))));
#pragma unroll
                for (uint m = LANES / 2; m; m /= 2) greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, m));
                const uint power = __float_as_uint(greatest) & 0x7f800000, by = power >= 0x10000000 && power <= 0x70000000 ? power : 0x3f800000;
                const float inverse = __uint_as_float(0x7f000000 - by);
                if (member == 0) units[group * 64 + r] = __uint_as_float(by) * scale;
#pragma unroll
                for (uint f = 0; f < FOURS; ++f) {
                    const uint e = (f * LANES + member) * 4, chunk = e % 64 / 8;
                    const uint to = own + e / 64 * (ROWS * 128) + r * 128 + ((chunk ^ (r & 7)) << 4) + e % 8 * 2;
                    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(pair_f16(x[i][f].x * inverse, x[i][f].y * inverse)),
                                 "r"(pair_f16(x[i][f].z * inverse, x[i][f].w * inverse)) : "memory");
                }
            }
        }
    }
    fence_copies();
    asm volatile("bar.sync %0, 128;" ::"r"(3 + group) : "memory");

    // This thread's rows are `row` and `row + 8` of its warpgroup.
    const uint row = warp % 4 * 16 + lane / 4;
    float unit[2], most[2] = {LOWEST, LOWEST}, total[2] = {};
    int limit[2], least[2];
#pragma unroll
    for (uint h = 0; h < 2; ++h) {
        const uint r = group * 64 + row + h * 8;
        unit[h] = units[r];
        if (sinks) {
            most[h] = fmaxf(sinks[head * of_kv + r % of_kv] * LOG2_E, LOWEST);
            total[h] = lane % 4 == 0 ? 32768.0f : 0.0f;
        }
    }

    float sums[D / 2], s[KEYS / 2], correction[2];
    uint weights[KEYS / 4];
#pragma unroll
    for (uint i = 0; i < D / 2; ++i) sums[i] = 0;
    const auto multiply_keys = [&](uint stage) {
        const ulong a = describe(own), b = describe(keys + stage * L::TILE);
#pragma unroll
        for (uint e = 0; e < D / 16; ++e) score(s, a + (e / 4 * (ROWS * 128) >> 4) + e % 4 * 2, b + (e / 4 * L::PANEL >> 4) + e % 4 * 2, e > 0);
        wgmma_commit();
    };
    const auto multiply_values = [&](uint stage) {
        const ulong b = describe_values(values + stage * L::TILE, L::PANEL);
#pragma unroll
        for (uint p = 0; p < KEYS / 16; ++p) weigh(sums, weights + p * 4, b + p * (16 * 128 >> 4));
        wgmma_commit();
    };
    // Scores become weights in f32; `correction` is what earlier sums are to be multiplied by.
    const auto soften = [&] {
        if (walk.begins)
#pragma unroll
            for (uint h = 0; h < 2; ++h) {
                const uint token = (group * 64 + row + h * 8) / of_kv;
                const bool mine = token >= walk.start && token < walk.run.end;
                limit[h] = mine ? int(rows.position[token]) : -1;
                least[h] = mine ? int(rows.first[token]) : 0;
            }
        float of[2] = {unit[0], unit[1]};
        if (cap != 0) {
#pragma unroll
            for (uint i = 0; i < KEYS / 2; ++i) s[i] = capped(s[i] * unit[i / 2 % 2], cap);
            of[0] = of[1] = 1;
        }
        const uint base = walk.step * KEYS;
        if (walk.run.shortened || base + KEYS - 1 > walk.run.least || base < walk.run.first_most) {
#pragma unroll
            for (uint i = 0; i < KEYS / 2; ++i) {
                const int p = int(base + i / 4 * 8 + lane % 4 * 2 + i % 2);
                if (p > limit[i / 2 % 2] || p < least[i / 2 % 2]) s[i] = -__int_as_float(0x7f800000);
            }
        }
#pragma unroll
        for (uint h = 0; h < 2; ++h) {
            float greatest = s[2 * h];
#pragma unroll
            for (uint i = 0; i < KEYS / 2; i += 4) greatest = fmaxf(greatest, fmaxf(s[i + 2 * h], s[i + 2 * h + 1]));
            greatest = quad_max(greatest);
            greatest = fmaxf(most[h], greatest * of[h]);
            correction[h] = exp2_fast(most[h] - greatest);
            most[h] = greatest;
            float sum = 0;
#pragma unroll
            for (uint i = 0; i < KEYS / 2; i += 4)
#pragma unroll
                for (uint j = i + 2 * h; j < i + 2 * h + 2; ++j) {
                    s[j] = exp2_fast(fmaf(s[j], of[h], SHIFT - greatest));
                    sum += s[j];
                }
            total[h] = total[h] * correction[h] + sum;
        }
    };
    const auto round = [&] {
#pragma unroll
        for (uint i = 0; i < KEYS / 4; ++i) weights[i] = pair_f16(s[2 * i], s[2 * i + 1]);
    };
    const auto release = [&](uint which, uint stage) {
        if (tid % 128 == 0) barrier_arrive(barrier(which, stage));
    };

    // There is a first tile: a run has positions.
    walk.next();
    uint stage = 0, phase = 0, before = 0, phase_before = 0;
    if (group == 1) turn_wait(2);
    barrier_wait(barrier(KEYS_THERE, 0), 0);
    wgmma_fence();
    multiply_keys(0);
    turn_give(group == 0 ? 2 : 1);
    wgmma_wait<0>();
    settled(s);
    release(KEYS_USED, 0);
    soften();
    round();
    while (walk.next()) {
        before = stage;
        phase_before = phase;
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
        turn_wait(group == 0 ? 1 : 2);
        barrier_wait(barrier(KEYS_THERE, stage), phase);
        settled(s);
        settled(weights);
        settled(sums);
        wgmma_fence();
        multiply_keys(stage);
        barrier_wait(barrier(VALUES_THERE, before), phase_before);
        multiply_values(before);
        turn_give(group == 0 ? 2 : 1);
        wgmma_wait<1>();
        settled(s);
        release(KEYS_USED, stage);
        soften();
        wgmma_wait<0>();
        settled(sums);
        settled(weights);
        release(VALUES_USED, before);
#pragma unroll
        for (uint i = 0; i < D / 2; ++i) sums[i] *= correction[i / 2 % 2];
        round();
    }
    if (group == 0) turn_wait(1);
    barrier_wait(barrier(VALUES_THERE, stage), phase);
    settled(weights);
    settled(sums);
    wgmma_fence();
    multiply_values(stage);
    wgmma_wait<0>();
    settled(sums);

#pragma unroll
    for (uint h = 0; h < 2; ++h) {
        float l = total[h];
        l = quad_sum(l);
        const uint r = group * 64 + row + h * 8, token = r / of_kv;
        if (token >= count || !rows.own[token]) continue;
        const float factor = 1.0f / l;
        float *to = out + (size_t(first + token) * t.heads + head * of_kv + r - token * of_kv) * D + lane % 4 * 2;
#pragma unroll
        for (uint n = 0; n < D / 8; ++n) *reinterpret_cast<float2 *>(to + n * 8) = make_float2(sums[n * 4 + 2 * h] * factor, sums[n * 4 + 2 * h + 1] * factor);
    }
}

// window: how many positions a token sees, up to its own; with `firsts`, the first one. Grid: kv heads, tiles of tokens and `extra` more. keys and values: the cache as
// rows of D elements, in tiles of 64 elements and 32 rows.
#define ATTENTION_WGMMA(D, KEYS) \
KERNEL_ALONE(attention_wgmma_##D, 384, MAP(0, keys), MAP(1, values), IN(2, float, q), IN(3, uint, positions), IN(4, uint, sequences), IN(5, uint, table), \
    OUT(6, float, out), COUNT(7, tokens), VAL(11, uint, heads), VAL(12, uint, kv_heads), VAL(13, uint, shift), VAL(14, uint, blocks), VAL(15, uint, rows), \
    VAL(16, uint, columns), VAL(17, float, scale), VAL(18, uint, window), FAULT(19), IN(20, uint, firsts), IN(21, float, sinks), VAL(22, float, cap), VAL(23, uint, extra)) \
{ \
    dependency_wait(); \
    dependency_launch(); \
    const Tokens t = {positions, sequences, table, COUNTED(tokens), heads, kv_heads, shift, blocks, rows, columns, fault, firsts, window}; \
    attend<D, KEYS>(t, &keys, &values, q, out, scale, sinks, cap, extra); \
}
ATTENTION_WGMMA(64, KEYS_SHORT)
ATTENTION_WGMMA(128, KEYS_SHORT)
ATTENTION_WGMMA(256, KEYS_LONG)
