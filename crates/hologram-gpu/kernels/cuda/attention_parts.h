// What the kernels of attention of few tokens on tensor cores share: their arguments, products of f16, and the end, which puts the results of
// warps and then of workgroups together.

constexpr unsigned HEADS = 8, MAX_SPLITS = 64;
// Above the flags: how many positions a token sees; 0: all up to its own. `sizes` are elements of a head, and from
// bit PAIRS on rotated pairs.
constexpr unsigned APPEND = 1, ADJACENT = 2, FIRSTS = 8, SINKS = 16, WINDOW = 5, PAIRS = 16;
// Above the splits: the parts that tokens have beside one each (portion_of), fewer than 1 << DIVIDED; 0: each has the splits.
constexpr unsigned DIVIDED = 16;
constexpr float LOWEST = -1e38f;

struct Few {
    const float *q, *k, *v;
    const unsigned *positions, *sequences, *slots, *table;
    const float *freqs;
    void *out; // f32, or bf16 where `narrow`.
    float *partial, *stats;
    unsigned *counters, *fault;
    unsigned tokens, heads, kv_heads, shift, blocks, rows, columns, pairs, flags, splits;
    float scale;
    const unsigned *firsts;
    const float *sinks;
    float cap;
    bool narrow;
};

// A workgroup's part of a token's positions: every `used`-th tile of them from number `part` on. Results of parts are kept in order from `first` on.
struct Portion { unsigned token, part, used, first, sequence, position; };
constexpr unsigned NONE = ~0u;

// The first position that a token sees, and the end of them.
struct Span { unsigned begin, len; };
__device__ __forceinline__ Span span_of(const Few &a, unsigned token, unsigned position)
{
    const unsigned len = position + 1, window = a.flags >> WINDOW;
    return {a.flags & FIRSTS ? min(a.firsts[token], position) : window && len > window ? len - window : 0, len};
}
template <unsigned TILE> __device__ __forceinline__ unsigned tiles_of(const Few &a, unsigned token, unsigned position)
{
    const Span span = span_of(a, token, min(position, (a.columns << a.shift) - 1));
    return (span.len + TILE - 1) / TILE - span.begin / TILE;
}
// This workgroup's part; its token is NONE if it has none. Every warp finds the same. A token has as many parts as its tiles, up to the splits; or, with
// parts that are divided, one and of these as many as its share of all tiles: short texts need not wait for a long one. The grid then has a column for
// each part.
template <unsigned TILE> __device__ __forceinline__ Portion portion_of(const Few &a, unsigned slices, unsigned kv_head)
{
    const unsigned more = a.splits >> DIVIDED, lane = threadIdx.x % 32, column = blockIdx.x;
    if (more == 0) {
        const unsigned token = blockIdx.z / slices, slice = blockIdx.z - token * slices;
        if (token >= a.tokens) return {NONE};
        const unsigned position = a.positions[token], sequence = a.sequences[token], used = min(tiles_of<TILE>(a, token, position), a.splits);
        return {column < used ? token : NONE, column, used, ((token * slices + slice) * a.kv_heads + kv_head) * a.splits, sequence, position};
    }
    unsigned position = 0, sequence = 0, tiles = 0;
    const auto load = [&](unsigned t) {
        const bool there = t < a.tokens;
        if (there) {
            position = a.positions[t];
            sequence = a.sequences[t];
        }
        tiles = there ? tiles_of<TILE>(a, t, position) : 0;
    };
    load(lane);
    unsigned all = tiles;
#pragma unroll 1
    for (unsigned t = lane + 32; t < a.tokens; t += 32) all += tiles_of<TILE>(a, t, a.positions[t]);
    const float of_tile = __fdividef(float(more), float(__reduce_add_sync(~0u, all)));
    unsigned before = 0;
#pragma unroll 1
    for (unsigned from = 0; from < a.tokens; from += 32) {
        if (from) load(from + lane);
        const unsigned used = min(min(tiles, 1 + unsigned(float(tiles) * of_tile)), MAX_SPLITS);
        unsigned sum = used;
#pragma unroll
        for (unsigned i = 1; i < 32; i *= 2) {
            const unsigned other = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum += other;
        }
        const unsigned end = before + sum, part = column - (end - used), found = __ballot_sync(~0u, part < used);
        if (found) {
            const unsigned owner = __ffs(found) - 1;
            const auto its = [&](unsigned x) { return __shfl_sync(~0u, x, owner); };
            const unsigned its_part = its(part);
            return {from + owner, its_part, its(used), (blockIdx.z * a.kv_heads + kv_head) * gridDim.x + column - its_part, its(sequence), its(position)};
        }
        before = __shfl_sync(~0u, end, 31);
    }
    return {NONE};
}

// What the launch before wrote.
__device__ __forceinline__ float4 fresh(const float *p)
{
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ void multiply_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float4 operator*(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// x and y in two parts of f16 each.
__device__ __forceinline__ void split(float x, float y, unsigned &high, unsigned &low)
{
    const __half2 h = __floats2half2_rn(x, y), l = __floats2half2_rn(x - __low2float(h), y - __high2float(h));
    high = *reinterpret_cast<const unsigned *>(&h);
    low = *reinterpret_cast<const unsigned *>(&l);
}
// Puts together what the warps of a workgroup, and then its workgroups, found for a token and up to 8 heads: `sums` of values relative to a
// greatest score `most`, and the sum `total` of weights. `Of` says which elements a lane has.
template <class Of, int D, unsigned WARPS> __device__ __forceinline__ void join(const Few &a, const float (&sums)[D / 8][4], float most, float total, unsigned heads, unsigned first_head,
    const Portion &portion, unsigned place, float *results, float2 (*stats)[HEADS], float *factors, bool &last)
{
    constexpr unsigned FOURS = D / 4, THREADS = WARPS * 32;
    const unsigned tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    // The warps' results, then this workgroup's.
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    __syncthreads();
    if (lane / 4 < heads) {
        if (lane % 4 == 0) stats[warp][lane / 4] = make_float2(most, total);
#pragma unroll
        for (int i = 0; i < D / 16; ++i) *reinterpret_cast<float4 *>(results + (warp * HEADS + lane / 4) * D + Of::part_at(i, lane)) = Of::part(sums, i);
    }
    __syncthreads();
    const unsigned token = portion.token, used = portion.used, part = portion.first + portion.part, fours = heads * FOURS;
    const auto write = [&](unsigned f, float4 x) {
        const size_t at = size_t(token * a.heads + first_head) * D + f * 4;
        if (a.narrow) *reinterpret_cast<uint2 *>(reinterpret_cast<__nv_bfloat16 *>(a.out) + at) = make_uint2(pair_bf16(x.x, x.y), pair_bf16(x.z, x.w));
        else *reinterpret_cast<float4 *>(reinterpret_cast<float *>(a.out) + at) = x;
    };
    for (unsigned f = tid; f < fours; f += THREADS) {
        const unsigned head = f / FOURS;
        float m = LOWEST, l = 0;
#pragma unroll
        for (unsigned w = 0; w < WARPS; ++w) m = fmaxf(m, stats[w][head].x);
        float4 t = make_float4(0, 0, 0, 0);
#pragma unroll
        for (unsigned w = 0; w < WARPS; ++w) {
            const float2 s = stats[w][head];
            const float by = exp2_fast(s.x - m);
            l += s.y * by;
            t = t + *reinterpret_cast<const float4 *>(results + w * HEADS * D + f * 4) * by;
        }
        if (used == 1) {
            write(f, t * __fdividef(1.0f, l));
        } else {
            *reinterpret_cast<float4 *>(a.partial + size_t(part) * HEADS * D + f * 4) = t;
            if (f % FOURS == 0) *reinterpret_cast<float2 *>(a.stats + (part * HEADS + head) * 2) = make_float2(m, l);
        }
    }
    if (used == 1) return;

    // The last workgroup to come here puts the parts together.
    __syncthreads();
    if (tid == 0) {
        unsigned before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(a.counters + place) : "memory");
        last = before == used - 1;
        if (last) a.counters[place] = 0;
    }
    __syncthreads();
    if (!last) return;
    constexpr unsigned AHEAD = 9;
    const float *parts = a.partial + size_t(portion.first) * HEADS * D;
    const float2 *of_parts = reinterpret_cast<const float2 *>(a.stats) + portion.first * HEADS;
    float4 p[AHEAD];
    const auto ahead = [&](unsigned f, unsigned s0) {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; ++i) p[i] = s0 + i < used && f < fours ? __ldcg(reinterpret_cast<const float4 *>(parts + (s0 + i) * HEADS * D + f * 4)) : make_float4(0, 0, 0, 0);
    };
    ahead(tid, 0);
    for (unsigned g = warp; g < heads; g += WARPS) {
        const float2 none = make_float2(LOWEST, 0), one = lane < used ? __ldcg(of_parts + lane * HEADS + g) : none;
        const float2 two = lane + 32 < used ? __ldcg(of_parts + (lane + 32) * HEADS + g) : none;
        float m = fmaxf(one.x, two.x);
#pragma unroll
        for (int i = 16; i; i >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, i));
        const float w0 = exp2_fast(one.x - m), w1 = exp2_fast(two.x - m);
        float l = w0 * one.y + w1 * two.y;
#pragma unroll
        for (int i = 16; i; i >>= 1) l += __shfl_xor_sync(~0u, l, i);
        const float inverse = __fdividef(1.0f, l);
        factors[g * MAX_SPLITS + lane] = w0 * inverse;
        factors[g * MAX_SPLITS + lane + 32] = w1 * inverse;
    }
    __syncthreads();
    for (unsigned f = tid; f < fours; f += THREADS) {
        float4 t = make_float4(0, 0, 0, 0);
        if (f != tid) ahead(f, 0);
        for (unsigned s0 = 0;;) {
#pragma unroll
            for (unsigned i = 0; i < AHEAD; ++i) t = t + p[i] * factors[f / FOURS * MAX_SPLITS + min(s0 + i, MAX_SPLITS - 1)];
            s0 += AHEAD;
            if (s0 >= used) break;
            ahead(f, s0);
        }
        write(f, t);
    }
}
