// Products of tensors (batch.h) with mma.sync and cp.async, for compute capability 8.0 and up: bf16 and f16 with sums in f32 and any sides transposed, and i8
// with sums in i32 and both sides along k.
//
// A workgroup of 8 warps computes 128 rows × 128 columns; a warp 64 × 32. Stages of 128 bytes of k go through shared memory, three at a time: a side
// along k as 128 lines of 128 bytes, a side across as two panels of k rows with 64 lines each. Lines begin at multiples of 16 bytes.
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

// Fetches a side's part of a stage: k elements from `depth` on of lines from `line` on. Elements beyond the last are zero.
template <class E, bool ALONG> FN void fetch(uint to, const E *from, uint pitch, uint line, uint lines, uint depth, uint k, uint thread)
{
    constexpr uint CHUNK = 16 / sizeof(E);
    #pragma unroll
    for (uint i = thread; i < 1024; i += 256) {
        const uint l = ALONG ? line + (i >> 3) : line + (i & 15) * 8, d = ALONG ? depth + (i & 7) * CHUNK : depth + (i >> 4);
        const uint left = l < lines && d < k ? min(CHUNK, ALONG ? k - d : lines - l) : 0;
        const size_t at = ALONG ? (size_t)l * pitch + d : (size_t)d * pitch + l;
        copy_masked(to + (ALONG ? swizzle<128>(i >> 3, i & 7) : (i >> 3 & 1) * 8192 + swizzle<128>(i >> 4, i & 7)), from + (left ? at : 0), left * sizeof(E));
    }
}

template <class E, class T, class Sum, bool TA, bool TB>
FN void multiply(const E *a, uint a_pitch, uint a_size, const E *b, uint b_pitch, uint b_size, const T *bias, const T *residual, void *y, const Sizes &size, uint finish)
{
    constexpr uint DEEP = 128 / sizeof(E);
    extern __shared__ __align__(128) uchar shared[];
    const uint base = shared_address(shared), thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
    const uint down = (size.n + 127) / 128, across = (size.m + 127) / 128;
    if (down * across == 0) return;
    const uint batch = blockIdx.x / (down * across), split = blockIdx.y;
    if (batch >= size.batches) return;
    const Tile tile = tile_of(blockIdx.x % (down * across), down, across);
    const uint row = tile.row * 128, column = tile.column * 128;
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
    for (uint i = 0; i < 4; ++i) for (uint j = 0; j < 4; ++j) for (uint e = 0; e < 4; ++e) sum[i][j][e] = 0;

    for (uint s = 0; s < STAGES - 1; ++s) fill(s);
    for (uint step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fill(step + STAGES - 1);
        const uint stage = base + step % STAGES * STAGE;
        #pragma unroll
        for (uint s = 0; s < 4; ++s) {
            uint l[4][4], r[2][4];
            // Matrix lane / 8 of a fragment: of a side along k the two halves of lines and then of k, or the reverse.
            #pragma unroll
            for (uint i = 0; i < 4; ++i) {
                const uint line = own_row + i * 16;
                if (!TA) load_matrices(l[i], stage + swizzle<128>(line + (lane & 15), 2 * s + (lane >> 4)));
                else load_turned(l[i], stage + (line >> 6) * 8192 + swizzle<128>(s * 16 + (lane >> 4) * 8 + (lane & 7), (line >> 3 & 7) + (lane >> 3 & 1)));
            }
            #pragma unroll
            for (uint j = 0; j < 2; ++j) {
                const uint line = own_column + j * 16;
                if (TB) load_matrices(r[j], stage + SIDE + swizzle<128>(line + (lane >> 4) * 8 + (lane & 7), 2 * s + (lane >> 3 & 1)));
                else load_turned(r[j], stage + SIDE + (line >> 6) * 8192 + swizzle<128>(s * 16 + (lane & 15), (line >> 3 & 7) + (lane >> 4)));
            }
            #pragma unroll
            for (uint i = 0; i < 4; ++i)
                #pragma unroll
                for (uint j = 0; j < 4; ++j) mma(E(), sum[i][j], l[i], r[j / 2][j % 2 * 2], r[j / 2][j % 2 * 2 + 1]);
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    dependency_launch();

    Sum *const part = (Sum *)shared + warp * 16 * PART;
    const size_t start = ((size_t)split * size.batches + batch) * size.n * size.m;
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
#define MULTIPLY(name, E, T, Sum, TA, TB)                                                                                                  \
    KERNEL_SHARED(name, 256, 2, IN(0, void, a), IN(1, void, b), IN(2, void, bias), IN(3, void, residual), OUT(4, void, y), BATCH_SIZES(5), \
        VAL(25, uint, a_pitch), VAL(26, uint, a_size), VAL(27, uint, b_pitch), VAL(28, uint, b_size))                                      \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        multiply<E, T, Sum, TA, TB>((const E *)a, a_pitch, a_size, (const E *)b, b_pitch, b_size, (const T *)bias, (const T *)residual, y, SIZES(), finish); \
    }
MULTIPLY(batch_bf16_nn, __nv_bfloat16, __nv_bfloat16, float, false, false)
MULTIPLY(batch_bf16_nt, __nv_bfloat16, __nv_bfloat16, float, false, true)
MULTIPLY(batch_bf16_tn, __nv_bfloat16, __nv_bfloat16, float, true, false)
MULTIPLY(batch_bf16_tt, __nv_bfloat16, __nv_bfloat16, float, true, true)
MULTIPLY(batch_f16_nn, half, half, float, false, false)
MULTIPLY(batch_f16_nt, half, half, float, false, true)
MULTIPLY(batch_f16_tn, half, half, float, true, false)
MULTIPLY(batch_f16_tt, half, half, float, true, true)
MULTIPLY(batch_i8_nt, signed char, int, int, false, true)
