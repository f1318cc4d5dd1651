// Attention of few tokens over a paged cache in 8 or 4 bits on tensor cores, as precise as f32: as attention_few.cu, but nothing is appended.
// Codes are whole numbers, which f16 and tf32 represent: scores are sums over each block of 32 elements times its scale, and weights are
// multiplied by the scales of a block's values, in two parts of tf32, before they meet its codes. The next tile's codes come to registers
// while one is computed. Floats of a byte have no scales; f16 and tf32 represent them as well.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention_tiles.h"
#include "attention_parts.h"
#include "half_bits.h"
#include "float8_cache.h"

enum Code { EIGHT, FOUR_BITS, FLOAT };

// Sums that begin at zero.
__device__ __forceinline__ void multiply_f16_first(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const unsigned (&a)[4], float b0, float b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
__device__ __forceinline__ unsigned less(unsigned pair, unsigned by)
{
    const __half2 d = __hsub2(*reinterpret_cast<const __half2 *>(&pair), *reinterpret_cast<const __half2 *>(&by));
    return *reinterpret_cast<const unsigned *>(&d);
}

// The products of a warp, whose lane 4·g + t has keys of positions g and g + 8, and values of positions 2t, 2t + 1, 2t + 8 and 2t + 9; sums
// belong to head g, rows 8 and on of a fragment are the low parts.
template <int D, int CODE> struct Coded {
    static constexpr bool FOUR = CODE == FOUR_BITS, SCALED = CODE != FLOAT;
    static constexpr int POSITIONS = 16, BLOCKS = D / 32, LINE = D + 32, SCORES = 4;
    static constexpr unsigned ROW = FOUR ? D / 2 : D; // bytes

    struct Tile {
        unsigned valid, from;
        unsigned keys[2][BLOCKS][FOUR ? 1 : 2], values[4][BLOCKS];
        unsigned key_scales[4][BLOCKS / 2], value_scales[4][BLOCKS / 2];
    };
    // Position i of the four whose scores, and values, a lane has.
    static __device__ __forceinline__ unsigned position(int i, unsigned lane) { return i / 2 * 8 + lane % 4 * 2 + (i & 1); }

    static __device__ __forceinline__ void scales(unsigned (&to)[BLOCKS / 2], const __half *from, bool there)
    {
        if constexpr (BLOCKS == 4) {
            const uint2 s = there ? *reinterpret_cast<const uint2 *>(from) : make_uint2(0, 0);
            to[0] = s.x;
            to[1] = s.y;
        } else {
            to[0] = there ? *reinterpret_cast<const unsigned *>(from) : 0;
        }
    }
    // The codes of `valid` positions from `row` on; nothing is read of others, whose scales are 0.
    static __device__ __forceinline__ void load(Tile &to, const unsigned char *keys, const unsigned char *values, const __half *ks, const __half *vs, size_t row, unsigned lane)
    {
        const unsigned g = lane / 4, t = lane % 4;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const bool there = g + 8 * n < to.valid;
            const unsigned char *k = keys + (row + g + 8 * n) * ROW;
#pragma unroll
            for (int j = 0; j < BLOCKS; ++j) {
                if constexpr (FOUR) {
                    to.keys[n][j][0] = there ? *reinterpret_cast<const unsigned *>(k + j * 16 + t * 4) : 0;
                } else {
                    const uint2 c = there ? *reinterpret_cast<const uint2 *>(k + j * 32 + t * 8) : make_uint2(0, 0);
                    to.keys[n][j][0] = c.x;
                    to.keys[n][j][1] = c.y;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned p = position(i, lane);
            const bool there = p < to.valid;
            if constexpr (SCALED) {
                scales(to.key_scales[i], ks + (row + p) * BLOCKS, there);
                scales(to.value_scales[i], vs + (row + p) * BLOCKS, there);
            }
            const unsigned char *v = values + (row + p) * ROW;
#pragma unroll
            for (int j = 0; j < BLOCKS; ++j)
                to.values[i][j] = !there ? 0 : FOUR ? *reinterpret_cast<const unsigned short *>(v + j * 16 + g * 2) : *reinterpret_cast<const unsigned *>(v + j * 32 + g * 4);
        }
    }
    static __device__ __forceinline__ float scale(const unsigned (&of)[BLOCKS / 2], int block)
    {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(of[block / 2] >> block % 2 * 16)));
    }
    // Elements e … e + 3 of a query: lines of the high parts of all heads, then of the low parts, in the order in which `widen` has a block's.
    static __device__ __forceinline__ void stage(__half *queries, unsigned head, unsigned e, float4 x)
    {
        unsigned h[2], l[2];
        if constexpr (FOUR) {
            split(x.x, x.z, h[0], l[0]);
            split(x.y, x.w, h[1], l[1]);
            e = e / 32 * 32 + e % 16 / 4 * 8 + e % 32 / 16 * 4;
        } else {
            split(x.x, x.y, h[0], l[0]);
            split(x.z, x.w, h[1], l[1]);
        }
        __half *to = queries + head * LINE + e;
        *reinterpret_cast<uint2 *>(to) = make_uint2(h[0], h[1]);
        *reinterpret_cast<uint2 *>(to + HEADS * LINE) = make_uint2(l[0], l[1]);
    }
    // A lane's 8 codes of a block as f16: in the bits of 1024 + code, without what that is too much.
    static __device__ __forceinline__ void widen(const unsigned (&codes)[FOUR ? 1 : 2], unsigned (&to)[4])
    {
        if constexpr (!SCALED) {
#pragma unroll
            for (int i = 0; i < 4; ++i) to[i] = cached_pair(codes[i / 2] >> i % 2 * 16);
        } else if constexpr (FOUR) {
#pragma unroll
            for (int i = 0; i < 4; ++i) to[i] = less((codes[0] >> (i % 2 * 8 + i / 2 * 4) & 0x000f000fu) | 0x64006400u, 0x64086408u);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) to[i] = less(__byte_perm(codes[i / 2] ^ 0x80808080u, 0x64646464u, i % 2 ? 0x4342 : 0x4140), 0x64806480u);
        }
    }
    // Value i of a lane's four of a block, in the bits of 2^23 + code.
    static __device__ __forceinline__ float value(unsigned codes, int i)
    {
        if constexpr (!SCALED) return half_bits(cached_pair(codes >> i / 2 * 16) >> i % 2 * 16 & 0xffffu);
        else if constexpr (FOUR) return __uint_as_float(__byte_perm(codes >> i / 2 * 4 & 0x0f0fu, 0x4b000000u, 0x7650 + i % 2)) - 8388616.0f;
        else return __uint_as_float(__byte_perm(codes ^ 0x80808080u, 0x4b000000u, 0x7650 + i)) - 8388736.0f;
    }

    static __device__ __forceinline__ void score(float (&scores)[SCORES], const Tile &tile, const __half *queries, unsigned lane)
    {
        const __half *from = queries + lane / 4 * LINE + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < SCORES; ++i) scores[i] = 0;
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) {
            const uint4 h = *reinterpret_cast<const uint4 *>(from + j * 32), l = *reinterpret_cast<const uint4 *>(from + HEADS * LINE + j * 32);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                unsigned k[4];
                float c[4];
                widen(tile.keys[n][j], k);
                multiply_f16_first(c, {h.x, l.x, h.y, l.y}, k[0], k[1]);
                multiply_f16(c, {h.z, l.z, h.w, l.w}, k[2], k[3]);
#pragma unroll
                for (int i = 0; i < 2; ++i) scores[n * 2 + i] += (SCALED ? scale(tile.key_scales[n * 2 + i], j) : 1.0f) * (c[i] + c[i + 2]);
            }
        }
    }
    static __device__ __forceinline__ void weigh(float (&sums)[D / 8][4], const float (&weights)[SCORES], const Tile &tile)
    {
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) {
            unsigned a[2][4];
#pragma unroll
            for (int i = 0; i < SCORES; ++i) {
                const float x = SCALED ? weights[i] * scale(tile.value_scales[i], j) : weights[i];
                const unsigned high = __float_as_uint(x) & 0xffffe000u;
                a[i / 2][i % 2 * 2] = high;
                a[i / 2][i % 2 * 2 + 1] = __float_as_uint(x - __uint_as_float(high));
            }
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int n = 0; n < 2; ++n) multiply_tf32(sums[j * 4 + e], a[n], value(tile.values[n * 2][j], e), value(tile.values[n * 2 + 1][j], e));
        }
    }
    // Elements 4·i and on of the lane's, of D / 4, and where they lie in the row.
    static __device__ __forceinline__ float4 part(const float (&sums)[D / 8][4], int i)
    {
        const int n = i / 2 * 4, c = i % 2;
        const auto sum = [&](int element, int column) { return sums[n + element][column] + sums[n + element][column + 2]; };
        if constexpr (FOUR) return make_float4(sum(2 * c, 0), sum(2 * c + 1, 0), sum(2 * c, 1), sum(2 * c + 1, 1));
        return make_float4(sum(0, c), sum(1, c), sum(2, c), sum(3, c));
    }
    static __device__ __forceinline__ unsigned part_at(int i, unsigned lane)
    {
        return i / 2 * 32 + (FOUR ? i % 2 * 16 + lane % 4 * 4 : lane % 4 * 8 + i % 2 * 4);
    }
};

template <int D, int CODE, unsigned WARPS>
__device__ __forceinline__ void attend(const Few &a, const unsigned char *keys, const unsigned char *values, const __half *key_scales, const __half *value_scales)
{
    using Of = Coded<D, CODE>;
    constexpr unsigned TILE = WARPS * Of::POSITIONS;
    constexpr unsigned MADE = HEADS * Of::LINE * 2;
    // Queries; in the end the warps' results.
    __shared__ __align__(16) float results[WARPS * HEADS * D];
    static_assert(MADE * sizeof(__half) <= sizeof(results), "queries have room");
    __shared__ float2 stats[WARPS][HEADS];
    __shared__ float units[HEADS], factors[HEADS * MAX_SPLITS];
    __shared__ bool last;
    __half *queries = reinterpret_cast<__half *>(results);

    const unsigned tid = threadIdx.x, warp = tid / 32, lane = tid % 32, kv_head = blockIdx.y;
    const unsigned of_kv = a.heads / a.kv_heads, slices = (of_kv + HEADS - 1) / HEADS, slice = blockIdx.z % slices;
    dependency_wait();
    const Portion portion = portion_of<TILE>(a, slices, kv_head);
    const unsigned token = portion.token, part = portion.part, used = portion.used;
    if (token == NONE) return;
    const unsigned sequence = portion.sequence, position = portion.position;
    if (sequence >= a.rows || position >= a.columns << a.shift) {
        if (tid == 0) note_fault(a.fault, sequence >= a.rows ? sequence : position, sequence >= a.rows ? a.rows : a.columns << a.shift);
        return;
    }
    const Span span = span_of(a, token, position);
    const unsigned len = span.len, begin = span.begin, first_tile = begin / TILE;
    const unsigned heads = min(HEADS, of_kv - slice * HEADS), first_head = kv_head * of_kv + slice * HEADS, mask = (1u << a.shift) - 1;
    const unsigned *blocks = a.table + size_t(sequence) * a.columns;

    typename Of::Tile next;
    const auto fetch = [&](unsigned base) {
        // This warp's positions lie in one block.
        next.from = base + warp * Of::POSITIONS;
        const bool seen = next.from < len && next.from + Of::POSITIONS > begin;
        const unsigned block = seen ? blocks[next.from >> a.shift] : ~0u;
        if (seen && block >= a.blocks && lane == 0) note_fault(a.fault, block, a.blocks);
        next.valid = block < a.blocks ? min(len - next.from, unsigned(Of::POSITIONS)) : 0;
        Of::load(next, keys, values, key_scales, value_scales, (size_t(block * a.kv_heads + kv_head) << a.shift) + (next.from & mask), lane);
    };
    const unsigned start = (first_tile + part) * TILE;
    fetch(start);
#pragma unroll 1
    for (unsigned h = warp; h < heads; h += WARPS) {
        // A warp takes a head: its greatest element becomes one between 1 and 2, for f16's sake. Rows of heads that there are not stay as they are.
        const unsigned e = lane * 4;
        const bool in = e < D;
        const float4 x = in ? fresh(a.q + size_t(token * a.heads + first_head + h) * D + e) * a.scale : make_float4(0, 0, 0, 0);
        float greatest = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
        for (int m = 16; m; m >>= 1) greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, m));
        const unsigned power = __float_as_uint(greatest) & 0x7f800000, by = power >= 0x10000000 && power <= 0x70000000 ? power : 0x3f800000;
        if (in) Of::stage(queries, h, e, x * __uint_as_float(0x7f000000 - by));
        if (lane == 0) units[h] = __uint_as_float(by);
    }
    __syncthreads();
    const float unit = units[lane / 4];

    float sums[D / 8][4] = {}, most = LOWEST, total = 0;
    if ((a.flags & SINKS) != 0 && part == 0 && warp == 0 && lane / 4 < heads) {
        most = fmaxf(a.sinks[first_head + lane / 4] * LOG2_E, LOWEST);
        total = lane % 4 == 0 ? 1.0f : 0.0f;
    }
#pragma unroll 1
    for (unsigned base = start; base < len; base += used * TILE) {
        const typename Of::Tile tile = next;
        if (base + used * TILE < len) fetch(base + used * TILE);
        if (tile.from >= len || tile.from + Of::POSITIONS <= begin) continue;
        float scores[Of::SCORES], greatest = most;
        Of::score(scores, tile, queries, lane);
#pragma unroll
        for (int i = 0; i < Of::SCORES; ++i) {
            const unsigned p = Of::position(i, lane);
            scores[i] *= unit;
            if (a.cap != 0) scores[i] = capped(scores[i], a.cap);
            if (p >= tile.valid || tile.from + p < begin) scores[i] = -__int_as_float(0x7f800000);
            greatest = fmaxf(greatest, scores[i]);
        }
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
        const float correction = exp2_fast(most - greatest);
        most = greatest;
        total *= correction;
#pragma unroll
        for (int i = 0; i < Of::SCORES; ++i) {
            scores[i] = exp2_fast(scores[i] - greatest);
            total += scores[i];
        }
        // The heads' greatest scores seldom grow after some tiles.
        if (__any_sync(~0u, lane / 4 < heads && correction != 1.0f)) {
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[n][i] *= correction;
        }
        Of::weigh(sums, scores, tile);
    }
    join<Of, D, WARPS>(a, sums, most, total, heads, first_head, portion, (token * slices + slice) * a.kv_heads + kv_head, results, stats, factors, last);
}

// attention over caches [blocks, kv_heads, 1 << shift, D] for q f32 [tokens, heads, D]: codes of 8 or 4 bits with their planes of scales, or floats of
// 8 bits, which have none. 1 << shift is at least 16. Grid: splits, kv_heads, tokens · ⌈heads / kv_heads / 8⌉; or parts of all tokens,
// kv_heads, ⌈heads / kv_heads / 8⌉. The arguments are those of attention_decode.k for such
// caches.
#define ATTENTION_CODES(name, D, CODE, WARPS) \
KERNEL_ALONE(attention_##name##_##D, WARPS * 32, IN(0, float, q), OUT(1, uchar, keys), OUT(2, uchar, values), IN(3, __half, key_scales), IN(4, __half, value_scales), \
    IN(5, uint, positions), IN(6, uint, sequences), IN(7, uint, table), OUT(8, float, out), OUT(9, float, partial), OUT(10, float, stats), OUT(11, uint, counters), \
    FAULT(12), COUNT(13, tokens), VAL(17, uint, heads), VAL(18, uint, kv_heads), VAL(19, uint, d), VAL(20, uint, shift), VAL(21, uint, blocks), VAL(22, uint, rows), \
    VAL(23, uint, columns), VAL(24, uint, flags), VAL(25, uint, splits), VAL(26, float, scale), IN(27, uint, firsts), IN(28, float, sinks), VAL(29, float, cap)) \
{ \
    dependency_launch(); \
    const Few a = {q, q, q, positions, sequences, positions, table, q, out, partial, stats, counters, fault, COUNTED(tokens), heads, kv_heads, \
                   shift, blocks, rows, columns, 0, flags, splits, scale, firsts, sinks, cap, false}; \
    attend<D, CODE, WARPS>(a, keys, values, key_scales, value_scales); \
}
ATTENTION_CODES(eight, 64, EIGHT, 4)
ATTENTION_CODES(eight, 128, EIGHT, 4)
ATTENTION_CODES(float_byte, 64, FLOAT, 4)
ATTENTION_CODES(float_byte, 128, FLOAT, 4)
ATTENTION_CODES(four, 64, FOUR_BITS, 4)
ATTENTION_CODES(four, 128, FOUR_BITS, 4)
