// Matrix products of many tokens with warpgroup matrix instructions and the bulk tensor copy engine: see gemm.h.
//
// A workgroup computes tiles of GROUPS · 64 rows × N tokens: one warpgroup for each group of rows, and one whose warps
// fill a ring of stages in shared memory. The weights are the A operand and come from registers, so that quantised ones
// are decoded on the way, while the product of the stage before runs. Workgroups stay and go from tile to tile. Where
// tiles are few, a cluster shares one: each of its workgroups sums over a part of the row length, and they add what the
// others have through distributed shared memory.
#pragma once
#include "packed_fragments.h"
#include "gemm_exact.h"
#include "wgmma.h"
#include "copy_engine.h"
#include "experts_plan.h"
FN void store_shared(uint to, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory"); }
FN void group_sync(uint id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

struct Operands {
    const TensorMap *x, *w0, *w1, *w2;
    const uchar *s0, *s1, *s2; // Scales of f16, or records of packed weights.
    const uchar *h0, *h1, *h2; // High planes of packed weights.
    const float *x_scales;
    uint k, group; // Elements of a row; elements of a group of 8-bit activations.
    const TensorMap *high_maps[3]; // High planes for the copy engine.

    const TensorMap *weights(uint matrix) const { return matrix == 0 ? w0 : matrix == 1 ? w1 : w2; }
    const uchar *records(uint matrix) const { return matrix == 0 ? s0 : matrix == 1 ? s1 : s2; }
    const half *scales(uint matrix) const { return (const half *)records(matrix); }
    const TensorMap *high_map(uint matrix) const { return matrix == 0 ? high_maps[0] : matrix == 1 ? high_maps[1] : high_maps[2]; }
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

// A stage has PARTS parts of 64 elements (of 128 codes). EXACT: packed weights as in gemm_exact.h, of whose sums of
// activations a stage has a tile too.
template <int W, bool I8, int GROUPS, int N, int PARTS, bool EXACT> struct Layout {
    // Bytes of a row's codes in a part and in a stage, in tiles of at most 128 bytes of a row.
    static constexpr int BYTES = is_packed(W) ? (I8 ? 4 : 2) * planes::low_bytes<type_of<W>()>() : row_bytes<W, I8>(), X = N * 128 * PARTS, CODES = GROUPS * 64 * BYTES * PARTS;
    static constexpr int ACROSS = BYTES * PARTS < 128 ? BYTES * PARTS : 128, TILE = GROUPS * 64 * ACROSS, TILES = BYTES * PARTS / ACROSS;
    // Of a row, beside its codes: the high plane, or two scales a part. Stages begin where the copy engine's pattern of
    // 1,024 bytes does.
    static constexpr int PIECE = is_packed(W) ? 2 * planes::high_bytes<type_of<W>()>() : W == Q8 || W == Q4 ? 4 : 0;
    static constexpr int PITCH = PIECE * PARTS, PIECES = (GROUPS * 64 * PITCH + 1023) / 1024 * 1024;
    static constexpr int SUMS = EXACT ? N * 128 : 0, STAGE = X + CODES + PIECES + SUMS, RESULTS = GROUPS * CHUNK * STRIDE * 4;
    static constexpr int FIT = (MOST_SHARED - BESIDE - RESULTS) / STAGE, STAGES = FIT > MOST_STAGES ? MOST_STAGES : FIT;
};

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

// Of experts: what `expert_order` has made (gemm_experts.cu), biases per row of each expert, and whether SWIGLU stands
// for gpt-oss' gate.
struct Chosen {
    const uint *plan;
    uint most_tiles;
    const float *bias[2];
    bool biased, clamped;
};
// Where a tile is: its first token, the end of those it may have, its first group of rows, and the rows of other
// experts before its own.
struct Spot { uint token, end, group, rows; };

// step, slot, most: the tokens of this run, as `tokens` reads them. With EXPERTS tokens are slots in the plan's order,
// whose results go to where they were before it; w has the rows of one expert.
template <int W, bool I8, int GROUPS, int N, int PARTS = 1, bool EXACT = false, bool EXPERTS = false>
FN void multiply(const Operands &in, const Matrices &w, const float *add, void *y0, void *y1, void *y2, bool narrow, const uint *step_block, uint slot, uint most, uint splits, const Chosen &chosen = {})
{
    using L = Layout<W, I8, GROUPS, N, PARTS, EXACT>;
    constexpr uint P = type_of<W>();
    // Weights of few tokens are on their way before the launch before this one has ended.
    const bool early = !EXPERTS && most <= N;
    if (!early) dependency_wait();
    uint n = early || EXPERTS ? most : tokens(step_block, slot, most);
    constexpr int BYTES = L::BYTES;
    constexpr bool SCALED = L::PIECE > 0 && !EXACT;
    extern __shared__ uchar shared[];
    const uint base = (shared_address(shared) + 1023) & ~1023u;
    const uint results = base + L::STAGES * L::STAGE, full = results + L::RESULTS, empty = full + L::STAGES * 8, summed = empty + L::STAGES * 8;
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
    // Stages of PARTS · 128 bytes of activations for each workgroup, a multiple of ROUND; beyond the rows' end
    // everything is zero.
    constexpr uint ROUND = is_packed(W) ? 4 / PARTS : PARTS > 1 ? 1 : 2;
    const uint all = (in.k * (I8 ? 1 : 2) + 128 * PARTS - 1) / (128 * PARTS), steps = (all + ROUND * splits - 1) / (ROUND * splits) * ROUND, start = rank * steps;

    if (thread == 0) {
        for (uint s = 0; s < L::STAGES; ++s) {
            barrier_init(full + s * 8, SCALED ? 34 : 2);
            barrier_init(empty + s * 8, GROUPS);
            if (EXACT) barrier_init(summed + s * 8, 2);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    uint stage = 0, phase = 0;
    auto next = [&] { if (++stage == L::STAGES) { stage = 0; phase ^= 1; } };

    if (role == GROUPS) {
        if constexpr (EXACT) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        else if constexpr (GROUPS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        const uint warp = thread >> 5 & 3;
        if (warp == 0 && lane == 0) {
            if (early) dependency_wait();
            for (uint tile = begin; tile < tiles; tile += apart) {
                const uint token = spot_of(tile).token;
                for (uint step = 0; step < steps; ++step) {
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    barrier_expect(full + stage * 8, L::X);
                    #pragma unroll
                    for (uint p = 0; p < PARTS; ++p) copy_tile(base + stage * L::STAGE + p * N * 128, in.x, ((start + step) * PARTS + p) * (I8 ? 128 : 64), token, full + stage * 8);
                    next();
                }
            }
        } else if (warp == 1 && lane == 0) {
            for (uint tile = begin; tile < tiles; tile += apart) {
                const Spot spot = spot_of(tile);
                const auto matrix_of = [&](const Group &group) { return group.m ? group.matrix : 0; };
                const auto row_of = [&](const Group &group) { return spot.rows + (group.m ? group.row : w.m0); };
                // Registers are scarce where stages are long; there groups are found anew in each.
                uint rows[GROUPS], matrices[GROUPS];
                #pragma unroll
                for (uint g = 0; g < GROUPS; ++g) {
                    const Group group = locate(w, spot.group + g);
                    matrices[g] = matrix_of(group);
                    rows[g] = row_of(group);
                }
                for (uint step = 0; step < steps; ++step) {
                    const uint codes = base + stage * L::STAGE + L::X, column = (start + step) * (is_plain(W) ? BYTES / 2 : BYTES) * PARTS;
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    barrier_expect(full + stage * 8, L::CODES + (EXACT ? GROUPS * 64 * L::PITCH : 0));
                    const auto copy = [&](uint g, uint matrix, uint row) {
                        #pragma unroll
                        for (uint c = 0; c < L::TILES; ++c) {
                            const uint to = codes + c * L::TILE + g * 64 * L::ACROSS, x = column + c * (is_plain(W) ? L::ACROSS / 2 : L::ACROSS);
                            copy_tile(to, in.weights(matrix), x, row, full + stage * 8);
                            if (gated) copy_tile(to + 32 * L::ACROSS, in.w1, x, row, full + stage * 8);
                        }
                        if constexpr (EXACT && L::PITCH > 0) {
                            const uint to = codes + L::CODES + g * 64 * L::PITCH, x = (start + step) * L::PITCH;
                            copy_tile(to, in.high_map(matrix), x, row, full + stage * 8);
                            if (gated) copy_tile(to + 32 * L::PITCH, in.high_map(1), x, row, full + stage * 8);
                        }
                    };
                    if constexpr (EXACT) {
                        #pragma unroll 1
                        for (uint g = 0; g < GROUPS; ++g) {
                            const Group group = locate(w, spot.group + g);
                            copy(g, matrix_of(group), row_of(group));
                        }
                    } else {
                        #pragma unroll
                        for (uint g = 0; g < GROUPS; ++g) copy(g, matrices[g], rows[g]);
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
                    const uint to = base + stage * L::STAGE + L::X + L::CODES;
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    constexpr uint EACH = L::PITCH < 16 ? L::PITCH : 16;
                    #pragma unroll
                    for (uint i = 0; i < GROUPS * 2; ++i) {
                        const bool there = step < all && (valid >> i & 1); // Elsewhere nothing is read, and zeros are written.
                        #pragma unroll
                        for (int c = 0; c < L::PITCH; c += 16) {
                            const uint at = to + i / 2 * 64 * L::PITCH + byte_place<L::PITCH>(i % 2 * 32 + lane, c);
                            const uchar *const p = from[i] + (there ? step * L::PITCH + c : 0);
                            if constexpr (EACH == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(p), "r"(there ? 16 : 0) : "memory");
                            else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(p), "n"(SCALED && EACH < 16 ? EACH : 4), "r"(there ? EACH : 0) : "memory");
                        }
                    }
                    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + stage * 8) : "memory");
                    next();
                }
            }
        } else if (warp >= 2 && EXACT) {
            for (uint tile = begin; tile < tiles; tile += apart)
                for (uint step = 0; step < steps; ++step) {
                    const uint x = base + stage * L::STAGE;
                    barrier_wait(full + stage * 8, phase);
                    sum_activations<runs_of<P>(), N, 2>(x, x + L::X + L::CODES + L::PIECES, warp & 1, lane);
                    __syncwarp();
                    if (lane == 0) barrier_arrive(summed + stage * 8);
                    next();
                }
        }
        __syncwarp();
        if (splits > 1 && begin < tiles) cluster_sync();
        if (splits > 1) cluster_sync();
        return;
    }

    if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if constexpr (GROUPS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
    if constexpr (GROUPS == 4 && !EXACT) asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    if constexpr (GROUPS == 4 && EXACT) asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
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
        uint a[2][4][4], codes[2][2][4], before = 0;
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
            // Floats of a byte on both sides. A stage is a block of each row: lane t of a row's four holds the scale of
            // stage t of four. The products of half of the tokens run while the sums of the other half are added up.
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
            if (early) {
                dependency_wait();
                n = tokens(step_block, slot, most);
            }
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
        } else if constexpr (EXACT) {
            constexpr uint RUNS = runs_of<P>();
            const auto load = [&](Held<P> &to, uint step, bool wanted) {
                const uchar *const records[2] = {in.records(gated ? 0 : group.matrix), in.records(gated ? 1 : group.matrix)};
                const uint first = group.row + row, second = first + (gated ? 0 : 8);
                const uint rows[2] = {first < group.m ? spot.rows + first : ~0u, second < group.m ? spot.rows + second : ~0u};
                to.load(records, rows, (start + step) * 2 * PARTS, in.k / 32, wanted ? in.k / 32 : 0, t);
            };
            Held<P> held;
            load(held, 0, true);
            if (early) {
                dependency_wait();
                n = tokens(step_block, slot, most);
            }
            uint exponents; // A number that the assembler does not know: of two constants it would make two instructions.
            asm volatile("{.reg .u32 z; mov.u32 z, %%nctaid.z; mul.lo.u32 %0, z, 0x43004300;}" : "=r"(exponents));
            // The products of a chunk, or of half of one with a scale of its own, run while the next codes are
            // unpacked. (Two and three of them at a time were no faster: with four warps a scheduler instructions are
            // the bound.)
            float dot[N / 2];
            #pragma unroll
            for (uint i = 0; i < N / 2; ++i) sum[i] = 0;
            const uint row_low = L::X + role * 64 * L::ACROSS + byte_place<L::ACROSS>(row, 0), row_high = L::X + L::CODES + role * 64 * L::PITCH;
            #pragma unroll 1
            for (uint step = 0; step < steps; ++step) {
                const Factors<P> factors(held);
                load(held, step + 1, step + 1 < steps);
                const uint x = base + stage * L::STAGE;
                const auto scale = [&](uint unit, uint h) { return __shfl_sync(~0u, factors.scale[h][unit / RUNS % 2][unit % RUNS], (lane & ~3u) | unit / RUNS / 2); };
                const auto decode = [&](uint c) {
                    const uint byte = c * (BYTES / 2);
                    load_exact<P, L::ACROSS, L::PITCH>(codes[c % 2], x + row_low + byte / L::ACROSS * L::TILE, byte % L::ACROSS, x + row_high, c * (L::PIECE / 2), row, pair, lane, exponents);
                };
                barrier_wait(full + stage * 8, phase);
                decode(0);
                #pragma unroll
                for (uint unit = 0; unit < 8 * RUNS; ++unit) {
                    const uint c = unit / RUNS, r = unit % RUNS;
                    const ulong b = describe(x + c / 2 * (N * 128)) + c % 2 * 4;
                    wgmma_fence();
                    wgmma(dot, codes[c % 2][r], b + 2 * r, 0);
                    if (RUNS == 1) wgmma(dot, codes[c % 2][1], b + 2, 1);
                    wgmma_commit();
                    const float scales[2] = {scale(unit, 0), scale(unit, 1)};
                    if (r == RUNS - 1 && c < 7) decode(c + 1);
                    wgmma_wait<0>();
                    #pragma unroll
                    for (uint i = 0; i < N / 2; ++i) asm volatile("" : "+f"(dot[i])::"memory");
                    #pragma unroll
                    for (uint i = 0; i < N / 2; ++i) sum[i] = fmaf(dot[i], scales[i >> 1 & 1], sum[i]);
                }
                // What is added, straight to the sums.
                const ulong b = describe(x + L::X + L::CODES + L::PIECES);
                barrier_wait(summed + stage * 8, phase);
                wgmma_fence();
                const uint n[4] = {factors.high[0][0], factors.high[1][0], RUNS == 1 ? factors.low[0][0] : factors.high[0][RUNS - 1], RUNS == 1 ? factors.low[1][0] : factors.high[1][RUNS - 1]};
                wgmma(sum, n, b, 1);
                wgmma(sum, n, b + 2, 1);
                if constexpr (RUNS == 2) {
                    const uint rest[4] = {factors.low[0][0], factors.low[1][0], factors.low[0][RUNS - 1], factors.low[1][RUNS - 1]};
                    wgmma(sum, rest, b, 1);
                }
                wgmma_commit();
                wgmma_wait<0>();
                #pragma unroll
                for (uint i = 0; i < N / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");
                release(stage);
                next();
            }
            fetch(0);
        } else if constexpr (is_packed(W)) {
            const auto load = [&](Held<P> &to, uint step, bool wanted) {
                const uchar *const records[2] = {in.records(gated ? 0 : group.matrix), in.records(gated ? 1 : group.matrix)};
                const uint first = group.row + row, second = first + (gated ? 0 : 8);
                const uint rows[2] = {first < group.m ? spot.rows + first : ~0u, second < group.m ? spot.rows + second : ~0u};
                to.load(records, rows, (start + step) * 2 * PARTS, in.k / 32, wanted ? in.k / 32 : 0, t);
            };
            Held<P> held, ahead;
            load(held, 0, true);
            if (early) {
                dependency_wait();
                n = tokens(step_block, slot, most);
            }
            for (uint step = 0; step < steps; step += ROUND) {
                load(ahead, step + ROUND, step + ROUND < steps);
                #pragma unroll
                for (uint i = 0; i < 4; ++i) {
                    constexpr uint P_ACROSS = L::ACROSS;
                    const uint part = i % PARTS;
                    if (part == 0) barrier_wait(full + stage * 8, phase);
                    const uint x = base + stage * L::STAGE, codes = x + L::X + part * BYTES / L::ACROSS * L::TILE + role * 64 * L::ACROSS, first = part * BYTES % L::ACROSS;
                    if constexpr (planes::low_bits<P>() == 8) load_float8<P, P_ACROSS>(a[i % 2], codes, first, row, pair, lane, held, (lane & ~3u) | i);
                    else load_packed<P, P_ACROSS, L::PITCH>(a[i % 2], codes, first, x + L::X + L::CODES + role * 64 * L::PITCH, part * L::PIECE, row, pair, lane, held, (lane & ~3u) | i);
                    const ulong b = describe(x + part * N * 128);
                    wgmma_fence();
                    #pragma unroll
                    for (uint s = 0; s < 4; ++s) wgmma(sum, a[i % 2][s], b + 2 * s, step + i + s > 0);
                    wgmma_commit();
                    wgmma_wait<1>();
                    if (part == 0 && step + i > 0) release(before);
                    if (part == PARTS - 1) {
                        before = stage;
                        next();
                    }
                }
                held = ahead;
            }
            fetch(0);
            wgmma_wait<0>();
            release(before);
        } else {
            if (early) {
                dependency_wait();
                n = tokens(step_block, slot, most);
            }
            for (uint step = 0; step < steps; step += ROUND)
                #pragma unroll
                for (uint i = 0; i < ROUND * PARTS; ++i) {
                    const uint part = i % PARTS;
                    if (part == 0) barrier_wait(full + stage * 8, phase);
                    const uint x = base + stage * L::STAGE, codes = x + L::X + part * BYTES / L::ACROSS * L::TILE + role * 64 * L::ACROSS;
                    load_fragments<W, I8, L::ACROSS, L::PITCH>(a[i % 2], codes, row, pair, lane, x + L::X + L::CODES + role * 64 * L::PITCH + part * L::PIECE, part * BYTES % L::ACROSS);
                    const ulong b = describe(x + part * N * 128);
                    wgmma_fence();
                    #pragma unroll
                    for (uint s = 0; s < 4; ++s) wgmma(sum, a[i % 2][s], b + 2 * s, step + i + s > 0);
                    wgmma_commit();
                    wgmma_wait<1>();
                    if (part == 0 && step + i > 0) release(before);
                    if (part == PARTS - 1) {
                        before = stage;
                        next();
                    }
                }
            fetch(0);
            wgmma_wait<0>();
            release(before);
        }
        if (tile + apart >= tiles) dependency_launch();

        if (splits > 1) {
            // All sums to shared memory where the stages were; then each workgroup of the cluster adds up its share of
            // the tokens.
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
                    // Several loads at a time: another workgroup's memory is far away.
                    constexpr uint AT_ONCE = N == 256 ? 2 : 4;
                    for (uint from = 0; from < splits; from += AT_ONCE) {
                        float4 p[AT_ONCE];
                        #pragma unroll
                        for (uint i = 0; i < AT_ONCE; ++i) p[i] = from + i < splits ? load_cluster(sums + ((first + t) * STRIDE + r) * 4, from + i) : make_float4(0, 0, 0, 0);
                        #pragma unroll
                        for (uint i = 0; i < AT_ONCE; ++i) v = make_float4(v.x + p[i].x, v.y + p[i].y, v.z + p[i].z, v.w + p[i].w);
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

