// only sm_90a
// What one workgroup writes others read.
#define ARGUMENTS_OVERLAP
#include "dialect.h"
#include "experts.h"
#include "expert_gate.h"
#include "route.h"
#include "exchange.h"
// The layers of a decoding step as one launch: products of one token with weights in planes of codes or floats, attention over f16 caches, routers and
// their experts, in the order in which each needs what the one before it gives. As `decode_stack.cu`, which serves ternary weights whose rows of
// a phase fit into shared memory at once; here weights of any size stream through a ring there, without a pause between phases: one warp
// copies them in pieces, each as soon as a place is free, and the others take a piece when it is there.
//
// A phase is what a launch was (attention is two, a router's choice belongs to the experts after it). `exchange.h` says how values pass on.

constexpr uint THREADS = 512, ALL_THREADS = THREADS + 128, WARPS = THREADS / 32, MOST_SLOTS = 12;   // threads that compute; all, with four warps of which one copies; places in the ring
constexpr uint PRODUCTS = 0, ATTENTION = 1, COMBINE = 2;
static_assert(COMBINE == ATTENTION + 1, "the parts of attention put together follow it");
// GATED: rows of two matrices make one result. CHOOSE: the matrices' experts are chosen first; EXPERTS: rows of one expert after the other; JOINED: a
// row is one of each chosen expert, beside each other, with the experts' weights. FLOATS: weights are f32. SHORT: they are floats of 16 or 8 bits.
// AS_BF16: the activations' tensor for whoever else multiplies them is bf16, and not f32.
constexpr uint GATED = 1, CHOOSE = 2, EXPERTS = 4, JOINED = 8, FLOATS = 16, SHORT = 32, AS_BF16 = 64;
constexpr uint TYPE_F32 = 0, TYPE_Q8_0 = 1, TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q5_0 = 4, TYPE_Q5_1 = 5, TYPE_Q2_K = 6, TYPE_Q3_K = 7, TYPE_Q4_K = 8, TYPE_Q5_K = 9, TYPE_Q6_K = 10, TYPE_IQ4_NL = 11,
    TYPE_IQ4_XS = 12, TYPE_MXFP4 = 13, TYPE_NVFP4 = 14, TYPE_IQ2_N = 15, TYPE_IQ3_XXS_N = 16, TYPE_IQ3_S_N = 17, TYPE_BF16 = 18, TYPE_F16 = 19, TYPE_F8 = 20;
static_assert(TYPE_F32 < TYPE_Q8_0, "f32 have a path of their own");
constexpr uint GATE_SWIGLU = 1, GATE_RELU2 = 2, GATE_CLAMPED_SWIGLU = 3;
static_assert(GATE_SWIGLU == SWIGLU && GATE_RELU2 == RELU2 && GATE_CLAMPED_SWIGLU == CLAMPED_SWIGLU, "what the host calls gates");
constexpr uint MOST_LENGTH = 16384, MOST_FLOATS = 8192, MOST_SHORT = 6144;   // elements of a row, of one of f32, and of one of other floats
constexpr uint SHORT_OF_WARP = 2 * 8 * 32;      // elements of a row of those other floats that a warp multiplies
constexpr uint MOST_SUMS = 8192;                // partial sums of a workgroup's rows in a phase
constexpr uint MOST_RESIDUAL = THREADS / 4;     // rows of a workgroup with an addition
constexpr uint MOST_EXPERTS = 256, MOST_JOINED = 10, MOST_HEADS = 8;   // experts; chosen ones; query heads of a key/value head
constexpr uint MOST_AHEAD = 128;                // positions that the L2 fetches for a workgroup
constexpr uint PARTS_OF_HEAD = 32;              // the most workgroups that share a key/value head

struct __align__(16) Phase {
    uint kind, flags;
    uint in_at, out_at, in_tag, out_tag;        // places in the exchange, and tags: `exchange.h`
    uint k, each, over;                         // elements of a row; rows of a workgroup, and how many workgroups have one more
    uint chunks, parts, magic;                  // of a segment of a row, 32 elements each; warps along a row; ⌊256 / parts⌋ + 1
    uint segments, segment_magic;               // of a row; ⌊65536 / chunks⌋ + 1
    uint m0, m1;                                // rows of the first two matrices, or of an expert's
    uint types[3], piece[3];                    // of each matrix: what its weights are, and rows that are copied at a time
    uint bytes[9];                              // of each matrix's rows in each plane
    float eps, per, scale;
    uint stats_at, logits_at, logits_tag, experts, chosen, form, after, window;
    uint pad[2];
    const float *x, *norm, *residual;           // x null: from the exchange
    const float *bias[3];                       // of each matrix's rows, or of each expert's; null: none
    const uchar *planes[9];
    float *y[3], *plain[3];                     // plain: results without bias and residual, if somebody reads them
    half *keys, *values;
    const float *q_norm, *k_norm, *sinks;       // null: none
    uint *ids; float *weights;                  // the choice's results
    uint *converted; float *x_scales;           // the activations after the norm, as codes with scales or as floats, or null
};
constexpr uint WORDS = sizeof(Phase) / 16;
static_assert(sizeof(Phase) == 416, "the host writes phases");
static_assert(WORDS <= 32, "a warp reads a description");

struct Run {
    const Phase *phases; float *exchange; uint *run;
    const uint *positions, *sequences, *slots, *table; const float *freqs; uint *fault;
    uint count, heads, kv_heads, shift, blocks, rows, columns, pairs, adjacent, splits, ring_slots, slot_bytes;
};

// A piece of weights in the ring: its rows, the first of them among the workgroup's in the phase, whether it is the phase's last, and where the planes of
// each matrix or segment lie.
struct Rows { uint rows, first, type, last; uint at[32]; };

// Where a warp is: a place in the ring, how often the ring has been round, and the phase that comes next.
struct Cursor { uint slot, round, phase, pad; };

struct Shared {
    Phase phases[6];
    unsigned long long full[MOST_SLOTS], empty[MOST_SLOTS];
    Rows pieces[MOST_SLOTS];
    uint run, len, slot, kv, split, pad[3];     // of this launch and this workgroup: here and not in registers, which are scarce
    ulong blocks;                               // the address of the sequence's row of the block table
    ulong pad2;
    Cursor cursors[WARPS];                      // of each warp that computes
    float squares[WARPS];
    float shares[MOST_JOINED + 2];              // weights of the chosen experts
    uint chosen[MOST_JOINED + 2];               // the experts
    float angles[256];
    float stats[2 * MOST_HEADS * WARPS];
    uint2 meta[MOST_LENGTH / 32];               // of codes; here and after it lie the activations if they stay floats
    uchar codes[MOST_LENGTH];
    uchar more[MOST_SHORT * 4 - MOST_LENGTH / 4 - MOST_LENGTH];
    float sums[MOST_SUMS];
};
HOST(Phase, Shared, THREADS, ALL_THREADS, MOST_SLOTS, PRODUCTS, ATTENTION, COMBINE, GATED, CHOOSE, EXPERTS, JOINED, FLOATS, SHORT, AS_BF16, MOST_LENGTH, MOST_FLOATS, MOST_SHORT, SHORT_OF_WARP, MOST_SUMS, MOST_RESIDUAL, MOST_EXPERTS, MOST_JOINED,
     MOST_HEADS, PARTS_OF_HEAD, GATE_SWIGLU, GATE_RELU2, GATE_CLAMPED_SWIGLU, TYPE_F32, TYPE_Q8_0, TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q2_K, TYPE_Q3_K, TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K, TYPE_IQ4_NL, TYPE_IQ4_XS, TYPE_MXFP4, TYPE_NVFP4,
     TYPE_IQ2_N, TYPE_IQ3_XXS_N, TYPE_IQ3_S_N, TYPE_BF16, TYPE_F16, TYPE_F8)

FN void advance(Cursor &at, uint slots) { ++at.slot; if (at.slot == slots) { at.slot = 0; ++at.round; } }
FN void bar() { asm volatile("bar.sync 1, %0;" :: "n"(THREADS) : "memory"); }

// The experts that a token chooses, from its logits: lane i has the i-th and its weight.
template <uint V> FN void choice(const Run &a, const Phase *f, uint lane, uint run, uint &chosen, float &weight)
{
    const uint n = f->experts, tag = tag_of(f->logits_tag, run);
    const float *from = a.exchange + f->logits_at;
    float r[V];
    UNROLL for (uint v = 0; v < V; ++v) r[v] = v * 32 + lane < n ? peek(from + v * 32 + lane) : tagged(-INFINITY, tag);
    for (uint polls = 0;; ++polls) {
        bool missing = false;
        UNROLL for (uint v = 0; v < V; ++v) missing |= v * 32 + lane < n && !fits(r[v], tag);
        if (!__any_sync(~0u, missing)) break;
        UNROLL for (uint v = 0; v < V; ++v) if (v * 32 + lane < n && !fits(r[v], tag)) r[v] = peek(from + v * 32 + lane);
        if (polls == PATIENCE) __trap();
    }
    UNROLL for (uint v = 0; v < V; ++v) if (v * 32 + lane >= n) r[v] = -INFINITY;
    choose<V>(r, n, f->chosen, f->form, lane, chosen, weight);
}

// One warp: copies the weights of all phases, and has the L2 fetch the norms' weights and this workgroup's rows of the caches.
FN void fetch(const Run &a, Shared &sh, uchar *ring, uint group, uint lane, uint head_bytes)
{
    const uint run = sh.run, len = sh.len, kv = sh.kv, split = sh.split;
    const uint *blocks = (const uint *)sh.blocks;
    const ulong policy = stream_policy();
    const uint sel = lane / 3, plane = lane % 3;
    Cursor at = {0, 0, 0, 0};
    uint chosen = 0;
    for (uint p = 0; p < a.count; ++p) {
        const Phase *f = a.phases + p;
        if (f->kind == ATTENTION) {
            const uint first = f->window != 0 && len > f->window ? len - f->window : 0, each = (len - first + a.splits - 1) / a.splits;
            const uint begin = split < a.splits ? first + split * each : len, end = min(begin + each, len);
            for (uint i = lane; begin + i / 4 < end && i < 4 * MOST_AHEAD; i += 32) {
                const uint q = begin + i / 4, block = blocks[q >> a.shift];
                const ulong row = ulong((block * a.kv_heads + kv) << a.shift | (q & ((1u << a.shift) - 1))) * head_bytes + i % 2 * 128;
                if (block < a.blocks && i % 2 * 128 < head_bytes) PREFETCH((i % 4 < 2 ? (const uchar *)f->keys : (const uchar *)f->values) + row);
            }
        }
        if (f->kind != PRODUCTS) continue;
        const uint flags = f->flags, begin = group * f->each + min(group, f->over), end = begin + f->each + (group < f->over ? 1 : 0), m0 = f->m0, m2 = m0 + f->m1;
        if (f->norm) for (uint i = group * 32 + lane * 32 * gridDim.x; i < f->k; i += 32 * 32 * gridDim.x) PREFETCH(f->norm + i);
        if (flags & CHOOSE) {
            float weight = 0;
            if (f->experts <= 128) choice<4>(a, f, lane, run, chosen, weight);
            else choice<8>(a, f, lane, run, chosen, weight);
            if (lane < f->chosen) {
                sh.shares[lane] = weight;
                sh.chosen[lane] = chosen;
                if (group == 0) { f->ids[lane] = chosen; f->weights[lane] = weight; }
            }
        }
        const bool gated = flags & GATED, joined = flags & JOINED, experts = flags & EXPERTS;
        const uint sels = gated ? 2 : joined ? f->segments : 1, of_lane = simd_shuffle(chosen, min(sel, 31u)) * m0, after_m1 = gated || joined ? ~0u : m2;
        // What this lane copies of the rows' matrix: a plane, bytes of a row, and where it lies in a place of the ring.
        const uchar *from_plane = nullptr;
        uint matrix = ~0u, stride = 0, most = 0, to = 0, type = 0;
        for (uint i = begin; i < end;) {
            uint m = 0, row = i, left = end - i;
            if (experts) {
                const uint slot = i / m0, inside = i - slot * m0;
                row = simd_shuffle(chosen, slot) * m0 + inside;
                left = min(left, m0 - inside);
            } else if (joined) row = of_lane + i;
            else if (!gated) {
                m = i < m0 ? 0 : i < after_m1 ? 1 : 2;
                row = i - (m == 0 ? 0 : m == 1 ? m0 : after_m1);
                if (m < 2) left = min(left, (m == 0 ? m0 : after_m1) - i);
            }
            if (m != matrix) {
                const uint at_plane = (gated ? min(sel, 1u) : m) * 3 + plane;
                matrix = m;
                most = f->piece[m];
                type = f->types[m];
                stride = sel < sels ? f->bytes[at_plane] : 0;
                from_plane = f->planes[at_plane];
                to = simd_sum_before(stride ? (most * stride + 47) & ~15u : 0, lane);
            }
            // Copies begin at multiples of 16 bytes: they bring some of their neighbours.
            const uint n = min(left, most);
            const ulong from = (ulong)(from_plane + ulong(row) * stride);
            const uint bytes = stride ? (uint)(((from + n * stride + 15) & ~15ul) - (from & ~15ul)) : 0, total = simd_sum(bytes);
            const uint slot = at.slot, full = shared_address(&sh.full[slot]);
            Rows &piece = sh.pieces[slot];
            wait(shared_address(&sh.empty[slot]), at.round & 1 ^ 1);
            piece.at[lane] = to + (uint)(from & 15);
            if (lane == 0) {
                piece.rows = n;
                piece.first = i - begin;
                piece.type = type;
                piece.last = i + n == end;
            }
            // What was read and written here comes before the copies.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(full), "r"(total) : "memory");
            __syncwarp();
            if (bytes) bulk(shared_address(ring) + slot * a.slot_bytes + to, (const uchar *)(from & ~15ul), bytes, full, policy);
            advance(at, a.ring_slots);
            i += n;
        }
    }
}

// A thread's chunk of the activations.
struct Codes { uint4 low, upper; float scale; int first, second; };

// Bytes of a chunk in the low plane, chunks of a record and its bytes.
template <uint W> FN constexpr uint chunk_bytes() { return W == Q8 ? 32 : low_bytes<W>(); }
template <uint W> FN constexpr uint record_len() { return packed<W>() ? record_chunks<W>() : 1; }
template <uint W> FN constexpr uint record_size() { return packed<W>() ? record_bytes<W>() : 2; }

// A chunk, the t-th of its record, in the ring.
template <uint W> FN void take(Piece<W> &p, const uchar *low, const uchar *high, const uchar *record, uint t)
{
    if (low_bits<W>() == 4 || W == Q8) p.chunk.low = *(const uint4 *)low;
    else {
        const uint2 v = *(const uint2 *)low;
        p.chunk.low.x = v.x;
        p.chunk.low.y = v.y;
    }
    if (W == Q8) p.upper = *(const uint4 *)(low + 16);
    if (high_bits<W>() == 2) p.chunk.high = *(const uint2 *)high;
    if (high_bits<W>() == 1) p.chunk.high.x = *(const uint *)high;
    p.chunk.numbers = !has_numbers<W>() ? 0 : record_size<W>() % 4 == 0 ? *(const uint *)record : *(const ushort *)record;
    if (factors_of<W>() == EXPONENT) p.chunk.factors = *record;
    else if (factors_of<W>() == FLOATS_16) p.chunk.factors = *(const ushort *)(record + t * 2);
    else if (factors_of<W>() == SIGNED_32) p.chunk.factors = *(record + (record_size<W>() - 8) + t);
    else if (factors_of<W>() != ONE) p.chunk.factors = *(const ushort *)(record + (record_size<W>() - 16) + t * 2);
}

// Where a thread is in its rows: the first it takes, how many are taken together, warps along a row and which of them it is in, chunks of a segment, and its segment
// and chunk there.
struct At { uint warp_row, together, part, parts, chunks, segment, c, lane; };

// The sums over lanes of four numbers, each in a quarter of the lanes, and which of them a lane has.
FN float four_sums(const float *s, uint lane)
{
    const bool upper = lane & 16, odd = lane & 8;
    const float a = (upper ? s[1] : s[0]) + simd_shuffle_xor(upper ? s[0] : s[1], 16), b = (upper ? s[3] : s[2]) + simd_shuffle_xor(upper ? s[2] : s[3], 16);
    float z = (odd ? b : a) + simd_shuffle_xor(odd ? a : b, 8);
    z += simd_shuffle_xor(z, 4); z += simd_shuffle_xor(z, 2);
    return z + simd_shuffle_xor(z, 1);
}
FN uint lane_row(uint lane) { return (lane >> 4 & 1) + (lane >> 3 & 1) * 2; }

// The products of a piece's rows, of one matrix or of two after each other: four at a time, whose sums the quarters of the lanes finish.
template <uint W> FN void multiply_piece(const Rows &piece, const uchar *slot, const Codes &x, const At &at, uint matrices, float *sums)
{
    const uint n = piece.rows, all = n * matrices, t = at.c % record_len<W>();
    const uint low_row = at.chunks * chunk_bytes<W>(), high_row = at.chunks * high_bytes<W>(), record_row = at.chunks / record_len<W>() * record_size<W>();
    const uint *from = piece.at + 3 * at.segment;
    // From the end of the first matrix's rows to the beginning of the second's.
    uint low_more = 0, high_more = 0, record_more = 0;
    if (matrices > 1) { low_more = from[3] - from[0] - n * low_row; high_more = from[4] - from[1] - n * high_row; record_more = from[5] - from[2] - n * record_row; }
    const uchar *low = slot + from[0] + at.c * chunk_bytes<W>(), *high = slot + from[1] + at.c * high_bytes<W>(), *record = slot + from[2] + at.c / record_len<W>() * record_size<W>();
    ROLLED for (uint r = at.warp_row; r < all; r += 4 * at.together) {
        float s[4];
        Piece<W> p[4];
        UNROLL for (uint i = 0; i < 4; ++i) {
            const uint row = min(r + i * at.together, all - 1);
            const bool second = row >= n;
            take<W>(p[i], low + (row * low_row + (second ? low_more : 0)), high + (row * high_row + (second ? high_more : 0)), record + (row * record_row + (second ? record_more : 0)), t);
        }
        UNROLL for (uint i = 0; i < 4; ++i) s[i] = code_sum<W>(p[i], x.low, x.upper, x.first, x.second) * x.scale;
        const float z = four_sums(s, at.lane);
        const uint row = r + lane_row(at.lane) * at.together, second = row >= n;
        if (at.lane % 8 == 0 && row < all) sums[(matrices > 1 ? (piece.first + row - second * n) * 2 + second : piece.first + row) * at.parts + at.part] = z;
    }
}

#include "layers_floats.h"

// What is added to a row of a matrix, and of a gate to the row of the second: their biases. Of a row of several experts each fourth of the lanes that add it up
// has a part.
FN float2 biases(const Shared &sh, const Phase &f, uint i, uint m, uint quarter)
{
    const float *bias = f.bias[m];
    float2 z = make_float2(0, 0);
    if (bias == nullptr) return z;
    if (f.flags & JOINED) for (uint q = quarter; q < f.segments; q += 4) z.x = fma(sh.shares[q], bias[sh.chosen[q] * f.m0 + i], z.x);
    else if (f.flags & EXPERTS) {
        const uint slot = i / f.m0, at = sh.chosen[slot] * f.m0 + i - slot * f.m0;
        z = make_float2(bias[at], f.bias[1][at]);
    } else z.x = bias[i];
    return z;
}

constexpr uint HELD = 4;                        // fours of activations that a thread has at a time
static_assert(MOST_FLOATS == HELD * 4 * THREADS, "rows of f32 are held whole");
static_assert(MOST_SHORT <= WARPS * SHORT_OF_WARP, "warps have rows of floats whole");
static_assert(MOST_EXPERTS == 8 * 32, "a lane has eight logits at most");
static_assert(PARTS_OF_HEAD == 32, "a lane has a part");
template <bool OF_FLOATS> FN void products(const Run &a, Shared &sh, const Phase &f, const uchar *ring, uint group, uint tid)
{
    const uint lane = tid % 32, warp = tid / 32, fours = f.k / 4;
    Cursor cursor = sh.cursors[warp];
    const float *x = f.x, *norm = f.norm;
    const float4 *from = (const float4 *)(x ? x : a.exchange + f.in_at) + tid;
    float4 v[HELD], gain[HELD];
    UNROLL for (uint j = 0; j < HELD; ++j) { v[j] = make_float4(0, 0, 0, 0); if (j * THREADS + tid < fours) v[j] = peek(from + j * THREADS); }
    const uint begin = group * f.each + min(group, f.over), rows = f.each + (group < f.over ? 1 : 0), flags = f.flags, parts = f.parts, tag = tag_of(f.in_tag, sh.run);
    const bool gated = flags & GATED;
    float residual = 0;
    if (f.residual && tid / 4 < rows) residual = fresh(f.residual + begin + tid / 4);
    float s = 0;
    for (uint round = 0; round < fours; round += HELD * THREADS) {
        if (norm) UNROLL for (uint j = 0; j < HELD; ++j) gain[j] = constant4(norm + min(round + j * THREADS + tid, fours - 1) * 4);
        for (uint polls = 0; !x; ++polls) {
            uint missing[HELD], some = 0;
            UNROLL for (uint j = 0; j < HELD; ++j) { missing[j] = round + j * THREADS + tid < fours ? others(v[j], tag) : 0; some |= missing[j]; }
            if (__all_sync(~0u, some == 0)) break;
            UNROLL for (uint j = 0; j < HELD; ++j) if (missing[j]) v[j] = peek(from + round + j * THREADS);
            if (polls == PATIENCE) __trap();
        }
        UNROLL for (uint j = 0; j < HELD; ++j) if (round + j * THREADS + warp * 32 < fours) {
            s = fma(v[j].w, v[j].w, fma(v[j].z, v[j].z, fma(v[j].y, v[j].y, fma(v[j].x, v[j].x, s))));
            if (norm) v[j] = v[j] * gain[j];
            // The norm's factor is the same for all elements: results are multiplied by it.
            const uint i = round + j * THREADS + tid;
            if constexpr (!OF_FLOATS) quantize_packed(sh.codes, sh.meta, f.k, fours, i, v[j], 0.0f);
            else if ((flags & SHORT) && i < fours) ((float4 *)sh.meta)[i / 2 + i % 2 * (MOST_SHORT / 8)] = v[j];
        }
        if (round + HELD * THREADS < fours) UNROLL for (uint j = 0; j < HELD; ++j) {
            const uint i = round + (HELD + j) * THREADS;
            v[j] = make_float4(0, 0, 0, 0);
            if (i + tid < fours) v[j] = peek(from + i);
        }
    }
    s = simd_sum(s);
    if (lane == 0) sh.squares[warp] = s;
    bar();
    s = sh.squares[lane % WARPS];
    UNROLL for (uint m = WARPS / 2; m; m >>= 1) s += simd_shuffle_xor(s, m);
    const float factor = norm ? inverse_root(s * f.per + f.eps) : 1.0f;

    if constexpr (OF_FLOATS) if (flags & SHORT) {
        if (rows) float_products(a, sh, f, ring, cursor, (const float *)sh.meta, warp, lane);
    } else {
        // Each thread multiplies the elements that it has.
        if (rows) for (bool last = false; !last;) {
            const Rows &piece = sh.pieces[cursor.slot];
            wait(shared_address(&sh.full[cursor.slot]), cursor.round & 1);
            last = piece.last;
            const float4 *w = (const float4 *)(ring + cursor.slot * a.slot_bytes + piece.at[0]) + tid;
            for (uint r = 0; r < piece.rows; ++r) {
                float z = 0;
                UNROLL for (uint j = 0; j < HELD; ++j) if (j * THREADS + tid < fours) z += dot(v[j], w[r * fours + j * THREADS]);
                z = simd_sum(z);
                if (lane == 0) sh.sums[(piece.first + r) * parts + warp] = z;
            }
            __syncwarp();
            if (lane == 0) arrive(shared_address(&sh.empty[cursor.slot]));
            advance(cursor, a.ring_slots);
        }
    }
    if constexpr (!OF_FLOATS) {
        At at;
        at.lane = lane;
        at.parts = parts;
        at.warp_row = warp * f.magic >> 8;
        at.part = warp - at.warp_row * parts;
        at.together = WARPS / parts;
        at.chunks = f.chunks;
        const uint all = f.k / 32, wanted = at.part * 32 + lane, c = min(wanted, all - 1);
        at.segment = f.segments > 1 ? c * f.segment_magic >> 16 : 0;
        at.c = c - at.segment * at.chunks;
        const bool busy = at.warp_row < at.together;
        const uint2 meta = sh.meta[c];
        Codes own = {((const uint4 *)sh.codes)[c], ((const uint4 *)sh.codes)[all + c], wanted < all ? as_f32(meta.x) : 0.0f, int(meta.y << 16) >> 16, int(meta.y) >> 16};
        if (rows) for (bool last = false; !last;) {
            const Rows &piece = sh.pieces[cursor.slot];
            wait(shared_address(&sh.full[cursor.slot]), cursor.round & 1);
            if ((flags & JOINED) && piece.first == 0) own.scale *= sh.shares[at.segment];
            last = piece.last;
            const uchar *slot = ring + cursor.slot * a.slot_bytes;
            if (busy) switch (piece.type) {
#define CASE(T, W) case T: multiply_piece<W>(piece, slot, own, at, gated ? 2 : 1, sh.sums); break;
                CASE(TYPE_Q8_0, Q8) CASE(TYPE_Q4_0, Q4) CASE(TYPE_Q4_K, Q4_K) CASE(TYPE_Q5_K, Q5_K) CASE(TYPE_Q6_K, Q6_K)
                CASE(TYPE_Q4_1, Q4_1) CASE(TYPE_Q5_0, Q5_0) CASE(TYPE_Q5_1, Q5_1) CASE(TYPE_Q2_K, Q2_K) CASE(TYPE_Q3_K, Q3_K)
                CASE(TYPE_IQ4_NL, IQ4_NL) CASE(TYPE_IQ4_XS, IQ4_XS) CASE(TYPE_MXFP4, MXFP4) CASE(TYPE_NVFP4, NVFP4)
                CASE(TYPE_IQ2_N, IQ2_N) CASE(TYPE_IQ3_XXS_N, IQ3_XXS_N) CASE(TYPE_IQ3_S_N, IQ3_S_N)
            }
            __syncwarp();
            if (lane == 0) arrive(shared_address(&sh.empty[cursor.slot]));
            advance(cursor, a.ring_slots);
        }
    }
    if (lane == 0) { sh.cursors[warp].slot = cursor.slot; sh.cursors[warp].round = cursor.round; }
    // Four lanes add up a row. What can be known before all sums are there is.
    const uint out_tag = tag_of(f.out_tag, sh.run), after = f.after;
    const bool whole = flags & (GATED | EXPERTS | JOINED | FLOATS);
    uint i = begin + tid / 4, m = 0;
    float *out = a.exchange + f.out_at + i;
    if (!whole && i >= f.m0) { i -= f.m0; m = 1; if (i >= f.m1) { i -= f.m1; m = 2; } }
    // Phases with biases or an addition have one round of rows.
    const float2 bias = tid / 4 < rows ? biases(sh, f, i, m, tid % 4) : make_float2(0, 0);
    const bool joined = flags & JOINED;
    bar();
    if (f.converted && group == gridDim.x - 1) {
        // What experts multiply, for whoever else does.
        if constexpr (!OF_FLOATS) {
            for (uint i = tid; i < fours; i += THREADS) f.converted[i] = *(const uint *)(sh.codes + i / 8 * 16 + i % 4 * 4 + (i & 4) / 4 * (f.k / 2));
            for (uint i = tid; i < f.k / 32; i += THREADS) f.x_scales[i] = as_f32(sh.meta[i].x) * factor;
        } else for (uint i = tid; i < f.k; i += THREADS) {
            const float z = ((const float *)sh.meta)[i / 8 * 4 + i / 4 % 2 * (MOST_SHORT / 2) + i % 4] * factor;
            if (flags & AS_BF16) ((ushort *)f.converted)[i] = bfloat_bits(z);
            else ((float *)f.converted)[i] = z;
        }
        bar();
    }
    for (uint first = 0; first < rows; first += MOST_RESIDUAL) {
        const uint e = first + tid / 4;
        const float *own = sh.sums + (gated ? 2 : 1) * min(e, rows - 1) * parts;
        float z = joined ? bias.x : 0.0f, up = 0;
        for (uint q = tid % 4; q < parts; q += 4) {
            z += own[q];
            if (gated) up += own[parts + q];
        }
        z += simd_shuffle_xor(z, 1); up += simd_shuffle_xor(up, 1);
        z += simd_shuffle_xor(z, 2); up += simd_shuffle_xor(up, 2);
        if (tid % 4 == 0 && e < rows) {
            z *= factor;
            if (float *plain = f.plain[m]) keep(plain + i, z);
            if (!joined) z += bias.x;
            if (gated) z = gate_value(after, z, fma(up, factor, bias.y));
            z += residual;
            give(out, tagged(z, out_tag));
            if (float *y = f.y[m]) keep(y + i, z);
        }
        // More rows than that are of one matrix or a gate, or found again.
        i = begin + e + MOST_RESIDUAL;
        out += MOST_RESIDUAL;
        m = 0;
        if (!whole && i >= f.m0) { i -= f.m0; m = 1; if (i >= f.m1) { i -= f.m1; m = 2; } }
    }
}

#include "layers_attention.h"

KERNEL_ALONE(decode_layers, ALL_THREADS, IN(0, Phase, phases), OUT(1, float, exchange), OUT(2, uint, runs), IN(3, uint, positions), IN(4, uint, sequences), IN(5, uint, slots),
    IN(6, uint, table), IN(7, float, freqs), FAULT(8), IN(9, uint, step), VAL(10, uint, step_slot), VAL(11, uint, count), VAL(12, uint, heads), VAL(13, uint, kv_heads),
    VAL(14, uint, shift), VAL(15, uint, blocks), VAL(16, uint, rows), VAL(17, uint, columns), VAL(18, uint, pairs), VAL(19, uint, adjacent), VAL(20, uint, splits), VAL(21, uint, d),
    VAL(22, uint, ring_slots), VAL(23, uint, slot_bytes))
{
    extern __shared__ __align__(128) uchar bytes[];
    Shared &sh = *(Shared *)bytes;
    uchar *ring = bytes + (sizeof(Shared) + 127) / 128 * 128;
    const Run a = {phases, exchange, runs, positions, sequences, slots, table, freqs, fault, count, heads, kv_heads, shift, blocks, rows, columns, pairs, adjacent, splits, ring_slots, slot_bytes};
    const uint tid = threadIdx.x, group = blockIdx.x;
    if (tid == 0) {
        for (uint i = 0; i < MOST_SLOTS; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&sh.full[i])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(&sh.empty[i])), "n"(WARPS) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (uint i = tid; i < 3 * WORDS; i += ALL_THREADS) ((uint4 *)sh.phases)[i] = ((const uint4 *)(a.phases + min(i / WORDS, count - 1)))[i % WORDS];
    DEPENDENCY_WAIT();
    // No token, nothing to do; all workgroups see the same.
    if (step && fresh(step + step_slot) == 0) return;
    const uint position = positions ? fresh(positions) : 0, sequence = positions ? fresh(sequences) : 0, slot = positions ? fresh(slots) : 0;
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
    if (tid < WARPS) sh.cursors[tid] = {0, 0, 0, 0};
    if (tid == 0) {
        // The positions are shared by the workgroups of a key/value head.
        sh.run = fresh(a.run);
        sh.len = position + 1;
        sh.slot = slot;
        sh.kv = group % kv_heads;
        sh.split = group / kv_heads;
        sh.blocks = (ulong)(table + sequence * columns);
    }
    __syncthreads();
    if (tid >= THREADS) {
        // Registers are given and taken by four warps.
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        if (tid < THREADS + 32) fetch(a, sh, ring, group, tid - THREADS, d * 2);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    // Descriptions are copied three phases before they are needed, into the place of one that every warp has left: of two phases one has a barrier.
    for (;;) {
        // The thread is asked for again, and the phase kept elsewhere, so that neither takes registers from phase to phase.
        uint tid;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
        const uint p = *(volatile uint *)&sh.cursors[tid / 32].phase;
        if (p == count) break;
        __syncwarp();
        if (tid % 32 == 0) *(volatile uint *)&sh.cursors[tid / 32].phase = p + 1;
        const Phase &f = sh.phases[p % 6];
        COPY_WAIT(0);
        if (tid < WORDS) COPY16((uint4 *)&sh.phases[(p + 3) % 6] + tid, (const uint4 *)(a.phases + min(p + 3, count - 1)) + tid, stream_policy());
        COPY_COMMIT();
        const uint kind = f.kind;
        if (kind == PRODUCTS) {
            if (f.flags & (FLOATS | SHORT)) products<true>(a, sh, f, ring, group, tid);
            else products<false>(a, sh, f, ring, group, tid);
        } else if (kind == ATTENTION) {
            if (d == 128) attention<128>(a, sh, f, tid);
            else attention<64>(a, sh, f, tid);
        } else combine(a, sh, f, d, group, tid);
    }
    if (group == 0 && tid == 0) *a.run = sh.run + 1;
}
