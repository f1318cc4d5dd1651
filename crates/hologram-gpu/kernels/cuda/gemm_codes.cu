// only sm_90a
// Products of up to 16 tokens of 8-bit codes with quantised weights, which tensor cores multiply as they are stored: see gemm.h.
//
// A workgroup of 8 warps stays on each multiprocessor and has tiles of 16 rows (in gated modes 8 rows of gate and the same 8 of up). A unit is 256
// elements of a tile's rows. The workgroup's units, tile after tile, are divided into a run for each warp. A warp copies its units to a ring of its own
// in shared memory, so that none waits for another; the activations lie in shared memory too. Of rows that are too long for that, each workgroup of a
// cluster has a part. At the end the warps' sums of a tile are added in their order. The next launch may begin at once: it reads its own weights
// while this one computes.
#include "planes.h"
#include "copy_engine.h"

// Warps; chunks of 32 elements in a unit; bytes before the rings; of a token's chunk what the copy engine brings (codes and scale), and with the
// numbers that products need; and what a token has besides.
enum : uint { WARPS = 8, CHUNKS = 8, BARRIER = 128, BROUGHT = 32 + 4, ACTIVATIONS = BROUGHT + 8, BESIDE = 32, MOST_STAGES = 6 };
HOST(WARPS, CHUNKS, BARRIER, ACTIVATIONS, BESIDE, MOST_STAGES)

// Sums of codes start from 1.5 · 2^23 as f32, so that their bits are that f32 plus the sum.
enum : int { ZERO = 0x4b400000 };

// How a type is stored, and what a workgroup keeps of it in shared memory.
template <uint W> struct Form {
    static constexpr uint LOW = W == planes::Q8 ? 32 : planes::low_bytes<W>(), HIGH = planes::high_bytes<W>(); // Bytes of a chunk.
    static constexpr int BIAS = W == planes::Q4 ? 8 : planes::bias_of<W>();
    static constexpr uint FACTORS = planes::factors_of<W>();
    // Whether each half of a chunk has a scale of its own; floats of a chunk's scales and minimums.
    static constexpr bool HALVES = FACTORS == planes::NIBBLES || FACTORS == planes::SIGNED_16 || FACTORS == planes::FLOATS_16, MINIMUM = planes::has_minimum<W>();
    // Minimums that are small integers times a number of the row: tensor cores multiply them with the sums of activations, of which a token's chunk has
    // these bytes. Else each chunk has its minimum beside its one scale.
    static constexpr bool INTEGERS = FACTORS == planes::PAIRS || FACTORS == planes::NIBBLES;
    static constexpr uint SUMMED = !INTEGERS ? 0 : HALVES ? 16 : 8;
    static_assert(!(HALVES && MINIMUM) || INTEGERS, "a line has two floats");
    static constexpr uint LINE = HALVES || (MINIMUM && !INTEGERS) ? 2 : 1;
    // Codes that something is taken off are shifted up to whole signed bytes: what they are then multiplied with.
    static constexpr uint BITS = W == planes::Q8 ? 8 : W == planes::Q4 ? 4 : planes::low_bits<W>() + planes::high_bits<W>(), UP = BIAS != 0 ? 8 - BITS : 0;
    // Whether tables give a lane's eight neighbours at once, so that activations lie in that order.
    static constexpr bool NEIGHBOURS = planes::is_table<W>() && !HALVES;
    // Records: chunks and bytes of one, bytes of a row's in a unit, and bytes kept of them: where they are not pieces of 16 bytes, the two pieces that hold
    // them.
    static constexpr uint EACH = planes::record_chunks<W>(), RECORD = W == planes::Q8 || W == planes::Q4 ? 2 : planes::record_bytes<W>();
    static constexpr uint RECORDS = CHUNKS / EACH * RECORD;
    static constexpr bool WHOLE = RECORDS % 16 == 0;
    static constexpr uint KEPT = WHOLE ? RECORDS : 32;
    // Whether scales are used as they are stored, an f16 for each chunk. Else what a row's records say, of which rows fall into different banks: scales and
    // minimums, or scales, minimums as bf16, and what these are multiplied with.
    static constexpr bool DIRECT = RECORD == 2 && FACTORS == planes::ONE;
    static constexpr uint SCALES = CHUNKS * LINE * 4, MINIMUMS = INTEGERS ? CHUNKS * (HALVES ? 4 : 2) : 0;
    static constexpr uint PITCH = SCALES + MINIMUMS + (INTEGERS && !HALVES ? 32 : 16);
    static constexpr uint LINES = DIRECT ? 0 : 16 * PITCH;
    static constexpr uint LOWS = 16 * CHUNKS * LOW, HIGHS = 16 * CHUNKS * HIGH, UNIT = LOWS + HIGHS + 16 * KEPT;
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

// Bytes that lie one after the other, by the copy engine.
FN void copy_bytes(uint to, const void *from, uint bytes, uint barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
FN void copy16(uint to, const void *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
FN void copy8(uint to, const void *from) { asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory"); }
// Loads from shared memory into which nothing is stored meanwhile.
FN uint4 take16(uint address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}
FN uint2 take8(uint address)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}
FN uint take4(uint address)
{
    uint v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}
FN float4 take_floats(uint address)
{
    const uint4 v = take16(address);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
// A number of which the compiler knows nothing, so that it is computed once.
FN uint kept_in_register(uint v)
{
    asm volatile("" : "+r"(v));
    return v;
}
// Four matrices of eight rows of 16 bytes.
FN void load_codes(uint (&v)[4], uint address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(address));
}
// Sums of products of a whole chunk's codes and of half of one's, as bits of 1.5 · 2^23 plus the sum.
FN void mma(int (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(ZERO));
}
FN void mma(int (&d)[4], uint a0, uint a1, uint b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b), "r"(ZERO));
}

// Piece c of 16 bytes of row r, of a unit's plane whose rows have BYTES bytes: the same pieces of eight rows fall into different banks.
template <uint BYTES> FN uint place(uint r, uint c)
{
    if constexpr (BYTES == 256) return (c >> 3) * 2048 + swizzle<128>(r, c & 7);
    else return swizzle<BYTES>(r, c);
}

// A lane's part of the copies of a unit: pieces of 16 bytes of the planes, and half of a row's records.
template <uint W> struct Copies {
    using F = Form<W>;
    static constexpr uint ROW = CHUNKS * F::LOW, HIGH_ROW = CHUNKS * F::HIGH, PIECES = ROW / 16, HIGH_PIECES = F::HIGH ? HIGH_ROW / 16 : 1;
    const uchar *low[PIECES / 2], *high[(HIGH_PIECES + 1) / 2], *records;
    uint low_to[PIECES / 2], high_to[(HIGH_PIECES + 1) / 2]; // Where in a unit.

    __forceinline__ Copies(uint lane)
    {
        #pragma unroll
        for (uint i = 0; i < PIECES / 2; ++i) low_to[i] = kept_in_register(place<ROW>((i * 32 + lane) / PIECES, (i * 32 + lane) % PIECES));
        if constexpr (F::HIGH > 0)
            #pragma unroll
            for (uint i = 0; i < HIGH_PIECES / 2; ++i) high_to[i] = kept_in_register(F::LOWS + place<HIGH_ROW>((i * 32 + lane) / HIGH_PIECES, (i * 32 + lane) % HIGH_PIECES));
    }

    // Of a unit of a tile.
    __forceinline__ void aim(const Operands &in, const Tile &tile, bool gated, uint unit, uint lane)
    {
        const size_t chunks = in.k / 32;
        #pragma unroll
        for (uint i = 0; i < PIECES / 2; ++i) {
            const uint at = i * 32 + lane, r = at / PIECES, c = at % PIECES;
            low[i] = Operands::of(in.low, gated ? r >> 3 : tile.matrix) + row_of(tile, gated, r) * chunks * F::LOW + unit * ROW + c * 16;
        }
        if constexpr (F::HIGH > 0)
            #pragma unroll
            for (uint i = 0; i < HIGH_PIECES / 2; ++i) {
                const uint at = i * 32 + lane, r = at / HIGH_PIECES, c = at % HIGH_PIECES;
                high[i] = Operands::of(in.high, gated ? r >> 3 : tile.matrix) + row_of(tile, gated, r) * chunks * F::HIGH + unit * HIGH_ROW + c * 16;
            }
        const uint r = lane >> 1;
        records = Operands::of(in.records, gated ? r >> 3 : tile.matrix) + (row_of(tile, gated, r) * (chunks / CHUNKS) + unit) * F::RECORDS;
        if constexpr (F::WHOLE) records += (lane & 1) * (F::KEPT / 2);
    }
    // Starts the copy of a unit and goes on to the tile's next.
    __forceinline__ void start(uint to, uint lane)
    {
        #pragma unroll
        for (uint i = 0; i < PIECES / 2; ++i) {
            copy16(to + low_to[i], low[i]);
            low[i] += ROW;
        }
        if constexpr (F::HIGH > 0)
            #pragma unroll
            for (uint i = 0; i < HIGH_PIECES / 2; ++i) {
                copy16(to + high_to[i], high[i]);
                high[i] += HIGH_ROW;
            }
        const uint kept = to + F::LOWS + F::HIGHS + (lane >> 1) * F::KEPT, half = lane & 1;
        if constexpr (F::KEPT == 16) copy8(kept + half * 8, records);
        else if constexpr (F::WHOLE) copy16(kept + half * 16, records);
        else if (half == 0 || shift() + F::RECORDS > 16) copy16(kept + half * 16, records - shift() + half * 16);
        records += F::RECORDS;
    }
    // How far into their pieces the next unit's records begin.
    __forceinline__ uint shift() const { return F::WHOLE ? 0 : (uint)(size_t)records & 15; }
};

// Chunk t of a record in shared memory.
template <uint W> FN void take_record(planes::Chunk<W> &c, const uchar *record, uint t)
{
    using F = Form<W>;
    const auto two = [](const uchar *p) { return (uint)*(const ushort *)p; };
    c.numbers = c.factors = 0;
    if constexpr (planes::has_numbers<W>()) {
        if constexpr (F::RECORD % 4 == 0) c.numbers = *(const uint *)record;
        else c.numbers = two(record);
    }
    if constexpr (F::FACTORS == planes::EXPONENT) c.factors = *record;
    else if constexpr (F::FACTORS == planes::FLOATS_16) c.factors = two(record + t * 2);
    else if constexpr (F::FACTORS == planes::SIGNED_32) c.factors = record[F::RECORD - 8 + t];
    else if constexpr (F::FACTORS != planes::ONE) c.factors = two(record + (F::RECORD - 16) + t * 2);
}
// Writes what the records of half of a row's chunks say: each lane of those of row lane / 2.
template <uint W> FN void expand_records(uchar *lines, const uchar *kept, uint lane)
{
    using F = Form<W>;
    const uint first = (lane & 1) * (CHUNKS / 2);
    uchar *const line = lines + (lane >> 1) * F::PITCH;
    float values[CHUNKS / 2 * F::LINE], number = 0;
    uint minimums[CHUNKS / 2]; // In the lowest byte, of halves in the two lowest.
    #pragma unroll
    for (uint j = 0; j < CHUNKS / 2; ++j) {
        planes::Chunk<W> c;
        const uint chunk = first + j;
        take_record<W>(c, kept + chunk / F::EACH * F::RECORD, chunk % F::EACH);
        float *const to = values + j * F::LINE;
        const float2 s = planes::scale_of<W>(c, 0);
        to[0] = s.x;
        if constexpr (F::LINE == 2) to[1] = F::HALVES ? planes::scale_of<W>(c, 1).x : s.y;
        if constexpr (F::INTEGERS) {
            minimums[j] = F::HALVES ? c.factors >> 4 & 0x0f0fu : c.factors >> 8;
            number = half_bits(c.numbers >> 16);
        }
    }
    #pragma unroll
    for (uint j = 0; j < CHUNKS / 2 * F::LINE; j += 4) *(float4 *)(line + (first * F::LINE + j) * 4) = make_float4(values[j], values[j + 1], values[j + 2], values[j + 3]);
    if constexpr (F::INTEGERS) {
        // Bytes are exact in bf16. As f32 they are 2^23 + byte first.
        const auto value = [](uint bytes, uint order) { return __uint_as_float(__byte_perm(bytes, 0x4b000000u, order)) - 8388608.0f; };
        const auto pair = [&](uint bytes) { return pack_bf16(value(bytes, 0x7440), value(bytes, 0x7441)); };
        uchar *const to = line + F::SCALES + first * (F::MINIMUMS / CHUNKS);
        if constexpr (F::HALVES) *(uint4 *)to = make_uint4(pair(minimums[0]), pair(minimums[1]), pair(minimums[2]), pair(minimums[3]));
        else *(uint2 *)to = make_uint2(pair(minimums[0] | minimums[1] << 8), pair(minimums[2] | minimums[3] << 8));
        if (first == 0) *(float *)(line + F::SCALES + F::MINIMUMS) = number;
    }
}

// Where a lane's codes lie in a unit: those of chunks 2p and 2p + 1 (of planes of 8 bits, of chunks p and p + 4).
template <uint W> struct Places {
    using F = Form<W>;
    static constexpr uint ROW = CHUNKS * F::LOW;
    uint low[4], high[4], sign;
    __forceinline__ Places(uint lane)
    {
        const uint q = lane >> 2;
        #pragma unroll
        for (uint p = 0; p < 4; ++p) {
            if constexpr (F::LOW == 32) low[p] = kept_in_register(place<256>(lane & 15, 2 * p + (lane >> 4)));
            else if constexpr (F::LOW == 16) low[p] = kept_in_register(place<ROW>(lane & 15, 2 * p + (lane >> 4)));
            else low[p] = kept_in_register(place<ROW>(q, p));
            if constexpr (F::HIGH == 8) high[p] = kept_in_register(F::LOWS + place<64>(q, p));
            if constexpr (F::HIGH == 4) high[p] = kept_in_register(F::LOWS + place<32>(q, p >> 1) + (p & 1) * 8);
        }
        // Of two constants the assembler would make two operations.
        uint z;
        asm("mov.u32 %0, %%nctaid.z;" : "=r"(z));
        sign = F::BIAS != 0 ? z * 0x80808080u : 0;
    }
};
// A lane's codes of chunks 2p and 2p + 1, as the products take them: of rows q and q + 8 four of the first half, then four of the second.
template <uint W> FN void codes(uint (&a)[2][4], uint unit, const Places<W> &places, uint p, uint lane)
{
    using F = Form<W>;
    constexpr uint ROW = CHUNKS * F::LOW, LOW_BITS = F::BITS - planes::high_bits<W>();
    constexpr uint LOW_MASK = ((1u << LOW_BITS) - 1) * (0x01010101u << F::UP), HIGH_MASK = ((1u << planes::high_bits<W>()) - 1) * (0x01010101u << F::UP) << LOW_BITS;
    const uint q = lane >> 2, t = lane & 3;
    // The bits from `from` on of each byte at bit `to`; others come with them.
    const auto moved = [](uint v, uint from, uint to) { return __funnelshift_l(v, v, to - from & 31); };
    const auto masked = [&](uint v) { return v & LOW_MASK ^ places.sign; };
    uint v[4];
    if constexpr (F::LOW == 32) {
        for (uint c = 0; c < 2; ++c) load_codes(a[c], unit + places.low[(2 * p + c) % 4] + (2 * p + c) / 4 * 2048);
    } else if constexpr (F::NEIGHBOURS) {
        load_codes(v, unit + places.low[p]);
        for (uint i = 0; i < 4; ++i) {
            const uint2 values = planes::table_values<W>(v[i]);
            a[i / 2][i % 2] = values.x;
            a[i / 2][i % 2 + 2] = values.y;
        }
    } else if constexpr (planes::is_table<W>()) {
        for (uint i = 0; i < 8; ++i) {
            const uint word = take4(unit + place<ROW>(q + i % 2 * 8, 2 * p + i / 4) + (t >> 1) * 4 + i / 2 % 2 * 8);
            a[i / 4][i % 4] = planes::table_values<W>(word >> (t & 1) * 16).x;
        }
    } else if constexpr (F::LOW == 16) {
        load_codes(v, unit + places.low[p]);
        for (uint i = 0; i < 4; ++i) {
            a[i / 2][i % 2] = masked(v[i] << F::UP);
            a[i / 2][i % 2 + 2] = masked(F::UP < 4 ? v[i] >> 4 - F::UP : v[i]);
        }
    } else {
        for (uint r = 0; r < 2; ++r) {
            const uint4 two = take16(unit + places.low[p] + r * 512);
            for (uint i = 0; i < 4; ++i) a[i / 2][r + i % 2 * 2] = masked(moved(planes::word(two, i), t * 2, F::UP));
        }
    }
    constexpr uint TO = F::UP + LOW_BITS;
    if constexpr (F::HIGH == 4)
        for (uint r = 0; r < 2; ++r) {
            const uint2 two = take8(unit + places.high[p] + r * 256);
            for (uint i = 0; i < 4; ++i) a[i / 2][r + i % 2 * 2] ^= moved(i < 2 ? two.x : two.y, t + i % 2 * 4, TO) & HIGH_MASK;
        }
    if constexpr (F::HIGH == 8)
        for (uint r = 0; r < 2; ++r) {
            const uint4 two = take16(unit + places.high[p] + r * 512);
            for (uint i = 0; i < 4; ++i) a[i / 2][r + i % 2 * 2] ^= moved(planes::word(two, i), t * 2, TO) & HIGH_MASK;
        }
}

// Three bf16 whose sum is a float's 24 bits.
struct Parts { uint at[3]; };
FN Parts parts_of(float v)
{
    Parts p;
    #pragma unroll
    for (uint i = 0; i < 3; ++i) {
        p.at[i] = pack_bf16(v, 0.0f) & 0xffffu;
        v -= __uint_as_float(p.at[i] << 16);
    }
    return p;
}
FN void mma_bf16(float (&d)[4], uint a0, uint a1, uint b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}

// Until all but the last `groups` groups of copies have arrived.
FN void wait_but(uint groups)
{
    if (groups == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (groups == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (groups == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (groups == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
    else asm volatile("cp.async.wait_group 4;" ::: "memory");
}
FN uint begin_of(uint total, uint warp) { return total * warp / WARPS; }
FN float scaled(int v, float d, float less) { return fmaf(__int_as_float(v), d, less); }

// Four rows of a tile of a token.
struct Item { uint of, token, rows; };

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

    // Shared memory: a barrier, the rings, the lines, the activations' codes, their scales as they come and as products need them, the sums.
    const uint chunks = share * CHUNKS, pitch = chunks * 32 + 16, scale_pitch = chunks + 4, barrier = shared_address(shared);
    uchar *const ring = shared + BARRIER + warp * stages * F::UNIT, *const rings_end = shared + BARRIER + WARPS * stages * F::UNIT;
    uchar *const lines = rings_end + warp * F::LINES, *const x = rings_end + WARPS * F::LINES;
    float *const x_scales = (float *)(x + TOKENS * pitch);
    float4 *const factors = (float4 *)(x_scales + TOKENS * scale_pitch); // Of each chunk, for each two tokens.
    // Sums of each two chunks, or two halves, of each token: three words of two bf16.
    uint4 *const sums = (uint4 *)(factors + chunks * (TOKENS / 2));
    uchar *const partials = (uchar *)sums + chunks * TOKENS * F::SUMMED;

    // What is fetched next: which unit, and of which tile; how far into their pieces each stage's records begin.
    uint next = begin, next_tile = units ? begin / units : 0, next_unit = units ? begin % units : 0, next_stage = 0, shifts = 0;
    Copies<W> copies(lane);
    if (next < end) copies.aim(in, tile_at(w, first + next_tile), gated, from + next_unit, lane);
    const auto fetch = [&] {
        if (next < end) {
            if (next_unit == units) {
                next_unit = 0;
                copies.aim(in, tile_at(w, first + ++next_tile), gated, from, lane);
            }
            if constexpr (!F::WHOLE) shifts = (shifts & ~(15u << next_stage * 4)) | copies.shift() << next_stage * 4;
            copies.start(shared_address(ring) + next_stage * F::UNIT, lane);
            ++next_unit;
            ++next;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (++next_stage == stages) next_stage = 0;
    };
    #pragma unroll 1
    for (uint s = 0; s + 1 < stages; ++s) fetch();

    if (tid == 0) {
        barrier_init(barrier, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    dependency_launch();
    dependency_wait();
    const uint n = tokens(step, slot, most);
    if (tid == 0) barrier_expect(barrier, n * units * CHUNKS * BROUGHT);
    __syncwarp();
    if (tid < n) {
        const size_t at = (size_t)tid * in.k + from * 256;
        copy_bytes(shared_address(x) + tid * pitch, in.x + at, units * 256, barrier);
        copy_bytes(shared_address(x_scales) + tid * scale_pitch * 4, in.x_scales + at / 32, units * 32, barrier);
    }
    // At the end a thread writes four rows of a token of a tile; a cluster shares the tiles.
    const uint shift = gated ? 1 : 2, items = count * TOKENS << shift;
    const auto item_at = [&](uint i) { return Item{(i >> shift) / TOKENS, (i >> shift) % TOKENS, (i & (1u << shift) - 1) * 4}; };
    const auto is_own = [&](const Item &item) { return item.token < n && (splits == 1 || item.of % splits == rank); };
    const auto added_to = [&](uint i) {
        float4 v = make_float4(0, 0, 0, 0);
        if (w.mode != ADD || i >= items) return v;
        const Item item = item_at(i);
        const Tile tile = tile_at(w, first + item.of);
        if (is_own(item) && tile.row + item.rows < tile.m) v = *(const float4 *)(add + (size_t)item.token * tile.m + tile.row + item.rows);
        return v;
    };
    const float4 first_added = added_to(tid);
    barrier_wait(barrier, 0);
    for (uint i = tid; i < units * CHUNKS * TOKENS; i += WARPS * 32) {
        const uint token = i % TOKENS, chunk = i / TOKENS;
        // With its two lowest bits gone, three times the scale is exact. Scales of more than 2.7e31 overflow: sums are then no numbers.
        const float d = __uint_as_float(__float_as_uint(x_scales[token * scale_pitch + chunk]) & ~3u) * (1.0f / (1u << F::UP));
        float *const to = (float *)(factors + (chunk * TOKENS + token) / 2) + token % 2;
        to[0] = d;
        to[2] = d * -12582912.0f;
        if constexpr (F::INTEGERS) {
            const uint4 *const of_chunk = (const uint4 *)(x + token * pitch + chunk * 32);
            const auto sum = [](uint4 v) { return __dp4a((int)v.x, 0x01010101, __dp4a((int)v.y, 0x01010101, __dp4a((int)v.z, 0x01010101, __dp4a((int)v.w, 0x01010101, 0)))); };
            const int first = sum(of_chunk[0]), second = sum(of_chunk[1]);
            if constexpr (F::HALVES) {
                const Parts a = parts_of(d * (float)first), b = parts_of(d * (float)second);
                sums[chunk * TOKENS + token] = make_uint4(a.at[0] | b.at[0] << 16, a.at[1] | b.at[1] << 16, a.at[2] | b.at[2] << 16, 0);
            } else {
                const Parts a = parts_of(d * (float)(first + second));
                ushort *const to = (ushort *)(sums + chunk / 2 * TOKENS + token) + chunk % 2;
                for (uint part = 0; part < 3; ++part) to[part * 2] = (ushort)a.at[part];
            }
        }
    }
    __syncthreads();

    float sum[TILES][4] = {};
    uint stage = 0, tile_index = units ? begin / units : 0, unit = units ? begin % units : 0;
    const Places<W> places(lane);
    // Of this lane.
    const uint x_at = kept_in_register(shared_address(x) + (F::NEIGHBOURS ? q * pitch + t * 8 : (lane & 7) * pitch + (lane >> 3) * 16));
    const uint factors_at = kept_in_register(shared_address(factors) + t * 16), sums_at = kept_in_register(shared_address(sums) + (t * TOKENS + q) * 16);
    const uint line_at = kept_in_register(shared_address(lines) + q * F::PITCH), direct_at = kept_in_register(F::LOWS + F::HIGHS + q * 16);
    const uint ring_at = kept_in_register(shared_address(ring));
    #pragma unroll 1
    for (uint i = begin; i < end; ++i) {
        wait_but(stages - 2);
        __syncwarp();
        const uint shift = F::WHOLE ? 0 : shifts >> stage * 4 & 15, of_unit = kept_in_register(ring_at + stage * F::UNIT);
        fetch();
        if constexpr (!F::DIRECT) {
            expand_records<W>(lines, ring + stage * F::UNIT + F::LOWS + F::HIGHS + (lane >> 1) * F::KEPT + shift, lane);
            __syncwarp();
        }
        const uint x_unit = kept_in_register(x_at + unit * 256), factors_unit = kept_in_register(factors_at + unit * (CHUNKS * TOKENS * 8));
        uint4 direct[2];
        if constexpr (F::DIRECT)
            for (uint r = 0; r < 2; ++r) direct[r] = take16(of_unit + direct_at + r * 128);
        if constexpr (F::INTEGERS) {
            const uint line = line_at + F::SCALES + t * 4, of_pair = sums_at + unit * (CHUNKS * TOKENS * F::SUMMED);
            const float numbers[2] = {-__uint_as_float(take4(line_at + F::SCALES + F::MINIMUMS)), -__uint_as_float(take4(line_at + F::SCALES + F::MINIMUMS + 8 * F::PITCH))};
            float least[TILES][4] = {};
            #pragma unroll
            for (uint h = 0; h < (F::HALVES ? 2 : 1); ++h) {
                const uint a0 = take4(line + h * 16), a1 = take4(line + h * 16 + 8 * F::PITCH);
                #pragma unroll
                for (uint j = 0; j < TILES; ++j) {
                    const uint4 parts = take16(of_pair + (h * 4 * TOKENS + j * 8) * 16);
                    mma_bf16(least[j], a0, a1, parts.z);
                    mma_bf16(least[j], a0, a1, parts.y);
                    mma_bf16(least[j], a0, a1, parts.x);
                }
            }
            #pragma unroll
            for (uint j = 0; j < TILES; ++j)
                #pragma unroll
                for (uint i = 0; i < 4; ++i) sum[j][i] = fmaf(numbers[i / 2], least[j][i], sum[j][i]);
        }
        #pragma unroll
        for (uint p = 0; p < CHUNKS / 2; ++p) {
            uint a[2][4];
            codes<W>(a, of_unit, places, p, lane);
            float2 line[2][2]; // Of each chunk and row: its scale, and the second half's or the minimum.
            #pragma unroll
            for (uint r = 0; r < 2; ++r) {
                if constexpr (F::DIRECT) {
                    const uint two = planes::word(direct[r], p);
                    line[0][r] = make_float2(half_bits(two & 0xffff), 0);
                    line[1][r] = make_float2(half_bits(two >> 16), 0);
                } else {
                    const uint of_row = line_at + r * 8 * F::PITCH;
                    if constexpr (F::LINE == 1) {
                        const uint2 two = take8(of_row + p * 8);
                        line[0][r] = make_float2(__uint_as_float(two.x), 0);
                        line[1][r] = make_float2(__uint_as_float(two.y), 0);
                    } else {
                        const float4 two = take_floats(of_row + p * 16);
                        line[0][r] = make_float2(two.x, two.y);
                        line[1][r] = make_float2(two.z, two.w);
                    }
                }
            }
            #pragma unroll
            for (uint j = 0; j < TILES; ++j) {
                uint b[4];
                if constexpr (F::NEIGHBOURS) {
                    for (uint c = 0; c < 2; ++c) {
                        const uint2 eight = take8(x_unit + (p * 2 + c) * 32 + j * 8 * pitch);
                        b[c * 2] = eight.x;
                        b[c * 2 + 1] = eight.y;
                    }
                } else {
                    load_codes(b, x_unit + p * 64 + j * 8 * pitch);
                }
                #pragma unroll
                for (uint c = 0; c < 2; ++c) {
                    const float4 d = take_floats(factors_unit + ((p * 2 + c) * TILES + j) * 64);
                    int dot[2][4], of_ones[4];
                    if constexpr (F::HALVES) {
                        mma(dot[0], a[c][0], a[c][1], b[c * 2]);
                        mma(dot[1], a[c][2], a[c][3], b[c * 2 + 1]);
                    } else {
                        mma(dot[0], a[c], b[c * 2], b[c * 2 + 1]);
                    }
                    float2 summed = make_float2(0, 0); // Minimums are multiplied with the sums of activations.
                    if constexpr (F::MINIMUM && !F::INTEGERS) {
                        const uint ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
                        mma(of_ones, ones, b[c * 2], b[c * 2 + 1]);
                        summed = make_float2(scaled(of_ones[0], d.x, d.z), scaled(of_ones[1], d.y, d.w));
                    }
                    #pragma unroll
                    for (uint i = 0; i < 4; ++i) {
                        const float2 l = line[c][i / 2];
                        const float dx = i % 2 ? d.y : d.x, less = i % 2 ? d.w : d.z;
                        float v = fmaf(scaled(dot[0][i], dx, less), l.x, sum[j][i]);
                        if constexpr (F::HALVES) v = fmaf(scaled(dot[1][i], dx, less), l.y, v);
                        if constexpr (F::MINIMUM && !F::INTEGERS) v = fmaf(-l.y, i % 2 ? summed.y : summed.x, v);
                        sum[j][i] = v;
                    }
                }
            }
        }
        const bool last = ++unit == units;
        if (last || i + 1 == end) {
            float *const to = (float *)(partials + (warp + tile_index) * PARTIAL) + t * 32 + q;
            #pragma unroll
            for (uint j = 0; j < TILES; ++j)
                #pragma unroll
                for (uint i = 0; i < 4; ++i) {
                    to[j * 128 + i % 2 * 16 + i / 2 * 8] = sum[j][i];
                    sum[j][i] = 0;
                }
        }
        if (last) {
            unit = 0;
            ++tile_index;
        }
        if (++stage == stages) stage = 0;
    }
    if (splits > 1) cluster_sync();
    else __syncthreads();

    for (uint i = tid; i < items; i += WARPS * 32) {
        const Item item = item_at(i);
        if (!is_own(item)) continue;
        const Tile tile = tile_at(w, first + item.of);
        const uint row = tile.row + item.rows;
        if (row >= tile.m) continue;
        const auto summed = [&](uint r) {
            float4 v = make_float4(0, 0, 0, 0);
            for (uint from = 0; from < splits; ++from) {
                const uint units = units_of(from), total = count * units;
                for (uint warp = 0; warp < WARPS; ++warp) {
                    if (max(begin_of(total, warp), item.of * units) >= min(begin_of(total, warp + 1), (item.of + 1) * units)) continue;
                    const uint at = shared_address(partials) + (warp + item.of) * PARTIAL + (item.token * 16 + r) * 4;
                    const float4 p = splits > 1 ? load_cluster(at, from) : load_shared(at);
                    v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w);
                }
            }
            return v;
        };
        float4 v = summed(item.rows);
        if (gated) {
            const float4 u = summed(item.rows + 8);
            if (w.mode == SWIGLU) v = make_float4(swiglu(v.x, u.x), swiglu(v.y, u.y), swiglu(v.z, u.z), swiglu(v.w, u.w));
            else v = make_float4(relu2(v.x, u.x), relu2(v.y, u.y), relu2(v.z, u.z), relu2(v.w, u.w));
        }
        if (w.mode == ADD) {
            const float4 before = i == tid ? first_added : added_to(i);
            v = make_float4(before.x + v.x, before.y + v.y, before.z + v.z, before.w + v.w);
        }
        *(float4 *)((tile.matrix == 0 ? y0 : tile.matrix == 1 ? y1 : y2) + (size_t)item.token * tile.m + row) = v;
    }
    if (splits > 1) cluster_sync();
}

// Grid: workgroups in clusters of `splits`. step: the step block or null; n: tokens at most. stages: units in a warp's ring, 2 to MOST_STAGES.
#define CODES(name, W, TOKENS)                                                                                                                  \
    KERNEL_SHARED(codes_##name##_##TOKENS, WARPS * 32, 1, IN(0, uchar, x), IN(1, float, x_scales), EARLY(2, uchar, w0), EARLY(3, uchar, h0), EARLY(4, uchar, s0),    \
        EARLY(5, uchar, w1), EARLY(6, uchar, h1), EARLY(7, uchar, s1), EARLY(8, uchar, w2), EARLY(9, uchar, h2), EARLY(10, uchar, s2), IN(11, float, add),        \
        OUT(12, float, y0), OUT(13, float, y1), OUT(14, float, y2), IN(15, uint, step), VAL(16, uint, slot), VAL(17, uint, n),                  \
        VAL(18, uint, m0), VAL(19, uint, m1), VAL(20, uint, m2), VAL(21, uint, k), VAL(22, uint, mode), VAL(23, uint, splits),                  \
        VAL(24, uint, stages))                                                                                                                 \
    {                                                                                                                                          \
        const Operands in = {{w0, w1, w2}, {h0, h1, h2}, {s0, s1, s2}, x, x_scales, k};                                                        \
        multiply<planes::W, TOKENS>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, step, slot, n, splits, stages);                              \
    }
// Bytes that the host counts too (`Form` in gemm/codes.rs, whose test reads this list): of a unit, of a warp's lines, of a token's chunk.
#define COUNTED_BY_HOST(DO) \
    DO(Q8, 4352, 0, 44) DO(Q4, 2304, 0, 44) DO(Q4_1, 2560, 1280, 44) DO(Q5_0, 2816, 0, 44) \
    DO(Q5_1, 3072, 1280, 44) DO(Q2_K, 1536, 1792, 60) DO(Q3_K, 2048, 1280, 44) DO(Q4_K, 2560, 1280, 52) \
    DO(Q5_K, 3072, 1280, 52) DO(Q6_K, 3584, 1280, 44) DO(IQ4_NL, 2304, 0, 44) DO(IQ4_XS, 2560, 768, 44) \
    DO(MXFP4, 2560, 768, 44) DO(NVFP4, 2304, 1280, 44) DO(IQ2_N, 2560, 1280, 44) DO(IQ3_XXS_N, 2560, 768, 44) \
    DO(IQ3_S_N, 2560, 768, 44)
#define AS_COUNTED(W, unit, lines, activations) \
    static_assert(Form<planes::W>::UNIT == unit && Form<planes::W>::LINES == lines && ACTIVATIONS + Form<planes::W>::SUMMED == activations, #W);
COUNTED_BY_HOST(AS_COUNTED)

#define CODES_OF(name, W, ...) CODES(name, W, 8) CODES(name, W, 16)
CODES_OF(q8, Q8)
CODES_OF(q4, Q4)
PACKED_TYPES(CODES_OF)
