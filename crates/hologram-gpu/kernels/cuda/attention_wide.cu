// Attention of heads of 512 or 576 elements over a paged cache of f16 on tensor cores, as latent vectors (multi-head latent attention,
// DeepSeek-V2, 2024, arXiv:2405.04434) have them. A workgroup takes query heads of a key/value head, 16 of one token or 64 rows of several,
// so that the heads share what is read of the cache. Where keys and values are the same memory, each position is read once for both.
// Queries and weights are rounded to f16; those of 16 rows keep what that lacks in a second part, which makes them as precise as f32.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention_tiles.h"
#include "attention_parts.h"

constexpr unsigned TILE = 32, THREADS = 256, WARPS = 8, FEW_ROWS = 16, MANY_ROWS = 64, MOST_SPLITS = 128;
// Beside the elements of a line in shared memory, so that rows begin in other banks.
constexpr unsigned PAD = 8, SCORE_LINE = TILE + 4, WEIGHT_LINE = TILE + PAD;
HOST(TILE, THREADS, FEW_ROWS, MANY_ROWS, MOST_SPLITS, PAD, SCORE_LINE, WEIGHT_LINE)

struct Wide {
    Tokens t;
    const float *q;
    const __half *keys, *values;
    float *out, *partial, *stats;
    unsigned splits;
    float scale;
    const float *sinks;
    float cap;
};

// Four 8 × 8 matrices, of which each lane's address is a row.
__device__ __forceinline__ void load4x4(unsigned (&r)[4], const void *p) { load_matrix(r[0], r[1], r[2], r[3], p); }

// As multiply_f16, in the order of the text: fragments then need few registers.
__device__ __forceinline__ void multiply_next(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int D, int ROWS, bool PRECISE> struct Heads {
    static constexpr int PARTS = PRECISE ? 2 : 1, LINE = D + PAD, CHUNKS = D / 8, M = ROWS / 16, SIDES = WARPS / M;
    // Scores of 16 rows: warps take 8 positions and half of the elements each; of 64 rows: 16 positions and all elements.
    static constexpr int HALVES = M == 1 ? 2 : 1;
    // Results: each warp has some columns of 16 rows, in tiles of 8.
    static constexpr int COLUMNS = D / SIDES, TILES = COLUMNS / 8;
    // The softmax: so many threads a row.
    static constexpr int LANES = THREADS / ROWS, EACH = TILE / LANES;
    static constexpr int QUERIES = PARTS * ROWS * LINE, TILE_SIZE = TILE * LINE, WEIGHTS = PARTS * ROWS * WEIGHT_LINE;
    static_assert(D % 64 == 0 && COLUMNS % 8 == 0 && D / HALVES % 32 == 0, "warps share the elements");

    static __device__ __forceinline__ void look_up(unsigned *places, const Tokens &t, const unsigned *blocks, unsigned kv_head, unsigned base, unsigned len)
    {
        if (threadIdx.x >= TILE) return;
        const unsigned p = base + threadIdx.x, block = p < len ? blocks[p >> t.shift] : ~0u;
        if (p < len && block >= t.blocks) note_fault(t.fault, block, t.blocks);
        places[threadIdx.x] = block < t.blocks ? (((block * t.kv_heads + kv_head) << t.shift) + (p & ((1u << t.shift) - 1))) * CHUNKS : NOWHERE;
    }
    // Starts the copy of a tile; zeros where there are no positions.
    static __device__ __forceinline__ void fetch(__half *tile, const __half *cache, const unsigned *places)
    {
        static_assert(TILE * CHUNKS % THREADS == 0, "threads copy alike");
        // Few at a time where results take most registers.
#pragma unroll (M == 1 ? 9 : 3)
        for (int i = 0; i < int(TILE * CHUNKS / THREADS); ++i) {
            const unsigned at = threadIdx.x + i * THREADS, r = at / CHUNKS, c = at % CHUNKS, place = places[r];
            copy16(tile + r * LINE + c * 8, cache + size_t(place == NOWHERE ? 0 : place + c) * 8, place != NOWHERE);
        }
    }

    // scores [HALVES][ROWS][SCORE_LINE] = queries · keysᵀ
    static __device__ __forceinline__ void score(float *scores, const __half *queries, const __half *keys, unsigned warp, unsigned lane)
    {
        const unsigned m = warp % M, side = warp / M;
        float c[2][4] = {};
        if constexpr (M == 1) {
            constexpr int STEPS = D / HALVES / 32;
            const unsigned n = side % 4 * 8, from = side / 4 * (D / 2);
            float low[2][4] = {};
            const __half *a = queries + (lane & 15) * LINE + from + (lane >> 4) * 8, *b = keys + (n + (lane & 7)) * LINE + from + (lane >> 3) * 8;
#pragma unroll
            for (int j = 0; j < STEPS; ++j) {
                unsigned k[4], x[4];
                load4x4(k, b + j * 32);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    load4x4(x, a + j * 32 + i * 16);
                    multiply_f16(c[i], x, k[2 * i], k[2 * i + 1]);
                    if constexpr (PRECISE) {
                        load4x4(x, a + ROWS * LINE + j * 32 + i * 16);
                        multiply_f16(low[i], x, k[2 * i], k[2 * i + 1]);
                    }
                }
            }
            float *to = scores + side / 4 * (ROWS * SCORE_LINE) + n + lane % 4 * 2;
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *reinterpret_cast<float2 *>(to + (lane / 4 + h * 8) * SCORE_LINE) =
                    make_float2(c[0][2 * h] + c[1][2 * h] + (low[0][2 * h] + low[1][2 * h]), c[0][2 * h + 1] + c[1][2 * h + 1] + (low[0][2 * h + 1] + low[1][2 * h + 1]));
        } else {
            const unsigned n = side * 16;
            const __half *a = queries + (m * 16 + (lane & 15)) * LINE + (lane >> 4) * 8, *b = keys + (n + (lane & 7) + (lane >> 4) * 8) * LINE + (lane >> 3 & 1) * 8;
#pragma unroll 4
            for (int j = 0; j < D / 16; ++j) {
                unsigned k[4], x[4];
                load4x4(x, a + j * 16);
                load4x4(k, b + j * 16);
                multiply_f16(c[0], x, k[0], k[1]);
                multiply_f16(c[1], x, k[2], k[3]);
            }
            float *to = scores + (m * 16 + lane / 4) * SCORE_LINE + n + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) *reinterpret_cast<float2 *>(to + h * 8 * SCORE_LINE + i * 8) = make_float2(c[i][2 * h], c[i][2 * h + 1]);
        }
    }

    // sums · corrections + weights · values
    static __device__ __forceinline__ void weigh(float (&sums)[TILES][4], const __half *weights, const float *corrections, const __half *values, unsigned warp, unsigned lane)
    {
        const unsigned m = warp % M, side = warp / M;
        const float by[2] = {corrections[m * 16 + lane / 4], corrections[m * 16 + lane / 4 + 8]};
        // Most tiles have no new greatest score.
        if (__any_sync(~0u, by[0] != 1.0f || by[1] != 1.0f)) {
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[n][i] *= by[i >> 1];
        }
        unsigned w[PARTS][2][4];
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int j = 0; j < 2; ++j) load4x4(w[p][j], weights + (p * ROWS + m * 16 + (lane & 15)) * WEIGHT_LINE + j * 16 + (lane >> 4) * 8);
        if constexpr (M == 1) {
            const __half *from = values + lane * LINE + side * COLUMNS;
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                unsigned v[4];
                load_transposed(v[0], v[1], v[2], v[3], from + n * 8);
#pragma unroll
                for (int p = 0; p < PARTS; ++p)
#pragma unroll
                    for (int j = 0; j < 2; ++j) multiply_f16(sums[n], w[p][j], v[2 * j], v[2 * j + 1]);
            }
        } else {
            static_assert(PARTS == 1 && TILES % 2 == 0, "two tiles at a time");
            const __half *from = values + (lane & 15) * LINE + side * COLUMNS + (lane >> 4) * 8;
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int n = 0; n < TILES; n += 2) {
                    unsigned v[4];
                    load_transposed(v[0], v[1], v[2], v[3], from + j * 16 * LINE + n * 8);
                    multiply_next(sums[n], w[0][j], v[0], v[1]);
                    multiply_next(sums[n + 1], w[0][j], v[2], v[3]);
                }
        }
    }

    // Tokens first … first + count - 1, heads first_head … first_head + heads - 1, in rows of a token's heads. With SPLIT there is one token, of
    // whose tiles this workgroup takes every `used`-th one; `place` is the number of the token and heads among all.
    template <bool SPLIT> static __device__ __forceinline__ void run(const Wide &a, unsigned first, unsigned count, unsigned kv_head, unsigned first_head, unsigned heads, unsigned place)
    {
        extern __shared__ __align__(16) unsigned char memory[];
        __half *queries = reinterpret_cast<__half *>(memory), *tiles = queries + QUERIES, *weights = tiles + 2 * TILE_SIZE;
        float *scores = reinterpret_cast<float *>(weights + WEIGHTS);
        __shared__ Rows rows;
        __shared__ unsigned places[3][TILE];
        __shared__ float corrections[ROWS], units[ROWS];
        const Tokens &t = a.t;
        const unsigned tid = threadIdx.x, warp = tid / 32, lane = tid % 32, row = tid / LANES, part = tid % LANES;
        const bool same = a.keys == a.values;
        find_rows<THREADS>(rows, t, first, count);
        __syncthreads();

        unsigned used = 1;
        if constexpr (SPLIT) {
            used = min(rows.position[0] / TILE + 1 - rows.first[0] / TILE, a.splits);
            if (blockIdx.x >= used) return;
        }
        // A warp takes a row: its greatest element becomes one between 1 and 2, for f16's sake.
#pragma unroll 1
        for (unsigned r = warp; r < ROWS; r += WARPS) {
            const bool there = r < count * heads;
            const float2 *q = reinterpret_cast<const float2 *>(a.q + (size_t(first + (there ? r / heads : 0)) * t.heads + first_head + (there ? r % heads : 0)) * D);
            float2 x[D / 64];
            float greatest = 0;
#pragma unroll
            for (int i = 0; i < D / 64; ++i) {
                x[i] = there ? q[i * 32 + lane] : make_float2(0, 0);
                x[i].x *= a.scale;
                x[i].y *= a.scale;
                greatest = fmaxf(greatest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
            }
#pragma unroll
            for (int m = 16; m; m >>= 1) greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, m));
            const unsigned power = __float_as_uint(greatest) & 0x7f800000, by = power >= 0x10000000 && power <= 0x70000000 ? power : 0x3f800000;
            const float factor = __uint_as_float(0x7f000000 - by);
#pragma unroll
            for (int i = 0; i < D / 64; ++i) {
                unsigned high, low;
                split(x[i].x * factor, x[i].y * factor, high, low);
                unsigned *to = reinterpret_cast<unsigned *>(queries + r * LINE) + i * 32 + lane;
                *to = high;
                if constexpr (PRECISE) to[ROWS * LINE / 2] = low;
            }
            if (lane == 0) units[r] = __uint_as_float(by);
        }

        float sums[TILES][4] = {}, most = LOWEST, total = 0;
        if (a.sinks && row < count * heads && (!SPLIT || blockIdx.x == 0)) {
            most = fmaxf(a.sinks[first_head + row % heads] * LOG2_E, LOWEST);
            total = part == 0 ? 1.0f : 0.0f;
        }
        // Tokens of one sequence that follow each other are worked on together; those of others see nothing meanwhile.
        for (unsigned from = 0; from < count;) {
            const Run run = next_run(rows, from, count);
            const unsigned *blocks = t.table + size_t(run.sequence) * t.columns;
            const unsigned token = row / heads;
            const bool mine = token >= from && token < run.end;
            const int limit = mine ? int(rows.position[token]) : -1, least = mine ? int(rows.first[token]) : 0;
            const unsigned len = run.most + 1, begin = run.first_least / TILE + (SPLIT ? blockIdx.x : 0), end = (len + TILE - 1) / TILE;
            const unsigned steps = (end - begin + used - 1) / used;
            const auto base = [&](unsigned i) { return (begin + i * used) * TILE; };
            look_up(places[0], t, blocks, kv_head, base(0), len);
            look_up(places[1], t, blocks, kv_head, base(1), len);
            __syncthreads();
            fetch(tiles, a.keys, places[0]);
            copies_commit();
#pragma unroll 1
            for (unsigned i = 0; i < steps; ++i) {
                if (i + 1 < steps) fetch(tiles + (i + 1) % 2 * TILE_SIZE, a.keys, places[(i + 1) % 3]);
                copies_commit();
                look_up(places[(i + 2) % 3], t, blocks, kv_head, base(i + 2), len);
                copies_wait<1>();
                __syncthreads();
                __half *tile = tiles + i % 2 * TILE_SIZE;
                score(scores, queries, tile, warp, lane);
                __syncthreads();
                if (!same) {
                    fetch(tile, a.values, places[i % 3]);
                    copies_commit();
                }
                float s[EACH], greatest = most;
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    const int p = part + j * LANES, at = int(base(i)) + p;
                    float x = scores[row * SCORE_LINE + p];
                    if constexpr (HALVES == 2) x += scores[(ROWS + row) * SCORE_LINE + p];
                    x *= units[row];
                    if (a.cap != 0) x = capped(x, a.cap);
                    s[j] = at > limit || at < least ? -__int_as_float(0x7f800000) : x;
                    greatest = fmaxf(greatest, s[j]);
                }
#pragma unroll
                for (int m = LANES / 2; m; m >>= 1) greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, m));
                const float correction = exp2_fast(most - greatest);
                most = greatest;
                total *= correction;
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    const float w = exp2_fast(s[j] - greatest);
                    total += w;
                    __half *to = weights + row * WEIGHT_LINE + part + j * LANES;
                    const __half high = __float2half_rn(w);
                    *to = high;
                    if constexpr (PRECISE) to[ROWS * WEIGHT_LINE] = __float2half_rn(w - __half2float(high));
                }
                if (part == 0) corrections[row] = correction;
                if (!same) copies_wait<0>();
                __syncthreads();
                weigh(sums, weights, corrections, tile, warp, lane);
                __syncthreads();
            }
            copies_wait<0>();
            from = run.end;
        }

#pragma unroll
        for (int m = LANES / 2; m; m >>= 1) total += __shfl_xor_sync(~0u, total, m);
        const bool whole = used == 1;
        const size_t part_at = (size_t(place) * a.splits + blockIdx.x) * FEW_ROWS;
        if (part == 0) {
            corrections[row] = whole ? __fdividef(1.0f, total) : 1.0f;
            if (SPLIT && !whole) *reinterpret_cast<float2 *>(a.stats + (part_at + row) * 2) = make_float2(most, total);
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned r = warp % M * 16 + lane / 4 + h * 8;
            if (r >= count * heads) continue;
            const float by = corrections[r];
            float *to = SPLIT && !whole ? a.partial + (part_at + r) * D : a.out + (size_t(first + r / heads) * t.heads + first_head + r % heads) * D;
            to += warp / M * COLUMNS + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < TILES; ++n) *reinterpret_cast<float2 *>(to + n * 8) = make_float2(sums[n][2 * h] * by, sums[n][2 * h + 1] * by);
        }
    }
};

// attention over f16 caches [blocks, kv_heads, 1 << shift, D] for q f32 [tokens, heads, D]; window: how many positions a token sees, up to its
// own. Dynamic shared memory: queries in PARTS · ROWS lines of D and PAD elements, two tiles of TILE such lines, weights in PARTS · ROWS lines, and
// scores in FEW_ROWS · 2 or MANY_ROWS lines. Grid: splits, kv_heads · ⌈heads / kv_heads / FEW_ROWS⌉, tokens; or kv_heads · slices of MANY_ROWS
// heads, groups of tokens.
#define ATTENTION_WIDE(name, ...) \
KERNEL_ALONE(name, 256, IN(0, float, q), IN(1, __half, keys), IN(2, __half, values), IN(3, uint, positions), IN(4, uint, sequences), IN(5, uint, table), OUT(6, float, out), \
    OUT(7, float, partial), OUT(8, float, stats), COUNT(9, tokens), VAL(13, uint, heads), VAL(14, uint, kv_heads), VAL(15, uint, shift), VAL(16, uint, blocks), VAL(17, uint, rows), \
    VAL(18, uint, columns), VAL(19, uint, splits), VAL(20, float, scale), VAL(21, uint, window), FAULT(22), IN(23, uint, firsts), IN(24, float, sinks), VAL(25, float, cap)) \
{ \
    dependency_wait(); \
    dependency_launch(); \
    const Wide a = {{positions, sequences, table, COUNTED(tokens), heads, kv_heads, shift, blocks, rows, columns, fault, firsts, window}, q, keys, values, out, partial, stats, \
                    splits, scale, sinks, cap}; \
    __VA_ARGS__ \
}
// The heads of a slice, and the first.
#define SLICE(index, most) \
    const unsigned of_kv = heads / kv_heads, at_a_time = min(of_kv, most), slices = (of_kv + at_a_time - 1) / at_a_time, kv_head = (index) / slices, slice = (index) % slices; \
    const unsigned first_head = kv_head * of_kv + slice * at_a_time, mine = min(at_a_time, of_kv - slice * at_a_time);
#define FEW(D) ATTENTION_WIDE(attention_wide_few_##D, \
    SLICE(blockIdx.y, FEW_ROWS) \
    const unsigned token = blockIdx.z; \
    if (token >= a.t.tokens) return; \
    Heads<D, FEW_ROWS, true>::run<true>(a, token, 1, kv_head, first_head, mine, token * gridDim.y + blockIdx.y);)
#define MANY(D) ATTENTION_WIDE(attention_wide_many_##D, \
    SLICE(blockIdx.x, MANY_ROWS) \
    const unsigned per = MANY_ROWS / at_a_time, groups = (a.t.tokens + per - 1) / per; \
    if (blockIdx.y >= groups) return; \
    /* The tokens that read most come last in a prompt: they begin first. */ \
    const unsigned first = (groups - 1 - blockIdx.y) * per; \
    Heads<D, MANY_ROWS, false>::run<false>(a, first, min(per, a.t.tokens - first), kv_head, first_head, mine, 0);)
FEW(512)
FEW(576)
MANY(512)
MANY(576)

// Puts the parts of a token's head together, of tokens that have several. Grid: heads, tokens; d threads.
KERNEL(attention_wide_join, 576, IN(0, float, partial), IN(1, float, stats), IN(2, uint, positions), IN(3, uint, sequences), OUT(4, float, out), COUNT(5, tokens), VAL(9, uint, heads),
    VAL(10, uint, kv_heads), VAL(11, uint, d), VAL(12, uint, shift), VAL(13, uint, rows), VAL(14, uint, columns), VAL(15, uint, splits), VAL(16, uint, window), IN(17, uint, firsts))
{
    constexpr unsigned TEAMS = 4, AHEAD = 4;
    __shared__ float factors[MOST_SPLITS];
    __shared__ float4 sums[TEAMS][576 / 4];
    dependency_wait();
    dependency_launch();
    const unsigned token = blockIdx.y, head = blockIdx.x, fours = d / 4, team = threadIdx.x / fours, f = threadIdx.x % fours, lane = threadIdx.x;
    if (token >= COUNTED(tokens)) return;
    const unsigned position = positions[token];
    // What is out of range was recorded, and has one part.
    if (sequences[token] >= rows || position >= columns << shift) return;
    const unsigned begin = firsts ? min(firsts[token], position) : position >= window ? position + 1 - window : 0;
    const unsigned used = min(position / TILE + 1 - begin / TILE, splits);
    if (used == 1) return;
    const unsigned of_kv = heads / kv_heads, at_a_time = min(of_kv, FEW_ROWS), slices = (of_kv + at_a_time - 1) / at_a_time, in = head % of_kv;
    const size_t part = size_t((token * kv_heads + head / of_kv) * slices + in / at_a_time) * splits * FEW_ROWS + in % at_a_time;
    const float4 *from = reinterpret_cast<const float4 *>(partial + part * d) + f;
    float4 p[AHEAD];
    const auto ahead = [&](unsigned s0) {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; ++i) {
            const unsigned s = s0 + i * TEAMS;
            p[i] = s < used ? __ldcg(from + size_t(s) * FEW_ROWS * fours) : make_float4(0, 0, 0, 0);
        }
    };
    ahead(team);
    if (lane < 32) {
        float2 of[MOST_SPLITS / 32];
        float most = LOWEST, total = 0;
#pragma unroll
        for (unsigned i = 0; i < MOST_SPLITS / 32; ++i) {
            const unsigned s = lane + i * 32;
            of[i] = s < used ? __ldcg(reinterpret_cast<const float2 *>(stats) + part + s * FEW_ROWS) : make_float2(LOWEST, 0);
            most = fmaxf(most, of[i].x);
        }
#pragma unroll
        for (int m = 16; m; m >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
#pragma unroll
        for (unsigned i = 0; i < MOST_SPLITS / 32; ++i) total += exp2_fast(of[i].x - most) * of[i].y;
#pragma unroll
        for (int m = 16; m; m >>= 1) total += __shfl_xor_sync(~0u, total, m);
#pragma unroll
        for (unsigned i = 0; i < MOST_SPLITS / 32; ++i) factors[lane + i * 32] = exp2_fast(of[i].x - most) * __fdividef(1.0f, total);
    }
    __syncthreads();
    float4 t = make_float4(0, 0, 0, 0);
    for (unsigned s0 = team;;) {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; ++i) t = t + p[i] * factors[min(s0 + i * TEAMS, MOST_SPLITS - 1)];
        s0 += AHEAD * TEAMS;
        if (s0 >= used) break;
        ahead(s0);
    }
    sums[team][f] = t;
    __syncthreads();
    if (team == 0) reinterpret_cast<float4 *>(out + (size_t(token) * heads + head) * d)[f] = t + sums[1][f] + (sums[2][f] + sums[3][f]);
}
