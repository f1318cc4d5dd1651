// Softmax and its logarithm of rows of f32, f16 and bf16 [rows, n], computed in f32. A row is read once: by a warp, of which a workgroup has eight, or by a
// workgroup, into the registers; longer rows twice.
#include "batch.h"

#define INFINITY __int_as_float(0x7f800000)

FN float warp_sum(float v)
{
    #pragma unroll
    for (uint m = 16; m; m >>= 1) v += __shfl_xor_sync(~0u, v, m);
    return v;
}
FN float warp_max(float v)
{
    #pragma unroll
    for (uint m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, m));
    return v;
}
// Of the threads that share a row: a warp or 8 warps.
template <bool WARP> FN float row_sum(float v, float *part)
{
    v = warp_sum(v);
    if (WARP) return v;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    #pragma unroll
    for (uint i = 0; i < 8; ++i) v += part[i];
    return v;
}
template <bool WARP> FN float row_max(float v, float *part)
{
    v = warp_max(v);
    if (WARP) return v;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    #pragma unroll
    for (uint i = 1; i < 8; ++i) v = fmaxf(v, part[i]);
    return v;
}

// Eight elements as f32, and back.
template <class T> union Eight { T v[8]; uint4 w[sizeof(T) / 2]; };
template <class T> FN void load8(float (&r)[8], const T *x)
{
    Eight<T> e;
    #pragma unroll
    for (uint w = 0; w < sizeof(T) / 2; ++w) e.w[w] = ((const uint4 *)x)[w];
    #pragma unroll
    for (uint i = 0; i < 8; ++i) r[i] = from(e.v[i]);
}
template <class T> FN void store8(T *y, const float (&r)[8])
{
    Eight<T> e;
    #pragma unroll
    for (uint i = 0; i < 8; ++i) round_to(e.v[i], r[i]);
    #pragma unroll
    for (uint w = 0; w < sizeof(T) / 2; ++w) ((uint4 *)y)[w] = e.w[w];
}

// Rows of up to CHUNKS · 8 elements for each thread. `whole`: n is a multiple of 8.
template <class T, bool WARP, uint CHUNKS> FN void softmax(const T *x, T *y, uint rows, uint n, bool whole, bool log)
{
    constexpr uint THREADS = WARP ? 32 : 256;
    __shared__ float part[2][8];
    const uint row = WARP ? blockIdx.x * 8 + threadIdx.x / 32 : blockIdx.x, thread = threadIdx.x % THREADS;
    if (row >= rows) return;
    x += (size_t)row * n;
    y += (size_t)row * n;
    float r[CHUNKS][8], greatest = -INFINITY, sum = 0;
    #pragma unroll
    for (uint c = 0; c < CHUNKS; ++c) {
        #pragma unroll
        for (uint e = 0; e < 8; ++e) r[c][e] = -INFINITY;
        if (whole) {
            const uint i = (c * THREADS + thread) * 8;
            if (i < n) load8(r[c], x + i);
        } else
            #pragma unroll
            for (uint e = 0; e < 8; ++e) {
                const uint i = (c * 8 + e) * THREADS + thread;
                if (i < n) r[c][e] = from(x[i]);
            }
        #pragma unroll
        for (uint e = 0; e < 8; ++e) greatest = fmaxf(greatest, r[c][e]);
    }
    dependency_launch();
    greatest = row_max<WARP>(greatest, part[0]);
    #pragma unroll
    for (uint c = 0; c < CHUNKS; ++c)
        #pragma unroll
        for (uint e = 0; e < 8; ++e) {
            const float of = r[c][e] - greatest, power = expf(of);
            r[c][e] = log ? of : power;
            // What is beyond the row counts as -inf: of a row of such, everything is NaN.
            sum += power;
        }
    sum = row_sum<WARP>(sum, part[1]);
    const float factor = 1.0f / sum, less = logf(sum);
    #pragma unroll
    for (uint c = 0; c < CHUNKS; ++c) {
        #pragma unroll
        for (uint e = 0; e < 8; ++e) r[c][e] = log ? r[c][e] - less : r[c][e] * factor;
        if (whole) {
            const uint i = (c * THREADS + thread) * 8;
            if (i < n) store8(y + i, r[c]);
        } else
            #pragma unroll
            for (uint e = 0; e < 8; ++e) {
                const uint i = (c * 8 + e) * THREADS + thread;
                if (i < n) round_to(y[i], r[c][e]);
            }
    }
}

// Any n: a workgroup goes through the row twice, first for the greatest element and the sum of the powers relative to it.
template <class T> FN void softmax_long(const T *x, T *y, uint rows, uint n, bool log)
{
    __shared__ float part[2][8];
    const uint row = blockIdx.x;
    if (row >= rows) return;
    x += (size_t)row * n;
    y += (size_t)row * n;
    float own = -INFINITY, sum = 0;
    for (uint i = threadIdx.x; i < n; i += 1024) {
        float v[4];
        #pragma unroll
        for (uint u = 0; u < 4; ++u) v[u] = i + u * 256 < n ? from(x[i + u * 256]) : -INFINITY;
        const float next = fmaxf(own, fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])));
        // Of -inf alone no power is taken: the whole row may be more.
        if (next > -INFINITY) sum = sum * expf(own - next) + ((expf(v[0] - next) + expf(v[1] - next)) + (expf(v[2] - next) + expf(v[3] - next)));
        else sum += (v[0] + v[1]) + (v[2] + v[3]) != (v[0] + v[1]) + (v[2] + v[3]) ? __int_as_float(0x7fffffff) : 0.0f;
        own = next;
    }
    const float greatest = row_max<false>(own, part[0]);
    sum = row_sum<false>(own > -INFINITY ? sum * expf(own - greatest) : sum, part[1]);
    // A row of -inf alone has no sum.
    const float factor = 1.0f / sum, less = logf(sum);
    dependency_launch();
    for (uint i = threadIdx.x; i < n; i += 256) {
        const float of = from(x[i]) - greatest;
        round_to(y[i], log ? of - less : expf(of) * factor);
    }
}

#define ROWS(name, T, WARP, CHUNKS)                                                                                                        \
    KERNEL(name, 256, IN(0, void, x), OUT(1, void, y), COUNT(2, rows), VAL(6, uint, n), VAL(7, uint, whole), VAL(8, uint, log))              \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        softmax<T, WARP, CHUNKS>((const T *)x, (T *)y, COUNTED(rows), n, whole != 0, log != 0);                                             \
    }
#define LONG(name, T)                                                                                                                      \
    KERNEL(name, 256, IN(0, void, x), OUT(1, void, y), COUNT(2, rows), VAL(6, uint, n), VAL(7, uint, whole), VAL(8, uint, log))              \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        softmax_long<T>((const T *)x, (T *)y, COUNTED(rows), n, log != 0);                                                                  \
    }
#define TYPES(name, T)                                                                                                                     \
    ROWS(softmax_256_##name, T, true, 1)                                                                                                   \
    ROWS(softmax_1024_##name, T, true, 4)                                                                                                  \
    ROWS(softmax_2048_##name, T, false, 1)                                                                                                 \
    ROWS(softmax_8192_##name, T, false, 4)                                                                                                 \
    LONG(softmax_long_##name, T)
TYPES(f32, float)
TYPES(f16, half)
TYPES(bf16, __nv_bfloat16)
