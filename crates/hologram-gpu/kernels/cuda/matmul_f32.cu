#include "dialect.h"
// x f32 or bf16 [n, k] · w [m, k]ᵀ -> f32 [n, m] for many tokens, products and sums in f32. A workgroup computes 64 tokens × 128 rows of w in stages of
// 16 elements; a thread 4 tokens × 8 rows. Rows are read four elements at a time where k allows.

// Elements i to i + 4 of a row of length k that begins at element `row`; those from k on are zero.
template <class T> FN float4 four(device const T *w, device const half *, ulong row, uint i, uint k)
{
    const ulong at = row + i;
    if (k % 4 == 0) return i < k ? make_float4(f32(w[at]), f32(w[at + 1]), f32(w[at + 2]), f32(w[at + 3])) : make_float4(0, 0, 0, 0);
    return make_float4(i < k ? f32(w[at]) : 0.0f, i + 1 < k ? f32(w[at + 1]) : 0.0f, i + 2 < k ? f32(w[at + 2]) : 0.0f, i + 3 < k ? f32(w[at + 3]) : 0.0f);
}
FN float4 four(device const char *w, device const half *d, ulong row, uint i, uint k)
{
    if (i >= k) return make_float4(0, 0, 0, 0);
    const ulong at = row + i;
    const float s = f32(d[at / 32]);
    return make_float4(s * float(int(w[at])), s * float(int(w[at + 1])), s * float(int(w[at + 2])), s * float(int(w[at + 3])));
}
// Four codes of `bits` bits in as many bytes, less `zero`.
FN float4 codes(uint v, uint bits, int zero, float s)
{
    const uint mask = (1u << bits) - 1;
    return make_float4(s * float(int(v & mask) - zero), s * float(int(v >> 8 & mask) - zero), s * float(int(v >> 16 & mask) - zero), s * float(int(v >> 24 & mask) - zero));
}
struct Nibbles { uint word; };
struct Trits { uint word; };
FN float4 four(device const Nibbles *w, device const half *d, ulong row, uint i, uint k)
{
    const ulong at = row + i;
    return i < k ? codes(w[at / 32 * 4 + at % 16 / 4].word >> (at / 16 % 2 * 4), 4, 8, f32(d[at / 32])) : make_float4(0, 0, 0, 0);
}
FN float4 four(device const Trits *w, device const half *d, ulong row, uint i, uint k)
{
    const ulong at = row + i;
    return i < k ? codes(w[at / 256 * 16 + at / 128 % 2 * 8 + at % 32 / 4].word >> (at / 32 % 4 * 2), 2, 1, f32(d[at / 256])) : make_float4(0, 0, 0, 0);
}

// Weights in the precision of the activations.
FN float4 as(float4 v, float) { return v; }
FN float4 as(float4 v, bfloat) { return make_float4(f32(to<bfloat>(v.x)), f32(to<bfloat>(v.y)), f32(to<bfloat>(v.z)), f32(to<bfloat>(v.w))); }

#define ROWS 128
#define TOKENS 64
#define DEEP 16
#define W_STRIDE 132
#define X_STRIDE 68

#define MATMUL(name, X, T) \
KERNEL(name, 256, IN(0, X, x), IN(1, T, w), IN(2, half, d), OUT(3, float, y), COUNT(4, tokens), VAL(8, uint, m), VAL(9, uint, k)) \
{ \
    SHARED(float, ws, [2][DEEP * W_STRIDE]); \
    SHARED(float, xs, [2][DEEP * X_STRIDE]); \
    DEPENDENCY_WAIT(); \
    const uint n = COUNTED(tokens); \
    const uint token = GROUP.x * TOKENS, row = GROUP.y * ROWS; \
    if (token >= n) return; \
    /* Loads: thread i fetches elements 4·(i % 4) and on of token i / 4 and of rows i / 4 and i / 4 + 64. */ \
    const uint part = TID % 4 * 4, line = TID / 4; \
    const float4 zero = make_float4(0, 0, 0, 0); \
    const uint first = LOCAL.x % 16 * 4, own = LOCAL.x / 16 * 4; /* rows: 4 from `first` and from `first` + 64; tokens: 4 from `own` */ \
    float4 sum[4][2]; \
    UNROLL for (uint t = 0; t < 4; ++t) sum[t][0] = sum[t][1] = zero; \
    float4 a = token + line < n ? four(x, d, ulong(token + line) * k, part, k) : zero; \
    float4 b0 = row + line < m ? as(four(w, d, ulong(row + line) * k, part, k), X()) : zero; \
    float4 b1 = row + line + 64 < m ? as(four(w, d, ulong(row + line + 64) * k, part, k), X()) : zero; \
    ROLLED for (uint i = 0, buffer = 0; i < k; i += DEEP, buffer ^= 1) { \
        threadgroup float *xb = xs[buffer]; \
        threadgroup float *wb = ws[buffer]; \
        xb[(part + 0) * X_STRIDE + line] = a.x; xb[(part + 1) * X_STRIDE + line] = a.y; xb[(part + 2) * X_STRIDE + line] = a.z; xb[(part + 3) * X_STRIDE + line] = a.w; \
        wb[(part + 0) * W_STRIDE + line] = b0.x; wb[(part + 1) * W_STRIDE + line] = b0.y; wb[(part + 2) * W_STRIDE + line] = b0.z; wb[(part + 3) * W_STRIDE + line] = b0.w; \
        wb[(part + 0) * W_STRIDE + line + 64] = b1.x; wb[(part + 1) * W_STRIDE + line + 64] = b1.y; wb[(part + 2) * W_STRIDE + line + 64] = b1.z; wb[(part + 3) * W_STRIDE + line + 64] = b1.w; \
        BARRIER(); \
        if (i + DEEP < k) { \
            a = token + line < n ? four(x, d, ulong(token + line) * k, i + DEEP + part, k) : zero; \
            b0 = row + line < m ? as(four(w, d, ulong(row + line) * k, i + DEEP + part, k), X()) : zero; \
            b1 = row + line + 64 < m ? as(four(w, d, ulong(row + line + 64) * k, i + DEEP + part, k), X()) : zero; \
        } \
        UNROLL for (uint e = 0; e < DEEP; ++e) { \
            const float4 xv = *(threadgroup const float4 *)(xb + e * X_STRIDE + own); \
            const float4 w0 = *(threadgroup const float4 *)(wb + e * W_STRIDE + first), w1 = *(threadgroup const float4 *)(wb + e * W_STRIDE + 64 + first); \
            fused(sum[0], xv.x, w0, w1); fused(sum[1], xv.y, w0, w1); fused(sum[2], xv.z, w0, w1); fused(sum[3], xv.w, w0, w1); \
        } \
    } \
    UNROLL for (uint t = 0; t < 4; ++t) \
        if (token + own + t < n) { \
            device float *out = y + ulong(token + own + t) * m; \
            put(out, row + first, m, sum[t][0]); put(out, row + first + 64, m, sum[t][1]); \
        } \
}
FN void fused(thread float4 *sum, float x, float4 w0, float4 w1)
{
    sum[0] = make_float4(fma(x, w0.x, sum[0].x), fma(x, w0.y, sum[0].y), fma(x, w0.z, sum[0].z), fma(x, w0.w, sum[0].w));
    sum[1] = make_float4(fma(x, w1.x, sum[1].x), fma(x, w1.y, sum[1].y), fma(x, w1.z, sum[1].z), fma(x, w1.w, sum[1].w));
}
// Four results from row i on.
FN void put(device float *y, uint i, uint m, float4 v)
{
    if (m % 4 == 0) { if (i < m) store4(y + i, v); return; }
    if (i < m) y[i] = v.x;
    if (i + 1 < m) y[i + 1] = v.y;
    if (i + 2 < m) y[i + 2] = v.z;
    if (i + 3 < m) y[i + 3] = v.w;
}
MATMUL(matmul_f32_f32, float, float)
MATMUL(matmul_f32_f16, float, half)
MATMUL(matmul_f32_bf16, float, bfloat)
MATMUL(matmul_f32_q8, float, char)
MATMUL(matmul_f32_q4, float, Nibbles)
MATMUL(matmul_f32_t2, float, Trits)
MATMUL(matmul_bf16_f16, bfloat, half)
MATMUL(matmul_bf16_bf16, bfloat, bfloat)
MATMUL(matmul_bf16_q8, bfloat, char)
MATMUL(matmul_bf16_q4, bfloat, Nibbles)

// Results too few for the tiles above to occupy the GPU, such as a router's: a warp computes 8 tokens × 4 rows, its lanes along the rows; k is a multiple
// of 4. Grid: tokens / 8, rows / 32.
#define FEW_TOKENS 8
#define FEW_ROWS 4
HOST(FEW_TOKENS, FEW_ROWS, TOKENS, ROWS)
KERNEL(matmul_small, 256, IN(0, float, x), IN(1, float, w), OUT(2, float, y), COUNT(3, tokens), VAL(7, uint, m), VAL(8, uint, k))
{
    DEPENDENCY_WAIT();
    const uint n = COUNTED(tokens), token = GROUP.x * FEW_TOKENS, row = (GROUP.y * 8 + SIMD) * FEW_ROWS;
    if (token >= n || row >= m) return;
    float sum[FEW_TOKENS][FEW_ROWS];
    UNROLL for (uint t = 0; t < FEW_TOKENS; ++t) UNROLL for (uint r = 0; r < FEW_ROWS; ++r) sum[t][r] = 0;
    // Tokens and rows beyond the last stand for it.
    ROLLED for (uint i = LANE * 4; i < k; i += 128) {
        float4 b[FEW_ROWS];
        UNROLL for (uint r = 0; r < FEW_ROWS; ++r) b[r] = load4(w + ulong(min(row + r, m - 1)) * k + i);
        UNROLL for (uint t = 0; t < FEW_TOKENS; ++t) {
            const float4 a = load4(x + ulong(min(token + t, n - 1)) * k + i);
            UNROLL for (uint r = 0; r < FEW_ROWS; ++r) sum[t][r] += dot(a, b[r]);
        }
    }
    DEPENDENCY_LAUNCH();
    UNROLL for (uint t = 0; t < FEW_TOKENS; ++t) UNROLL for (uint r = 0; r < FEW_ROWS; ++r) {
        const float v = simd_sum(sum[t][r]);
        if (LANE == t * FEW_ROWS + r && token + t < n && row + r < m) y[ulong(token + t) * m + row + r] = v;
    }
}
