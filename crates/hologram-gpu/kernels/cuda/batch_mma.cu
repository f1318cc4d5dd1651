// Products of tensors (batch.h) with mma.sync and cp.async, for compute capability 8.0 and up: bf16, f16 and f32 with sums in f32 and any sides transposed,
// and i8 with sums in i32 and both sides along k.
//
// A workgroup of 8 warps computes 128 rows × 128 columns; a warp 64 × 32. Stages of 128 bytes of k go through shared memory, three at a time: a side
// along k as 128 lines of 128 bytes, a side across as panels of k rows with 128 bytes of lines each. Lines begin at multiples of 16 bytes.
//
// Tensor cores take f32 as tf32, which has 11 bits. In one part (PARTS), elements are rounded to it; in three, each is the sum of two such numbers, high + low,
// and of a product only low · low, 2^-22 of it, is left out. Tensor cores cut sums off rather than round them, so that the sums of each 8 elements of k are
// added in f32. An infinity has no low part: a tile with a sum that is not finite is computed again without tensor cores.
#include "batch.h"

#define STAGES 3
#define SIDE (128 * 128)
#define STAGE (2 * SIDE)
HOST(STAGES, STAGE)

// Copies `bytes` of 16; the rest becomes zero.
FN void copy_masked(uint to, const void *from, uint bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
FN void load_turned(uint (&a)[4], uint address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}
#define MMA(E, shape, types, Sum, c)                                                                                                      \
    FN void mma(E, Sum (&d)[4], const uint (&a)[4], uint b0, uint b1)                                                                      \
    {                                                                                                                                      \
        asm("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                           \
            : "+" c(d[0]), "+" c(d[1]), "+" c(d[2]), "+" c(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));          \
    }
MMA(__nv_bfloat16, "m16n8k16", "f32.bf16.bf16.f32", float, "f")
MMA(half, "m16n8k16", "f32.f16.f16.f32", float, "f")
MMA(signed char, "m16n8k32", "s32.s8.s8.s32", int, "r")
MMA(float, "m16n8k8", "f32.tf32.tf32.f32", float, "f")

// Rounded to tf32, half away from zero.
FN uint rounded(uint x)
{
    uint y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
    return y;
}
// The same of numbers; of what is none, the high or the low part is none.
FN uint high_part(uint x) { return (x + 0x1000u) & 0xffffe000u; }
// What the high part leaves, of which tensor cores take the first 11 of 12 bits.
FN uint low_part(uint x, uint high) { return __float_as_uint(__uint_as_float(x) - __uint_as_float(high)); }

// Byte of 16-byte chunk c in k row r of a panel. Lanes that take a fragment of words from k rows r to r + 3 and two chunks find them in different banks.
template <class E> FN uint across(uint r, uint c) { return sizeof(E) == 4 ? r * 128 + ((c ^ (r & 3) << 1) << 4) : swizzle<128>(r, c); }
// Byte of a word in a stage's side.
template <bool ALONG> FN uint word_of(uint line, uint d)
{
    return ALONG ? swizzle<128>(line, d >> 2) + (d & 3) * 4 : (line >> 5) * 4096 + across<float>(d, line >> 2 & 7) + (line & 3) * 4;
}

// Fetches a side's part of a stage: k elements from `depth` on of lines from `line` on. Elements beyond the last are zero.
template <class E, bool ALONG> FN void fetch(uint to, const E *from, uint pitch, uint line, uint lines, uint depth, uint k, uint thread)
{
    constexpr uint CHUNK = 16 / sizeof(E), ROW = 128 / CHUNK, PANEL = 1024 / ROW * 128; // Chunks of all panels in a k row, and bytes of a panel.
    #pragma unroll
    for (uint i = thread; i < 1024; i += 256) {
        const uint l = ALONG ? line + (i >> 3) : line + i % ROW * CHUNK, d = ALONG ? depth + (i & 7) * CHUNK : depth + i / ROW;
        const uint left = l < lines && d < k ? min(CHUNK, ALONG ? k - d : lines - l) : 0;
        const size_t at = ALONG ? (size_t)l * pitch + d : (size_t)d * pitch + l;
        copy_masked(to + (ALONG ? swizzle<128>(i >> 3, i & 7) : i % ROW / 8 * PANEL + across<E>(i / ROW, i & 7)), from + (left ? at : 0), left * sizeof(E));
    }
}

template <class E, class T, class Sum, bool TA, bool TB, int PARTS>
FN void multiply(const E *a, uint a_pitch, uint a_size, const E *b, uint b_pitch, uint b_size, const T *bias, const T *residual, void *y, const Sizes &size, uint finish)
{
    constexpr uint DEEP = 128 / sizeof(E), UNROLLED = sizeof(E) == 4 ? 1 : 4;
    extern __shared__ __align__(128) uchar shared[];
    const uint base = shared_address(shared), thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
    const uint down = (size.n + 127) / 128, across = (size.m + 127) / 128;
    if (down * across == 0) return;
    const uint batch = blockIdx.x / (down * across), split = blockIdx.y;
    if (batch >= size.batches) return;
    const Tile tile = tile_of(blockIdx.x % (down * across), down, across);
    const uint row = tile.row * 128, column = tile.column * 128;
    __shared__ size_t start; // The matrix's first element of the result, which no register holds meanwhile.
    if (thread == 0) start = ((size_t)split * size.batches + batch) * size.n * size.m;
    const E *const left = a + (size_t)size.matrix(size.a, batch) * a_size, *const right = b + (size_t)size.matrix(size.b, batch) * b_size;
    const uint all = (size.k + DEEP - 1) / DEEP, share = (all + size.splits - 1) / size.splits;
    const uint first = min(split * share, all), steps = min(share, all - first);

    auto fill = [&](uint step) {
        const uint stage = base + step % STAGES * STAGE, depth = (first + step) * DEEP;
        if (step < steps) {
            fetch<E, !TA>(stage, left, a_pitch, row, size.n, depth, size.k, thread);
            fetch<E, TB>(stage + SIDE, right, b_pitch, column, size.m, depth, size.k, thread);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    const uint own_row = (warp >> 2) * 64, own_column = (warp & 3) * 32;
    Sum sum[4][4][4];
    auto clear = [&] { for (uint i = 0; i < 4; ++i) for (uint j = 0; j < 4; ++j) for (uint e = 0; e < 4; ++e) sum[i][j][e] = 0; };
    auto over_stages = [&](auto add) {
        for (uint s = 0; s < STAGES - 1; ++s) fill(s);
        for (uint step = 0; step < steps; ++step) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
            fill(step + STAGES - 1);
            add(base + step % STAGES * STAGE);
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
    };
    // Fragments of 16 lines and 32 bytes of k. Matrix lane / 8 of a fragment: of a side along k the two halves of lines and then of k, or the reverse.
    auto load_left = [&](uint (&l)[4], uint stage, uint s, uint i) {
        const uint line = own_row + i * 16;
        if constexpr (!TA) load_matrices(l, stage + swizzle<128>(line + (lane & 15), 2 * s + (lane >> 4)));
        else if constexpr (sizeof(E) == 4) {
            #pragma unroll
            for (uint e = 0; e < 4; ++e) l[e] = load32(stage + word_of<false>(line + (lane >> 2) + (e & 1) * 8, s * 8 + (lane & 3) + (e >> 1) * 4));
        } else load_turned(l, stage + (line >> 6) * 8192 + swizzle<128>(s * 16 + (lane >> 4) * 8 + (lane & 7), (line >> 3 & 7) + (lane >> 3 & 1)));
    };
    auto load_right = [&](uint (&r)[4], uint stage, uint s, uint j) {
        const uint line = own_column + j * 16;
        if constexpr (TB) load_matrices(r, stage + SIDE + swizzle<128>(line + (lane >> 4) * 8 + (lane & 7), 2 * s + (lane >> 3 & 1)));
        else if constexpr (sizeof(E) == 4) {
            #pragma unroll
            for (uint e = 0; e < 4; ++e) r[e] = load32(stage + SIDE + word_of<false>(line + (lane >> 2) + (e >> 1) * 8, s * 8 + (lane & 3) + (e & 1) * 4));
        } else load_turned(r, stage + SIDE + (line >> 6) * 8192 + swizzle<128>(s * 16 + (lane & 15), (line >> 3 & 7) + (lane >> 4)));
    };

    // Without tensor cores.
    auto add_plain = [&](uint stage) {
        #pragma unroll 1
        for (uint d = 0; d < DEEP; ++d) {
            float b[4][2];
            #pragma unroll
            for (uint j = 0; j < 4; ++j)
                #pragma unroll
                for (uint e = 0; e < 2; ++e) b[j][e] = __uint_as_float(load32(stage + SIDE + word_of<TB>(own_column + j * 8 + (lane & 3) * 2 + e, d)));
            #pragma unroll
            for (uint i = 0; i < 4; ++i)
                #pragma unroll
                for (uint h = 0; h < 2; ++h) {
                    const float a = __uint_as_float(load32(stage + word_of<!TA>(own_row + i * 16 + (lane >> 2) + h * 8, d)));
                    #pragma unroll
                    for (uint j = 0; j < 4; ++j)
                        #pragma unroll
                        for (uint e = 0; e < 2; ++e) sum[i][j][h * 2 + e] = fmaf(a, b[j][e], sum[i][j][h * 2 + e]);
                }
        }
    };
    auto add = [&](uint stage) {
        #pragma unroll UNROLLED
        for (uint s = 0; s < 4; ++s) {
            uint r[2][4];
            #pragma unroll
            for (uint j = 0; j < 2; ++j) load_right(r[j], stage, s, j);
            if constexpr (sizeof(E) < 4) {
                uint l[4][4];
                #pragma unroll
                for (uint i = 0; i < 4; ++i) load_left(l[i], stage, s, i);
                #pragma unroll
                for (uint i = 0; i < 4; ++i)
                    #pragma unroll
                    for (uint j = 0; j < 4; ++j) mma(E(), sum[i][j], l[i], r[j / 2][j % 2 * 2], r[j / 2][j % 2 * 2 + 1]);
            } else {
                uint low[2][4];
                #pragma unroll
                for (uint e = 0; e < 8; ++e) {
                    uint &x = r[e / 4][e % 4], high = PARTS == 3 ? high_part(x) : rounded(x);
                    low[e / 4][e % 4] = low_part(x, high);
                    x = high;
                }
                #pragma unroll
                for (uint i = 0; i < 4; ++i) {
                    uint l[4], high[4], rest[4];
                    load_left(l, stage, s, i);
                    #pragma unroll
                    for (uint e = 0; e < 4; ++e) {
                        high[e] = PARTS == 3 ? high_part(l[e]) : rounded(l[e]);
                        rest[e] = low_part(l[e], high[e]);
                    }
                    if constexpr (PARTS == 3) {
                        #pragma unroll
                        for (uint j = 0; j < 4; ++j) {
                            const uint(&b)[4] = r[j / 2], (&b_rest)[4] = low[j / 2];
                            const uint at = j % 2 * 2;
                            Sum part[4] = {};
                            mma(E(), part, rest, b[at], b[at + 1]);
                            mma(E(), part, high, b_rest[at], b_rest[at + 1]);
                            mma(E(), part, high, b[at], b[at + 1]);
                            #pragma unroll
                            for (uint e = 0; e < 4; ++e) sum[i][j][e] += part[e];
                        }
                    } else {
                        #pragma unroll
                        for (uint j = 0; j < 4; ++j) mma(E(), sum[i][j], high, r[j / 2][j % 2 * 2], r[j / 2][j % 2 * 2 + 1]);
                    }
                }
            }
        }
    };

    clear();
    over_stages(add);
    if constexpr (PARTS == 3) {
        // Rounding up makes infinities of the greatest numbers, and infinities lack a low part.
        bool finite = true;
        #pragma unroll
        for (uint i = 0; i < 4; ++i)
            #pragma unroll
            for (uint j = 0; j < 4; ++j)
                #pragma unroll
                for (uint e = 0; e < 4; ++e) finite &= fabsf(sum[i][j][e]) <= 3.402823466e38f;
        if (__syncthreads_or(!finite)) {
            clear();
            over_stages(add_plain);
        }
    }
    dependency_launch();

    Sum *const part = (Sum *)shared + warp * 16 * PART;
    // The loop is not unrolled, so that there is one text of what it does with sums.
    #pragma unroll 1
    for (uint chunk = 0; chunk < 4; ++chunk) {
        #pragma unroll
        for (uint i = 0; i < 4; ++i)
            if (i == chunk)
                #pragma unroll
                for (uint j = 0; j < 4; ++j)
                    #pragma unroll
                    for (uint e = 0; e < 4; ++e) part[((lane >> 2) + (e >> 1) * 8) * PART + j * 8 + (lane & 3) * 2 + (e & 1)] = sum[i][j][e];
        store_part(part, lane, row + own_row + chunk * 16, column + own_column, size.n, size.m, finish, bias, residual, y, start);
    }
}

// Grid: tiles of all batches, splits.
#define MULTIPLY(name, E, T, Sum, TA, TB, PARTS, GROUPS)                                                                                \
    KERNEL_SHARED(name, 256, GROUPS, IN(0, void, a), IN(1, void, b), IN(2, void, bias), IN(3, void, residual), OUT(4, void, y), BATCH_SIZES(5), \
        VAL(25, uint, a_pitch), VAL(26, uint, a_size), VAL(27, uint, b_pitch), VAL(28, uint, b_size))                                      \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        multiply<E, T, Sum, TA, TB, PARTS>((const E *)a, a_pitch, a_size, (const E *)b, b_pitch, b_size, (const T *)bias, (const T *)residual, y, SIZES(), finish); \
    }
MULTIPLY(batch_bf16_nn, __nv_bfloat16, __nv_bfloat16, float, false, false, 1, 2)
MULTIPLY(batch_bf16_nt, __nv_bfloat16, __nv_bfloat16, float, false, true, 1, 2)
MULTIPLY(batch_bf16_tn, __nv_bfloat16, __nv_bfloat16, float, true, false, 1, 2)
MULTIPLY(batch_bf16_tt, __nv_bfloat16, __nv_bfloat16, float, true, true, 1, 2)
MULTIPLY(batch_f16_nn, half, half, float, false, false, 1, 2)
MULTIPLY(batch_f16_nt, half, half, float, false, true, 1, 2)
MULTIPLY(batch_f16_tn, half, half, float, true, false, 1, 2)
MULTIPLY(batch_f16_tt, half, half, float, true, true, 1, 2)
MULTIPLY(batch_i8_nt, signed char, int, int, false, true, 1, 2)
// Before compute capability 9.0 shared memory has room for one workgroup.
#if __CUDA_ARCH__ >= 900
#define GROUPS_OF_F32 2
#else
#define GROUPS_OF_F32 1
#endif
#define MULTIPLY_F32(sides, TA, TB)                                                       \
    MULTIPLY(batch_tf32_##sides, float, float, float, TA, TB, 1, GROUPS_OF_F32)        \
    MULTIPLY(batch_tf32x3_##sides, float, float, float, TA, TB, 3, GROUPS_OF_F32)
MULTIPLY_F32(nn, false, false)
MULTIPLY_F32(nt, false, true)
MULTIPLY_F32(tn, true, false)
MULTIPLY_F32(tt, true, true)
