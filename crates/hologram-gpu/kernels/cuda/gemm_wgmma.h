// Matrix products of many tokens with warpgroup matrix instructions and the bulk tensor copy engine: see gemm.h.
//
// A workgroup computes tiles of GROUPS · 64 rows × N tokens: one warpgroup for each group of rows, and one whose warps fill a ring of stages in
// shared memory. The weights are the A operand and come from registers, so that quantised ones are decoded on the way, while the product of the
// stage before runs. Workgroups stay and go from tile to tile. Where tiles are few, a cluster shares one: each of its workgroups sums over a part of
// the row length, and they add what the others have through distributed shared memory.
#pragma once
#include "planes.h"
#include "wgmma.h"
#include "copy_engine.h"
#include "experts_plan.h"
#define constant
namespace planes {
#include "float8.h"
}
#undef constant
FN void store_shared(uint to, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory"); }
FN void group_sync(uint id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

struct Operands {
    const TensorMap *x, *w0, *w1, *w2;
    const uchar *s0, *s1, *s2; // Scales of f16, or records of packed weights.
    const uchar *h0, *h1, *h2; // High planes of packed weights.
    const float *x_scales;
    uint k, group; // Elements of a row; elements of a group of 8-bit activations.

    const TensorMap *weights(uint matrix) const { return matrix == 0 ? w0 : matrix == 1 ? w1 : w2; }
    const uchar *records(uint matrix) const { return matrix == 0 ? s0 : matrix == 1 ? s1 : s2; }
    const half *scales(uint matrix) const { return (const half *)records(matrix); }
    const uchar *high(uint matrix) const { return matrix == 0 ? h0 : matrix == 1 ? h1 : h2; }
};

// Weights of a packed type T are PACKED + T.
enum { PACKED = 16 };
constexpr bool is_packed(int weights) { return weights >= PACKED; }
template <int W> constexpr uint type_of() { return is_packed(W) ? W - PACKED : 0; }

// Results on their way out: floats of a token (no two lanes of a store share a bank), tokens at a time.
#define STRIDE 68
#define CHUNK 32
// Shared memory of a workgroup, what it needs beside stages and results, and the most stages.
#define MOST_SHARED (227 * 1024)
#define BESIDE (1024 + 256)
#define MOST_STAGES 8
HOST(STRIDE, CHUNK, MOST_SHARED, BESIDE, MOST_STAGES)

template <int W, bool I8, int GROUPS, int N> struct Layout {
    static constexpr int BYTES = is_packed(W) ? (I8 ? 4 : 2) * planes::low_bytes<type_of<W>()>() : row_bytes<W, I8>(), X = N * 128, CODES = GROUPS * 64 * BYTES;
    // Of a row, beside its codes: the high plane, or two scales. Stages begin where the copy engine's pattern of 1,024 bytes does.
    static constexpr int PIECE = is_packed(W) ? 2 * planes::high_bytes<type_of<W>()>() : W == Q8 || W == Q4 ? 4 : 0;
    static constexpr int PIECES = (GROUPS * 64 * PIECE + 1023) / 1024 * 1024;
    static constexpr int STAGE = X + CODES + PIECES, RESULTS = GROUPS * CHUNK * STRIDE * 4;
    static constexpr int FIT = (MOST_SHARED - BESIDE - RESULTS) / STAGE, STAGES = FIT > MOST_STAGES ? MOST_STAGES : FIT;
};

// What a lane holds of the factors of its two rows for 256 elements: the numbers of their records, and the bytes of the 64 elements that the lane is
// responsible for among the four lanes of a row.
template <uint P> struct Held {
    static constexpr uint CHUNKS = planes::record_chunks<P>(), BYTES = planes::record_bytes<P>(), FACTORS = planes::factors_of<P>();
    static constexpr bool PAIR = CHUNKS == 1 && BYTES == 4; // Two words for 64 elements.
    uint numbers[2], raw[2][PAIR ? 2 : 1];

    // all: the records of each row's matrix; rows: the rows, ~0 for none; chunk: the first of 32 elements; chunks: those of a row, of which the first
    // `end` are read.
    __forceinline__ void load(const uchar *const (&all)[2], const uint (&rows)[2], uint chunk, uint chunks, uint end, uint t)
    {
        #pragma unroll
        for (uint h = 0; h < 2; ++h) {
            numbers[h] = raw[h][0] = 0;
            if constexpr (PAIR) raw[h][1] = 0;
            const uint own = chunk + 2 * t;
            if (rows[h] == ~0u || own >= end) continue;
            const uchar *const row = all[h] + (size_t)rows[h] * (chunks / CHUNKS * BYTES);
            if constexpr (FACTORS == planes::WHOLE) raw[h][0] = planes::stream4(row + own / CHUNKS * 4);
            else if constexpr (PAIR) {
                const uint2 v = planes::stream8(row + own * 4);
                raw[h][0] = v.x;
                raw[h][1] = v.y;
            } else if constexpr (FACTORS == planes::EXPONENT) raw[h][0] = planes::stream2(row + own);
            else if constexpr (CHUNKS < 8) raw[h][0] = planes::stream4(row + own * 2);
            else {
                const uchar *const record = row + chunk / CHUNKS * BYTES;
                numbers[h] = BYTES % 4 == 0 ? planes::stream4(record) : planes::stream2(record);
                if constexpr (FACTORS == planes::SIGNED_32) raw[h][0] = planes::stream2(record + 2 + t * 2);
                else if constexpr (FACTORS == planes::SIGNED_16) raw[h][0] = planes::stream2(record + 2 + t * 4) | planes::stream2(record + 4 + t * 4) << 16;
                else raw[h][0] = planes::stream4(record + 4 + t * 4);
            }
        }
    }
    // The numbers and factors of row h's chunk `b` of the 64 elements that lane `from` holds.
    __forceinline__ planes::Chunk<P> chunk(uint h, uint b, uint from) const
    {
        planes::Chunk<P> c;
        if constexpr (PAIR) c.numbers = __shfl_sync(~0u, raw[h][b], from);
        else {
            const uint v = __shfl_sync(~0u, raw[h][0], from);
            if constexpr (FACTORS == planes::WHOLE) c.numbers = v;
            else if constexpr (FACTORS == planes::ONE) c.numbers = v >> 16 * b & 0xffff;
            else {
                c.numbers = numbers[h];
                c.factors = FACTORS == planes::SIGNED_32 || FACTORS == planes::EXPONENT ? v >> 8 * b & 0xff : v >> 16 * b & 0xffff;
            }
        }
        return c;
    }
};

// Two bytes at bits 0 and 16.
FN uint apart(uint v) { return __byte_perm(v, 0, 0x4140); }

// Codes at bits 0 and 16, with the scale and minimum of their half of a chunk, as two bf16: rounded once.
template <uint P> FN uint decode_pair(uint codes, float2 s)
{
    const float low = __uint_as_float(__byte_perm(codes, 0x43000000u, 0x7044)), high = __uint_as_float(__byte_perm(codes, 0x43000000u, 0x7244)); // 128 + code
    // A minimum would be rounded in the sum with 128 scales.
    if constexpr (planes::has_minimum<P>()) return pack_bf16(fmaf(low - 128.0f, s.x, -s.y), fmaf(high - 128.0f, s.x, -s.y));
    const float c = -float(128 + planes::bias_of<P>()) * s.x;
    return pack_bf16(fmaf(low, s.x, c), fmaf(high, s.x, c));
}
// Values of the table, plus 128, in bytes `first` and `first` + 1 of v, times the scale.
FN uint table_pair(uint v, uint first, float scale)
{
    const float low = __uint_as_float(__byte_perm(v, 0x47000000u, 0x7604 + (first << 4))), high = __uint_as_float(__byte_perm(v, 0x47000000u, 0x7614 + (first << 4)));
    return pack_bf16((low - 32896.0f) * scale, (high - 32896.0f) * scale); // 2^15 + 128 + value
}

// As wgmma, with operands in e4m3.
FN void wgmma_e4m3(float (&d)[16], const uint (&a)[4], ulong b, int more)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" TEXT32 "}, {%16,%17,%18,%19}, %20, p, 1, 1;}"
        : REGS32(FLOAT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}
FN void wgmma_e4m3(float (&d)[32], const uint (&a)[4], ulong b, int more)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" TEXT64 "}, {%32,%33,%34,%35}, %36, p, 1, 1;}"
        : REGS64(FLOAT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

// Two floats of a byte (E4M3) times the scale, rounded once.
FN uint float8_pair(uint v, float scale)
{
    uint r;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(r) : "r"(v));
    return pack_bf16(half_bits(r & 0xffff) * scale, half_bits(r >> 16) * scale);
}

// As load_fragments, for packed weights: 64 elements of the rows, whose factors the lane `from` holds.
template <uint P> FN void load_packed(uint (&a)[4][4], uint base, uint high, uint row, uint pair, uint lane, const Held<P> &held, uint from)
{
    constexpr uint LOW = planes::low_bits<P>(), HIGH = planes::high_bits<P>();
    const uint t = lane & 3;
    #pragma unroll
    for (uint h = 0; h < 2; ++h) {
        const uint r = row + h * pair;
        #pragma unroll
        for (uint b = 0; b < 2; ++b) {
            const planes::Chunk<P> chunk = held.chunk(h, b, from);
            const float2 first = planes::scale_of<P>(chunk, 0), second = planes::scale_of<P>(chunk, 1);
            if constexpr (planes::is_table<P>()) {
                // Codes lie one after the other.
                const uint at = base + swizzle<32>(r, b) + (t & 2), by = (t & 1) * 8;
                #pragma unroll
                for (uint i = 0; i < 2; ++i) {
                    const uint v = planes::table_values<P>((load16(at + i * 8) >> by & 0xff) | (load16(at + i * 8 + 4) >> by & 0xff) << 8).x ^ 0x80808080u;
                    a[2 * b + i][h] = table_pair(v, 0, i ? second.x : first.x);
                    a[2 * b + i][h + 2] = table_pair(v, 2, i ? second.x : first.x);
                }
                continue;
            }
            uint codes[4]; // Of elements 2t and 2t + 1, and of those 8, 16 and 24 further.
            if constexpr (LOW == 4) {
                const uint at = base + swizzle<32>(r, b) + 2 * t;
                const uint v = apart(load16(at)), u = apart(load16(at + 8));
                codes[0] = v & 0x000f000fu;
                codes[1] = u & 0x000f000fu;
                codes[2] = v >> 4 & 0x000f000fu;
                codes[3] = u >> 4 & 0x000f000fu;
            } else {
                const uint at = base + r * 16 + b * 8 + (t & 1) * 2, by = (t >> 1) * 2;
                const uint v = apart(load16(at)) >> by, u = apart(load16(at + 4)) >> by;
                codes[0] = v & 0x00030003u;
                codes[1] = v >> 4 & 0x00030003u;
                codes[2] = u & 0x00030003u;
                codes[3] = u >> 4 & 0x00030003u;
            }
            if constexpr (HIGH == 1) {
                const uint v = apart(load16(high + r * 8 + b * 4 + (t & 1) * 2)) >> (t >> 1);
                #pragma unroll
                for (uint i = 0; i < 4; ++i) codes[i] |= (v >> 2 * i & 0x00010001u) << LOW;
            }
            if constexpr (HIGH == 2) {
                const uint at = high + r * 16 + b * 8 + (t & 1) * 2, by = (t >> 1) * 2;
                const uint v = apart(load16(at)) >> by, u = apart(load16(at + 4)) >> by;
                codes[0] |= (v & 0x00030003u) << LOW;
                codes[1] |= (v >> 4 & 0x00030003u) << LOW;
                codes[2] |= (u & 0x00030003u) << LOW;
                codes[3] |= (u >> 4 & 0x00030003u) << LOW;
            }
            a[2 * b][h] = decode_pair<P>(codes[0], first);
            a[2 * b][h + 2] = decode_pair<P>(codes[1], first);
            a[2 * b + 1][h] = decode_pair<P>(codes[2], second);
            a[2 * b + 1][h + 2] = decode_pair<P>(codes[3], second);
        }
    }
}

// As load_packed, for floats of a byte.
template <uint P> FN void load_float8(uint (&a)[4][4], uint base, uint row, uint pair, uint lane, const Held<P> &held, uint from)
{
    const uint t = lane & 3;
    #pragma unroll
    for (uint h = 0; h < 2; ++h) {
        const uint r = row + h * pair;
        const float scale = __uint_as_float(held.chunk(h, 0, from).numbers);
        #pragma unroll
        for (uint s = 0; s < 4; ++s) {
            const uint at = base + swizzle<64>(r, s) + 2 * t;
            a[s][h] = float8_pair(load16(at), scale);
            a[s][h + 2] = float8_pair(load16(at + 8), scale);
        }
    }
}

// Of experts: what `expert_order` has made (gemm_experts.cu), biases per row of each expert, and whether SWIGLU stands for gpt-oss' gate.
struct Chosen {
    const uint *plan;
    uint most_tiles;
    const float *bias[2];
    bool biased, clamped;
};
// Where a tile is: its first token, the end of those it may have, its first group of rows, and the rows of other experts before its own.
struct Spot { uint token, end, group, rows; };

// step, slot, most: the tokens of this run, as `tokens` reads them. With EXPERTS tokens are slots in the plan's order, whose results go to where they
// were before it; w has the rows of one expert.
template <int W, bool I8, int GROUPS, int N, bool EXPERTS = false>
FN void multiply(const Operands &in, const Matrices &w, const float *add, void *y0, void *y1, void *y2, bool narrow, const uint *step_block, uint slot, uint most, uint splits, const Chosen &chosen = {})
{
    using L = Layout<W, I8, GROUPS, N>;
    constexpr uint P = type_of<W>();
    // Packed weights of few tokens are on their way before the launch before this one has ended.
    const bool early = is_packed(W) && !EXPERTS && most <= N;
    if (!early) dependency_wait();
    uint n = early || EXPERTS ? most : tokens(step_block, slot, most);
    constexpr int BYTES = L::BYTES;
    constexpr bool SCALED = L::PIECE > 0;
    extern __shared__ uchar shared[];
    const uint base = (shared_address(shared) + 1023) & ~1023u;
    const uint results = base + L::STAGES * L::STAGE, full = results + L::RESULTS, empty = full + L::STAGES * 8;
    const uint thread = threadIdx.x, role = thread >> 7, lane = thread & 31;
    const bool gated = w.gated();
    const uint groups = gated ? (w.m0 + 31) / 32 : (w.m0 + 63) / 64 + (w.m1 + 63) / 64 + (w.m2 + 63) / 64;
    const uint row_tiles = (groups + GROUPS - 1) / GROUPS, token_tiles = EXPERTS ? chosen.plan[0] : (n + N - 1) / N, tiles = token_tiles * row_tiles;
    // Tiles beside each other share weights, or the slots of an expert.
    const auto spot_of = [&](uint tile) -> Spot {
        if constexpr (EXPERTS) {
            const uint *const of = chosen.plan + HEADER + tile / row_tiles * TILE_WORDS;
            return {of[1], of[1] + of[2], tile % row_tiles * GROUPS, of[0] * w.m0};
        } else
            return {tile % token_tiles * N, n, tile / token_tiles * GROUPS, 0};
    };
    const uint rank = splits > 1 ? cluster_rank() : 0, begin = splits > 1 ? blockIdx.x / splits : blockIdx.x;
    const uint apart = splits > 1 ? gridDim.x / splits : gridDim.x;
    // Stages of 128 bytes of activations for each workgroup, a multiple of ROUND; beyond the rows' end everything is zero.
    constexpr uint ROUND = is_packed(W) ? 4 : 2;
    const uint all = (in.k * (I8 ? 1 : 2) + 127) / 128, steps = (all + ROUND * splits - 1) / (ROUND * splits) * ROUND, start = rank * steps;

    if (thread == 0) {
        for (uint s = 0; s < L::STAGES; ++s) {
            barrier_init(full + s * 8, SCALED ? 34 : 2);
            barrier_init(empty + s * 8, GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    uint stage = 0, phase = 0;
    auto next = [&] { if (++stage == L::STAGES) { stage = 0; phase ^= 1; } };

    if (role == GROUPS) {
        if constexpr (GROUPS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        const uint warp = thread >> 5 & 3;
        if (warp == 0 && lane == 0) {
            if (early) dependency_wait();
            for (uint tile = begin; tile < tiles; tile += apart) {
                const uint token = spot_of(tile).token;
                for (uint step = 0; step < steps; ++step) {
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    barrier_expect(full + stage * 8, L::X);
                    copy_tile(base + stage * L::STAGE, in.x, (start + step) * (I8 ? 128 : 64), token, full + stage * 8);
                    next();
                }
            }
        } else if (warp == 1 && lane == 0) {
            for (uint tile = begin; tile < tiles; tile += apart) {
                uint row[GROUPS];
                const TensorMap *map[GROUPS];
                const Spot spot = spot_of(tile);
                #pragma unroll
                for (uint g = 0; g < GROUPS; ++g) {
                    const Group group = locate(w, spot.group + g);
                    map[g] = in.weights(group.m ? group.matrix : 0);
                    row[g] = spot.rows + (group.m ? group.row : w.m0);
                }
                for (uint step = 0; step < steps; ++step) {
                    const uint codes = base + stage * L::STAGE + L::X, column = (start + step) * (is_plain(W) ? BYTES / 2 : BYTES);
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    barrier_expect(full + stage * 8, L::CODES);
                    #pragma unroll
                    for (uint g = 0; g < GROUPS; ++g) {
                        copy_tile(codes + g * 64 * BYTES, map[g], column, row[g], full + stage * 8);
                        if (gated) copy_tile(codes + (g * 64 + 32) * BYTES, in.w1, column, row[g], full + stage * 8);
                    }
                    next();
                }
            }
        } else if (warp == 2 && SCALED) {
            for (uint tile = begin; tile < tiles; tile += apart) {
                // This lane's rows are `lane` and `lane + 32` of each group.
                const uchar *from[GROUPS * 2];
                uint valid = 0; // A bit for each row that there is.
                const Spot spot = spot_of(tile);
                #pragma unroll
                for (uint i = 0; i < GROUPS * 2; ++i) {
                    const Group group = locate(w, spot.group + i / 2);
                    const uint row = group.row + (gated ? lane : i % 2 * 32 + lane);
                    const bool inside = row < group.m;
                    const uint matrix = gated ? i % 2 : inside ? group.matrix : 0;
                    from[i] = (is_packed(W) ? in.high(matrix) : in.records(matrix)) + (inside ? (size_t)(spot.rows + row) * (in.k / 64) * L::PIECE : 0);
                    valid |= (uint)inside << i;
                }
                for (uint step = start; step < start + steps; ++step) {
                    const uint to = base + stage * L::STAGE + L::X + L::CODES + lane * L::PIECE;
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    #pragma unroll
                    for (uint i = 0; i < GROUPS * 2; ++i) {
                        const bool there = step < all && (valid >> i & 1); // Elsewhere nothing is read, and zeros are written.
                        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to + i * 32 * L::PIECE), "l"(from[i] + (there ? step * L::PIECE : 0)),
                                     "n"(SCALED ? L::PIECE : 4), "r"(there ? L::PIECE : 0) : "memory");
                    }
                    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + stage * 8) : "memory");
                    next();
                }
            }
        }
        __syncwarp();
        if (splits > 1 && begin < tiles) cluster_sync();
        if (splits > 1) cluster_sync();
        return;
    }

    if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if constexpr (GROUPS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
    const uint warp = thread >> 5 & 3, t = lane & 3;
    const uint pair = gated ? 32 : 8, row = warp * (gated ? 8 : 16) + (lane >> 2);
    const uint own = results + role * (CHUNK * STRIDE * 4);
    auto release = [&](uint s) { if ((thread & 127) == 0) barrier_arrive(empty + s * 8); };

    for (uint tile = begin; tile < tiles; tile += apart) {
        const Spot spot = spot_of(tile);
        const uint token = spot.token;
        const Group group = locate(w, spot.group + role);
        void *const out = group.matrix == 0 ? y0 : group.matrix == 1 ? y1 : y2;
        float sum[N / 2];
        uint a[2][4][4], before = 0;
        // With an addition: this thread's pieces of what is added to a chunk's results, fetched a chunk ahead.
        constexpr uint PIECES = CHUNK * 16 / 128;
        float4 added[PIECES];
        auto place = [&](uint chunk, uint piece) {
            const uint i = piece * 128 + (thread & 127), to = token + chunk * CHUNK + (i >> 4), r = group.row + (i & 15) * 4;
            return to < n && r < group.m ? (size_t)to * group.m + r : ~(size_t)0;
        };
        auto fetch = [&](uint chunk) {
            if (w.mode != ADD || splits > 1) return;
            #pragma unroll
            for (uint piece = 0; piece < PIECES; ++piece) {
                const size_t at = place(chunk, piece);
                if (at != ~(size_t)0) added[piece] = *(const float4 *)(add + at);
            }
        };

        if constexpr (I8 && is_packed(W)) {
            // Floats of a byte on both sides. A stage is a block of each row: lane t of a row's four holds the scale of stage t of four. The products of
            // half of the tokens run while the sums of the other half are added up.
            const auto load = [&](float (&to)[2], uint step) {
                #pragma unroll
                for (uint h = 0; h < 2; ++h) {
                    const uint r = group.row + row + (gated ? 0 : h * 8), block = start + step + t;
                    const float *const scales = (const float *)in.records(gated ? h : group.matrix);
                    to[h] = r < group.m && step < steps && block < all ? __ldg(scales + (size_t)r * all + block) : 0.0f;
                }
            };
            constexpr uint HALF = N / 4;
            float held[2], ahead[2], dot[2][HALF];
            load(held, 0);
            if (early) {
                dependency_wait();
                n = tokens(step_block, slot, most);
            }
            for (uint i = 0; i < N / 2; ++i) sum[i] = 0;
            ulong b = 0;
            const auto begin_stage = [&](uint (&to)[4][4]) {
                barrier_wait(full + stage * 8, phase);
                const uint x = base + stage * L::STAGE;
                load_fragments<Q8, true>(to, x + L::X + role * 64 * BYTES, row, pair, lane, 0);
                b = describe(x);
                before = stage;
                next();
            };
            const auto products = [&](float (&to)[HALF], const uint (&from)[4][4], uint half) {
                wgmma_fence();
                #pragma unroll
                for (uint s = 0; s < 4; ++s) wgmma_e4m3(to, from[s], b + half * (N / 2 * 128 / 16) + 2 * s, s > 0);
                wgmma_commit();
            };
            // The assembler follows no products over a loop's end, so that four stages begin and end together.
            for (uint step = 0; step < steps; step += 4) {
                load(ahead, step + 4);
                begin_stage(a[0]);
                products(dot[0], a[0], 0);
                #pragma unroll
                for (uint i = 0; i < 4; ++i) {
                    const float d[2] = {__shfl_sync(~0u, held[0], (lane & ~3u) | i), __shfl_sync(~0u, held[1], (lane & ~3u) | i)};
                    const uint own = before;
                    products(dot[1], a[i % 2], 1);
                    wgmma_wait<1>();
                    #pragma unroll
                    for (uint j = 0; j < HALF; ++j) sum[j] = fmaf(dot[0][j], d[j >> 1 & 1], sum[j]);
                    if (i < 3) {
                        begin_stage(a[(i + 1) % 2]);
                        products(dot[0], a[(i + 1) % 2], 0);
                        wgmma_wait<1>();
                    } else wgmma_wait<0>();
                    release(own);
                    #pragma unroll
                    for (uint j = 0; j < HALF; ++j) sum[HALF + j] = fmaf(dot[1][j], d[j >> 1 & 1], sum[HALF + j]);
                }
                held[0] = ahead[0];
                held[1] = ahead[1];
            }
            for (uint i = 0; i < N / 2; ++i) {
                const uint to = token + (i >> 2) * 8 + t * 2 + (i & 1);
                sum[i] *= to < n ? in.x_scales[to] : 0.0f;
            }
            fetch(0);
        } else if constexpr (I8) {
            int dot[N / 2];
            for (uint i = 0; i < N / 2; ++i) sum[i] = 0;
            for (uint step = 0; step < steps; step += 2) {
                // Sums start from 1.5 · 2^23 as f32, so that their bits are that f32 plus the sum.
                for (uint i = 0; i < N / 2; ++i) dot[i] = 0x4b400000;
                const uint block = (start + step) / 2;
                float d[2];
                for (uint h = 0; h < 2; ++h) {
                    const uint r = group.row + row + (gated ? 0 : h * 8);
                    const bool inside = r < group.m && start + step < all;
                    d[h] = inside ? __half2float(in.scales(gated ? h : group.matrix)[(size_t)r * (in.k / 256) + block]) : 0.0f;
                }
                #pragma unroll
                for (uint i = 0; i < 2; ++i) {
                    barrier_wait(full + stage * 8, phase);
                    const uint x = base + stage * L::STAGE;
                    load_fragments<W, I8>(a[i], x + L::X + role * 64 * BYTES, row, pair, lane, 0);
                    const ulong b = describe(x);
                    wgmma_fence();
                    #pragma unroll
                    for (uint s = 0; s < 4; ++s) wgmma(dot, a[i][s], b + 2 * s);
                    wgmma_commit();
                    if (i == 0) before = stage;
                    else {
                        wgmma_wait<0>();
                        release(before);
                        release(stage);
                    }
                    next();
                }
                if (in.group == in.k)
                    for (uint i = 0; i < N / 2; ++i) sum[i] = fmaf(__int_as_float(dot[i]) - 12582912.0f, d[i >> 1 & 1], sum[i]);
                else
                    for (uint i = 0; i < N / 2; ++i) {
                        const uint to = token + (i >> 2) * 8 + t * 2 + (i & 1);
                        const float sx = to < n && start + step < all ? in.x_scales[(size_t)to * (in.k / 256) + block] : 0.0f;
                        sum[i] = fmaf((__int_as_float(dot[i]) - 12582912.0f) * d[i >> 1 & 1], sx, sum[i]);
                    }
            }
            if (in.group == in.k)
                for (uint i = 0; i < N / 2; ++i) {
                    const uint to = token + (i >> 2) * 8 + t * 2 + (i & 1);
                    sum[i] *= to < n ? in.x_scales[to] : 0.0f;
                }
            fetch(0);
        } else if constexpr (is_packed(W)) {
            const auto load = [&](Held<P> &to, uint step, bool wanted) {
                const uchar *const records[2] = {in.records(gated ? 0 : group.matrix), in.records(gated ? 1 : group.matrix)};
                const uint first = group.row + row, second = first + (gated ? 0 : 8);
                const uint rows[2] = {first < group.m ? spot.rows + first : ~0u, second < group.m ? spot.rows + second : ~0u};
                to.load(records, rows, (start + step) * 2, in.k / 32, wanted ? in.k / 32 : 0, t);
            };
            Held<P> held, ahead;
            load(held, 0, true);
            if (early) {
                dependency_wait();
                n = tokens(step_block, slot, most);
            }
            for (uint step = 0; step < steps; step += 4) {
                load(ahead, step + 4, step + 4 < steps);
                #pragma unroll
                for (uint i = 0; i < 4; ++i) {
                    barrier_wait(full + stage * 8, phase);
                    const uint x = base + stage * L::STAGE;
                    if constexpr (planes::low_bits<P>() == 8) load_float8<P>(a[i % 2], x + L::X + role * 64 * BYTES, row, pair, lane, held, (lane & ~3u) | i);
                    else load_packed<P>(a[i % 2], x + L::X + role * 64 * BYTES, x + L::X + L::CODES + role * 64 * L::PIECE, row, pair, lane, held, (lane & ~3u) | i);
                    const ulong b = describe(x);
                    wgmma_fence();
                    #pragma unroll
                    for (uint s = 0; s < 4; ++s) wgmma(sum, a[i % 2][s], b + 2 * s, step + i + s > 0);
                    wgmma_commit();
                    wgmma_wait<1>();
                    if (step + i > 0) release(before);
                    before = stage;
                    next();
                }
                held = ahead;
            }
            fetch(0);
            wgmma_wait<0>();
            release(before);
        } else {
            for (uint step = 0; step < steps; step += 2)
                #pragma unroll
                for (uint i = 0; i < 2; ++i) {
                    barrier_wait(full + stage * 8, phase);
                    const uint x = base + stage * L::STAGE;
                    load_fragments<W, I8>(a[i], x + L::X + role * 64 * BYTES, row, pair, lane, x + L::X + L::CODES + role * 256);
                    const ulong b = describe(x);
                    wgmma_fence();
                    #pragma unroll
                    for (uint s = 0; s < 4; ++s) wgmma(sum, a[i][s], b + 2 * s, step + i + s > 0);
                    wgmma_commit();
                    wgmma_wait<1>();
                    if (step + i > 0) release(before);
                    before = stage;
                    next();
                }
            fetch(0);
            wgmma_wait<0>();
            release(before);
        }
        if (tile + apart >= tiles) dependency_launch();

        if (splits > 1) {
            // All sums to shared memory where the stages were; then each workgroup of the cluster adds up its share of the tokens.
            asm volatile("bar.sync 15, %0;" ::"n"(GROUPS * 128) : "memory");
            const uint sums = base + role * N * STRIDE * 4;
            #pragma unroll
            for (uint i = 0; i < N / 2; i += 4)
                #pragma unroll
                for (uint e = 0; e < 2; ++e) {
                    const uint to = sums + ((i * 2 + t * 2 + e) * STRIDE + row) * 4;
                    store_shared(to, sum[i + e]);
                    store_shared(to + pair * 4, sum[i + e + 2]);
                }
            cluster_sync();
            const uint share = (N + splits - 1) / splits, first = min(rank * share, (uint)N);
            write_group(w, group, token + first, min(share, N - first), n, add, out, narrow, thread & 127, [&](uint t, uint r) {
                auto total = [&](uint r) {
                    float4 v = make_float4(0, 0, 0, 0);
                    for (uint from = 0; from < splits; ++from) {
                        const float4 p = load_cluster(sums + ((first + t) * STRIDE + r) * 4, from);
                        v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w);
                    }
                    return v;
                };
                const float4 v = total(r);
                if (!gated) return v;
                const float4 u = total(r + 32);
                if (w.mode == SWIGLU) return make_float4(swiglu(v.x, u.x), swiglu(v.y, u.y), swiglu(v.z, u.z), swiglu(v.w, u.w));
                return make_float4(relu2(v.x, u.x), relu2(v.y, u.y), relu2(v.z, u.z), relu2(v.w, u.w));
            });
            break;
        }
        if constexpr (EXPERTS) {
            const uint first = group.row + row, second = first + (gated ? 0 : 8);
            if (chosen.biased) {
                const float b = first < group.m ? chosen.bias[0][spot.rows + first] : 0.0f;
                const float c = second < group.m ? (gated ? chosen.bias[1] : chosen.bias[0])[spot.rows + second] : 0.0f;
                #pragma unroll
                for (uint i = 0; i < N / 2; ++i) sum[i] += i & 2 ? c : b;
            }
        }
        #pragma unroll
        for (uint chunk = 0; chunk < N / CHUNK; ++chunk) {
            group_sync(1 + role);
            // Each element of the chunk with the one 8 rows (when gated: the same row of up) further.
            auto each = [&](auto store) {
                #pragma unroll
                for (uint i = 0; i < CHUNK / 2; i += 4)
                    #pragma unroll
                    for (uint e = 0; e < 2; ++e) {
                        const uint from = chunk * (CHUNK / 2) + i + e;
                        store(own + ((i * 2 + t * 2 + e) * STRIDE + row) * 4, sum[from], sum[from + 2]);
                    }
            };
            if (EXPERTS && chosen.clamped) each([](uint to, float g, float u) { store_shared(to, clamped_swiglu(g, u)); });
            else if (w.mode == SWIGLU) each([](uint to, float g, float u) { store_shared(to, swiglu(g, u)); });
            else if (w.mode == RELU2) each([](uint to, float g, float u) { store_shared(to, relu2(g, u)); });
            else each([](uint to, float v, float u) { store_shared(to, v); store_shared(to + 32, u); });
            group_sync(1 + role);
            if constexpr (EXPERTS) {
                const uint *const order = chosen.plan + HEADER + chosen.most_tiles * TILE_WORDS;
                const uint shift = gated ? 3 : 4;
                for (uint i = thread & 127; i < CHUNK << shift; i += 128) {
                    const uint t = i >> shift, r = (i & ((1u << shift) - 1)) * 4, from = token + chunk * CHUNK + t;
                    if (from >= spot.end || group.row + r >= group.m) continue;
                    *(float4 *)((float *)out + (size_t)order[from] * group.m + group.row + r) = load_shared(own + (t * STRIDE + r) * 4);
                }
                continue;
            }
            if (w.mode == ADD) {
                float4 v[PIECES];
                #pragma unroll
                for (uint piece = 0; piece < PIECES; ++piece) {
                    const uint i = piece * 128 + (thread & 127);
                    v[piece] = load_shared(own + ((i >> 4) * STRIDE + (i & 15) * 4) * 4);
                    v[piece] = make_float4(v[piece].x + added[piece].x, v[piece].y + added[piece].y, v[piece].z + added[piece].z, v[piece].w + added[piece].w);
                }
                if (chunk + 1 < N / CHUNK) fetch(chunk + 1);
                #pragma unroll
                for (uint piece = 0; piece < PIECES; ++piece) {
                    const size_t at = place(chunk, piece);
                    if (at != ~(size_t)0) *(float4 *)((float *)out + at) = v[piece];
                }
                continue;
            }
            write_group(w, group, token + chunk * CHUNK, CHUNK, n, add, out, narrow, thread & 127,
                        [&](uint t, uint r) { return load_shared(own + (t * STRIDE + r) * 4); });
        }
    }
    if (splits > 1) cluster_sync();
}

