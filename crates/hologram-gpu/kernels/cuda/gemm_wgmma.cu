// only sm_90a
// Matrix products of many tokens with warpgroup matrix instructions and the bulk tensor copy engine: see gemm.h.
//
// A workgroup computes tiles of GROUPS · 64 rows × N tokens: one warpgroup for each group of rows, and one whose warps fill a ring of stages in
// shared memory. The weights are the A operand and come from registers, so that quantised ones are decoded on the way, while the product of the
// stage before runs. Workgroups stay and go from tile to tile. Where tiles are few, a cluster shares one: each of its workgroups sums over a part of
// the row length, and they add what the others have through distributed shared memory.
#include "gemm.h"
#include "wgmma.h"
#include "copy_engine.h"
#include "cluster.h"
FN void store_shared(uint to, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory"); }
FN void group_sync(uint id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

struct Operands {
    const TensorMap *x, *w0, *w1, *w2;
    const half *s0, *s1, *s2;
    const float *x_scales;
    uint k, group; // Elements of a row; elements of a group of 8-bit activations.

    const TensorMap *weights(uint matrix) const { return matrix == 0 ? w0 : matrix == 1 ? w1 : w2; }
    const half *scales(uint matrix) const { return matrix == 0 ? s0 : matrix == 1 ? s1 : s2; }
};

enum { STRIDE = 68, CHUNK = 32 }; // Results on their way out: floats of a token (no two lanes of a store share a bank), tokens at a time.

template <int W, bool I8, int GROUPS, int N> struct Layout {
    static constexpr int BYTES = row_bytes<W, I8>(), X = N * 128, CODES = GROUPS * 64 * BYTES;
    static constexpr int SCALES = W == Q8 || W == Q4 ? 1024 : 0; // 2 for each row.
    static constexpr int STAGE = X + CODES + SCALES, RESULTS = GROUPS * CHUNK * STRIDE * 4;
    static constexpr int FIT = (227 * 1024 - 1024 - 256 - RESULTS) / STAGE, STAGES = FIT > 8 ? 8 : FIT;
};

template <int W, bool I8, int GROUPS, int N>
FN void multiply(const Operands &in, const Matrices &w, const float *add, void *y0, void *y1, void *y2, bool narrow, uint n, uint splits)
{
    using L = Layout<W, I8, GROUPS, N>;
    constexpr int BYTES = L::BYTES;
    constexpr bool SCALED = L::SCALES > 0;
    extern __shared__ uchar shared[];
    const uint base = (shared_address(shared) + 1023) & ~1023u;
    const uint results = base + L::STAGES * L::STAGE, full = results + L::RESULTS, empty = full + L::STAGES * 8;
    const uint thread = threadIdx.x, role = thread >> 7, lane = thread & 31;
    const bool gated = w.gated();
    const uint groups = gated ? (w.m0 + 31) / 32 : (w.m0 + 63) / 64 + (w.m1 + 63) / 64 + (w.m2 + 63) / 64;
    const uint token_tiles = (n + N - 1) / N, tiles = token_tiles * ((groups + GROUPS - 1) / GROUPS);
    const uint rank = splits > 1 ? cluster_rank() : 0, begin = splits > 1 ? blockIdx.x / splits : blockIdx.x;
    const uint apart = splits > 1 ? gridDim.x / splits : gridDim.x;
    // An even number of stages of 128 bytes of activations for each workgroup; beyond the rows' end everything is zero.
    const uint all = (in.k * (I8 ? 1 : 2) + 127) / 128, steps = (all + 2 * splits - 1) / (2 * splits) * 2, start = rank * steps;

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
            for (uint tile = begin; tile < tiles; tile += apart) {
                const uint token = tile % token_tiles * N;
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
                #pragma unroll
                for (uint g = 0; g < GROUPS; ++g) {
                    const Group group = locate(w, tile / token_tiles * GROUPS + g);
                    map[g] = in.weights(group.m ? group.matrix : 0);
                    row[g] = group.m ? group.row : w.m0;
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
                const half *from[GROUPS * 2];
                uint valid = 0; // A bit for each row that there is.
                #pragma unroll
                for (uint i = 0; i < GROUPS * 2; ++i) {
                    const Group group = locate(w, tile / token_tiles * GROUPS + i / 2);
                    const uint row = group.row + (gated ? lane : i % 2 * 32 + lane);
                    const bool inside = row < group.m;
                    from[i] = in.scales(gated ? i % 2 : inside ? group.matrix : 0) + (inside ? (size_t)row * (in.k / 32) : 0) + start * 2;
                    valid |= (uint)inside << i;
                }
                for (uint step = 0; step < steps; ++step) {
                    const uint to = base + stage * L::STAGE + L::X + L::CODES + lane * 4;
                    const bool inside = start + step < all; // Elsewhere nothing is read, and zeros are written.
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    #pragma unroll
                    for (uint i = 0; i < GROUPS * 2; ++i)
                        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + i * 128), "l"(from[i] + step * 2),
                                     "r"(inside && (valid >> i & 1) ? 4 : 0) : "memory");
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
        const uint token = tile % token_tiles * N;
        const Group group = locate(w, tile / token_tiles * GROUPS + role);
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

        if constexpr (I8) {
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
            const uint share = N / splits, first = rank * share;
            write_group(w, group, token + first, share, n, add, out, narrow, thread & 127, [&](uint t, uint r) {
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
            if (w.mode == SWIGLU) each([](uint to, float g, float u) { store_shared(to, swiglu(g, u)); });
            else if (w.mode == RELU2) each([](uint to, float g, float u) { store_shared(to, relu2(g, u)); });
            else each([](uint to, float v, float u) { store_shared(to, v); store_shared(to + 32, u); });
            group_sync(1 + role);
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

// Grid: workgroups that go through the tiles, or with splits > 1 (clusters of that many) splits · tiles. step: the step block or null; n: tokens at most.
#define MULTIPLY(name, W, I8, GROUPS, N)                                                                                                     \
    KERNEL_SHARED(name, 128 * (GROUPS + 1), GROUPS == 1 ? 2 : 1, MAP(0, x), MAP(1, w0), MAP(2, w1), MAP(3, w2), IN(4, float, x_scales),        \
        IN(5, half, s0), IN(6, half, s1), IN(7, half, s2), IN(8, float, add), OUT(9, void, y0), OUT(10, void, y1), OUT(11, void, y2),          \
        IN(12, uint, step), VAL(13, uint, slot), VAL(14, uint, n), VAL(15, uint, m0), VAL(16, uint, m1), VAL(17, uint, m2), VAL(18, uint, k),  \
        VAL(19, uint, group), VAL(20, uint, mode), VAL(21, uint, narrow), VAL(22, uint, splits))                                               \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        const Operands in = {&x, &w0, &w1, &w2, s0, s1, s2, x_scales, k, group};                                                           \
        multiply<W, I8, GROUPS, N>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, narrow, tokens(step, slot, n), splits);            \
    }
MULTIPLY(wgmma_bf16_2_256, BF16, false, 2, 256)
MULTIPLY(wgmma_bf16_2_128, BF16, false, 2, 128)
MULTIPLY(wgmma_bf16_3_128, BF16, false, 3, 128)
MULTIPLY(wgmma_bf16_2_64, BF16, false, 2, 64)
MULTIPLY(wgmma_bf16_2_32, BF16, false, 2, 32)
MULTIPLY(wgmma_f16_2_256, F16, false, 2, 256)
MULTIPLY(wgmma_f16_2_128, F16, false, 2, 128)
MULTIPLY(wgmma_f16_3_128, F16, false, 3, 128)
MULTIPLY(wgmma_f16_2_64, F16, false, 2, 64)
MULTIPLY(wgmma_f16_2_32, F16, false, 2, 32)
MULTIPLY(wgmma_q8_2_256, Q8, false, 2, 256)
MULTIPLY(wgmma_q8_2_128, Q8, false, 2, 128)
MULTIPLY(wgmma_q8_3_128, Q8, false, 3, 128)
MULTIPLY(wgmma_q8_2_64, Q8, false, 2, 64)
MULTIPLY(wgmma_q8_2_32, Q8, false, 2, 32)
MULTIPLY(wgmma_q8_1_32, Q8, false, 1, 32)
MULTIPLY(wgmma_q4_2_256, Q4, false, 2, 256)
MULTIPLY(wgmma_q4_2_128, Q4, false, 2, 128)
MULTIPLY(wgmma_q4_3_128, Q4, false, 3, 128)
MULTIPLY(wgmma_q4_2_64, Q4, false, 2, 64)
MULTIPLY(wgmma_q4_2_32, Q4, false, 2, 32)
MULTIPLY(wgmma_q4_1_32, Q4, false, 1, 32)
MULTIPLY(wgmma_t2_2_128, T2, true, 2, 128)
MULTIPLY(wgmma_t2_2_32, T2, true, 2, 32)
