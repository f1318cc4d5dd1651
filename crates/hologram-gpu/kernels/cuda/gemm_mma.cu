// Matrix products of many tokens with mma.sync and cp.async, for compute capability 8.0 and up: see gemm.h.
//
// A workgroup of 8 warps computes 128 rows × N tokens; a warp 32 rows × N / 2 tokens. Stages of 128 bytes of activations a token go through shared
// memory, three at a time.
#include "gemm.h"

enum { STAGES = 3, ROWS = 128 };
HOST(STAGES, ROWS, STRIDE)

FN void copy16(uint to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
FN void copy4(uint to, const void *from, bool inside)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(inside ? 4 : 0) : "memory");
}
FN void mma(float (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN void mma(int (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int W, bool I8, int N> struct Layout {
    static constexpr int X = N * 128, CODES = ROWS * row_bytes<W, I8>();
    static constexpr int SCALES = W == Q8 || W == Q4 ? ROWS * (I8 ? 8 : 4) : 0, X_SCALES = I8 && W != T2 ? N * 16 : 0;
    static constexpr int STAGE = X + CODES + SCALES + X_SCALES;
};

struct Operands {
    const uchar *x;
    const float *x_scales;
    const uchar *w0, *w1, *w2;
    const half *s0, *s1, *s2;
    uint k, group; // Elements of a row; elements of a group of 8-bit activations.

    const uchar *codes(uint matrix) const { return matrix == 0 ? w0 : matrix == 1 ? w1 : w2; }
    const half *scales(uint matrix) const { return matrix == 0 ? s0 : matrix == 1 ? s1 : s2; }
};

template <int W, bool I8, int N>
FN void multiply(const Operands &in, const Matrices &w, const float *add, void *y0, void *y1, void *y2, bool narrow, uint n)
{
    using L = Layout<W, I8, N>;
    constexpr int BYTES = row_bytes<W, I8>(), CHUNKS = BYTES / 16, TILES = N / 16;
    extern __shared__ __align__(128) uchar shared[];
    const uint base = shared_address(shared), thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
    const uint token = blockIdx.x * N;
    if (token >= n) return;
    const Group g0 = locate(w, blockIdx.y * 2), g1 = locate(w, blockIdx.y * 2 + 1);
    const bool gated = w.gated();
    const uint x_bytes = in.k * (I8 ? 1 : 2), code_bytes = is_plain(W) ? 2 * in.k : W == Q8 ? in.k : W == Q4 ? in.k / 2 : in.k / 4;
    const uint steps = x_bytes / 128;

    auto fill = [&](uint step) {
        const uint stage = base + step % STAGES * L::STAGE;
        if (step < steps) {
            for (uint i = thread; i < N * 8; i += 256) {
                const uint t = i >> 3, c = i & 7;
                copy16(stage + swizzle<128>(t, c), in.x + (size_t)(token + t) * x_bytes + step * 128 + c * 16, token + t < n);
            }
            for (uint i = thread; i < ROWS * CHUNKS; i += 256) {
                const uint r = i / CHUNKS, c = i % CHUNKS;
                const Group group = r >> 6 ? g1 : g0;
                const uint matrix = gated ? r >> 5 & 1 : group.matrix, row = group.row + (gated ? r & 31 : r & 63);
                const bool inside = row < group.m;
                copy16(stage + L::X + (r >> 6) * 64 * BYTES + swizzle<BYTES>(r & 63, c),
                       in.codes(matrix) + (inside ? (size_t)row * code_bytes + step * BYTES + c * 16 : 0), inside);
            }
            if constexpr (L::SCALES > 0) {
                constexpr uint WORDS = L::SCALES / ROWS / 4;
                for (uint i = thread; i < ROWS * WORDS; i += 256) {
                    const uint r = i / WORDS;
                    const Group group = r >> 6 ? g1 : g0;
                    const uint matrix = gated ? r >> 5 & 1 : group.matrix, row = group.row + (gated ? r & 31 : r & 63);
                    const bool inside = row < group.m;
                    copy4(stage + L::X + L::CODES + i * 4,
                          in.scales(matrix) + (inside ? (size_t)row * (in.k / 32) + (step * WORDS + i % WORDS) * 2 : 0), inside);
                }
            }
            if constexpr (L::X_SCALES > 0)
                for (uint t = thread; t < N; t += 256)
                    copy16(stage + L::X + L::CODES + L::SCALES + t * 16, in.x_scales + (size_t)(token + t < n ? token + t : 0) * (in.k / 32) + step * 4, token + t < n);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    // This warp: 16-row tiles 2q and 2q + 1 of its group, N / 2 tokens from `first` on.
    const uint own = warp >> 2, quarter = (warp >> 1 & 1) * 2, first = (warp & 1) * (N / 2);
    const Group group = own ? g1 : g0;
    const uint pair = gated ? 32 : 8, row0 = quarter * (gated ? 8 : 16) + (lane >> 2), row_next = gated ? 8 : 16;
    float sum[2][TILES][4];
    for (uint i = 0; i < 2; ++i) for (uint j = 0; j < TILES; ++j) for (uint e = 0; e < 4; ++e) sum[i][j][e] = 0;

    for (uint s = 0; s < STAGES - 1; ++s) fill(s);
    for (uint step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fill(step + STAGES - 1);
        const uint stage = base + step % STAGES * L::STAGE, codes = stage + L::X + own * 64 * BYTES;
        const uint scales = stage + L::X + L::CODES + own * 64 * (L::SCALES / ROWS);
        uint a[2][4][4];
        for (uint i = 0; i < 2; ++i) load_fragments<W, I8>(a[i], codes, row0 + i * row_next, pair, lane, scales);
        if constexpr (!I8) {
            #pragma unroll
            for (uint s = 0; s < 4; ++s)
                #pragma unroll
                for (uint j = 0; j < TILES; j += 2) {
                    uint b[4]; // Tokens 0..8 and 8..16, each the two halves of 16 elements.
                    if constexpr (TILES > 1) {
                        load_matrices(b, stage + swizzle<128>(first + j * 8 + (lane >> 4) * 8 + (lane & 7), 2 * s + (lane >> 3 & 1)));
                        for (uint i = 0; i < 2; ++i) { mma(sum[i][j], a[i][s], b[0], b[1]); mma(sum[i][j + 1], a[i][s], b[2], b[3]); }
                    }
                }
        } else {
            float d[2][2][4]; // Scales of this lane's rows: tile, half, block.
            for (uint i = 0; i < 2; ++i) for (uint h = 0; h < 2; ++h) {
                const uint r = row0 + i * row_next + h * pair;
                if constexpr (W == T2) {
                    const uint row = group.row + (gated ? r & 31 : r);
                    d[i][h][0] = row < group.m ? __half2float(in.scales(gated ? h : group.matrix)[(size_t)row * (in.k / 256) + step / 2]) : 0.0f;
                } else {
                    const uint d01 = load32(scales + r * 8), d23 = load32(scales + r * 8 + 4);
                    d[i][h][0] = half_bits(d01 & 0xffff); d[i][h][1] = half_bits(d01 >> 16); d[i][h][2] = half_bits(d23 & 0xffff); d[i][h][3] = half_bits(d23 >> 16);
                }
            }
            #pragma unroll
            for (uint j = 0; j < TILES; ++j) {
                uint b[2][4];
                for (uint s = 0; s < 2; ++s) load_matrices(b[s], stage + swizzle<128>(first + j * 8 + (lane & 7), s * 4 + (lane >> 3)));
                float sx[2][4]; // Scales of this lane's two tokens.
                for (uint e = 0; e < 2; ++e) {
                    const uint t = first + j * 8 + (lane & 3) * 2 + e;
                    if constexpr (W == T2)
                        sx[e][0] = in.group == in.k || token + t >= n ? 1.0f : in.x_scales[(size_t)(token + t) * (in.k / in.group) + step * 128 / in.group];
                    else {
                        const float4 v = *(const float4 *)(shared + (stage - base) + L::X + L::CODES + L::SCALES + t * 16);
                        sx[e][0] = v.x; sx[e][1] = v.y; sx[e][2] = v.z; sx[e][3] = v.w;
                    }
                }
                // The steps that share the scales are summed as integers.
                constexpr uint RUN = W == T2 ? 4 : 1;
                #pragma unroll
                for (uint i = 0; i < 2; ++i)
                    #pragma unroll
                    for (uint s = 0; s < 4; s += RUN) {
                        int dot[4] = {0, 0, 0, 0};
                        #pragma unroll
                        for (uint l = s; l < s + RUN; ++l) mma(dot, a[i][l], b[l / 2][l % 2 * 2], b[l / 2][l % 2 * 2 + 1]);
                        #pragma unroll
                        for (uint e = 0; e < 4; ++e) sum[i][j][e] = fmaf((float)dot[e] * d[i][e >> 1][s], sx[e & 1][s], sum[i][j][e]);
                    }
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    dependency_launch();

    constexpr uint STRIDE = 68; // The results take the place of the stages (2 · N · STRIDE floats); no two lanes of a store share a bank.
    float *results = (float *)shared + own * N * STRIDE;
    #pragma unroll
    for (uint j = 0; j < TILES; ++j)
        #pragma unroll
        for (uint e = 0; e < 2; ++e) {
            const uint t = first + j * 8 + (lane & 3) * 2 + e;
            float scale = 1.0f;
            if constexpr (W == T2) if (in.group == in.k && token + t < n) scale = in.x_scales[token + t];
            for (uint i = 0; i < 2; ++i) {
                const float v = sum[i][j][e] * scale, u = sum[i][j][e + 2] * scale;
                float *at = results + t * STRIDE + row0 + i * row_next;
                if (w.mode == SWIGLU) *at = swiglu(v, u);
                else if (w.mode == RELU2) *at = relu2(v, u);
                else { at[0] = v; at[8] = u; }
            }
        }
    __syncthreads();
    write_group(w, group, token, N, n, add, group.matrix == 0 ? y0 : group.matrix == 1 ? y1 : y2, narrow, thread & 127,
                [&](uint t, uint r) { return *(const float4 *)(results + t * STRIDE + r); });
}

// Grid: tokens / N, groups / 2. step: the step block or null; n: tokens at most.
#define MULTIPLY(name, W, I8, N, PER_SM)                                                                                                     \
    KERNEL_SHARED(name, 256, PER_SM, IN(0, uchar, x), IN(1, float, x_scales), IN(2, uchar, w0), IN(3, half, s0), IN(4, uchar, w1), IN(5, half, s1), \
        IN(6, uchar, w2), IN(7, half, s2), IN(8, float, add), OUT(9, void, y0), OUT(10, void, y1), OUT(11, void, y2), IN(12, uint, step),      \
        VAL(13, uint, slot), VAL(14, uint, n), VAL(15, uint, m0), VAL(16, uint, m1), VAL(17, uint, m2), VAL(18, uint, k), VAL(19, uint, group), \
        VAL(20, uint, mode), VAL(21, uint, narrow))                                                                                            \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        const Operands in = {x, x_scales, w0, w1, w2, s0, s1, s2, k, group};                                                               \
        multiply<W, I8, N>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, narrow, tokens(step, slot, n));                                   \
    }
MULTIPLY(mma_bf16_128, BF16, false, 128, 2)
MULTIPLY(mma_bf16_32, BF16, false, 32, 2)
MULTIPLY(mma_f16_128, F16, false, 128, 2)
MULTIPLY(mma_f16_32, F16, false, 32, 2)
MULTIPLY(mma_q8_128, Q8, false, 128, 1)
MULTIPLY(mma_q8_32, Q8, false, 32, 2)
MULTIPLY(mma_q4_128, Q4, false, 128, 1)
MULTIPLY(mma_q4_32, Q4, false, 32, 2)
MULTIPLY(mma_q8_i8_64, Q8, true, 64, 1)
MULTIPLY(mma_q4_i8_64, Q4, true, 64, 1)
MULTIPLY(mma_t2_i8_128, T2, true, 128, 1)
MULTIPLY(mma_t2_i8_32, T2, true, 32, 2)
