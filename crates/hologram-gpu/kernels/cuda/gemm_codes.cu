// only sm_90a
// Products of up to 16 tokens of 8-bit codes with quantised weights, which tensor cores multiply as they are stored: see gemm.h.
//
// A workgroup of 16 warps stays on each multiprocessor and has tiles of 16 rows (in gated modes 8 rows of gate and the same 8 of up). A unit is 256
// elements of a tile's rows. The workgroup's units, tile after tile, are divided into a run for each warp. A warp copies its units to a ring of its own
// in shared memory, so that none waits for another; the activations lie in shared memory too. Of rows that are too long for that, each workgroup of a
// cluster has a part. At the end the warps' sums of a tile are added in their order.
#include "planes.h"

enum : uint { WARPS = 16, CHUNKS = 8 }; // Chunks of 32 elements in a unit.
HOST(WARPS, CHUNKS)

// Sums of codes start from 1.5 · 2^23 as f32, so that their bits are that f32 plus the sum.
enum : int { ZERO = 0x4b400000 };
FN float summed(int v) { return __int_as_float(v) - 12582912.0f; }

// How a type is stored.
template <uint W> struct Form {
    static constexpr uint LOW = W == planes::Q8 ? 32 : planes::low_bytes<W>(), HIGH = planes::high_bytes<W>(); // Bytes of a chunk.
    static constexpr int BIAS = W == planes::Q4 ? 8 : planes::bias_of<W>();
    static constexpr uint FACTORS = planes::factors_of<W>();
    // Whether each half of a chunk has a scale of its own; floats of a chunk's scales and minimums; numbers for a token's chunk.
    static constexpr bool HALVES = FACTORS == planes::NIBBLES || FACTORS == planes::SIGNED_16 || FACTORS == planes::FLOATS_16, MINIMUM = planes::has_minimum<W>();
    static constexpr uint LINE = (HALVES ? 2 : 1) * (MINIMUM ? 2 : 1);
    static constexpr uint SUMS = (HALVES ? 2 : 1) * (MINIMUM || BIAS != 0 ? 1 : 0);
    static constexpr uint UNIT = 16 * CHUNKS * (LOW + HIGH), LINES = 16 * CHUNKS * LINE * 4;
};

struct Operands {
    const uchar *low[3], *high[3], *records[3];
    const uchar *x;
    const float *x_scales;
    uint k;

    template <class T> static T of(const T (&all)[3], uint matrix) { return matrix == 0 ? all[0] : matrix == 1 ? all[1] : all[2]; }
};

// A tile: its matrix, its first row there, and the matrix's rows. Gated: rows of both.
struct Tile { uint matrix, row, m; };
FN uint tiles_of(uint m) { return (m + 15) / 16; }
FN Tile tile_at(const Matrices &w, uint tile)
{
    if (w.gated()) return {0, tile * 8, w.m0};
    const uint t0 = tiles_of(w.m0), t1 = tiles_of(w.m1);
    if (tile < t0) return {0, tile * 16, w.m0};
    tile -= t0;
    return tile < t1 ? Tile{1, tile * 16, w.m1} : Tile{2, (tile - t1) * 16, w.m2};
}
// Row r of a tile; beyond the matrix its last one, whose sums are left out.
FN uint row_of(const Tile &tile, bool gated, uint r) { return min(tile.row + (gated ? r & 7 : r), tile.m - 1); }

FN void copy16(uint to, const void *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
FN uint2 load64(uint address)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
    return v;
}
FN float2 load_pair(uint address)
{
    const uint2 v = load64(address);
    return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}
FN void mma(int (&d)[4], uint a0, uint a1, uint a2, uint a3, uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
FN void mma(int (&d)[4], uint a0, uint a1, uint b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}

// Piece c of 16 bytes of row r, of a unit's plane whose rows have BYTES bytes: the same pieces of eight rows fall into different banks.
template <uint BYTES> FN uint place(uint r, uint c)
{
    if constexpr (BYTES == 256) return (c >> 3) * 2048 + swizzle<128>(r, c & 7);
    else return swizzle<BYTES>(r, c);
}

// Starts the copy of a unit's plane with CHUNK bytes of a chunk.
template <uint CHUNK> FN void fetch_plane(uint to, const uchar *const (&plane)[3], const Tile &tile, bool gated, uint unit, uint k, uint lane)
{
    constexpr uint BYTES = CHUNKS * CHUNK, PIECES = BYTES / 16;
    #pragma unroll
    for (uint i = 0; i < PIECES / 2; ++i) {
        const uint at = i * 32 + lane, r = at / PIECES, c = at % PIECES;
        const uchar *const from = Operands::of(plane, gated ? r >> 3 : tile.matrix);
        copy16(to + place<BYTES>(r, c), from + (size_t)row_of(tile, gated, r) * (k / 32 * CHUNK) + unit * BYTES + c * 16);
    }
}

// The factors of chunks t and t + 4 of rows q and q + 8, as they are stored.
template <uint W> struct Factors {
    planes::Chunk<W> at[2][2];
    __forceinline__ void load(const uchar *const (&records)[3], const Tile &tile, bool gated, uint unit, uint k, uint q, uint t)
    {
        constexpr uint EACH = planes::record_chunks<W>(), BYTES = W == planes::Q8 || W == planes::Q4 ? 2 : planes::record_bytes<W>(); // Chunks and bytes of a record.
        #pragma unroll
        for (uint h = 0; h < 2; ++h) {
            const uint r = q + h * 8;
            const uchar *const of_row = Operands::of(records, gated ? h : tile.matrix) + ((size_t)row_of(tile, gated, r) * (k / 32) + unit * CHUNKS) / EACH * BYTES;
            #pragma unroll
            for (uint j = 0; j < 2; ++j) {
                const uint chunk = t + j * 4;
                const uchar *const record = of_row + chunk / EACH * BYTES;
                if constexpr (W == planes::Q8 || W == planes::Q4) at[h][j].numbers = planes::stream2(record);
                else {
                    planes::load_record<W>(at[h][j], record, chunk % EACH, EACH < 8 || j == 0);
                    if (EACH == 8 && j > 0) at[h][j].numbers = at[h][0].numbers;
                }
            }
        }
    }
    // Writes the scales and minimums that they say: of each chunk, of each row.
    __forceinline__ void store(uint to, uint q, uint t) const
    {
        constexpr uint LINE = Form<W>::LINE;
        #pragma unroll
        for (uint h = 0; h < 2; ++h)
            #pragma unroll
            for (uint j = 0; j < 2; ++j) {
                const uint address = to + ((t + j * 4) * 16 + q + h * 8) * LINE * 4;
                const float2 first = planes::scale_of<W>(at[h][j], 0);
                if constexpr (LINE == 1) asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(first.x) : "memory");
                else {
                    const float2 second = Form<W>::HALVES ? planes::scale_of<W>(at[h][j], 1) : make_float2(first.y, 0);
                    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first.x), "f"(second.x) : "memory");
                    if constexpr (LINE == 4) asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address + 8), "f"(first.y), "f"(second.y) : "memory");
                }
            }
    }
};

// This lane's codes of a row's chunk: four of each half.
template <uint W> FN void codes(uint (&to)[2], uint unit, uint row, uint chunk, uint t)
{
    constexpr uint LOW = Form<W>::LOW, HIGH = Form<W>::HIGH, ROW = CHUNKS * LOW;
    const uint high = unit + 16 * ROW;
    if constexpr (LOW == 32) {
        for (uint h = 0; h < 2; ++h) to[h] = load32(unit + place<256>(row, chunk * 2 + h) + t * 4);
    } else if constexpr (planes::is_table<W>()) {
        const uint at = unit + place<ROW>(row, chunk) + (t >> 1) * 4;
        for (uint h = 0; h < 2; ++h) to[h] = planes::table_values<W>(load32(at + h * 8) >> (t & 1) * 16).x;
    } else if constexpr (LOW == 16) {
        const uint v = load32(unit + place<ROW>(row, chunk) + t * 4);
        to[0] = v & 0x0f0f0f0fu;
        to[1] = v >> 4 & 0x0f0f0f0fu;
    } else {
        const uint2 v = load64(unit + place<ROW>(row, chunk >> 1) + (chunk & 1) * 8);
        to[0] = v.x >> t * 2 & 0x03030303u;
        to[1] = v.y >> t * 2 & 0x03030303u;
    }
    constexpr uint TO = planes::low_bits<W>();
    if constexpr (HIGH == 4) {
        const uint v = load32(high + place<32>(row, chunk >> 2) + (chunk & 3) * 4) >> t;
        to[0] |= (v & 0x01010101u) << TO;
        to[1] |= (v >> 4 & 0x01010101u) << TO;
    }
    if constexpr (HIGH == 8) {
        const uint2 v = load64(high + place<64>(row, chunk >> 1) + (chunk & 1) * 8);
        to[0] |= (v.x >> t * 2 & 0x03030303u) << TO;
        to[1] |= (v.y >> t * 2 & 0x03030303u) << TO;
    }
}

FN uint begin_of(uint total, uint warp) { return total * warp / WARPS; }

// TOKENS: 8 or 16, in tiles of 8.
template <uint W, uint TOKENS>
FN void multiply(const Operands &in, const Matrices &w, const float *add, float *y0, float *y1, float *y2, const uint *step, uint slot, uint most, uint splits, uint stages)
{
    using F = Form<W>;
    constexpr uint TILES = TOKENS / 8, PARTIAL = 16 * TOKENS * 4; // Bytes of a warp's sums of a tile of rows.
    extern __shared__ __align__(128) uchar shared[];
    const uint tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, q = lane >> 2, t = lane & 3;
    const uint rank = splits > 1 ? cluster_rank() : 0, team = blockIdx.x / splits, teams = gridDim.x / splits;
    const bool gated = w.gated();
    const uint tiles = gated ? w.m0 / 8 : tiles_of(w.m0) + tiles_of(w.m1) + tiles_of(w.m2), each = tiles / teams, over = tiles % teams;
    const uint first = team * each + min(team, over), count = each + (team < over);
    // This workgroup's units of a tile, and this warp's of all.
    const uint all = in.k / 256, share = (all + splits - 1) / splits;
    const auto units_of = [&](uint rank) { return min(share, all - min(rank * share, all)); };
    const uint from = min(rank * share, all), units = units_of(rank), total = count * units;
    const uint begin = begin_of(total, warp), end = begin_of(total, warp + 1);

    // Shared memory: activations' codes, their scales and sums, the rings, the lines, the sums.
    const uint x = shared_address(shared), x_scales = x + share * CHUNKS * TOKENS * 32, x_sums = x_scales + share * CHUNKS * TOKENS * 4;
    const uint rings = x_sums + share * CHUNKS * TOKENS * 4 * F::SUMS, lines = rings + WARPS * stages * F::UNIT + warp * F::LINES;
    const uint partials = rings + WARPS * (stages * F::UNIT + F::LINES), ring = rings + warp * stages * F::UNIT;

    // What is fetched next: which unit, and of which tile.
    uint next = begin, next_tile = units ? begin / units : 0, next_unit = units ? begin % units : 0, next_stage = 0;
    const auto fetch = [&] {
        if (next < end) {
            const Tile tile = tile_at(w, first + next_tile);
            const uint to = ring + next_stage * F::UNIT;
            fetch_plane<F::LOW>(to, in.low, tile, gated, from + next_unit, in.k, lane);
            if constexpr (F::HIGH > 0) fetch_plane<F::HIGH>(to + 16 * CHUNKS * F::LOW, in.high, tile, gated, from + next_unit, in.k, lane);
            if (++next_unit == units) { next_unit = 0; ++next_tile; }
            ++next;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (++next_stage == stages) next_stage = 0;
    };
    for (uint s = 0; s + 1 < stages; ++s) fetch();
    uint tile_index = units ? begin / units : 0, unit = units ? begin % units : 0;
    Factors<W> now, ahead;
    if (begin < end) now.load(in.records, tile_at(w, first + tile_index), gated, from + unit, in.k, q, t);

    dependency_wait();
    const uint n = tokens(step, slot, most);
    for (uint i = tid; i < units * CHUNKS * TOKENS; i += WARPS * 32) {
        const uint token = i % TOKENS, chunk = i / TOKENS;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        float d = 0;
        if (token < n) {
            const size_t at = (size_t)token * in.k + from * 256 + chunk * 32;
            a = *(const uint4 *)(in.x + at);
            b = *(const uint4 *)(in.x + at + 16);
            d = in.x_scales[at / 32];
        }
        uint4 *const to = (uint4 *)(shared + (chunk * TOKENS + token) * 32);
        to[0] = make_uint4(a.x, b.x, a.y, b.y);
        to[1] = make_uint4(a.z, b.z, a.w, b.w);
        const uint numbers = share * CHUNKS * TOKENS;
        float *const scales = (float *)(shared + share * CHUNKS * TOKENS * 32);
        scales[i] = d;
        if constexpr (F::SUMS > 0) {
            const uint one = 0x01010101u;
            const auto sum = [&](uint4 v) { return __dp4a((int)v.x, (int)one, __dp4a((int)v.y, (int)one, __dp4a((int)v.z, (int)one, __dp4a((int)v.w, (int)one, 0)))); };
            const int s[2] = {sum(a), sum(b)};
            #pragma unroll
            for (uint h = 0; h < F::SUMS; ++h) {
                const int of = F::HALVES ? s[h] : s[0] + s[1];
                scales[numbers * (1 + h) + i] = F::MINIMUM ? d * (float)of : __int_as_float(ZERO - F::BIAS * of);
            }
        }
    }
    __syncthreads();

    float sum[TILES][4] = {};
    uint stage = 0;
    #pragma unroll 1
    for (uint i = begin; i < end; ++i) {
        if (stages == 2) asm volatile("cp.async.wait_group 0;" ::: "memory");
        else if (stages == 3) asm volatile("cp.async.wait_group 1;" ::: "memory");
        else asm volatile("cp.async.wait_group 2;" ::: "memory");
        __syncwarp();
        now.store(lines, q, t);
        fetch();
        const uint chunk0 = unit * CHUNKS, codes_at = ring + stage * F::UNIT, of = tile_index;
        if (++unit == units) { unit = 0; ++tile_index; }
        if (i + 1 < end) ahead.load(in.records, tile_at(w, first + tile_index), gated, from + unit, in.k, q, t);
        __syncwarp();
        #pragma unroll
        for (uint c = 0; c < CHUNKS; ++c) {
            uint a[2][2];
            codes<W>(a[0], codes_at, q, c, t);
            codes<W>(a[1], codes_at, q + 8, c, t);
            float2 scale[2], least[2] = {};
            #pragma unroll
            for (uint r = 0; r < 2; ++r) {
                const uint line = lines + (c * 16 + q + r * 8) * F::LINE * 4;
                if constexpr (F::LINE == 1) scale[r] = make_float2(__uint_as_float(load32(line)), 0);
                else scale[r] = load_pair(line);
                if constexpr (F::LINE == 4) least[r] = load_pair(line + 8);
            }
            #pragma unroll
            for (uint j = 0; j < TILES; ++j) {
                const uint2 b = load64(x + (((chunk0 + c) * TILES + j) * 32 + lane) * 8);
                const uint at = ((chunk0 + c) * TOKENS + j * 8 + t * 2) * 4; // Of the tile's tokens 2t and 2t + 1.
                const float2 d = load_pair(x_scales + at);
                float2 s[2] = {};
                if constexpr (F::SUMS > 0) s[0] = load_pair(x_sums + at);
                if constexpr (F::SUMS > 1) s[1] = load_pair(x_sums + share * CHUNKS * TOKENS * 4 + at);
                int dot[2][4];
                #pragma unroll
                for (uint h = 0; h < 2; ++h) {
                    const bool biased = F::BIAS != 0;
                    dot[h][0] = dot[h][2] = biased ? __float_as_int(s[h].x) : ZERO;
                    dot[h][1] = dot[h][3] = biased ? __float_as_int(s[h].y) : ZERO;
                }
                if constexpr (F::HALVES) {
                    mma(dot[0], a[0][0], a[1][0], b.x);
                    mma(dot[1], a[0][1], a[1][1], b.y);
                } else
                    mma(dot[0], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
                #pragma unroll
                for (uint i = 0; i < 4; ++i) {
                    const uint r = i / 2, e = i % 2;
                    const float dx = e ? d.y : d.x, first_sum = e ? s[0].y : s[0].x;
                    float &to = sum[j][i];
                    if constexpr (F::HALVES) {
                        to = fmaf(fmaf(summed(dot[0][i]), scale[r].x, summed(dot[1][i]) * scale[r].y), dx, to);
                        if constexpr (F::MINIMUM) to = fmaf(-least[r].x, first_sum, fmaf(-least[r].y, e ? s[1].y : s[1].x, to));
                    } else {
                        to = fmaf(summed(dot[0][i]) * dx, scale[r].x, to);
                        if constexpr (F::MINIMUM) to = fmaf(-scale[r].y, first_sum, to);
                    }
                }
            }
        }
        if (tile_index != of || i + 1 == end) {
            float *const to = (float *)(shared + (partials - x) + (warp + of) * PARTIAL) + t * 32 + q;
            #pragma unroll
            for (uint j = 0; j < TILES; ++j)
                #pragma unroll
                for (uint i = 0; i < 4; ++i) {
                    to[j * 128 + i % 2 * 16 + i / 2 * 8] = sum[j][i];
                    sum[j][i] = 0;
                }
        }
        now = ahead;
        if (++stage == stages) stage = 0;
    }
    dependency_launch();
    if (splits > 1) cluster_sync();
    else __syncthreads();

    // Four rows of a token of a tile each; a cluster shares the tiles.
    const uint shift = gated ? 1 : 2;
    for (uint i = tid; i < count * TOKENS << shift; i += WARPS * 32) {
        const uint rows = (i & ((1u << shift) - 1)) * 4, token = (i >> shift) % TOKENS, of = (i >> shift) / TOKENS;
        if (token >= n || (splits > 1 && of % splits != rank)) continue;
        const Tile tile = tile_at(w, first + of);
        const uint row = tile.row + rows;
        if (row >= tile.m) continue;
        const auto added = [&](uint r) {
            float4 v = make_float4(0, 0, 0, 0);
            for (uint from = 0; from < splits; ++from) {
                const uint units = units_of(from), total = count * units;
                for (uint warp = 0; warp < WARPS; ++warp) {
                    if (max(begin_of(total, warp), of * units) >= min(begin_of(total, warp + 1), (of + 1) * units)) continue;
                    const uint at = partials + (warp + of) * PARTIAL + (token * 16 + r) * 4;
                    const float4 p = splits > 1 ? load_cluster(at, from) : load_shared(at);
                    v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w);
                }
            }
            return v;
        };
        float4 v = added(rows);
        if (gated) {
            const float4 u = added(rows + 8);
            if (w.mode == SWIGLU) v = make_float4(swiglu(v.x, u.x), swiglu(v.y, u.y), swiglu(v.z, u.z), swiglu(v.w, u.w));
            else v = make_float4(relu2(v.x, u.x), relu2(v.y, u.y), relu2(v.z, u.z), relu2(v.w, u.w));
        }
        const size_t at = (size_t)token * tile.m + row;
        if (w.mode == ADD) {
            const float4 before = *(const float4 *)(add + at);
            v = make_float4(before.x + v.x, before.y + v.y, before.z + v.z, before.w + v.w);
        }
        *(float4 *)((tile.matrix == 0 ? y0 : tile.matrix == 1 ? y1 : y2) + at) = v;
    }
    if (splits > 1) cluster_sync();
}

// Grid: workgroups in clusters of `splits`. step: the step block or null; n: tokens at most. stages: units in a warp's ring, 2 to 4.
#define CODES(name, W, TOKENS)                                                                                                                  \
    KERNEL_SHARED(codes_##name##_##TOKENS, WARPS * 32, 1, IN(0, uchar, x), IN(1, float, x_scales), IN(2, uchar, w0), IN(3, uchar, h0), IN(4, uchar, s0),    \
        IN(5, uchar, w1), IN(6, uchar, h1), IN(7, uchar, s1), IN(8, uchar, w2), IN(9, uchar, h2), IN(10, uchar, s2), IN(11, float, add),        \
        OUT(12, float, y0), OUT(13, float, y1), OUT(14, float, y2), IN(15, uint, step), VAL(16, uint, slot), VAL(17, uint, n),                  \
        VAL(18, uint, m0), VAL(19, uint, m1), VAL(20, uint, m2), VAL(21, uint, k), VAL(22, uint, mode), VAL(23, uint, splits),                  \
        VAL(24, uint, stages))                                                                                                                 \
    {                                                                                                                                          \
        const Operands in = {{w0, w1, w2}, {h0, h1, h2}, {s0, s1, s2}, x, x_scales, k};                                                        \
        multiply<planes::W, TOKENS>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, step, slot, n, splits, stages);                              \
    }
#define CODES_OF(name, W, ...) CODES(name, W, 8) CODES(name, W, 16)
CODES(q8, Q8, 8)
CODES(q4, Q4, 8)
PACKED_TYPES(CODES_OF)
