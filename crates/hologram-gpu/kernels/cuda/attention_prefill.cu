// Attention of many tokens over a paged cache on tensor cores, sums in f32: with q, k, v and the softmax's weights rounded to bf16, or each
// split in two parts of tf32. A first launch makes the blocks of keys and values that are read bf16, or f32, where they are not; the
// second computes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention_tiles.h"
#include "half_bits.h"
#include "float8_cache.h"

// ---- conversion of the cache: grid any number for the blocks of a sequence, sequences, kv heads; 256 threads
__device__ __forceinline__ void store8(__nv_bfloat16 *to, const float (&x)[8])
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(pair_bf16(x[0], x[1]), pair_bf16(x[2], x[3]), pair_bf16(x[4], x[5]), pair_bf16(x[6], x[7]));
}
__device__ __forceinline__ void store8(float *to, const float (&x)[8])
{
    *reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1], x[2], x[3]);
    *reinterpret_cast<float4 *>(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
}
template <class T, class E> __device__ __forceinline__ void convert_block(const T *from, E *to, unsigned elements)
{
    for (unsigned i = threadIdx.x * 8; i < elements; i += 256 * 8) {
        float x[8];
        load8(from + i, x);
        store8(to + i, x);
    }
}

// Of a cache in 8 bits, with its planes of scales.
template <class E> __device__ __forceinline__ void widen_block(const signed char *from, const __half *scales, E *to, unsigned elements)
{
    for (unsigned i = threadIdx.x * 8; i < elements; i += 256 * 8) {
        const uint2 codes = *reinterpret_cast<const uint2 *>(from + i);
        const float scale = __half2float(scales[i / 32]);
        float x[8];
        for (int j = 0; j < 8; ++j) x[j] = float(int((j < 4 ? codes.x : codes.y) << (24 - j % 4 * 8)) >> 24) * scale;
        store8(to + i, x);
    }
}

// As floats of a byte.
template <class E> __device__ __forceinline__ void widen_block(const float_byte *from, const __half *, E *to, unsigned elements)
{
    for (unsigned i = threadIdx.x * 8; i < elements; i += 256 * 8) {
        const uint2 codes = *reinterpret_cast<const uint2 *>(from + i);
        float x[8];
        for (int j = 0; j < 4; ++j) {
            const unsigned pair = cached_pair((j < 2 ? codes.x : codes.y) >> j % 2 * 16);
            const float2 both = __half22float2(*reinterpret_cast<const __half2 *>(&pair));
            x[2 * j] = both.x;
            x[2 * j + 1] = both.y;
        }
        store8(to + i, x);
    }
}

// In 4 bits: a byte has elements i and i + 16 of 32 neighbours.
struct Pair { unsigned char codes; };
template <class T> constexpr bool packed = false;
template <> constexpr bool packed<Pair> = true;
template <class E> __device__ __forceinline__ void widen_block(const Pair *from, const __half *scales, E *to, unsigned elements)
{
    for (unsigned i = threadIdx.x * 8; i < elements; i += 256 * 8) {
        const uint2 codes = *reinterpret_cast<const uint2 *>(from + i / 32 * 16 + i % 16);
        const float scale = __half2float(scales[i / 32]);
        float x[8];
        for (int j = 0; j < 8; ++j) x[j] = float(int((j < 4 ? codes.x : codes.y) >> (j % 4 * 8 + i % 32 / 16 * 4) & 15) - 8) * scale;
        store8(to + i, x);
    }
}

template <class T, class E>
__device__ __forceinline__ void convert_cache(const T *k, const T *v, const __half *ks, const __half *vs, const unsigned *positions, const unsigned *sequences, const unsigned *table, E *kc, E *vc,
                                              unsigned tokens, unsigned blocks, unsigned columns, unsigned kv_heads, unsigned of_block, unsigned shift, unsigned *fault)
{
    const unsigned sequence = blockIdx.y, head = blockIdx.z;
    // The blocks that the step's tokens of this sequence read.
    __shared__ unsigned most;
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    unsigned end = 0;
    for (unsigned t = threadIdx.x; t < tokens; t += 256)
        if (sequences[t] == sequence) end = max(end, min(positions[t] >> shift, columns - 1) + 1);
    end = __reduce_max_sync(~0u, end);
    if (threadIdx.x % 32 == 0) atomicMax(&most, end);
    __syncthreads();
    for (unsigned column = blockIdx.x; column < most; column += gridDim.x) {
        const unsigned block = table[sequence * columns + column];
        if (block >= blocks) {
            if (threadIdx.x == 0) note_fault(fault, block, blocks);
            continue;
        }
        const size_t at = (size_t(block) * kv_heads + head) * of_block;
        if constexpr (sizeof(T) == 1) {
            const size_t from = packed<T> ? at / 2 : at;
            widen_block(k + from, ks + at / 32, kc + at, of_block);
            widen_block(v + from, vs + at / 32, vc + at, of_block);
        } else {
            convert_block(k + at, kc + at, of_block);
            convert_block(v + at, vc + at, of_block);
        }
    }
}

#define CONVERT_CACHE(name, T, E) \
KERNEL(name, 256, IN(0, T, k), IN(1, T, v), IN(2, __half, ks), IN(3, __half, vs), IN(4, uint, positions), IN(5, uint, sequences), IN(6, uint, table), \
    OUT(7, E, kc), OUT(8, E, vc), COUNT(9, tokens), VAL(13, uint, blocks), VAL(14, uint, columns), VAL(15, uint, kv_heads), VAL(16, uint, of_block), VAL(17, uint, shift), FAULT(18)) \
{ \
    dependency_wait(); \
    dependency_launch(); \
    convert_cache(k, v, ks, vs, positions, sequences, table, kc, vc, COUNTED(tokens), blocks, columns, kv_heads, of_block, shift, fault); \
}
CONVERT_CACHE(attention_round_f32, float, __nv_bfloat16)
CONVERT_CACHE(attention_round_f16, __half, __nv_bfloat16)
CONVERT_CACHE(attention_widen_f16, __half, float)
CONVERT_CACHE(attention_round_eight, signed char, __nv_bfloat16)
CONVERT_CACHE(attention_widen_eight, signed char, float)
CONVERT_CACHE(attention_round_float_byte, float_byte, __nv_bfloat16)
CONVERT_CACHE(attention_widen_float_byte, float_byte, float)
CONVERT_CACHE(attention_round_four, Pair, __nv_bfloat16)
CONVERT_CACHE(attention_widen_four, Pair, float)

// ---- attention
// What a warp computes with elements E, __nv_bfloat16 or float, of 32 positions and its 16 rows, for D elements a head.
template <class E, int D> struct Products;

template <int D> struct Products<__nv_bfloat16, D> {
    static constexpr int LINE = D + 8;
    static __device__ __forceinline__ void stage(__nv_bfloat16 *to, float4 x) { *reinterpret_cast<uint2 *>(to) = make_uint2(pair_bf16(x.x, x.y), pair_bf16(x.z, x.w)); }
    static __device__ __forceinline__ void add(float (&sum)[4], float (&)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply(sum, a, b); }
    static __device__ __forceinline__ void join(float (&)[4][4], const float (&)[4][4]) {}

    // sums · correction + weights · values
    static __device__ __forceinline__ void weigh(float (&sums)[D / 8][4], const float (&correction)[2], const float (&weights)[4][4], const __nv_bfloat16 *values, unsigned lane)
    {
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[n][i] *= correction[i >> 1];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float(&low)[4] = weights[2 * j], (&high)[4] = weights[2 * j + 1];
            const unsigned a[4] = {pair_bf16(low[0], low[1]), pair_bf16(low[2], low[3]), pair_bf16(high[0], high[1]), pair_bf16(high[2], high[3])};
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                // 16 positions, elements n·8 … n·8 + 15, transposed: two fragments.
                unsigned b[2][2];
                load_transposed(b[0][0], b[0][1], b[1][0], b[1][1], values + (j * 16 + (lane & 15)) * LINE + n * 8 + (lane >> 4) * 8);
                multiply(sums[n], a, b[0]);
                multiply(sums[n + 1], a, b[1]);
            }
        }
    }
    static __device__ __forceinline__ void store(float *to, const float (&sums)[D / 8][4], int h, float factor, unsigned lane)
    {
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            *reinterpret_cast<float2 *>(to + n * 8 + lane % 4 * 2) = make_float2(sums[n][2 * h] * factor, sums[n][2 * h + 1] * factor);
    }
};

// x = high + low, each with the 11 bits of tf32; of a product only low · low is left out. Tensor cores cut sums off rather than round them: few
// are left to them at a time.
template <int D> struct Products<float, D> {
    static constexpr int LINE = D + 4;
    static __device__ __forceinline__ void stage(float *to, float4 x) { *reinterpret_cast<float4 *>(to) = x; }
    static __device__ __forceinline__ unsigned high(unsigned x) { return x & 0xffffe000; }
    static __device__ __forceinline__ unsigned low(unsigned x) { return __float_as_uint(__uint_as_float(x) - __uint_as_float(high(x))); }
    static __device__ __forceinline__ void add(float (&sum)[4], float (&rest)[4], const unsigned (&a)[4], const unsigned (&b)[2])
    {
        const unsigned ah[4] = {high(a[0]), high(a[1]), high(a[2]), high(a[3])}, al[4] = {low(a[0]), low(a[1]), low(a[2]), low(a[3])};
        const unsigned bh[2] = {high(b[0]), high(b[1])}, bl[2] = {low(b[0]), low(b[1])};
        multiply_tf32(rest, ah, bl);
        multiply_tf32(sum, ah, bh);
        multiply_tf32(rest, al, bh);
    }

    static __device__ __forceinline__ void join(float (&sum)[4][4], const float (&rest)[4][4])
    {
#pragma unroll
        for (int i = 0; i < 16; ++i) sum[i / 4][i % 4] += rest[i / 4][i % 4];
    }

    // A step takes 8 positions, in an order that weights have already: columns t and t + 4 of a fragment are positions 2t and 2t + 1. Column c of a
    // pair's tile i is element 2c + i.
    static __device__ __forceinline__ void weigh(float (&sums)[D / 8][4], const float (&correction)[2], const float (&weights)[4][4], const float *values, unsigned lane)
    {
        const float *from = values + lane % 4 * 2 * LINE + lane / 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            float sum[2][4] = {}, rest[2][4] = {};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned a[4] = {__float_as_uint(weights[j][0]), __float_as_uint(weights[j][2]), __float_as_uint(weights[j][1]), __float_as_uint(weights[j][3])};
                const float2 x = *reinterpret_cast<const float2 *>(from + j * 8 * LINE + n * 8), y = *reinterpret_cast<const float2 *>(from + (j * 8 + 1) * LINE + n * 8);
                add(sum[0], rest[0], a, {__float_as_uint(x.x), __float_as_uint(y.x)});
                add(sum[1], rest[1], a, {__float_as_uint(x.y), __float_as_uint(y.y)});
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[n + i / 4][i % 4] = sums[n + i / 4][i % 4] * correction[i % 4 >> 1] + (sum[i / 4][i % 4] + rest[i / 4][i % 4]);
        }
    }
    static __device__ __forceinline__ void store(float *to, const float (&sums)[D / 8][4], int h, float factor, unsigned lane)
    {
#pragma unroll
        for (int n = 0; n < D / 8; n += 2)
            *reinterpret_cast<float4 *>(to + n * 8 + lane % 4 * 4) =
                make_float4(sums[n][2 * h] * factor, sums[n + 1][2 * h] * factor, sums[n][2 * h + 1] * factor, sums[n + 1][2 * h + 1] * factor);
    }
};

// D elements a head; WARPS of 16 rows each; KEYS positions at a time, two tiles on their way. With 2 SIDES each has such warps, for every
// other 32 positions.
template <class E, int D, int WARPS, int KEYS, int SIDES> struct Prefill {
    using Of = Products<E, D>;
    static constexpr int THREADS = WARPS * SIDES * 32, ROWS = WARPS * 16, LINE = Of::LINE, CHUNK = 16 / sizeof(E), CHUNKS = D / CHUNK;
    static constexpr int TILE = KEYS * LINE; // elements of a tile of keys or values

    // Finds where rows base, base + 1, … lie, in chunks; NOWHERE from `len` on.
    static __device__ __forceinline__ void look_up(unsigned *places, const Tokens &t, const unsigned *blocks, unsigned head, unsigned base, unsigned len)
    {
        if (threadIdx.x >= KEYS) return;
        const unsigned p = base + threadIdx.x, block = p < len ? blocks[p >> t.shift] : ~0u;
        if (p < len && block >= t.blocks) note_fault(t.fault, block, t.blocks);
        places[threadIdx.x] = block < t.blocks ? (((block * t.kv_heads + head) << t.shift) + (p & ((1u << t.shift) - 1))) * CHUNKS : NOWHERE;
    }

    // Starts the copy of a tile of keys or values; zeros where there are none.
    static __device__ __forceinline__ void fetch(E *tile, const E *cache, const unsigned *places)
    {
#pragma unroll
        for (int i = 0; i < (KEYS * CHUNKS + THREADS - 1) / THREADS; ++i) {
            const unsigned at = threadIdx.x + i * THREADS, r = at / CHUNKS, c = at % CHUNKS;
            if (KEYS * CHUNKS % THREADS != 0 && r >= KEYS) break;
            const unsigned place = places[r];
            copy16(tile + r * LINE + c * CHUNK, cache + size_t(place == NOWHERE ? 0 : place + c) * CHUNK, place != NOWHERE);
        }
    }

    static __device__ __forceinline__ void run(const Tokens &t, const float *q, const E *k_cache, const E *v_cache, float *out, float scale, const float *sinks, float cap, unsigned extra)
    {
        extern __shared__ __align__(16) unsigned char memory[];
        E *queries = reinterpret_cast<E *>(memory), *keys = queries + ROWS * LINE, *values = keys + 2 * TILE;
        __shared__ Rows rows;
        const unsigned warp = threadIdx.x / 32 % WARPS, side = SIDES == 1 ? 0 : threadIdx.x / 32 / WARPS, lane = threadIdx.x % 32;
        const unsigned of_kv = t.heads / t.kv_heads, per = ROWS / of_kv, head = blockIdx.x;
        __shared__ Share share;
        if (!find_share<THREADS>(share, rows, t, per, extra)) return;
        const unsigned first = share.tile * per, count = min(per, t.tokens - first);

        // Where each row's query begins, in chunks of 4 elements.
        __shared__ unsigned starts[ROWS], places[3][KEYS];
        for (unsigned r = threadIdx.x; r < ROWS; r += THREADS) {
            const unsigned token = r / of_kv;
            starts[r] = token < count && rows.own[token] ? ((first + token) * t.heads + head * of_kv + r - token * of_kv) * (D / 4) : NOWHERE;
        }
        __syncthreads();
        constexpr int FOURS = ROWS * (D / 4) / THREADS, BATCH = FOURS % 8 == 0 ? 8 : FOURS % 6 == 0 ? 6 : FOURS % 5 == 0 ? 5 : 4;
        static_assert(ROWS * (D / 4) % THREADS == 0 && FOURS % BATCH == 0, "queries are staged in whole batches");
#pragma unroll 1
        for (int i0 = 0; i0 < FOURS; i0 += BATCH) {
            float4 x[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const unsigned at = threadIdx.x + (i0 + i) * THREADS, start = starts[at / (D / 4)];
                x[i] = start != NOWHERE ? reinterpret_cast<const float4 *>(q)[start + at % (D / 4)] : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const unsigned at = threadIdx.x + (i0 + i) * THREADS;
                Of::stage(queries + at / (D / 4) * LINE + at % (D / 4) * 4, make_float4(x[i].x * scale, x[i].y * scale, x[i].z * scale, x[i].w * scale));
            }
        }

        float sums[D / 8][4] = {}, most[2] = {-1e38f, -1e38f}, total[2] = {};
        if (sinks && side == 0)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                most[h] = fmaxf(sinks[head * of_kv + (warp * 16 + h * 8 + lane / 4) % of_kv] * LOG2_E, -1e38f);
                total[h] = lane % 4 == 0 ? 1.0f : 0.0f;
            }
        __syncthreads();

        // Tokens of one sequence that follow each other are worked on together; those of others see nothing meanwhile.
        for (unsigned from = share.next(rows, 0, count); from < count;) {
            const Run run = next_run(rows, from, count);
            const unsigned *blocks = t.table + size_t(run.sequence) * t.columns;
            int limit[2], least[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned token = (warp * 16 + h * 8 + lane / 4) / of_kv;
                const bool mine = token >= from && token < run.end;
                limit[h] = mine ? int(rows.position[token]) : -1;
                least[h] = mine ? int(rows.first[token]) : 0;
            }
            const unsigned len = run.most + 1, steps = (len + KEYS - 1) / KEYS;
            // What no token of the run sees is passed over.
            const unsigned start = run.first_least / KEYS;
            look_up(places[start % 3], t, blocks, head, start * KEYS, len);
            look_up(places[(start + 1) % 3], t, blocks, head, (start + 1) * KEYS, len);
            __syncthreads();
            fetch(keys + start % 2 * TILE, k_cache, places[start % 3]);
            fetch(values + start % 2 * TILE, v_cache, places[start % 3]);
            copies_commit();
            for (unsigned s = start; s < steps; ++s) {
                if (s + 1 < steps) {
                    const unsigned next = (s + 1) % 2 * TILE;
                    fetch(keys + next, k_cache, places[(s + 1) % 3]);
                    fetch(values + next, v_cache, places[(s + 1) % 3]);
                }
                copies_commit();
                look_up(places[(s + 2) % 3], t, blocks, head, (s + 2) * KEYS, len);
                copies_wait<1>();
                __syncthreads();
                const E *k = keys + s % 2 * TILE, *v = values + s % 2 * TILE;
                const bool masked = run.shortened || (s + 1) * KEYS - 1 > run.least || s * KEYS < run.first_most;
#pragma unroll
                for (int i = 0; i < KEYS / 32 / SIDES; ++i) {
                    const unsigned half = i * SIDES + side;
                    float scores[4][4] = {}, rest[4][4] = {};
#pragma unroll
                    for (int d = 0; d < CHUNKS; d += 2) {
                        unsigned a[4], b[4][2];
                        load_matrix(a[0], a[1], a[2], a[3], queries + (warp * 16 + (lane & 15)) * LINE + (d + (lane >> 4)) * CHUNK);
#pragma unroll
                        for (int n = 0; n < 4; n += 2) {
                            // Rows n·8 … n·8 + 15 of keys, two chunks: two fragments.
                            const unsigned r = half * 32 + n * 8 + (lane & 7) + (lane >> 4) * 8, c = d + (lane >> 3 & 1);
                            load_matrix(b[n][0], b[n][1], b[n + 1][0], b[n + 1][1], k + r * LINE + c * CHUNK);
                        }
#pragma unroll
                        for (int n = 0; n < 4; ++n) Of::add(scores[n], rest[n], a, b[n]);
                    }
                    Of::join(scores, rest);
                    if (cap != 0)
#pragma unroll
                        for (int i = 0; i < 16; ++i) scores[i / 4][i % 4] = capped(scores[i / 4][i % 4], cap);
                    if (masked) {
#pragma unroll
                        for (int n = 0; n < 4; ++n)
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                const int p = int(s * KEYS + half * 32) + n * 8 + int(lane % 4) * 2 + (i & 1);
                                if (p > limit[i >> 1] || p < least[i >> 1]) scores[n][i] = -__int_as_float(0x7f800000);
                            }
                    }
                    float correction[2];
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float greatest = most[h];
#pragma unroll
                        for (int n = 0; n < 4; ++n) greatest = fmaxf(greatest, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
                        greatest = quad_max(greatest);
                        correction[h] = exp2_fast(most[h] - greatest);
                        most[h] = greatest;
                        float sum = 0;
#pragma unroll
                        for (int n = 0; n < 4; ++n)
#pragma unroll
                            for (int i = 2 * h; i < 2 * h + 2; ++i) {
                                scores[n][i] = exp2_fast(scores[n][i] - greatest);
                                sum += scores[n][i];
                            }
                        total[h] = total[h] * correction[h] + sum;
                    }
                    Of::weigh(sums, correction, scores, v + half * 32 * LINE, lane);
                }
                __syncthreads();
            }
            copies_wait<0>();
            from = share.next(rows, run.end, count);
        }

        if constexpr (SIDES == 2) {
            // The second side's results for the first, a word of every thread after the other: they take the place of keys and values.
            float *other = reinterpret_cast<float *>(keys) + threadIdx.x % (WARPS * 32);
            if (side == 1) {
#pragma unroll
                for (int i = 0; i < D / 2; ++i) other[i * WARPS * 32] = sums[i / 4][i % 4];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    other[(D / 2 + h) * WARPS * 32] = most[h];
                    other[(D / 2 + 2 + h) * WARPS * 32] = total[h];
                }
            }
            __syncthreads();
            if (side == 1) return;
            float mine[2], theirs[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float m = other[(D / 2 + h) * WARPS * 32], greatest = fmaxf(most[h], m);
                mine[h] = exp2_fast(most[h] - greatest);
                theirs[h] = exp2_fast(m - greatest);
                total[h] = total[h] * mine[h] + other[(D / 2 + 2 + h) * WARPS * 32] * theirs[h];
            }
#pragma unroll
            for (int i = 0; i < D / 2; ++i) sums[i / 4][i % 4] = sums[i / 4][i % 4] * mine[i % 4 >> 1] + other[i * WARPS * 32] * theirs[i % 4 >> 1];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float l = total[h];
            l = quad_sum(l);
            const unsigned start = starts[warp * 16 + h * 8 + lane / 4];
            if (start != NOWHERE) Of::store(out + size_t(start) * 4, sums, h, 1.0f / l, lane);
        }
    }
};

// window: how many positions a token sees, up to its own. Grid: kv heads, tiles of tokens and `extra` more; dynamic shared memory: queries, and two tiles each of keys and of values, in lines of D elements and 16 bytes.
#define ATTENTION_PREFILL(name, E, D, WARPS, KEYS, SIDES) \
KERNEL(name, WARPS * SIDES * 32, IN(0, float, q), IN(1, E, keys), IN(2, E, values), IN(3, uint, positions), IN(4, uint, sequences), IN(5, uint, table), OUT(6, float, out), \
    COUNT(7, tokens), VAL(11, uint, heads), VAL(12, uint, kv_heads), VAL(13, uint, shift), VAL(14, uint, blocks), VAL(15, uint, rows), VAL(16, uint, columns), VAL(17, float, scale), \
    VAL(18, uint, window), FAULT(19), IN(20, uint, firsts), IN(21, float, sinks), VAL(22, float, cap), VAL(23, uint, extra)) \
{ \
    dependency_wait(); \
    dependency_launch(); \
    const Tokens t = {positions, sequences, table, COUNTED(tokens), heads, kv_heads, shift, blocks, rows, columns, fault, firsts, window}; \
    Prefill<E, D, WARPS, KEYS, SIDES>::run(t, q, keys, values, out, scale, sinks, cap, extra); \
}
ATTENTION_PREFILL(attention_prefill_bf16_64, __nv_bfloat16, 64, 8, 64, 1)
ATTENTION_PREFILL(attention_prefill_bf16_80, __nv_bfloat16, 80, 4, 64, 1)
ATTENTION_PREFILL(attention_prefill_bf16_96, __nv_bfloat16, 96, 8, 64, 1)
ATTENTION_PREFILL(attention_prefill_bf16_128, __nv_bfloat16, 128, 8, 64, 1)
ATTENTION_PREFILL(attention_prefill_bf16_256, __nv_bfloat16, 256, 4, 64, 1)
ATTENTION_PREFILL(attention_prefill_f32_64, float, 64, 4, 64, 2)
ATTENTION_PREFILL(attention_prefill_f32_80, float, 80, 4, 64, 2)
ATTENTION_PREFILL(attention_prefill_f32_96, float, 96, 4, 64, 2)
ATTENTION_PREFILL(attention_prefill_f32_128, float, 128, 4, 64, 2)
