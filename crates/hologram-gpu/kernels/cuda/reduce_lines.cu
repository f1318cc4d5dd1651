// Sum, mean, product, greatest and least along a dimension of f32, f16 and bf16 [outer, n, inner], computed in f32; a NaN is the greatest and the least.
// Lines that are too few for the device are reduced in `chunks` pieces of `chunk` elements: one f32 for each, [outer, chunks, inner], which a second launch
// reduces. `all`: the number of elements of a whole line.
#include "batch.h"

#define INFINITY __int_as_float(0x7f800000)
struct Sum { static constexpr bool PICKS = false; static __forceinline__ float none() { return 0.0f; } static __forceinline__ float join(float a, float b) { return a + b; } };
struct Prod { static constexpr bool PICKS = false; static __forceinline__ float none() { return 1.0f; } static __forceinline__ float join(float a, float b) { return a * b; } };
struct Max { static constexpr bool PICKS = true; static __forceinline__ float none() { return -INFINITY; } static __forceinline__ float join(float a, float b) { return b > a || b != b ? b : a; } };
struct Min { static constexpr bool PICKS = true; static __forceinline__ float none() { return INFINITY; } static __forceinline__ float join(float a, float b) { return b < a || b != b ? b : a; } };

// The type of results, and whether the sum is divided by the number of elements.
#define AS_F32 0u
#define AS_F16 1u
#define AS_BF16 2u
#define MEAN 4u
HOST(AS_F32, AS_F16, AS_BF16, MEAN)
// Columns of a workgroup, four a lane, and its warps.
#define COLUMNS 128
#define WARPS 8
HOST(COLUMNS, WARPS)
FN void put(void *y, size_t at, float v, uint result, uint n)
{
    if (result & MEAN) v /= float(n);
    const uint type = result & 3;
    if (type == AS_F32) ((float *)y)[at] = v;
    else if (type == AS_F16) ((half *)y)[at] = __float2half(v);
    else ((__nv_bfloat16 *)y)[at] = __float2bfloat16(v);
}

template <class T> FN float from_one(const T *x) { return from(*x); }
// Four elements as f32.
FN float4 four(const float *x) { return *(const float4 *)x; }
FN float4 four(const half *x)
{
    const uint2 w = *(const uint2 *)x;
    return make_float4(half_bits(w.x & 0xffff), half_bits(w.x >> 16), half_bits(w.y & 0xffff), half_bits(w.y >> 16));
}
FN float4 four(const __nv_bfloat16 *x)
{
    const uint2 w = *(const uint2 *)x;
    return make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u), __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u));
}
template <class Op> FN float4 join4(float4 a, float4 b) { return make_float4(Op::join(a.x, b.x), Op::join(a.y, b.y), Op::join(a.z, b.z), Op::join(a.w, b.w)); }

#define LINES_ARGUMENTS(i) IN(i, void, x), OUT(i + 1, void, y), COUNT(i + 2, outer), EXTENT(i + 6, n), VAL(i + 8, uint, inner), VAL(i + 9, uint, chunk), \
    VAL(i + 10, uint, chunks), VAL(i + 11, uint, whole), VAL(i + 12, uint, result), EXTENT(i + 13, all)

// Columns: inner > 1. A workgroup takes 128 columns of a piece; a thread four neighbouring ones (`whole`: at an address for four), or one in each 32, of every
// eighth row. Grid: columns / 128 · chunks · outer.
template <class T, class Op> FN void columns(const T *x, void *y, uint outer, uint n, uint n_most, uint inner, uint chunk, uint chunks, bool whole, uint result, uint all)
{
    __shared__ float part[WARPS][COLUMNS];
    const uint across = (inner + COLUMNS - 1) / COLUMNS, piece = blockIdx.x / across, line = piece / chunks, column = blockIdx.x % across * COLUMNS;
    if (line >= outer) return;
    const uint lane = threadIdx.x % 32, own = threadIdx.x / 32, first = min(piece % chunks * chunk, n), end = first + min(chunk, n - first);
    const T *const from = x + (size_t)line * n_most * inner;
    float4 a = make_float4(Op::none(), Op::none(), Op::none(), Op::none());
    if (whole) {
        const uint c = column + lane * 4;
        if (c < inner) {
            float4 b[4];
            #pragma unroll
            for (uint u = 0; u < 4; ++u) b[u] = a;
            uint r = first + own;
            for (; r + 3 * WARPS < end; r += 4 * WARPS) {
                float4 v[4];
                #pragma unroll
                for (uint u = 0; u < 4; ++u) v[u] = four(from + (size_t)(r + u * WARPS) * inner + c);
                #pragma unroll
                for (uint u = 0; u < 4; ++u) b[u] = join4<Op>(b[u], v[u]);
            }
            for (; r < end; r += WARPS) b[0] = join4<Op>(b[0], four(from + (size_t)r * inner + c));
            a = join4<Op>(join4<Op>(b[0], b[1]), join4<Op>(b[2], b[3]));
        }
        *(float4 *)&part[own][lane * 4] = a;
    } else {
        float *const of = (float *)&a;
        #pragma unroll
        for (uint u = 0; u < 4; ++u) {
            const uint c = column + u * 32 + lane;
            if (c < inner) for (uint r = first + own; r < end; r += WARPS) of[u] = Op::join(of[u], from_one(from + (size_t)r * inner + c));
            part[own][u * 32 + lane] = of[u];
        }
    }
    __syncthreads();
    dependency_launch();
    const uint c = threadIdx.x;
    if (c < COLUMNS && column + c < inner) {
        float v = part[0][c];
        #pragma unroll
        for (uint i = 1; i < WARPS; ++i) v = Op::join(v, part[i][c]);
        put(y, (size_t)piece * inner + column + c, Op::PICKS && all == 0 ? __int_as_float(0x7fffffff) : v, result, all);
    }
}

// Rows: inner is 1. `inner` warps take a piece, 8 / inner of them at a time in a workgroup. Grid: pieces · inner / 8.
template <class T, class Op> FN void rows(const T *x, void *y, uint outer, uint n, uint n_most, uint warps, uint chunk, uint chunks, bool whole, uint result, uint all)
{
    __shared__ float part[WARPS];
    const uint lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = blockIdx.x * (WARPS / warps) + warp / warps, line = piece / chunks, own = warp % warps;
    float a = Op::none();
    if (line < outer) {
        const uint first = min(piece % chunks * chunk, n), end = first + min(chunk, n - first), stride = warps * 32;
        const T *const from = x + (size_t)line * n_most;
        if (whole) {
            float4 b[4];
            #pragma unroll
            for (uint u = 0; u < 4; ++u) b[u] = make_float4(a, a, a, a);
            uint i = first + (own * 32 + lane) * 4;
            for (; i + stride * 12 < end; i += stride * 16) {
                float4 v[4];
                #pragma unroll
                for (uint u = 0; u < 4; ++u) v[u] = four(from + i + u * stride * 4);
                #pragma unroll
                for (uint u = 0; u < 4; ++u) b[u] = join4<Op>(b[u], v[u]);
            }
            for (; i < end; i += stride * 4) b[0] = join4<Op>(b[0], four(from + i));
            const float4 s = join4<Op>(join4<Op>(b[0], b[1]), join4<Op>(b[2], b[3]));
            a = Op::join(Op::join(s.x, s.y), Op::join(s.z, s.w));
        } else
            for (uint i = first + own * 32 + lane; i < end; i += stride) a = Op::join(a, from_one(from + i));
    }
    dependency_launch();
    #pragma unroll
    for (uint m = 16; m; m >>= 1) a = Op::join(a, __shfl_xor_sync(~0u, a, m));
    if (warps > 1) {
        if (lane == 0) part[warp] = a;
        __syncthreads();
        if (own == 0) for (uint i = 1; i < warps; ++i) a = Op::join(a, part[warp + i]);
    }
    if (line < outer && own == 0 && lane == 0) put(y, piece, Op::PICKS && all == 0 ? __int_as_float(0x7fffffff) : a, result, all);
}

#define LINES(name, FORM, T, Op)                                                                                                           \
    KERNEL(name, WARPS * 32, LINES_ARGUMENTS(0))                                                                                                \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        FORM<T, Op>((const T *)x, y, COUNTED(outer), ACTUAL(n), n_most, inner, chunk, chunks, whole != 0, result, ACTUAL(all));            \
    }
#define TYPES(form, name, Op)                                                                                                              \
    LINES(form##_##name##_f32, form, float, Op)                                                                                            \
    LINES(form##_##name##_f16, form, half, Op)                                                                                             \
    LINES(form##_##name##_bf16, form, __nv_bfloat16, Op)
TYPES(columns, sum, Sum)
TYPES(columns, prod, Prod)
TYPES(columns, max, Max)
TYPES(columns, min, Min)
TYPES(rows, sum, Sum)
TYPES(rows, prod, Prod)
TYPES(rows, max, Max)
TYPES(rows, min, Min)
