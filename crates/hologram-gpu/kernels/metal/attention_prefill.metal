#include "dialect.h"
#include "float8_cache.h"
// Attention of many tokens over a paged cache [blocks, kv_heads, 1 << shift, D] of f32, f16, floats of a byte, or 8 or 4 bits with scales, on simdgroup matrices of f32. A
// workgroup takes rows of one key/value head: a token's query heads of it, token by token, 8 rows for each pair of SIMD-groups, whose queries and results
// stay in registers: of the two each computes half of the scores, the softmax of 4 rows, and half of the results' columns, so that a thread has a third
// fewer registers than one that computed all. Keys and then values of 32 positions lie in shared memory. Softmax goes along: what was summed is scaled
// down by a diagonal matrix when a row's greatest score grows. Matrices' elements are read and written through shared memory alone, as Metal says nothing
// of their places in lanes.

#define THREADS 512
#define ROWS 64
#define KEYS 32
#define SCORES 36       // of a line of scores
#define LOWEST -1.0e38f // a running maximum before the first score: finite, so that differences with it are numbers
#define NOWHERE ~0u
#define FIRSTS 1u // flags: inputs give the first position that each token sees, and a score without a value for each head
#define SINKS 2u
#define LOG2_E 1.44269504f
// Registers that a thread may have for what lives through a tile: queries, sums and its part of the tile. 512 threads of a core have 104 each.
#define HELD_MOST 64
HOST(THREADS, ROWS, FIRSTS, SINKS)

struct Attention {
    device const float *q; device const half *key_scales; device const half *value_scales;
    device const uint *positions; device const uint *sequences; device const uint *table; device float *out; device uint *fault;
    uint tokens, heads, kv_heads, shift, blocks, rows, columns; float scale; uint window;
    device const uint *firsts; device const float *sinks; uint flags; float cap;
};
// What a workgroup shares: a tile of keys or values, or 32 rows of queries or results; of each SIMD-group its scores and its diagonal matrix; of each
// token its sequence, its position and the first one that it sees; where tiles' positions lie.
struct Space { threadgroup float *tile; threadgroup float *scores; threadgroup float *factors; threadgroup uint *sequence; threadgroup uint *position; threadgroup uint *first; threadgroup uint *places; };

FN float4 four(device const float *p, device const half *, ulong at) { return load4(p + at); }
FN float4 four(device const half *p, device const half *, ulong at)
{
    const half4 v = *(device const half4 *)(p + at);
    return float4(v);
}
FN float4 four(device const char *p, device const half *scales, ulong at)
{
    const char4 v = *(device const char4 *)(p + at);
    return float4(v) * f32(scales[at / 32]);
}

// As floats of a byte.
FN float4 four(device const float_byte *p, device const half *, ulong at)
{
    const uchar4 v = *(device const uchar4 *)(p + at);
    return float4(cached_value(v.x), cached_value(v.y), cached_value(v.z), cached_value(v.w));
}

// In 4 bits: a byte has elements i and i + 16 of 32 neighbours.
FN float4 four(device const uchar *p, device const half *scales, ulong at)
{
    const uchar4 v = *(device const uchar4 *)(p + at / 32 * 16 + at % 16);
    const uint shift = uint(at / 16 % 2) * 4;
    return (float4(uint4(v) >> shift & 15u) - 8.0f) * f32(scales[at / 32]);
}

// Finds the rows of the tile from position `base` on.
FN void look_up(threadgroup uint *places, thread const Attention &a, device const uint *blocks, uint head, uint base, uint len, uint tid)
{
    if (tid >= KEYS) return;
    const uint p = base + tid, block = p < len ? blocks[p >> a.shift] : NOWHERE;
    if (p < len && block >= a.blocks) note_fault(a.fault, block, a.blocks);
    places[tid] = block < a.blocks ? (block * a.kv_heads + head) << a.shift | (p & ((1u << a.shift) - 1)) : NOWHERE;
}

// A thread's part of a tile, in fours; zeros where there are no rows.
template <uint D> FN constexpr uint part_of() { return (KEYS * (D / 4) + THREADS - 1) / THREADS; }
template <typename T, uint D> FN void fetch(thread float4 *part, device const T *cache, device const half *scales, threadgroup const uint *places, uint tid)
{
    UNROLL for (uint i = 0; i < part_of<D>(); ++i) {
        const uint at = tid + i * THREADS;
        if (KEYS * (D / 4) % THREADS != 0 && at >= KEYS * (D / 4)) break;
        const uint place = places[at / (D / 4)];
        part[i] = place == NOWHERE ? float4(0.0f) : four(cache, scales, ulong(place) * D + at % (D / 4) * 4);
    }
}
template <uint D> FN void put(threadgroup float *tile, thread const float4 *part, uint tid)
{
    UNROLL for (uint i = 0; i < part_of<D>(); ++i) {
        const uint at = tid + i * THREADS;
        if (KEYS * (D / 4) % THREADS != 0 && at >= KEYS * (D / 4)) break;
        *(threadgroup float4 *)(tile + at / (D / 4) * (D + 4) + at % (D / 4) * 4) = part[i];
    }
}

template <typename T, uint D>
FN void attend(thread const Attention &a, device const T *keys, device const T *values, Space space, uint2 group, uint tid, uint lane, uint simd)
{
    constexpr uint LINE = D + 4;
    const uint of_kv = a.heads / a.kv_heads, per = ROWS / of_kv, head = group.x, tiles = (a.tokens + per - 1) / per;
    if (group.y >= tiles) return;
    // The tokens that read most come last in a prompt: they begin first.
    const uint first = (tiles - 1 - group.y) * per, tokens = min(per, a.tokens - first);
    if (tid < tokens) {
        const uint sequence = a.sequences[first + tid], position = a.positions[first + tid];
        const bool there = sequence < a.rows && position < a.columns << a.shift;
        if (!there) note_fault(a.fault, sequence >= a.rows ? sequence : position, sequence >= a.rows ? a.rows : a.columns << a.shift);
        space.sequence[tid] = there ? sequence : NOWHERE;
        space.position[tid] = position;
        space.first[tid] = a.flags & FIRSTS ? min(a.firsts[first + tid], position) : position >= a.window ? position + 1 - a.window : 0;
    }
    const uint pair = simd / 2, half_of = simd % 2;
    threadgroup float *scores = space.scores + pair * 8 * SCORES, *factors = space.factors + pair * 64;
    factors[half_of * 32 + lane] = 0;
    // This lane's row in softmax, of which it has 4 scores, and the row's token.
    const uint row = half_of * 4 + lane / 8, token = (pair * 8 + row) / of_kv;

    // Queries, 32 rows at a time.
    constexpr uint COLUMNS = D / 16;
    static_assert(2 * (D / 8 + COLUMNS) + 4 * part_of<D>() <= HELD_MOST, "registers");
    simdgroup_float8x8 q[D / 8], sums[COLUMNS];
    UNROLL for (uint h = 0; h < 2; ++h) {
        ROLLED for (uint at = tid; at < 32 * (D / 4); at += THREADS) {
            const uint r = h * 32 + at / (D / 4), t = r / of_kv, e = at % (D / 4) * 4;
            float4 v = float4(0.0f);
            if (t < tokens) v = load4(a.q + (ulong(first + t) * a.heads + head * of_kv + r - t * of_kv) * D + e) * a.scale;
            *(threadgroup float4 *)(space.tile + at / (D / 4) * LINE + e) = v;
        }
        BARRIER();
        if (pair / 4 == h) UNROLL for (uint i = 0; i < D / 8; ++i) simdgroup_load(q[i], space.tile + pair % 4 * 8 * LINE + i * 8, LINE);
        BARRIER();
    }
    UNROLL for (uint i = 0; i < COLUMNS; ++i) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    float most = LOWEST, total = 0;
    if (a.flags & SINKS) {
        most = max(a.sinks[head * of_kv + (pair * 8 + row) % of_kv] * LOG2_E, LOWEST);
        total = lane % 8 == 0 ? 1.0f : 0.0f;
    }

    // Tokens of one sequence that follow each other are worked on together; those of others see nothing meanwhile.
    ROLLED for (uint from = 0; from < tokens;) {
        const uint sequence = space.sequence[from];
        uint end = from, least = ~0u, last = 0; // the first position that one of them sees, and the last
        ROLLED for (; end < tokens && space.sequence[end] == sequence; ++end) {
            least = min(least, space.first[end]);
            last = max(last, space.position[end]);
        }
        const bool mine = token >= from && token < end;
        from = end;
        if (sequence == NOWHERE) continue;
        const uint own = mine ? space.position[token] : 0, begin = mine ? space.first[token] : 0;
        device const uint *blocks = a.table + ulong(sequence) * a.columns;
        // What no token of the run sees is passed over.
        const uint len = last + 1, steps = (len + KEYS - 1) / KEYS, start = least / KEYS;
        float4 part[part_of<D>()];
        look_up(space.places + start % 2 * KEYS, a, blocks, head, start * KEYS, len, tid);
        BARRIER();
        fetch<T, D>(part, keys, a.key_scales, space.places + start % 2 * KEYS, tid);
        put<D>(space.tile, part, tid);
        BARRIER();
        ROLLED for (uint s = start; s < steps; ++s) {
            fetch<T, D>(part, values, a.value_scales, space.places + s % 2 * KEYS, tid);
            look_up(space.places + (s + 1) % 2 * KEYS, a, blocks, head, (s + 1) * KEYS, len, tid);
            UNROLL for (uint o = 0; o < KEYS / 16; ++o) {
                const uint n = half_of * (KEYS / 16) + o;
                simdgroup_float8x8 score = make_filled_simdgroup_matrix<float, 8, 8>(0.0f), k;
                UNROLL for (uint i = 0; i < D / 8; ++i) {
                    simdgroup_load(k, space.tile + n * 8 * LINE + i * 8, LINE, ulong2(0, 0), true);
                    simdgroup_multiply_accumulate(score, q[i], k, score);
                }
                simdgroup_store(score, scores + n * 8, SCORES);
            }
            BARRIER();
            float w[4], greatest = most;
            threadgroup float4 *line = (threadgroup float4 *)(scores + row * SCORES + lane % 8 * 4);
            const float4 own_scores = *line;
            UNROLL for (uint i = 0; i < 4; ++i) {
                const uint p = s * KEYS + lane % 8 * 4 + i;
                w[i] = own_scores[i];
                if (a.cap != 0) w[i] = a.cap - 2.0f * a.cap / (1.0f + exp2(min(w[i] * (2.0f * LOG2_E / a.cap), 126.0f)));
                if (!mine || p > own || p < begin) w[i] = -INFINITY;
                greatest = max(greatest, w[i]);
            }
            UNROLL for (uint m = 1; m < 8; m *= 2) greatest = max(greatest, simd_shuffle_xor(greatest, m));
            const float factor = exp2(most - greatest);
            most = greatest;
            total *= factor;
            UNROLL for (uint i = 0; i < 4; ++i) {
                w[i] = exp2(w[i] - most);
                total += w[i];
            }
            *line = float4(w[0], w[1], w[2], w[3]);
            if (lane % 8 == 0) factors[row * 9] = factor;
            put<D>(space.tile, part, tid);
            BARRIER();
            if (s + 1 < steps) fetch<T, D>(part, keys, a.key_scales, space.places + (s + 1) % 2 * KEYS, tid);
            // Whether no row's greatest score has grown.
            if (!simd_all(factors[lane % 8 * 9] == 1.0f)) {
                simdgroup_float8x8 f;
                simdgroup_load(f, factors, 8);
                UNROLL for (uint i = 0; i < COLUMNS; ++i) simdgroup_multiply(sums[i], f, sums[i]);
            }
            UNROLL for (uint n = 0; n < KEYS / 8; ++n) {
                simdgroup_float8x8 weights, v;
                simdgroup_load(weights, scores + n * 8, SCORES);
                UNROLL for (uint i = 0; i < COLUMNS; ++i) {
                    simdgroup_load(v, space.tile + n * 8 * LINE + (half_of * COLUMNS + i) * 8, LINE);
                    simdgroup_multiply_accumulate(sums[i], weights, v, sums[i]);
                }
            }
            BARRIER();
            if (s + 1 < steps) put<D>(space.tile, part, tid);
            BARRIER();
        }
    }

    UNROLL for (uint m = 1; m < 8; m *= 2) total += simd_shuffle_xor(total, m);
    if (lane % 8 == 0) factors[row * 9] = total > 0.0f ? 1.0f / total : 0.0f;
    BARRIER();
    simdgroup_float8x8 f;
    simdgroup_load(f, factors, 8);
    UNROLL for (uint i = 0; i < COLUMNS; ++i) simdgroup_multiply(sums[i], f, sums[i]);
    UNROLL for (uint h = 0; h < 2; ++h) {
        if (pair / 4 == h) UNROLL for (uint i = 0; i < COLUMNS; ++i)
            simdgroup_store(sums[i], space.tile + pair % 4 * 8 * LINE + (half_of * COLUMNS + i) * 8, LINE);
        BARRIER();
        ROLLED for (uint at = tid; at < 32 * (D / 4); at += THREADS) {
            const uint r = h * 32 + at / (D / 4), t = r / of_kv, e = at % (D / 4) * 4;
            if (t < tokens && space.sequence[t] != NOWHERE)
                store4(a.out + (ulong(first + t) * a.heads + head * of_kv + r - t * of_kv) * D + e, *(threadgroup const float4 *)(space.tile + at / (D / 4) * LINE + e));
        }
        BARRIER();
    }
}

// `scale` has the factor log2(e); `window`: how many positions a token sees, up to its own. Grid: kv_heads, ⌈tokens / ⌊64 / heads of one⌋⌉. A sequence,
// position or block outside is a fault.
#define ATTENTION_PREFILL(name, T, D) \
KERNEL(attention_prefill_##name##_##D, THREADS, IN(0, float, q), IN(1, T, keys), IN(2, T, values), IN(3, half, key_scales), IN(4, half, value_scales), IN(5, uint, positions), \
       IN(6, uint, sequences), IN(7, uint, table), OUT(8, float, out), FAULT(9), COUNT(10, tokens), VAL(14, uint, heads), VAL(15, uint, kv_heads), VAL(16, uint, shift), \
       VAL(17, uint, blocks), VAL(18, uint, rows), VAL(19, uint, columns), VAL(20, float, scale), VAL(21, uint, window), \
       IN(22, uint, firsts), IN(23, float, sinks), VAL(24, uint, flags), VAL(25, float, cap)) \
{ \
    SHARED(float, tile, [KEYS * (D + 4)]); \
    SHARED(float, scores, [8 * 8 * SCORES]); \
    SHARED(float, factors, [8 * 64]); \
    SHARED(uint, sequence, [ROWS]); \
    SHARED(uint, position, [ROWS]); \
    SHARED(uint, first, [ROWS]); \
    SHARED(uint, places, [2 * KEYS]); \
    const Attention a = {q, key_scales, value_scales, positions, sequences, table, out, fault, COUNTED(tokens), heads, kv_heads, shift, blocks, rows, \
                         columns, scale, window, firsts, sinks, flags, cap}; \
    const Space space = {tile, scores, factors, sequence, position, first, places}; \
    attend<T, D>(a, keys, values, space, GROUP.xy, TID, LANE, SIMD); \
}
ATTENTION_PREFILL(float, float, 64)
ATTENTION_PREFILL(float, float, 80)
ATTENTION_PREFILL(float, float, 96)
ATTENTION_PREFILL(float, float, 128)
ATTENTION_PREFILL(half, half, 64)
ATTENTION_PREFILL(half, half, 80)
ATTENTION_PREFILL(half, half, 96)
ATTENTION_PREFILL(half, half, 128)
ATTENTION_PREFILL(eight, char, 64)
ATTENTION_PREFILL(eight, char, 96)
ATTENTION_PREFILL(eight, char, 128)
ATTENTION_PREFILL(float_byte, float_byte, 64)
ATTENTION_PREFILL(float_byte, float_byte, 96)
ATTENTION_PREFILL(float_byte, float_byte, 128)
ATTENTION_PREFILL(four_bits, uchar, 64)
ATTENTION_PREFILL(four_bits, uchar, 96)
ATTENTION_PREFILL(four_bits, uchar, 128)
