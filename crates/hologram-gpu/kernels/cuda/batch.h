// What the kernels of products of tensors share: y [.., n, m] = activation(a · b + bias) + residual of matrices a [.., n, k] and b [.., k, m], either of
// them stored transposed. Lines are rows of a and columns of b; both have k elements. An operand lies along k (a as it is, b transposed) or across.
#pragma once
#include "gemm.h"

// Of a launch: rows of the result (n) and matrices (batches), both perhaps known only at run time, columns (m) and depth (k).
// A batch of the result is (slow, middle, fast); its matrix of an operand is the sum of the numbers times the operand's strides.
// `splits`: parts of the depth, whose sums go to y one after the other.
#define BATCH_SIZES(i) COUNT(i, n), VAL(i + 4, uint, m), EXTENT(i + 5, k), EXTENT(i + 7, batches), VAL(i + 9, uint, batches_per), \
    VAL(i + 10, uint, fast), VAL(i + 11, uint, middle), VAL(i + 12, uint, a_slow), VAL(i + 13, uint, a_middle), VAL(i + 14, uint, a_fast), \
    VAL(i + 15, uint, b_slow), VAL(i + 16, uint, b_middle), VAL(i + 17, uint, b_fast), VAL(i + 18, uint, finish), VAL(i + 19, uint, splits)
#define SIZES() Sizes{COUNTED(n), m, ACTUAL(k), ACTUAL(batches) * batches_per, fast, middle, {a_slow, a_middle, a_fast}, {b_slow, b_middle, b_fast}, splits}

struct Sizes {
    uint n, m, k, batches, fast, middle, a[3], b[3], splits;

    uint matrix(const uint (&strides)[3], uint batch) const
    {
        const uint rest = batch / fast;
        return rest / middle * strides[0] + rest % middle * strides[1] + batch % fast * strides[2];
    }
};

// A tile of the result: bands of 8 tiles of rows, so that tiles at work share operands in the L2.
struct Tile { uint row, column; };
FN Tile tile_of(uint tile, uint down, uint across)
{
    const uint band = tile / (8 * across), rest = tile % (8 * across), rows = min(8u, down - band * 8);
    return {band * 8 + rest % rows, rest / rows};
}

// Of `finish`: what is done with sums. SUMS: they are stored as they are, for a later launch. ENGINE: nothing, and the copy engine stores results.
#define BIAS 1u
#define RESIDUAL 2u
#define RELU 4u
#define GELU 8u
#define SILU 12u
#define ACTIVATION 12u
#define SUMS 16u
#define ENGINE 32u
HOST(BIAS, RESIDUAL, RELU, GELU, SILU, SUMS, ENGINE)

FN float from(float v) { return v; }
FN float from(__nv_bfloat16 v) { return __bfloat162float(v); }
FN float from(half v) { return __half2float(v); }
FN double from(double v) { return v; }
FN int from(int v) { return v; }
FN long long from(long long v) { return v; }
FN void round_to(float &y, float v) { y = v; }
FN void round_to(__nv_bfloat16 &y, float v) { y = __float2bfloat16(v); }
FN void round_to(half &y, float v) { y = __float2half(v); }
FN void round_to(double &y, double v) { y = v; }
FN void round_to(int &y, int v) { y = v; }
FN void round_to(long long &y, long long v) { y = v; }

FN float activate(uint finish, float v)
{
    const uint activation = finish & ACTIVATION;
    if (activation == RELU) return v <= 0.0f ? 0.0f : v; // NaN stays.
    if (activation == GELU) return 0.5f * v * (erff(v * 0.70710678f) + 1.0f);
    if (activation == SILU) return v / (expf(-v) + 1.0f);
    return v;
}
FN double activate(uint finish, double v)
{
    const uint activation = finish & ACTIVATION;
    if (activation == RELU) return v <= 0.0 ? 0.0 : v;
    if (activation == GELU) return 0.5 * v * (erf(v * 0.70710678118654752440) + 1.0);
    if (activation == SILU) return v / (exp(-v) + 1.0);
    return v;
}
FN int activate(uint finish, int v) { return finish & ACTIVATION ? max(v, 0) : v; }
FN long long activate(uint finish, long long v) { return finish & ACTIVATION ? max(v, 0ll) : v; }

// The result of a sum in column `column`, which is element `at` of the result.
template <class T, class Sum> FN Sum finished(Sum v, uint finish, const T *bias, const T *residual, uint column, size_t at)
{
    if (finish & BIAS) v += from(bias[column]);
    v = activate(finish, v);
    if (finish & RESIDUAL) v += from(residual[at]);
    return v;
}

enum { PART = 36 }; // Sums from row to row of a warp's part of shared memory: 32, and some more for the banks.

// Stores 16 rows × 32 columns of sums in a warp's part of shared memory: those of rows from `row` and columns from `column` on. `start`: the matrix's first
// element of the result, and of the residual.
template <class T, class Sum>
FN void store_part(const Sum *part, uint lane, uint row, uint column, uint n, uint m, uint finish, const T *bias, const T *residual, void *y, size_t start)
{
    __syncwarp();
    if (m % 8 == 0) {
        const uint c = (lane & 3) * 8;
        #pragma unroll 1
        for (uint i = 0; i < 2; ++i) {
            const uint r = i * 8 + (lane >> 2);
            if (row + r >= n || column + c >= m) continue;
            const size_t at = start + (size_t)(row + r) * m + column + c;
            union { Sum v[8]; uint4 w[2]; } sums;
            sums.w[0] = *(const uint4 *)(part + r * PART + c);
            sums.w[1] = *(const uint4 *)(part + r * PART + c + 4);
            if (finish & SUMS) {
                *(uint4 *)((Sum *)y + at) = sums.w[0];
                *(uint4 *)((Sum *)y + at + 4) = sums.w[1];
                continue;
            }
            constexpr uint WORDS = sizeof(T) / 2;
            union { T v[8]; uint4 w[WORDS]; } out, more;
            if (finish & BIAS) {
                #pragma unroll
                for (uint w = 0; w < WORDS; ++w) more.w[w] = ((const uint4 *)(bias + column + c))[w];
                #pragma unroll
                for (uint e = 0; e < 8; ++e) sums.v[e] += from(more.v[e]);
            }
            if (finish & ACTIVATION)
                #pragma unroll
                for (uint e = 0; e < 8; ++e) sums.v[e] = activate(finish, sums.v[e]);
            if (finish & RESIDUAL) {
                #pragma unroll
                for (uint w = 0; w < WORDS; ++w) more.w[w] = ((const uint4 *)(residual + at))[w];
                #pragma unroll
                for (uint e = 0; e < 8; ++e) sums.v[e] += from(more.v[e]);
            }
            #pragma unroll
            for (uint e = 0; e < 8; ++e) round_to(out.v[e], sums.v[e]);
            #pragma unroll
            for (uint w = 0; w < WORDS; ++w) ((uint4 *)((T *)y + at))[w] = out.w[w];
        }
    } else if (column + lane < m)
        #pragma unroll 1
        for (uint r = 0; r < 16; ++r) {
            if (row + r >= n) break;
            const size_t at = start + (size_t)(row + r) * m + column + lane;
            const Sum v = part[r * PART + lane];
            if (finish & SUMS) ((Sum *)y)[at] = v;
            else round_to(((T *)y)[at], finished(v, finish, bias, residual, column + lane, at));
        }
    __syncwarp();
}
