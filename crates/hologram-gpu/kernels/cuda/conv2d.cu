// conv2d as a product of kernels (rows) and windows (columns, of all images one after the other): f16 and bf16 with mma.sync and sums in f32, for compute
// capability 8.0 and up; f32 without matrix instructions. Groups of few kernels: a thread per element of the result.
//
// f16 and bf16: a workgroup computes ROWS kernels × 128 windows; with warpgroup matrix instructions (9.0a) a warpgroup 64 × 128, without a warp 64 × 32. Stages of
// 64 elements of the depth go through shared memory, three at a time: kernels as lines of 128 bytes, and windows in one of the forms below. The depth is cut into
// chunks of 8 elements.
#include "batch.h"
#include "wgmma.h"

#define CONV_STAGES 3
#define CONV_LINE 128
#define CONV_WINDOWS 128
// What stages are aligned to.
#define CONV_ALIGN 1024
HOST(CONV_STAGES, CONV_LINE, CONV_WINDOWS, CONV_ALIGN)

// WINDOWS: images lie as [image, y, x, channel], with channels of a group padded to chunks: a chunk is 8 channels of one element of a window, and a window's
// stage is a line of 128 bytes. PLANES: windows are single pixels of images as they are, [image, channel, pixel]: a stage is 64 rows of pixels, 8 at a time.
// HALVES: likewise, 4 pixels at a time.
enum Form { WINDOWS, PLANES, HALVES };

// Sizes of a launch. `lines`: kernels of a group. `pitch`: elements of a pixel of WINDOWS, or of a plane. `chunks`: of an element of a window (of a pixel in
// all); `all`: of the depth. In f32 and of few kernels, `pitch`: channels of a group, `chunks`: elements of a window in a channel, `all`: in all. The inverses
// divide by multiplication.
#define CONV_SIZES(i) COUNT(i, images), VAL(i + 4, uint, lines), VAL(i + 5, uint, groups), VAL(i + 6, uint, high), VAL(i + 7, uint, wide), VAL(i + 8, uint, pitch), \
    VAL(i + 9, uint, windows), VAL(i + 10, uint, across), VAL(i + 11, uint, stride_y), VAL(i + 12, uint, stride_x), VAL(i + 13, uint, padding_y), \
    VAL(i + 14, uint, padding_x), VAL(i + 15, uint, dilation_y), VAL(i + 16, uint, dilation_x), VAL(i + 17, uint, chunks), VAL(i + 18, uint, chunks_inverse), \
    VAL(i + 19, uint, kernel_wide), VAL(i + 20, uint, kernel_wide_inverse), VAL(i + 21, uint, all), VAL(i + 22, uint, finish), VAL(i + 23, uint, splits)

// n / d of numbers of 31 bits, with 2^32 / d rounded up: at most one too many.
FN uint divide(uint n, uint d, uint inverse)
{
    const uint q = d == 1 ? n : __umulhi(n, inverse);
    return q - (q * d > n);
}

FN void copy16(uint to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// As copy16, through the L1.
FN void copy16_near(uint to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
FN void copy8(uint to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(there ? 8 : 0) : "memory");
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Adds 64 × 128 products of 16 elements of the depth. TURNED: windows lie in panels of 64, 8 KiB apart, a row for each element of the depth.
FN ulong describe_across(uint address) { return (ulong)(address >> 4 & 0x3fff) | 512ull << 16 | 64ull << 32 | 1ull << 62; }
#define PRODUCT(E, type)                                                                                                                   \
    template <int TURNED> FN void product(E, float (&d)[64], ulong a, ulong b)                                                             \
    {                                                                                                                                      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" TEXT128 "}, %64, %65, 1, 1, 1, 0, %66;"             \
            : REGS128(FLOAT) : "l"(a), "l"(b), "n"(TURNED));                                                                               \
    }
PRODUCT(__nv_bfloat16, "bf16")
PRODUCT(half, "f16")
#else
FN void load_turned(uint (&a)[4], uint address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}
#define MMA(E, type)                                                                                                                       \
    FN void mma(E, float (&d)[4], const uint (&a)[4], uint b0, uint b1)                                                                    \
    {                                                                                                                                      \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"            \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }
MMA(__nv_bfloat16, "bf16")
MMA(half, "f16")
#endif

// Stores COUNT sums of neighbouring windows of one image.
template <class E, uint COUNT> FN void store_sums(const float *sums, void *y, size_t at, uint finish, float bias)
{
    if (finish & SUMS) {
        #pragma unroll
        for (uint e = 0; e < COUNT; e += COUNT % 4 ? 1 : 4)
            if constexpr (COUNT % 4 == 0) *(float4 *)((float *)y + at + e) = *(const float4 *)(sums + e);
            else ((float *)y)[at + e] = sums[e];
        return;
    }
    union { E v[COUNT]; uint4 eight; uint2 four; } out;
    #pragma unroll
    for (uint e = 0; e < COUNT; ++e) round_to(out.v[e], sums[e] + bias);
    if constexpr (COUNT == 8) *(uint4 *)((E *)y + at) = out.eight;
    else if constexpr (COUNT == 4) *(uint2 *)((E *)y + at) = out.four;
    else ((E *)y)[at] = out.v[0];
}

// A warp's 16 kernels × 32 windows of sums in shared memory to the result, COUNT windows a lane.
template <class E, uint COUNT>
FN void store_rows(const float *part, uint lane, uint row, uint lines, uint window, uint columns, uint windows, uint kernel,
    uint kernels, uint finish, const E *bias, void *y, size_t start)
{
    constexpr uint LANES = 32 / COUNT;
    const uint c = lane % LANES * COUNT, column = window + c;
    if (column >= columns) return;
    const size_t at = start + ((size_t)(column / windows) * kernels + kernel) * windows + column % windows;
    #pragma unroll 1
    for (uint r = lane / LANES; r < 16 && row + r < lines; r += COUNT)
        store_sums<E, COUNT>(part + r * PART + c, y, at + (size_t)(row + r) * windows, finish, finish & BIAS ? from(bias[kernel + row + r]) : 0.0f);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
FN uint pair(float low, float high, half)
{
    uint r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
FN uint pair(float low, float high, __nv_bfloat16) { return pack_bf16(low, high); }
// A warp's 16 kernels × 128 windows, from registers by 4 KiB of shared memory, to the result: lines of 256 bytes. Eight windows are of one image.
template <class E>
FN void store_lines(const float (&sum)[64], uint part, uint lane, uint row, uint lines, uint window, uint columns, uint windows, uint kernel,
    uint kernels, bool biased, const E *bias, E *y)
{
    #pragma unroll
    for (uint h = 0; h < 2; ++h) {
        const uint r = (lane >> 2) + h * 8;
        const float more = biased && row + r < lines ? from(bias[kernel + row + r]) : 0.0f;
        #pragma unroll
        for (uint j = 0; j < 16; ++j)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(part + r * 256 + ((j ^ (r & 7)) << 4) + (lane & 3) * 4),
                         "r"(pair(sum[j * 4 + h * 2] + more, sum[j * 4 + h * 2 + 1] + more, E())) : "memory");
    }
    __syncwarp();
    const uint column = window + (lane & 15) * 8;
    if (column >= columns) return;
    E *const to = y + ((size_t)(column / windows) * kernels + kernel) * windows + column % windows;
    #pragma unroll
    for (uint i = 0; i < 8; ++i) {
        const uint r = i * 2 + (lane >> 4);
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(part + r * 256 + (((lane & 15) ^ (r & 7)) << 4)) : "memory");
        if (row + r < lines) *(uint4 *)(to + (size_t)(row + r) * windows) = v;
    }
}
#endif

template <class E, uint ROWS, int FORM, class Args> FN void convolve(const E *x, const E *w, const E *bias, void *y, const Args &a)
{
    constexpr uint THREADS = ROWS * 2, SIDE = ROWS * CONV_LINE, STAGE = SIDE + CONV_WINDOWS * CONV_LINE;
    extern __shared__ uchar shared[];
    const uint base = (shared_address(shared) + CONV_ALIGN - 1) & ~(CONV_ALIGN - 1), thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
    const uint columns = a.images * a.windows, down = (a.lines + ROWS - 1) / ROWS, across = (columns + 127) / 128;
    if (down * across == 0) return;
    const uint group = blockIdx.x / (down * across), split = blockIdx.y;
    if (group >= a.groups) return;
    const Tile tile = tile_of(blockIdx.x % (down * across), down, across);
    const uint row = tile.row * ROWS, column = tile.column * 128;
    const uint stages = (a.all + 7) / 8, share = (stages + a.splits - 1) / a.splits;
    const uint first = min(split * share, stages), steps = min(share, stages - first);

    // A thread copies one chunk of each fourth (or sixteenth) line, or of each so many rows of pixels.
    const uint own = thread & 7, line = thread >> 3;
    const E *kernels = w + (size_t)(group * a.lines + row + line) * a.all * 8 + (first * 8 + own) * 8;
    const size_t kernel_step = (size_t)(THREADS / 8) * a.all * 8;
    constexpr uint WINDOW_STEP = THREADS / 8, MANY = FORM == WINDOWS ? 128 / WINDOW_STEP : 1;
    int place[MANY], corner[MANY];
    if constexpr (FORM == WINDOWS) {
        #pragma unroll
        for (uint i = 0; i < MANY; ++i) {
            const uint at = column + line + i * WINDOW_STEP, image = at / a.windows, window = at % a.windows;
            const int top = int(window / a.across * a.stride_y) - int(a.padding_y), left = int(window % a.across * a.stride_x) - int(a.padding_x);
            place[i] = (int(image * a.high) + top) * int(a.wide) + left;
            // A window beyond the last one is outside its image.
            corner[i] = at < columns ? top * 65536 + (left & 0xffff) : -32768 * 65536;
        }
    }
    // Of PLANES and HALVES: the pixels of both halves of a chunk.
    const uint pixel = column + (thread & 15) * 8, halves[2] = {pixel, pixel + 4};
    const E *planes[2] = {x, x};
    if constexpr (FORM != WINDOWS) {
        #pragma unroll
        for (uint h = 0; h < 2; ++h)
            if (halves[h] < columns)
                planes[h] = x + ((size_t)(halves[h] / a.windows * a.groups + group) * a.chunks * 8 + first * 64 + (thread >> 4)) * a.windows + halves[h] % a.windows;
    }

    auto fill = [&](uint step) {
        if (step < steps) {
            const uint stage = base + step % CONV_STAGES * STAGE, chunk = (first + step) * 8 + own;
            #pragma unroll
            for (uint i = 0; i < 4; ++i) {
                const bool there = chunk < a.all && row + line + i * (THREADS / 8) < a.lines;
                copy16(stage + swizzle<128>(line + i * (THREADS / 8), own), there ? kernels + i * kernel_step : w, there);
            }
            kernels += 64;
            if constexpr (FORM == WINDOWS) {
                const uint element = divide(chunk, a.chunks, a.chunks_inverse), r = divide(element, a.kernel_wide, a.kernel_wide_inverse);
                const int below = r * a.dilation_y, right = (element - r * a.kernel_wide) * a.dilation_x;
                const uint channel = group * a.chunks + chunk - element * a.chunks;
                const int offset = below * int(a.wide) + right;
                #pragma unroll
                for (uint i = 0; i < MANY; ++i) {
                    const int top = corner[i] >> 16, left = (int)(short)(corner[i] & 0xffff);
                    const bool there = chunk < a.all && (uint)(top + below) < a.high && (uint)(left + right) < a.wide;
                    const uint to = stage + SIDE + swizzle<128>(line + i * WINDOW_STEP, own);
                    const E *const from = x + (there ? (size_t)(uint)(place[i] + offset) * a.pitch + channel * 8 : 0);
                    // Windows of few channels share most of a stage.
                    if (a.chunks < 8) copy16_near(to, from, there);
                    else copy16(to, from, there);
                }
            } else {
                #pragma unroll
                for (uint i = 0; i < 1024 / THREADS; ++i) {
                    const uint d = (thread >> 4) + i * (THREADS / 16), to = stage + SIDE + (thread >> 3 & 1) * 8192 + swizzle<128>(d, own);
                    const bool deep = (first + step) * 64 + d < a.chunks * 8;
                    const size_t further = ((size_t)step * 64 + i * (THREADS / 16)) * a.windows;
                    if constexpr (FORM == PLANES) {
                        const bool there = deep && halves[0] < columns;
                        copy16(to, there ? planes[0] + further : x, there);
                    } else {
                        #pragma unroll
                        for (uint h = 0; h < 2; ++h) {
                            const bool there = deep && halves[h] < columns;
                            copy8(to + h * 8, there ? planes[h] + further : x, there);
                        }
                    }
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    // Of 64 sums: those of four parts of 16 kernels × 32 windows.
    float sum[64];
    #pragma unroll
    for (uint i = 0; i < 64; ++i) sum[i] = 0;

    for (uint s = 0; s < CONV_STAGES - 1; ++s) fill(s);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint own_row = (warp >> 2) * 64 + (warp & 3) * 16, own_column = 0, down_by = 0, right_by = 32;
    #pragma unroll 1
    for (uint step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(CONV_STAGES - 2) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        // The stage before is free when no warpgroup reads it.
        wgmma_wait<0>();
        __syncthreads();
        const uint stage = base + step % CONV_STAGES * STAGE;
        wgmma_fence();
        #pragma unroll
        for (uint s = 0; s < 4; ++s) {
            const ulong l = describe(stage + (warp >> 2) * 8192) + 2 * s;
            if constexpr (FORM == WINDOWS) product<0>(E(), sum, l, describe(stage + SIDE) + 2 * s);
            else product<1>(E(), sum, l, describe_across(stage + SIDE) + 128 * s);
        }
        wgmma_commit();
        fill(step + CONV_STAGES - 1);
    }
    wgmma_wait<0>();
#else
    const uint own_row = (warp >> 2) * 64, own_column = (warp & 3) * 32, down_by = 16, right_by = 0;
    #pragma unroll 1
    for (uint step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(CONV_STAGES - 2) : "memory");
        __syncthreads();
        fill(step + CONV_STAGES - 1);
        const uint stage = base + step % CONV_STAGES * STAGE;
        #pragma unroll
        for (uint s = 0; s < 4; ++s) {
            uint l[4][4], r[2][4];
            #pragma unroll
            for (uint i = 0; i < 4; ++i) load_matrices(l[i], stage + swizzle<128>(own_row + i * 16 + (lane & 15), 2 * s + (lane >> 4)));
            #pragma unroll
            for (uint j = 0; j < 2; ++j) {
                const uint at = own_column + j * 16;
                if constexpr (FORM == WINDOWS) load_matrices(r[j], stage + SIDE + swizzle<128>(at + (lane >> 4) * 8 + (lane & 7), 2 * s + (lane >> 3 & 1)));
                else load_turned(r[j], stage + SIDE + (at >> 6) * 8192 + swizzle<128>(s * 16 + (lane & 15), (at >> 3 & 7) + (lane >> 4)));
            }
            #pragma unroll
            for (uint i = 0; i < 4; ++i)
                #pragma unroll
                for (uint j = 0; j < 4; ++j) mma(E(), *(float(*)[4])(sum + (i * 4 + j) * 4), l[i], r[j / 2][j % 2 * 2], r[j / 2][j % 2 * 2 + 1]);
        }
    }
#endif
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    dependency_launch();

    float *const part = (float *)(shared + (base - shared_address(shared))) + warp * 16 * PART;
    const uint all_kernels = a.groups * a.lines;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (!(a.finish & SUMS) && a.windows % 8 == 0)
        return store_lines<E>(sum, base + warp * 4096, lane, row + own_row, a.lines, column, columns, a.windows, group * a.lines, all_kernels, a.finish & BIAS,
                              bias, (E *)y);
#endif
    const size_t start = a.finish & SUMS ? (size_t)split * columns * all_kernels : 0;
    #pragma unroll 1
    for (uint chunk = 0; chunk < 4; ++chunk) {
        #pragma unroll
        for (uint i = 0; i < 4; ++i)
            if (i == chunk)
                #pragma unroll
                for (uint j = 0; j < 4; ++j)
                    #pragma unroll
                    for (uint e = 0; e < 4; ++e) part[((lane >> 2) + (e >> 1) * 8) * PART + j * 8 + (lane & 3) * 2 + (e & 1)] = sum[(i * 4 + j) * 4 + e];
        __syncwarp();
        const uint from_row = row + own_row + chunk * down_by, from_column = column + own_column + chunk * right_by;
        #define STORE_ROWS(COUNT) store_rows<E, COUNT>(part, lane, from_row, a.lines, from_column, columns, a.windows, group * a.lines, all_kernels, \
            a.finish, bias, y, start)
        if (a.windows % 8 == 0) STORE_ROWS(8);
        else if (a.windows % 4 == 0) STORE_ROWS(4);
        else STORE_ROWS(1);
        __syncwarp();
    }
}

struct ConvArgs {
    uint images, lines, groups, high, wide, pitch, windows, across, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, chunks, chunks_inverse;
    uint kernel_wide, kernel_wide_inverse, all, finish, splits;
};
#define CONV_ARGUMENTS(i) IN(i, void, x), IN(i + 1, void, w), IN(i + 2, void, bias), OUT(i + 3, void, y), CONV_SIZES(i + 4)
#define CONV_ARGS() ConvArgs{COUNTED(images), lines, groups, high, wide, pitch, windows, across, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, \
        chunks, chunks_inverse, kernel_wide, kernel_wide_inverse, all, finish, splits}
// Grid: tiles of all groups, splits.
#define CONVOLVE(name, E, ROWS, TOGETHER, FORM)                                                                                            \
    KERNEL_SHARED(name, ROWS * 2, TOGETHER, CONV_ARGUMENTS(0))                                                                             \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        convolve<E, ROWS, FORM>((const E *)x, (const E *)w, (const E *)bias, y, CONV_ARGS());                                              \
    }
CONVOLVE(conv_windows_64_f16, half, 64, 3, WINDOWS)
CONVOLVE(conv_windows_128_f16, half, 128, 2, WINDOWS)
CONVOLVE(conv_planes_64_f16, half, 64, 3, PLANES)
CONVOLVE(conv_planes_128_f16, half, 128, 2, PLANES)
CONVOLVE(conv_halves_64_f16, half, 64, 3, HALVES)
CONVOLVE(conv_halves_128_f16, half, 128, 2, HALVES)
CONVOLVE(conv_windows_64_bf16, __nv_bfloat16, 64, 3, WINDOWS)
CONVOLVE(conv_windows_128_bf16, __nv_bfloat16, 128, 2, WINDOWS)
CONVOLVE(conv_planes_64_bf16, __nv_bfloat16, 64, 3, PLANES)
CONVOLVE(conv_planes_128_bf16, __nv_bfloat16, 128, 2, PLANES)
CONVOLVE(conv_halves_64_bf16, __nv_bfloat16, 64, 3, HALVES)
CONVOLVE(conv_halves_128_bf16, __nv_bfloat16, 128, 2, HALVES)

enum { FLOATS_DEEP = 8 };
HOST(FLOATS_DEEP)
// A workgroup computes ROWS kernels × 128 windows in stages of 8 elements of the depth; a warp 32 × 64, a thread four kernels and four more 16 further, four
// windows and four more 32 further.
template <uint ROWS> FN void convolve_floats(const float *x, const float *w, const float *bias, float *y, const ConvArgs &a)
{
    constexpr uint THREADS = ROWS * 2, DEPTHS = FLOATS_DEEP * 128 / THREADS, L_PITCH = ROWS + 4, R_PITCH = 132;
    __shared__ __align__(16) float lefts[2][FLOATS_DEEP * L_PITCH], rights[2][FLOATS_DEEP * R_PITCH];
    const uint thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
    const uint columns = a.images * a.windows, down = (a.lines + ROWS - 1) / ROWS, across = (columns + 127) / 128;
    if (down * across == 0) return;
    const uint group = blockIdx.x / (down * across), split = blockIdx.y;
    if (group >= a.groups) return;
    const Tile tile = tile_of(blockIdx.x % (down * across), down, across);
    const uint row = tile.row * ROWS, column = tile.column * 128;
    const uint stages = (a.all + FLOATS_DEEP - 1) / FLOATS_DEEP, share = (stages + a.splits - 1) / a.splits;
    const uint first = min(split * share, stages), steps = min(share, stages - first);

    // A thread loads four elements of a kernel, and DEPTHS elements of a window.
    const uint line = thread / 2, line_depth = first * FLOATS_DEEP + thread % 2 * 4, window_depth = first * FLOATS_DEEP + thread / 128 * DEPTHS;
    const bool has_line = row + line < a.lines, fours = a.all % 4 == 0;
    const float *const kernel = w + (size_t)(group * a.lines + (has_line ? row + line : 0)) * a.all;
    const uint at = column + thread % 128, image = at / a.windows, window = at % a.windows;
    const int top = int(window / a.across * a.stride_y) - int(a.padding_y), left = int(window % a.across * a.stride_x) - int(a.padding_x);
    const bool has_window = at < columns;
    const uint plane = a.high * a.wide;
    const float *const pixels = x + (has_window ? (size_t)(image * a.groups + group) * a.pitch * plane : 0);
    float l[4], r[DEPTHS];
    auto fetch = [&](uint step) {
        const uint d = line_depth + step * FLOATS_DEEP;
        if (fours) {
            const float4 v = has_line && d < a.all ? *(const float4 *)(kernel + d) : make_float4(0, 0, 0, 0);
            l[0] = v.x, l[1] = v.y, l[2] = v.z, l[3] = v.w;
        } else {
            #pragma unroll
            for (uint e = 0; e < 4; ++e) l[e] = has_line && d + e < a.all ? kernel[d + e] : 0.0f;
        }
        #pragma unroll
        for (uint e = 0; e < DEPTHS; ++e) {
            const uint d = window_depth + step * FLOATS_DEEP + e, channel = divide(d, a.chunks, a.chunks_inverse), rest = d - channel * a.chunks;
            const uint below = divide(rest, a.kernel_wide, a.kernel_wide_inverse), right = rest - below * a.kernel_wide;
            const int py = top + int(below * a.dilation_y), px = left + int(right * a.dilation_x);
            const bool there = has_window && d < a.all && (uint)py < a.high && (uint)px < a.wide;
            r[e] = there ? pixels[(size_t)channel * plane + py * int(a.wide) + px] : 0.0f;
        }
    };
    const uint own_row = warp / 2 * 32 + lane / 8 * 4, own_column = warp % 2 * 64 + lane % 8 * 4;
    float sum[8][8];
    #pragma unroll
    for (uint i = 0; i < 8; ++i)
        #pragma unroll
        for (uint c = 0; c < 8; ++c) sum[i][c] = 0;
    fetch(0);
    #pragma unroll 1
    for (uint step = 0; step < steps; ++step) {
        float *const ls = lefts[step & 1], *const rs = rights[step & 1];
        #pragma unroll
        for (uint e = 0; e < 4; ++e) ls[(thread % 2 * 4 + e) * L_PITCH + line] = l[e];
        #pragma unroll
        for (uint e = 0; e < DEPTHS; ++e) rs[(thread / 128 * DEPTHS + e) * R_PITCH + thread % 128] = r[e];
        __syncthreads();
        if (step + 1 < steps) fetch(step + 1);
        #pragma unroll
        for (uint e = 0; e < FLOATS_DEEP; ++e) {
            float v[8], u[8];
            #pragma unroll
            for (uint h = 0; h < 2; ++h) {
                *(float4 *)(v + h * 4) = *(const float4 *)(ls + e * L_PITCH + own_row + h * 16);
                *(float4 *)(u + h * 4) = *(const float4 *)(rs + e * R_PITCH + own_column + h * 32);
            }
            #pragma unroll
            for (uint i = 0; i < 8; ++i)
                #pragma unroll
                for (uint c = 0; c < 8; ++c) sum[i][c] = fmaf(v[i], u[c], sum[i][c]);
        }
    }
    dependency_launch();
    const uint all_kernels = a.groups * a.lines;
    const size_t start = a.finish & SUMS ? (size_t)split * columns * all_kernels : 0;
    #pragma unroll
    for (uint c = 0; c < 8; ++c) {
        const uint at = column + own_column + c / 4 * 32 + c % 4;
        if (at >= columns) continue;
        float *const to = y + start + ((size_t)(at / a.windows) * all_kernels + group * a.lines) * a.windows + at % a.windows;
        #pragma unroll
        for (uint i = 0; i < 8; ++i) {
            const uint k = row + own_row + i % 4 + i / 4 * 16;
            if (k < a.lines) to[(size_t)k * a.windows] = sum[i][c] + (a.finish & BIAS ? bias[group * a.lines + k] : 0.0f);
        }
    }
}

// An element of the result. Grid: elements / 256.
template <class E> FN void convolve_element(const E *x, const E *w, const E *bias, E *y, const ConvArgs &a)
{
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x, plane = (size_t)a.high * a.wide;
    const uint kernels = a.groups * a.lines, window = i % a.windows, kernel = i / a.windows % kernels, image = i / a.windows / kernels;
    if (image >= a.images) return;
    const int top = int(window / a.across * a.stride_y) - int(a.padding_y), left = int(window % a.across * a.stride_x) - int(a.padding_x);
    const E *pixels = x + (size_t)(image * a.groups + kernel / a.lines) * a.pitch * plane, *weights = w + (size_t)kernel * a.all;
    const uint kernel_high = a.chunks / a.kernel_wide;
    float sum = 0;
    for (uint c = 0; c < a.pitch; ++c, pixels += plane)
        for (uint r = 0; r < kernel_high; ++r) {
            const int py = top + int(r * a.dilation_y);
            for (uint s = 0; s < a.kernel_wide; ++s, ++weights) {
                const int px = left + int(s * a.dilation_x);
                if ((uint)py < a.high && (uint)px < a.wide) sum = fmaf(from(pixels[(size_t)py * a.wide + px]), from(*weights), sum);
            }
        }
    round_to(y[i], sum + (a.finish & BIAS ? from(bias[kernel]) : 0.0f));
}

// As CONVOLVE.
#define FLOATS(name, ROWS, TOGETHER)                                                                                                       \
    KERNEL_SHARED(name, ROWS * 2, TOGETHER, CONV_ARGUMENTS(0))                                                                             \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        convolve_floats<ROWS>((const float *)x, (const float *)w, (const float *)bias, (float *)y, CONV_ARGS());                           \
    }
FLOATS(conv_floats_64, 64, 3)
FLOATS(conv_floats_128, 128, 1)
#define ELEMENTS(name, E)                                                                                                                  \
    KERNEL(name, 256, CONV_ARGUMENTS(0))                                                                                                   \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        convolve_element<E>((const E *)x, (const E *)w, (const E *)bias, (E *)y, CONV_ARGS());                                             \
    }
ELEMENTS(conv_elements_f32, float)
ELEMENTS(conv_elements_f16, half)
ELEMENTS(conv_elements_bf16, __nv_bfloat16)

// Images [image, group · depth, plane] of 16-bit elements as [image, pixel, group, chunks · 8] with zeros from `depth` on, and kernels [kernel, depth, taps] as
// [kernel, taps, chunks · 8]. Of images only each step_y-th row and step_x-th column is taken: `pixels` in rows of `across`. `turned`: workgroups of images.
// Grid: pixels / 64 · chunks / 8 · groups · images (of one chunk: pixels / 256 · groups · images), then chunks of kernels / 256, if any.
KERNEL(conv_prepare, 256, IN(0, ushort, x), IN(1, ushort, w), OUT(2, uint4, images_out), OUT(3, uint4, kernels_out), COUNT(4, images), VAL(8, uint, groups),
    VAL(9, uint, depth), VAL(10, uint, chunks), VAL(11, uint, plane), VAL(12, uint, wide), VAL(13, uint, pixels), VAL(14, uint, across), VAL(15, uint, step_y),
    VAL(16, uint, step_x), VAL(17, uint, kernels), VAL(18, uint, taps), VAL(19, uint, turned))
{
    __shared__ ushort tile[64][66];
    union Chunk { ushort v[8]; uint4 w; };
    dependency_wait();
    if (blockIdx.x >= turned) {
        const uint i = (blockIdx.x - turned) * 256 + threadIdx.x, kernel = i / chunks / taps, tap = i / chunks % taps, c = i % chunks * 8;
        if (kernel >= kernels) return;
        Chunk out;
        #pragma unroll
        for (uint e = 0; e < 8; ++e) out.v[e] = c + e < depth ? w[((size_t)kernel * depth + c + e) * taps + tap] : 0;
        kernels_out[i] = out.w;
        return;
    }
    const bool all = step_y == 1 && step_x == 1;
    auto place = [&](uint pixel) { return all ? pixel : pixel / across * step_y * wide + pixel % across * step_x; };
    if (chunks == 1) {
        const uint tiles = (pixels + 255) / 256, matrix = blockIdx.x / tiles, pixel = blockIdx.x % tiles * 256 + threadIdx.x;
        const uint image = matrix / groups, group = matrix % groups;
        if (image >= COUNTED(images) || pixel >= pixels) return;
        const ushort *const from = x + (size_t)matrix * depth * plane + place(pixel);
        Chunk out;
        #pragma unroll
        for (uint e = 0; e < 8; ++e) out.v[e] = e < depth ? from[(size_t)e * plane] : 0;
        images_out[((size_t)image * pixels + pixel) * groups + group] = out.w;
        return;
    }
    const uint tiles = (pixels + 63) / 64, deep = (chunks + 7) / 8, rest = blockIdx.x / tiles, matrix = rest / deep;
    const uint pixel = blockIdx.x % tiles * 64, channel = rest % deep * 64, image = matrix / groups, group = matrix % groups;
    if (image >= COUNTED(images)) return;
    const ushort *const from = x + ((size_t)matrix * depth + channel) * plane;
    if (all && plane % 4 == 0) {
        const uint p = threadIdx.x % 16 * 4;
        #pragma unroll
        for (uint i = 0; i < 4; ++i) {
            const uint c = threadIdx.x / 16 + i * 16;
            const uint2 v = channel + c < depth && pixel + p < pixels ? *(const uint2 *)(from + (size_t)c * plane + pixel + p) : make_uint2(0, 0);
            *(uint *)&tile[c][p] = v.x;
            *(uint *)&tile[c][p + 2] = v.y;
        }
    } else {
        const uint p = threadIdx.x % 64;
        const size_t at = place(pixel + p);
        #pragma unroll 4
        for (uint c = threadIdx.x / 64; c < 64; c += 4) tile[c][p] = channel + c < depth && pixel + p < pixels ? from[(size_t)c * plane + at] : 0;
    }
    __syncthreads();
    const uint c = threadIdx.x % 8;
    if (channel / 8 + c >= chunks) return;
    #pragma unroll
    for (uint i = 0; i < 2; ++i) {
        const uint p = threadIdx.x / 8 + i * 32;
        if (pixel + p >= pixels) return;
        Chunk out;
        #pragma unroll
        for (uint e = 0; e < 8; ++e) out.v[e] = tile[c * 8 + e][p];
        images_out[(((size_t)image * pixels + pixel + p) * groups + group) * chunks + channel / 8 + c] = out.w;
    }
}

// The sums of `splits` parts as the result [images, kernels, windows]. Grid: elements / 256.
template <class E> FN void join(const float *sums, const E *bias, E *y, size_t all, uint kernels, uint windows, uint splits, uint finish)
{
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= all) return;
    float total = sums[i];
    #pragma unroll 1
    for (uint s = 1; s < splits; ++s) total += sums[s * all + i];
    if (finish & BIAS) total += from(bias[i / windows % kernels]);
    round_to(y[i], total);
}
#define JOIN(name, E)                                                                                                                      \
    KERNEL(name, 256, IN(0, float, sums), IN(1, void, bias), OUT(2, void, y), COUNT(3, elements), VAL(7, uint, kernels),          \
        VAL(8, uint, windows), VAL(9, uint, splits), VAL(10, uint, finish))                                                                \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        join<E>(sums, (const E *)bias, (E *)y, COUNTED(elements), kernels, windows, splits, finish);                                       \
    }
JOIN(conv_join_f16, half)
JOIN(conv_join_bf16, __nv_bfloat16)
JOIN(conv_join_f32, float)
