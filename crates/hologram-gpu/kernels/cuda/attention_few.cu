// Attention of few tokens over a paged cache of f16 on tensor cores, as precise as f32: workgroups each take some positions of a token, for up
// to 8 query heads of a key/value head, and the last to finish puts their results together. A warp takes 16 positions on its own: the rows of
// its matrix fragments are the heads' queries, or weights, rounded to f16, and below them what these lack. Fragments are read from the cache
// as they lie there: the order of elements and of positions within a product is free. A launch runs through its text once, so that the text is
// kept short: its instructions come from memory too.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention_tiles.h"
#include "attention_parts.h"

HOST(MAX_SPLITS, APPEND, ADJACENT, FIRSTS, SINKS, WINDOW, PAIRS, DIVIDED)

// The products of a warp: `sums` of thread (g, t), lane 4·g + t, belong to head g; rows 8 and on of a fragment are the low parts.
template <int D> struct Warp {
    static constexpr int POSITIONS = 16, KEYS = D / 16, VALUES = D / 16, LINE = D + 32, SCORES = 4;
    // Elements e … e + 3 of a query: lines of the high parts of all heads, then of the low parts.
    static __device__ __forceinline__ void stage(__half *queries, unsigned head, unsigned e, float4 x)
    {
        unsigned h[2], l[2];
        split(x.x, x.y, h[0], l[0]);
        split(x.z, x.w, h[1], l[1]);
        __half *to = queries + head * LINE + e;
        *reinterpret_cast<uint2 *>(to) = make_uint2(h[0], h[1]);
        *reinterpret_cast<uint2 *>(to + HEADS * LINE) = make_uint2(l[0], l[1]);
    }
    // Chunk i of the keys that a lane reads: position of the warp's, and chunk of its row; of values likewise.
    static __device__ __forceinline__ unsigned key_position(int i, unsigned lane) { return i / (KEYS / 2) * 8 + lane / 4; }
    static __device__ __forceinline__ unsigned key_chunk(int i, unsigned lane) { return i % (KEYS / 2) * 4 + lane % 4; }
    static __device__ __forceinline__ unsigned value_position(int i, unsigned lane) { return lane % 4 * 2 + (i & 1) + (i >> 1 & 1) * 8; }
    static __device__ __forceinline__ unsigned value_chunk(int i, unsigned lane) { return i / 4 * 8 + lane / 4; }
    // Position of score i of a lane.
    static __device__ __forceinline__ unsigned score_position(int i, unsigned lane) { return i / 2 * 8 + lane % 4 * 2 + (i & 1); }

    static __device__ __forceinline__ void score(float (&scores)[SCORES], const uint4 (&keys)[KEYS], const __half *queries, unsigned lane)
    {
        float c[2][4] = {};
        const __half *from = queries + lane / 4 * LINE + lane % 4 * 8;
#pragma unroll
        for (int j = 0; j < KEYS / 2; ++j) {
            const uint4 h = *reinterpret_cast<const uint4 *>(from + j * 32), l = *reinterpret_cast<const uint4 *>(from + HEADS * LINE + j * 32);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const uint4 k = keys[n * (KEYS / 2) + j];
                multiply_f16(c[n], {h.x, l.x, h.y, l.y}, k.x, k.y);
                multiply_f16(c[n], {h.z, l.z, h.w, l.w}, k.z, k.w);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[i] = c[i / 2][i % 2] + c[i / 2][i % 2 + 2];
    }
    static __device__ __forceinline__ void weigh(float (&sums)[D / 8][4], const float (&weights)[SCORES], const uint4 (&values)[VALUES])
    {
        unsigned a[4];
        split(weights[0], weights[1], a[0], a[1]);
        split(weights[2], weights[3], a[2], a[3]);
#pragma unroll
        for (int h = 0; h < D / 64; ++h) {
            const uint4 *v = values + h * 4;
            const unsigned x[4][4] = {{v[0].x, v[0].y, v[0].z, v[0].w}, {v[1].x, v[1].y, v[1].z, v[1].w}, {v[2].x, v[2].y, v[2].z, v[2].w}, {v[3].x, v[3].y, v[3].z, v[3].w}};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const unsigned which = i % 2 ? 0x7632 : 0x5410;
                multiply_f16(sums[h * 8 + i], a, __byte_perm(x[0][i / 2], x[1][i / 2], which), __byte_perm(x[2][i / 2], x[3][i / 2], which));
            }
        }
    }
    // Elements 4·i and on of the lane's, of D / 4, and where they lie in the row.
    static __device__ __forceinline__ float4 part(const float (&sums)[D / 8][4], int i)
    {
        const int n = i / 4 * 8 + i % 2 * 4, c = i / 2 % 2;
        return make_float4(sums[n][c] + sums[n][c + 2], sums[n + 1][c] + sums[n + 1][c + 2], sums[n + 2][c] + sums[n + 2][c + 2], sums[n + 3][c] + sums[n + 3][c + 2]);
    }
    static __device__ __forceinline__ unsigned part_at(int i, unsigned lane) { return i / 4 * 64 + lane % 4 * 16 + i % 4 * 4; }
};

// Rows of this step that a warp makes at a time.
constexpr unsigned FRESH = 4;

// Cosine and sine, as a function of their own: they are long.
__attribute__((noinline)) __device__ float2 cos_sin(float x) { return make_float2(cosf(x), sinf(x)); }

__device__ __forceinline__ float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

// Elements e … e + 3 of a row of D, and those that they are rotated with.
struct Part { float4 x, o; };
template <int D> __device__ __forceinline__ Part part_of(const float *row, unsigned e, unsigned pairs, bool adjacent)
{
    Part p = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
    if (e < D) p.x = fresh(row + e);
    if (e < 2 * pairs && !adjacent) p.o = fresh(row + (e < pairs ? e + pairs : e - pairs));
    return p;
}
// Normalised where `eps` is not negative, and rotated by the angles of `position`; those of the workgroup's own token are in `angles`. A warp calls this
// for a row, whose elements its lanes have.
template <int D> __device__ __forceinline__ float4 rotated(const Part &part, unsigned e, unsigned position, bool own, const float2 *angles, const float *freqs, unsigned pairs, bool adjacent,
                                                           const float *weights, float eps)
{
    const bool low = e < pairs, turned = e < 2 * pairs;
    const unsigned pair = adjacent ? e / 2 : low ? e : e - pairs, other = low ? e + pairs : pair;
    float4 x = part.x, o = part.o;
    if (eps >= 0) {
        float sum = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
#pragma unroll
        for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
        const float by = 1.0f / sqrtf(sum / D + eps);
        if (e < D) x = x * by * *reinterpret_cast<const float4 *>(weights + e);
        if (turned && !adjacent) o = o * by * *reinterpret_cast<const float4 *>(weights + other);
    }
    if (!turned) return x;
    if (adjacent) o = make_float4(x.y, x.x, x.w, x.z);
    float2 t[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned p = pair + (adjacent ? i / 2 : i);
        t[i] = angles[p];
    }
    if (!own) {
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
            const float2 at = cos_sin(float(position) * freqs[pair + (adjacent ? i / 2 : i)]);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (i == j) t[j] = at;
        }
    }
    const float first = adjacent || low ? -1.0f : 1.0f, second = adjacent ? 1.0f : first;
    return make_float4(x.x * t[0].x + o.x * (first * t[0].y), x.y * t[1].x + o.y * (second * t[1].y), x.z * t[2].x + o.z * (first * t[2].y),
                       x.w * t[3].x + o.w * (second * t[3].y));
}
// The same of another token, which is rare: not in the text that every launch runs through.
template <int D> __attribute__((noinline)) __device__ float4 rotated_apart(const float *row, unsigned e, unsigned position, const float2 *angles, const float *freqs, unsigned pairs, bool adjacent,
                                                                           const float *weights, float eps)
{
    return rotated<D>(part_of<D>(row, e, pairs, adjacent), e, position, false, angles, freqs, pairs, adjacent, weights, eps);
}
__device__ __forceinline__ void store(__half *to, float4 x)
{
    const __half2 a = __floats2half2_rn(x.x, x.y), b = __floats2half2_rn(x.z, x.w);
    *reinterpret_cast<uint2 *>(to) = make_uint2(*reinterpret_cast<const unsigned *>(&a), *reinterpret_cast<const unsigned *>(&b));
}

template <int D, unsigned WARPS> __device__ __forceinline__ void attend(const Few &a, __half *keys, __half *values, const float *q_norm, const float *k_norm, float eps)
{
    using Of = Warp<D>;
    constexpr unsigned CHUNKS = D / 8, TILE = WARPS * Of::POSITIONS, THREADS = WARPS * 32;
    constexpr unsigned OWN = HEADS * Of::LINE * 2, MADE = OWN + 2 * D;
    // Queries, the token's own rows, and others of this step for each warp; in the end the warps' results.
    __shared__ __align__(16) float results[WARPS * HEADS * D];
    static_assert((MADE + WARPS * 2 * FRESH * D) * sizeof(__half) <= sizeof(results), "queries and rows have room");
    __shared__ float2 angles[D / 2], stats[WARPS][HEADS];
    __shared__ __align__(16) float weights[2 * D]; // Of the norms of queries and keys.
    __shared__ float units[HEADS], factors[HEADS * MAX_SPLITS];
    __shared__ bool last;

    const unsigned tid = threadIdx.x, warp = tid / 32, lane = tid % 32, kv_head = blockIdx.y;
    __half *queries = reinterpret_cast<__half *>(results), *own_rows = queries + OWN, *made = queries + MADE + warp * 2 * FRESH * D;
    const unsigned of_kv = a.heads / a.kv_heads, slices = (of_kv + HEADS - 1) / HEADS, slice = blockIdx.z % slices;
    const bool append = (a.flags & APPEND) != 0, adjacent = (a.flags & ADJACENT) != 0;
    // With APPEND what says where a token is and the rows of earlier steps are nothing that launches of this step write: they are read while the
    // launch before this one ends. Every workgroup waits for it, so that the next launch may count on that.
    if (!append) dependency_wait();
    const Portion portion = portion_of<TILE>(a, slices, kv_head);
    const unsigned token = portion.token, part = portion.part, used = portion.used;
    if (token == NONE) {
        if (append) dependency_wait();
        return;
    }
    const unsigned sequence = portion.sequence, position = portion.position;
    if (sequence >= a.rows || position >= a.columns << a.shift) {
        if (append) dependency_wait();
        if (tid == 0) note_fault(a.fault, sequence >= a.rows ? sequence : position, sequence >= a.rows ? a.rows : a.columns << a.shift);
        return;
    }
    const Span span = span_of(a, token, position);
    const unsigned len = span.len, begin = span.begin, first_tile = begin / TILE;
    const unsigned heads = min(HEADS, of_kv - slice * HEADS), first_head = kv_head * of_kv + slice * HEADS, mask = (1u << a.shift) - 1;
    const unsigned *blocks = a.table + size_t(sequence) * a.columns;

    float sums[D / 8][4] = {}, most = LOWEST, total = 0, unit = 1;
    if ((a.flags & SINKS) != 0 && part == 0 && warp == 0 && lane / 4 < heads) {
        most = fmaxf(a.sinks[first_head + lane / 4] * LOG2_E, LOWEST);
        total = lane % 4 == 0 ? 1.0f : 0.0f;
    }
    const unsigned start = (first_tile + part) * TILE;
    // The block of this warp's positions in a tile, which is one.
    const auto block_at = [&](unsigned base) {
        const unsigned from = base + warp * Of::POSITIONS;
        return from < len && from + Of::POSITIONS > begin ? blocks[from >> a.shift] : ~0u;
    };
    const auto valid_at = [&](unsigned base, unsigned block) { return block < a.blocks ? min(len - base - warp * Of::POSITIONS, unsigned(Of::POSITIONS)) : 0; };
    const auto row_of = [&](unsigned base, unsigned block) { return ((block * a.kv_heads + kv_head) << a.shift) + (base + warp * Of::POSITIONS & mask); };
    uint4 k[Of::KEYS], v[Of::VALUES];
    const auto load_keys = [&](unsigned base, unsigned block) {
        const unsigned row = row_of(base, block), valid = valid_at(base, block);
#pragma unroll
        for (int i = 0; i < Of::KEYS; ++i) {
            const unsigned p = Of::key_position(i, lane);
            k[i] = p < valid ? reinterpret_cast<const uint4 *>(keys)[size_t(row + p) * CHUNKS + Of::key_chunk(i, lane)] : make_uint4(0, 0, 0, 0);
        }
    };
    const auto load_values = [&](unsigned base, unsigned block) {
        const unsigned row = row_of(base, block), valid = valid_at(base, block);
#pragma unroll
        for (int i = 0; i < Of::VALUES; ++i) {
            const unsigned p = Of::value_position(i, lane);
            v[i] = p < valid ? reinterpret_cast<const uint4 *>(values)[size_t(row + p) * CHUNKS + Of::value_chunk(i, lane)] : make_uint4(0, 0, 0, 0);
        }
    };
    // A tile's keys and values are on their way while the products of the one before run.
    const unsigned apart = used * TILE;
    unsigned block = block_at(start), ahead_block = block_at(start + apart);
    load_keys(start, block);
    load_values(start, block);
    for (unsigned base = start; base < len; base += apart, block = ahead_block, ahead_block = block_at(base + apart)) {
        const unsigned from = base + warp * Of::POSITIONS, valid = valid_at(base, block);
        const bool seen = from < len && from + Of::POSITIONS > begin;
        if (seen && block >= a.blocks && lane == 0) note_fault(a.fault, block, a.blocks);
        // The token of this step whose row position `from + lane` is.
        unsigned newest = ~0u;
        if (append && valid)
#pragma unroll 1
            for (unsigned first = 0; first < a.tokens; first += 32) {
                const unsigned slot = first + lane < a.tokens ? a.slots[first + lane] : ~0u, offset = slot - (block << a.shift | (from & mask));
                for (unsigned found = __ballot_sync(~0u, offset < valid); found; found &= found - 1) {
                    const unsigned u = __ffs(found) - 1;
                    if (__shfl_sync(~0u, offset, u) == lane) newest = first + u;
                }
            }
        if (base == start) {
            // While the first tile is on its way: queries and this step's rows.
            for (unsigned i = tid; i < a.pairs; i += THREADS) angles[i] = cos_sin(float(position) * a.freqs[i]);
            if (eps >= 0)
                for (unsigned i = tid; i < 2 * D; i += THREADS) weights[i] = i < D ? q_norm[i] : k_norm[i - D];
            __syncthreads();
            dependency_wait();
            // The workgroup of a token's own position makes its rows too, of which the first slice's is the one that stores them.
            const bool owns = append && (position / TILE - first_tile) % used == part;
            const unsigned e = lane * 4, rows = heads + (owns ? 2 : 0);
            const auto row_at = [&](unsigned h) {
                const float *row = h < heads ? a.q + size_t(token * a.heads + first_head + h) * D : (h == heads ? a.k : a.v) + size_t(token * a.kv_heads + kv_head) * D;
                return part_of<D>(row, e, a.pairs, adjacent);
            };
            // A warp takes a head or a row; its next one is on its way meanwhile.
            Part ahead = {};
            if (warp < rows) ahead = row_at(warp);
#pragma unroll 1
            for (unsigned h = warp; h < rows; h += WARPS) {
                const bool in = e < D, query = h < heads;
                const Part part = ahead;
                if (h + WARPS < rows) ahead = row_at(h + WARPS);
                float4 x = part.x;
                if (h <= heads) x = rotated<D>(part, e, position, true, angles, a.freqs, a.pairs, adjacent, query ? weights : weights + D, eps);
                if (query) {
                    // The greatest element becomes one between 1 and 2, for f16's sake. Rows of heads that there are not stay as they are.
                    x = x * a.scale;
                    float greatest = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
                    for (int m = 16; m; m >>= 1) greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, m));
                    const unsigned power = __float_as_uint(greatest) & 0x7f800000, by = power >= 0x10000000 && power <= 0x70000000 ? power : 0x3f800000;
                    if (in) Of::stage(queries, h, e, x * __uint_as_float(0x7f000000 - by));
                    if (lane == 0) units[h] = __uint_as_float(by);
                } else if (in) {
                    const unsigned slot = a.slots[token];
                    store(own_rows + (h - heads) * D + e, x);
                    if (slice != 0) continue;
                    if (slot >= a.blocks << a.shift) note_fault(a.fault, slot, a.blocks << a.shift);
                    else store((h == heads ? keys : values) + (size_t((slot >> a.shift) * a.kv_heads + kv_head << a.shift) + (slot & mask)) * D + e, x);
                }
            }
            __syncthreads();
            unit = units[lane / 4];
        }
        // Rows of this step among the warp's positions take the place of what was read: first its own token's, then others, FRESH at a time.
        const bool mine = newest == token && position - base < TILE;
        unsigned left = __ballot_sync(~0u, newest != ~0u && !mine);
        const auto take = [&](const uint4 *rows, unsigned rank) {
#pragma unroll
            for (int i = 0; i < Of::KEYS; ++i) {
                const unsigned r = __shfl_sync(~0u, rank, Of::key_position(i, lane));
                if (r < FRESH) k[i] = rows[2 * r * CHUNKS + Of::key_chunk(i, lane)];
            }
#pragma unroll
            for (int i = 0; i < Of::VALUES; ++i) {
                const unsigned r = __shfl_sync(~0u, rank, Of::value_position(i, lane));
                if (r < FRESH) v[i] = rows[(2 * r + 1) * CHUNKS + Of::value_chunk(i, lane)];
            }
        };
        if (__any_sync(~0u, mine)) take(reinterpret_cast<const uint4 *>(own_rows), mine ? 0 : ~0u);
        if (left) {
            const unsigned e = lane * 4, rank = left >> lane & 1 ? __popc(left & (1u << lane) - 1) : ~0u;
#pragma unroll 1
            for (unsigned done = 0; left; done += FRESH) {
#pragma unroll 1
                for (unsigned row = 0; row < FRESH && left; ++row, left &= left - 1) {
                    const unsigned u = __shfl_sync(~0u, newest, __ffs(left) - 1);
                    const size_t start = size_t(u * a.kv_heads + kv_head) * D;
                    const float4 key = rotated_apart<D>(a.k + start, e, a.positions[u], angles, a.freqs, a.pairs, adjacent, weights + D, eps);
                    if (e < D) {
                        store(made + 2 * row * D + e, key);
                        store(made + (2 * row + 1) * D + e, fresh(a.v + start + e));
                    }
                }
                __syncwarp();
                take(reinterpret_cast<const uint4 *>(made), rank - done);
                __syncwarp();
            }
        }
        if (!seen) {
            load_keys(base + apart, ahead_block);
            load_values(base + apart, ahead_block);
            continue;
        }
        float scores[Of::SCORES], greatest = most;
        Of::score(scores, k, queries, lane);
        load_keys(base + apart, ahead_block);
#pragma unroll
        for (int i = 0; i < Of::SCORES; ++i) {
            scores[i] *= unit;
            if (a.cap != 0) scores[i] = capped(scores[i], a.cap);
            if (Of::score_position(i, lane) >= valid || from + Of::score_position(i, lane) < begin) scores[i] = -__int_as_float(0x7f800000);
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
        if (base != start) {
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[n][i] *= correction;
        }
        Of::weigh(sums, scores, v);
        load_values(base + apart, ahead_block);
    }

    join<Of, D, WARPS>(a, sums, most, total, heads, first_head, portion, (token * slices + slice) * a.kv_heads + kv_head, results, stats, factors, last);
}

// attention over f16 caches [blocks, kv_heads, 1 << shift, D] for q f32 [tokens, heads, D], 1 << shift at least 16. Grid: splits, kv_heads,
// tokens · ⌈heads / kv_heads / 8⌉; or parts of all tokens, kv_heads, ⌈heads / kv_heads / 8⌉. The arguments are those of attention_decode
// (attention_decode.k), 8 heads at a time, whether the result is bf16, and the weights of norms of queries and keys before their rotation with
// what is added to the mean square: less than 0 for no norms.
#define ATTENTION_FEW(D, WARPS) \
KERNEL_ALONE(attention_few_##D##_##WARPS, WARPS * 32, IN(0, float, q), IN(1, float, k), IN(2, float, v), IN(3, uint, positions), IN(4, uint, sequences), \
    IN(5, uint, slots), IN(6, uint, table), IN(7, float, freqs), OUT(8, __half, keys), OUT(9, __half, values), OUT(10, void, out), OUT(11, float, partial), \
    OUT(12, float, stats), OUT(13, uint, counters), FAULT(14), COUNT(15, tokens), VAL(19, uint, heads), VAL(20, uint, kv_heads), VAL(21, uint, sizes), \
    VAL(22, uint, shift), VAL(23, uint, blocks), VAL(24, uint, rows), VAL(25, uint, columns), VAL(26, uint, flags), VAL(27, uint, splits), \
    VAL(28, float, scale), IN(29, float, sinks), VAL(30, float, cap), VAL(31, uint, narrow), \
    EARLY(32, float, q_norm), EARLY(33, float, k_norm), VAL(34, float, eps)) \
{ \
    dependency_launch(); \
    const Few a = {q, k, v, positions, sequences, slots, table, freqs, out, partial, stats, counters, fault, COUNTED(tokens), heads, kv_heads, \
                   shift, blocks, rows, columns, sizes >> PAIRS, flags, splits, scale, slots, sinks, cap, narrow != 0}; \
    attend<D, WARPS>(a, keys, values, q_norm, k_norm, eps); \
}
ATTENTION_FEW(64, 4)
ATTENTION_FEW(128, 4)
ATTENTION_FEW(128, 8)
