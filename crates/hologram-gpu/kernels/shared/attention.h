// Attention of few tokens over a paged cache of keys and values: workgroups each take some tiles of a token's positions (split), for the
// query heads of one key/value head, so that keys and values are read once for all of them.
//
// Scores: the lanes of a team share a position, each lane some elements of it in chunks of 16 bytes; sums are scattered over the team.
// Values: a thread owns a chunk of a row and goes over rows. Keys and values of a tile are on their way before the first is used.

#include "float8_cache.h"

#define LOWEST -1.0e38f /* a running maximum before the first score: finite, so that differences with it are numbers */
#define NO_ROW ~0u
#define MAX_SPLITS 64u
#define ATTENTION_APPEND 1u
#define ATTENTION_ADJACENT 2u
#define ATTENTION_COMBINE 4u
#define ATTENTION_FIRSTS 8u /* an input gives the first position that each token sees */
#define ATTENTION_SINKS 16u /* an input gives a score without a value for each head */
#define ATTENTION_WINDOW 5u /* the bit from which the flags say how many positions a token sees; 0: all up to its own */
// One word for two numbers, as Metal binds 31 arguments at most: elements of a head, and from this bit on rotated pairs.
#define ATTENTION_PAIRS 16u
HOST(MAX_SPLITS, ATTENTION_APPEND, ATTENTION_ADJACENT, ATTENTION_COMBINE, ATTENTION_FIRSTS, ATTENTION_SINKS, ATTENTION_WINDOW, ATTENTION_PAIRS)
#define LOG2_E 1.44269504f

// An element in 8 bits; a scale f16 for each 32 neighbours lies in a plane of its own.
struct eight { char code; };

template <class T> struct Attention {
    device const float *q, *k, *v;
    device const uint *positions, *sequences, *slots, *table;
    device const float *freqs;
    device T *keys, *values;
    device float *out, *partial, *stats;
    device uint *counters, *fault;
    uint tokens, heads, kv_heads, d, shift, blocks, rows, columns, pairs, flags, splits;
    float scale;
    device const half *key_scales, *value_scales;   // of elements in 8 bits
    device const uint *firsts;
    device const float *sinks;
    float cap; // times log2(e); 0: none
};

// cap · tanh(s / cap); a function of its own, so that no part of it is kept in registers meanwhile.
__attribute__((noinline)) float capped(float s, float cap) { return cap - 2.0f * cap / (1.0f + exp2(min(s * (2.0f * LOG2_E / cap), 126.0f))); }

// Whether a lane reads the scale of its chunk: on Metal one of four neighbours does, which NVIDIA's caches make up for.
#ifdef __CUDACC_RTC__
FN constexpr bool reads_scale(uint) { return true; }
#else
FN constexpr bool reads_scale(uint chunk) { return chunk % 4 == 0; }
#endif

// A byte of two elements in 4 bits, i and i + 16 of 32 neighbours, whose scale lies in a plane of its own.
struct four_bits { uchar codes; };

// Elements that are read together: 16 bytes, or 8 elements of 8 or 4 bits with their scale.
template <class T> FN constexpr uint chunk_len() { return sizeof(T) == 1 ? 8 : 16 / sizeof(T); }
template <class T> FN uint4 load_chunk(device const T *p, device const half *, uint chunk) { return ((device const uint4 *)p)[chunk]; }
FN uint4 load_chunk(device const eight *p, device const half *scales, uint chunk)
{
    const uint2 codes = ((device const uint2 *)p)[chunk];
    uint4 c;
    c.x = codes.x; c.y = codes.y; c.z = reads_scale(chunk) ? as_uint(f32(scales[chunk / 4])) : 0; c.w = 0;
    return c;
}
FN uint4 load_chunk(device const float_byte *p, device const half *, uint chunk)
{
    const uint2 codes = ((device const uint2 *)p)[chunk];
    uint4 c;
    c.x = codes.x; c.y = codes.y; c.z = c.w = 0;
    return c;
}
FN uint4 load_chunk(device const four_bits *p, device const half *scales, uint chunk)
{
    // Chunks c and c + 2 of four have the nibbles of the same bytes.
    const uint2 codes = ((device const uint2 *)p)[chunk / 4 * 2 + chunk % 2];
    const uint shift = chunk % 4 / 2 * 4;
    uint4 c;
    c.x = codes.x >> shift & 0x0f0f0f0fu; c.y = codes.y >> shift & 0x0f0f0f0fu; c.z = reads_scale(chunk) ? as_uint(f32(scales[chunk / 4])) : 0; c.w = 0;
    return c;
}
// Gives a scale to the four neighbouring lanes whose chunks have it.
template <class T> FN void share_scale(thread uint4 &c, uint lane)
{
    if (sizeof(T) == 1 && !reads_scale(1)) c.z = simd_shuffle(c.z, lane & 28u);
}
// A new row's element.
template <class T> FN void append_element(device T *p, float x) { *p = to<T>(x); }
FN void append_element(device eight *, float) {}   // `kv_append.k` stores these
FN void append_element(device four_bits *, float) {}
FN void append_element(device float_byte *, float) {}

// Elements 4·i and on of 16 bytes.
template <class T> FN float4 four(uint4 c, uint i);
template <> FN float4 four<float>(uint4 c, uint i) { return make_float4(as_float(c.x), as_float(c.y), as_float(c.z), as_float(c.w)); }
template <> FN float4 four<half>(uint4 c, uint i)
{
    const float2 a = halves(i ? c.z : c.x), b = halves(i ? c.w : c.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

template <> FN float4 four<eight>(uint4 c, uint i)
{
    const int a = int(i ? c.y : c.x);
    const float scale = as_float(c.z);
    return make_float4(float((a << 24) >> 24) * scale, float((a << 16) >> 24) * scale, float((a << 8) >> 24) * scale, float(a >> 24) * scale);
}

template <> FN float4 four<float_byte>(uint4 c, uint i) { return cached_values(i ? c.y : c.x); }

// A code after the bits of 2^23 is a float, from which one number is subtracted.
template <> FN float4 four<four_bits>(uint4 c, uint i)
{
    const uint a = i ? c.y : c.x;
    const float scale = as_float(c.z), zero = 8388616.0f;
    return make_float4((as_float(0x4b000000u | (a & 255u)) - zero) * scale, (as_float(0x4b000000u | (a >> 8 & 255u)) - zero) * scale,
                       (as_float(0x4b000000u | (a >> 16 & 255u)) - zero) * scale, (as_float(0x4b000000u | a >> 24) - zero) * scale);
}

FN uint4 no_chunk() { uint4 c; c.x = c.y = c.z = c.w = 0; return c; }
FN void keep4(threadgroup float *p, float4 v) { *(threadgroup float4 *)p = v; }
FN float4 get4(threadgroup const float *p) { return *(threadgroup const float4 *)p; }

// Cosine and sine, as a function of their own: they are long.
__attribute__((noinline)) float2 cos_sin(float x) { return make_float2(cos(x), sin(x)); }

// The pair that element e < 2·pairs belongs to, its partner, and the sign with which that enters.
FN uint pair_of(uint e, uint pairs, bool adjacent) { return adjacent ? e / 2 : e < pairs ? e : e - pairs; }
FN uint partner_of(uint e, uint pairs, bool adjacent) { return adjacent ? e ^ 1 : e < pairs ? e + pairs : e - pairs; }
FN float sign_of(uint e, uint pairs, bool adjacent) { return (adjacent ? (e & 1) == 0 : e < pairs) ? -1.0f : 1.0f; }

// Puts the parts of a token's group of heads together: sums of values, relative to maxima that stand with the sums of weights in stats.
template <uint HEADS, uint THREADS> FN void combine(device const float *partial, device const float *stats, device float *out, uint heads, uint d, uint used,
                                                    threadgroup float *space, uint tid, uint lane, uint simd)
{
    constexpr uint AHEAD = 10;
    const uint fours = heads * d / 4, teams = THREADS / fours, team = tid / fours, o = tid - team * fours;
    float4 p[AHEAD];
#define AHEAD_FROM(s0) \
    UNROLL for (uint i = 0; i < AHEAD; ++i) { \
        const uint s = (s0) + i * teams; \
        p[i] = s < used && team < teams ? load4(partial + s * HEADS * d + o * 4) : make_float4(0, 0, 0, 0); \
    }
    AHEAD_FROM(team)
    // Meanwhile each SIMD-group finds the factors of its heads' parts.
    ROLLED for (uint g = simd; g < heads; g += THREADS / 32) {
        const bool one = lane < used, two = lane + 32 < used;
        const float m0 = one ? stats[(lane * HEADS + g) * 2] : LOWEST, l0 = one ? stats[(lane * HEADS + g) * 2 + 1] : 0.0f;
        const float m1 = two ? stats[((lane + 32) * HEADS + g) * 2] : LOWEST, l1 = two ? stats[((lane + 32) * HEADS + g) * 2 + 1] : 0.0f;
        const float most = simd_max(max(m0, m1));
        const float w0 = exp2(m0 - most), w1 = exp2(m1 - most);
        const float total = simd_sum(w0 * l0 + w1 * l1);
        const float inverse = 1.0f / total;
        space[g * MAX_SPLITS + lane] = w0 * inverse;
        space[g * MAX_SPLITS + lane + 32] = w1 * inverse;
    }
    BARRIER();
    threadgroup const float *factor = space + o / (d / 4) * MAX_SPLITS;
    threadgroup float *sums = space + HEADS * MAX_SPLITS;
    float4 t = make_float4(0, 0, 0, 0);
    if (team < teams) {
        ROLLED for (uint s0 = team;;) {
            UNROLL for (uint i = 0; i < AHEAD; ++i) t = t + p[i] * factor[min(s0 + i * teams, MAX_SPLITS - 1)];
            s0 += AHEAD * teams;
            if (s0 >= used) break;
            AHEAD_FROM(s0)
        }
        keep4(sums + tid * 4, t);
    }
#undef AHEAD_FROM
    BARRIER();
    if (tid < fours) {
        ROLLED for (uint s = 1; s < teams; ++s) t = t + get4(sums + (s * fours + tid) * 4);
        store4(out + tid * 4, t);
    }
}

// D is the number of elements of a head, 0 for any up to WIDTH. Shared memory: queries [HEADS · WIDTH], angles [256], weights [TILE · HEADS],
// maxima [9 · HEADS], space [4096], places [TILE], words [8].
template <class T, uint D, uint WIDTH, uint HEADS>
FN void attend(thread const Attention<T> &a, threadgroup float *queries, threadgroup float *angles, threadgroup float *weights,
               threadgroup float *maxima, threadgroup float *space, threadgroup uint *places, threadgroup uint *words, uint3 group, uint tid)
{
    constexpr uint THREADS = 256, CHUNK = chunk_len<T>(), OWN = HEADS > 4 || WIDTH == 64 ? 8 : 16, TEAM = WIDTH / OWN, SIMDS = THREADS / 32;
    constexpr uint CHUNKS = OWN / CHUNK, PASSES = 4 / CHUNKS, TEAMS = THREADS / TEAM, TILE = PASSES * TEAMS;
    constexpr uint SCORES = PASSES * HEADS, MINE = SCORES >= TEAM ? SCORES / TEAM : 1, COPIES = SCORES >= TEAM ? 1 : TEAM / SCORES;
    constexpr uint SHARERS = TEAM / HEADS, FOURS = HEADS * WIDTH / 4, TOGETHER = HEADS < 16 / CHUNK ? HEADS : 16 / CHUNK;
    const uint lane = tid & 31u, simd = tid >> 5, member = tid % TEAM, team = tid / TEAM;
    const uint d = D ? D : a.d, kv_head = group.y;
    const uint of_kv = a.heads / a.kv_heads, slices = (of_kv + HEADS - 1) / HEADS, token = group.z / slices, slice = group.z - token * slices;
    const bool append = (a.flags & ATTENTION_APPEND) != 0, adjacent = (a.flags & ATTENTION_ADJACENT) != 0;
    // With ATTENTION_APPEND what says where a token is and the rows of earlier steps are nothing that launches of this step write: they are
    // read while the launch before this one ends. Every workgroup waits for it, so that the next launch may count on that.
    if (!append || token >= a.tokens) DEPENDENCY_WAIT();
    if (token >= a.tokens) return;

    // This workgroup's positions: every `splits`-th tile.
    const uint sequence = a.sequences[token], position = a.positions[token];
    if (sequence >= a.rows || position >= a.columns << a.shift) {
        DEPENDENCY_WAIT();
        if (tid == 0) note_fault(a.fault, sequence >= a.rows ? sequence : position, sequence >= a.rows ? a.rows : a.columns << a.shift);
        return;
    }
    const uint len = position + 1, window = a.flags >> ATTENTION_WINDOW;
    const uint begin = a.flags & ATTENTION_FIRSTS ? min(a.firsts[token], position) : window != 0 && len > window ? len - window : 0, first_tile = begin / TILE;
    const uint tiles = (len + TILE - 1) / TILE - first_tile, used = min(tiles, a.splits);
    if (group.x >= used) {
        DEPENDENCY_WAIT();
        return;
    }
    const uint heads = min(HEADS, of_kv - slice * HEADS), first_head = kv_head * of_kv + slice * HEADS;
    device const uint *blocks = a.table + sequence * a.columns;
    // The cache in chunks.
    const uint columns = d / CHUNK, of_head = columns << a.shift, mask = (1u << a.shift) - 1;
    const uint rows = THREADS / columns, column = tid % columns, row = tid / columns;

    // The maximum and the sum of weights so far of the head whose scores this lane gets.
    const uint own = member / SHARERS;
    float greatest = LOWEST, total = 0;
    if ((a.flags & ATTENTION_SINKS) != 0 && group.x == 0 && own < heads) {
        greatest = max(a.sinks[first_head + own] * LOG2_E, LOWEST);
        total = tid < TEAM && member % SHARERS == 0 ? 1.0f : 0.0f;
    }
    float sums[HEADS][CHUNK];
    UNROLL for (uint g = 0; g < HEADS; ++g) UNROLL for (uint e = 0; e < CHUNK; ++e) sums[g][e] = 0;

    const uint start = (first_tile + group.x) * TILE;
    ROLLED for (uint base = start; base < len; base += a.splits * TILE) {
        const bool first = base == start;
        // Where the tile's rows begin; whether a new token takes one of them.
        uint is_new = 0;
        if (tid < TILE) {
            const uint p = base + tid, block = p >= begin && p < len ? blocks[p >> a.shift] : ~0u;
            uint at = NO_ROW;
            // The workgroup of a token's own position stores its rows in any case.
            is_new = uint(append && p == position);
            if (block < a.blocks) {
                at = (block * a.kv_heads + kv_head) * of_head + (p & mask) * columns;
                if (append) ROLLED for (uint u = 0; u < a.tokens; ++u) is_new |= uint(a.slots[u] == (block << a.shift | (p & mask)));
            } else if (p >= begin && p < len) {
                note_fault(a.fault, block, a.blocks);
            }
            places[tid] = at;
        }
        if (first && tid < a.pairs) {
            const float2 t = cos_sin(float(position) * a.freqs[tid]);
            angles[tid] = t.x;
            angles[128 + tid] = t.y;
        }
        if (append) {
            if (BARRIER_ANY(words, is_new, lane, simd, SIMDS) != 0) {
                // Every workgroup that reads new rows stores them first; all store the same.
                DEPENDENCY_WAIT();
                ROLLED for (uint i = tid; i < a.tokens * d; i += THREADS) {
                    const uint u = i / d, e = i - u * d, from = (u * a.kv_heads + kv_head) * d, slot = a.slots[u];
                    float x = fresh(a.k + from + e);
                    if (e < 2 * a.pairs) {
                        const uint pair = pair_of(e, a.pairs, adjacent), at = a.positions[u];
                        const float2 t = at == position ? make_float2(angles[pair], angles[128 + pair]) : cos_sin(float(at) * a.freqs[pair]);
                        x = x * t.x + fresh(a.k + from + partner_of(e, a.pairs, adjacent)) * (t.y * sign_of(e, a.pairs, adjacent));
                    }
                    if (slot >= a.blocks << a.shift) {
                        note_fault(a.fault, slot, a.blocks << a.shift);
                    } else {
                        const ulong to_ = ulong((slot >> a.shift) * a.kv_heads * of_head + kv_head * of_head + (slot & mask) * columns) * CHUNK + e;
                        append_element(a.keys + to_, x);
                        append_element(a.values + to_, fresh(a.v + from + e));
                    }
                }
                BARRIER_DEVICE();
            }
        } else {
            BARRIER();
        }
        uint4 keys[4], values[4];
        UNROLL for (uint i = 0; i < PASSES; ++i) {
            const uint at = places[i * TEAMS + team];
            UNROLL for (uint c = 0; c < CHUNKS; ++c) {
                const uint e = member + c * TEAM;
                keys[i * CHUNKS + c] = at != NO_ROW && (D == WIDTH || e < columns) ? load_chunk(a.keys, a.key_scales, at + e) : no_chunk();
            }
        }
        UNROLL for (uint i = 0; i < 4; ++i) {
            const uint in_tile = row + rows * i, at = D == WIDTH || (row < rows && in_tile < TILE) ? places[in_tile] : NO_ROW;
            values[i] = at != NO_ROW ? load_chunk(a.values, a.value_scales, at + column) : no_chunk();
        }
        // While the first tile is on its way: queries, rotated and scaled.
        if (first) {
            DEPENDENCY_WAIT();
            if (tid < FOURS) {
                const uint h = tid / (WIDTH / 4), e = tid % (WIDTH / 4) * 4;
                device const float *q = a.q + (token * a.heads + first_head + h) * d;
                const bool there = (HEADS == 1 || h < heads) && (D == WIDTH || e < d);
                float4 x = there ? fresh((device const float4 *)(q + e)) : make_float4(0, 0, 0, 0);
                if (there && e < 2 * a.pairs) {
                    if (adjacent) {
                        threadgroup const float *c = angles + e / 2, *s = c + 128;
                        x = make_float4(x.x * c[0] - x.y * s[0], x.x * s[0] + x.y * c[0], x.z * c[1] - x.w * s[1], x.z * s[1] + x.w * c[1]);
                    } else {
                        const bool low = e < a.pairs;
                        const uint pair = low ? e : e - a.pairs;
                        const float4 o = fresh((device const float4 *)(q + (low ? e + a.pairs : pair))) * (low ? -1.0f : 1.0f), c = get4(angles + pair), s = get4(angles + 128 + pair);
                        x = make_float4(x.x * c.x + o.x * s.x, x.y * c.y + o.y * s.y, x.z * c.z + o.z * s.z, x.w * c.w + o.w * s.w);
                    }
                }
                keep4(queries + h * WIDTH + e, x * a.scale);
            }
            BARRIER();
        }

        UNROLL for (uint i = 0; i < 4; ++i) share_scale<T>(keys[i], lane);
        float scores[SCORES];
        UNROLL for (uint i = 0; i < SCORES; ++i) scores[i] = 0;
        UNROLL for (uint c = 0; c < CHUNKS; ++c) UNROLL for (uint f = 0; f < CHUNK / 4; ++f) {
            float4 k[PASSES];
            UNROLL for (uint i = 0; i < PASSES; ++i) k[i] = four<T>(keys[i * CHUNKS + c], f);
            UNROLL for (uint g = 0; g < HEADS; ++g) {
                const float4 y = get4(queries + g * WIDTH + (member + c * TEAM) * CHUNK + 4 * f);
                UNROLL for (uint i = 0; i < PASSES; ++i) {
                    float t = scores[g * PASSES + i];
                    t = fma(y.x, k[i].x, t); t = fma(y.y, k[i].y, t); t = fma(y.z, k[i].z, t); t = fma(y.w, k[i].w, t);
                    scores[g * PASSES + i] = t;
                }
            }
        }
        // Each step sums over two halves of the team and leaves each half with half of the scores, while there is more than one.
        UNROLL for (uint step = 1; step < 6; ++step) {
            const uint m = TEAM >> step, n = SCORES >> step;
            const bool upper = (member & m) != 0;
            UNROLL for (uint i = 0; i < (SCORES + 1) / 2; ++i) {
                if (m && i < n) {
                    const float sent = upper ? scores[i] : scores[i + n], kept = upper ? scores[i + n] : scores[i];
                    scores[i] = kept + simd_shuffle_xor(sent, m);
                }
            }
            if (m && n == 0) scores[0] += simd_shuffle_xor(scores[0], m);
        }
        if (a.cap != 0) UNROLL for (uint i = 0; i < MINE; ++i) scores[i] = capped(scores[i], a.cap);
        float most = LOWEST;
        uint mine[MINE];
        UNROLL for (uint i = 0; i < MINE; ++i) {
            mine[i] = (member / COPIES * MINE + i) % PASSES * TEAMS + team;
            if (base + mine[i] >= begin && base + mine[i] < len) most = max(most, scores[i]);
        }
        UNROLL for (uint m = 1; m < SHARERS; m <<= 1) most = max(most, simd_shuffle_xor(most, m));
        UNROLL for (uint m = TEAM; m < 32; m <<= 1) most = max(most, simd_shuffle_xor(most, m));
        if (lane < TEAM && member % SHARERS == 0) maxima[own * SIMDS + simd] = most;
        BARRIER();
        UNROLL for (uint s = 0; s < SIMDS; s += 4) {
            const float4 m = get4(maxima + own * SIMDS + s);
            most = max(most, max(max(m.x, m.y), max(m.z, m.w)));
        }
        most = max(most, greatest);
        const float correction = exp2(greatest - most);
        greatest = most;
        total *= correction;
        UNROLL for (uint i = 0; i < MINE; ++i) {
            const float w = base + mine[i] >= begin && base + mine[i] < len ? exp2(scores[i] - most) : 0.0f;
            if (member % COPIES == 0) {
                total += w;
                weights[mine[i] * HEADS + own] = w;
            }
        }
        if (tid < TEAM && member % SHARERS == 0) maxima[SIMDS * HEADS + own] = correction;
        BARRIER();
        if (!first) {
            UNROLL for (uint g = 0; g < HEADS; ++g) {
                const float c = maxima[SIMDS * HEADS + g];
                UNROLL for (uint e = 0; e < CHUNK; ++e) sums[g][e] *= c;
            }
        }
        UNROLL for (uint i = 0; i < 4; ++i) {
            const uint in_tile = row + rows * i;
            share_scale<T>(values[i], lane);
            if (D == WIDTH || (row < rows && in_tile < TILE)) {
                float w[HEADS];
                if (HEADS % 4 == 0) {
                    UNROLL for (uint g = 0; g < HEADS; g += 4) {
                        const float4 t = get4(weights + in_tile * HEADS + g);
                        w[g] = t.x; w[(g + 1) % HEADS] = t.y; w[(g + 2) % HEADS] = t.z; w[(g + 3) % HEADS] = t.w;
                    }
                } else {
                    UNROLL for (uint g = 0; g < HEADS; ++g) w[g] = weights[in_tile * HEADS + g];
                }
                UNROLL for (uint f = 0; f < CHUNK / 4; ++f) {
                    const float4 v = four<T>(values[i], f);
                    UNROLL for (uint g = 0; g < HEADS; ++g) {
                        sums[g][4 * f] = fma(w[g], v.x, sums[g][4 * f]);
                        sums[g][4 * f + 1] = fma(w[g], v.y, sums[g][4 * f + 1]);
                        sums[g][4 * f + 2] = fma(w[g], v.z, sums[g][4 * f + 2]);
                        sums[g][4 * f + 3] = fma(w[g], v.w, sums[g][4 * f + 3]);
                    }
                }
            }
        }
    }

    // Sums of weights, then sums of values, over the workgroup.
    UNROLL for (uint m = 1; m < SHARERS; m <<= 1) total += simd_shuffle_xor(total, m);
    UNROLL for (uint m = TEAM; m < 32; m <<= 1) total += simd_shuffle_xor(total, m);
    const uint place = (token * slices + slice) * a.kv_heads + kv_head, part = place * a.splits + group.x;
    if (lane < TEAM && member % SHARERS == 0) {
        angles[own * SIMDS + simd] = total;
        if (used > 1 && simd == 0) a.stats[(part * HEADS + own) * 2] = greatest;
    }
    UNROLL for (uint g0 = 0; g0 < HEADS; g0 += TOGETHER) {
        if (D == WIDTH || row < rows) {
            UNROLL for (uint g = 0; g < TOGETHER; ++g) UNROLL for (uint e = 0; e < CHUNK; e += 4)
                keep4(space + (g * rows + row) * d + column * CHUNK + e,
                      make_float4(sums[g0 + g][e], sums[g0 + g][e + 1], sums[g0 + g][e + 2], sums[g0 + g][e + 3]));
        }
        BARRIER();
        ROLLED for (uint o = tid; o < TOGETHER * d / 4; o += THREADS) {
            const uint g = o / (d / 4), e = o % (d / 4) * 4;
            threadgroup const float *from = space + g * rows * d + e;
            float4 t = get4(from);
            for (uint r = 1; r < rows; ++r) t = t + get4(from + r * d);
            float l = 0;
            UNROLL for (uint s = 0; s < SIMDS; s += 4) {
                const float4 m = get4(angles + (g0 + g) * SIMDS + s);
                l += (m.x + m.y) + (m.z + m.w);
            }
            if (g0 + g < heads) {
                if (used == 1) {
                    store4(a.out + (token * a.heads + first_head + g0 + g) * d + e, t * (1.0f / l));
                } else {
                    store4(a.partial + (part * HEADS + g0 + g) * d + e, t);
                    if (e == 0) a.stats[(part * HEADS + g0 + g) * 2 + 1] = l;
                }
            }
        }
        if (g0 + TOGETHER < HEADS) BARRIER();
    }
    if (used > 1 && (a.flags & ATTENTION_COMBINE) && arrives_last(a.counters + place, used, words, tid)) {
        combine<HEADS, THREADS>(a.partial + place * a.splits * HEADS * d, a.stats + place * a.splits * HEADS * 2,
                                a.out + (token * a.heads + first_head) * d, heads, d, used, space, tid, lane, simd);
    }
}
