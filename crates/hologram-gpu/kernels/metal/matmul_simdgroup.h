// Products of many tokens on simdgroup matrices: x [n, k] · w [m, k]ᵀ for one to three matrices that share x, and what is added to the product of
// one, or the gate that two make. Elements become f32 when they are staged, or bf16 beside activations in bf16, so that only the order of sums differs
// from the product of what is given. A workgroup of 128 threads computes 64 tokens × 64 rows, or of at most 32 tokens `wide` tiles of 32 × 128, each
// SIMD-group 32 × 32 of them, in stages of 64 bytes of k: 32 elements of bf16, 16 of f32. Of a gate half of the rows are of either matrix, 32 after 32.
// The last stage may be part of one.
#include "stream.h"
#include "packed.h"

#define STAGE_BYTES 80  // of a staged row: 64, and 16 so that rows begin in different banks
#define OUT_STRIDE 68
// Tokens and rows of a tile; those of a wide one, for few tokens.
#define TOKENS 64
#define ROWS 64
#define WIDE_TOKENS 32
#define WIDE_ROWS 128
HOST(TOKENS, ROWS, WIDE_TOKENS, WIDE_ROWS)

// How activations of a type are staged, with the weights beside them; and what a thread holds of a row meanwhile: 16 bytes.
template <typename X> struct Staged { typedef float T; };
template <> struct Staged<bfloat> { typedef bfloat T; };
template <typename T> struct Piece;
template <> struct Piece<float> { float4 v; };
template <> struct Piece<bfloat> { bfloat4 v; bfloat4 w; };
template <typename T> FN constexpr uint deep() { return 64 / sizeof(T); }
template <typename T> FN constexpr uint stride() { return STAGE_BYTES / sizeof(T); }

// Formats of w beside those of `packed.h`.
enum Elements : uint { W_F32 = 32, W_F16, W_BF16 };
enum Mode : uint { STORE, ADD, SWIGLU, RELU2 };

// Elements or codes; scales or records; the high plane of packed weights that have one.
struct Matrix { device const uchar *w; device const uchar *s; device const uchar *h; };
struct Task {
    device const float *x_scales;
    Matrix first, second, third;
    device const float *add; device float *y0; device float *y1; device float *y2;
    uint n, m0, m1, m2, k, group, mode;
    bool narrow, wide;      // narrow: results are bf16
};

// Elements i to i + 4 of a row that begins at element `row`; those from k on are zero. Rows of codes have whole fours.
template <typename T> FN float4 plain(device const T *p, uint i, uint k)
{
    if (k % 4 == 0) {
        if (i >= k) return float4(0.0f);
        const vec<T, 4> v = *(device const vec<T, 4> *)p;
        return float4(v);
    }
    return float4(i < k ? f32(p[0]) : 0.0f, i + 1 < k ? f32(p[1]) : 0.0f, i + 2 < k ? f32(p[2]) : 0.0f, i + 3 < k ? f32(p[3]) : 0.0f);
}
FN float4 left(device const float *x, device const float *, ulong row, uint i, uint k, uint) { return plain(x + row + i, i, k); }
FN float4 left(device const bfloat *x, device const float *, ulong row, uint i, uint k, uint) { return plain(x + row + i, i, k); }
FN float4 left(device const char *x, device const float *scales, ulong row, uint i, uint k, uint group)
{
    if (i >= k) return float4(0.0f);
    const ulong at = row + i;
    return float4(float(x[at]), float(x[at + 1]), float(x[at + 2]), float(x[at + 3])) * scales[at / group];
}
// Four codes in the low bits of four bytes, less `zero`.
FN float4 bytes(uint v, uint mask, float zero) { return float4(float(v & mask), float(v >> 8 & mask), float(v >> 16 & mask), float(v >> 24 & mask)) - zero; }
// The same of weights, of which a row begins at element `row` of the matrix. Only the words that the four are in are read.
template <uint W> FN float4 right(thread const Matrix &a, ulong row, uint i, uint k)
{
    const ulong at = row + i;
    if (W == W_F32) return plain((device const float *)a.w + at, i, k);
    if (W == W_F16) return plain((device const half *)a.w + at, i, k);
    if (W == W_BF16) return plain((device const bfloat *)a.w + at, i, k);
    if (i >= k) return float4(0.0f);
    if (W == Q8) {
        const char4 v = *(device const char4 *)(a.w + at);
        return float4(v) * f32(((device const half *)a.s)[at / 32]);
    }
    if (W == Q4) return bytes(stream4(a.w + at / 32 * 16 + at % 16) >> (at / 16 % 2 * 4), 15u, 8.0f) * f32(((device const half *)a.s)[at / 32]);
    if (W == T2) return bytes(stream4(a.w + at / 256 * 64 + at / 128 % 2 * 32 + at % 32) >> (at / 32 % 4 * 2), 3u, 1.0f) * f32(((device const half *)a.s)[at / 256]);
    const ulong chunk = at / 32;
    const uint j = uint(at % 32) / 4, t = uint(chunk % record_chunks<W>());
    Chunk<W> c;
    const uint low = stream4(a.w + chunk * low_bytes<W>() + (low_bits<W>() == 2 ? j / 4 : is_table<W>() ? j / 2 : j % 4) * 4);
    c.low = uint4(low, low, low, low);
    if (high_bits<W>() != 0) {
        const uint high = stream4(a.h + chunk * high_bytes<W>() + (high_bits<W>() == 2 ? j / 4 * 4 : 0));
        c.high = uint2(high, high);
    }
    device const uchar *record = a.s + chunk / record_chunks<W>() * record_bytes<W>();
    load_record<W>(c, record, t, true);
    return chunk_values<W>(c, j);
}
// A piece of activations from element i of a row on, and of weights.
template <typename X> FN void take_left(thread Piece<float> &p, device const X *x, device const float *scales, ulong row, uint i, uint k, uint group) { p.v = left(x, scales, row, i, k, group); }
FN void take_left(thread Piece<bfloat> &p, device const bfloat *x, device const float *, ulong row, uint i, uint k, uint)
{
    p.v = bfloat4(left(x, 0, row, i, k, 0));
    p.w = bfloat4(left(x, 0, row, i + 4, k, 0));
}
template <uint W> FN void take_right(thread Piece<float> &p, thread const Matrix &a, ulong row, uint i, uint k) { p.v = right<W>(a, row, i, k); }
template <uint W> FN void take_right(thread Piece<bfloat> &p, thread const Matrix &a, ulong row, uint i, uint k)
{
    p.v = bfloat4(right<W>(a, row, i, k));
    p.w = bfloat4(right<W>(a, row, i + 4, k));
}
FN void keep(threadgroup float *p, thread const Piece<float> &v) { *(threadgroup float4 *)p = v.v; }
FN void keep(threadgroup bfloat *p, thread const Piece<bfloat> &v)
{
    *(threadgroup bfloat4 *)p = v.v;
    *(threadgroup bfloat4 *)(p + 4) = v.w;
}

// The products of a stage: rows of x and w lie in shared memory as they are, so that those of w are loaded transposed.
template <typename T> FN void multiply(thread simdgroup_float8x8 (&sum)[4][4], threadgroup const T *xs, threadgroup const T *ws)
{
    UNROLL for (uint e = 0; e < deep<T>(); e += 8) {
        simdgroup_matrix<T, 8, 8> a[4], b[4];
        UNROLL for (uint i = 0; i < 4; ++i) simdgroup_load(a[i], xs + i * 8 * stride<T>() + e, stride<T>());
        UNROLL for (uint j = 0; j < 4; ++j) simdgroup_load(b[j], ws + j * 8 * stride<T>() + e, stride<T>(), ulong2(0, 0), true);
        UNROLL for (uint i = 0; i < 4; ++i) UNROLL for (uint j = 0; j < 4; ++j) simdgroup_multiply_accumulate(sum[i][j], a[i], b[j], sum[i][j]);
    }
}

// Writes 32 tokens × 64 rows of results that lie in shared memory.
FN void put(device float *y, device const float *add, threadgroup const float *space, uint token, uint row, uint n, uint m, uint tid)
{
    UNROLL for (uint u = 0; u < 4; ++u) {
        const uint t = tid / 16 + u * 8, r = tid % 16 * 4;
        if (token + t >= n) continue;
        const float4 v = *(threadgroup const float4 *)(space + t * OUT_STRIDE + r);
        const ulong at = ulong(token + t) * m + row + r;
        if (m % 4 == 0) {
            if (row + r < m) store4(y + at, add ? v + load4(add + at) : v);
        } else {
            UNROLL for (uint c = 0; c < 4; ++c) if (row + r + c < m) y[at + c] = add ? v[c] + add[at + c] : v[c];
        }
    }
}

// The same of a gate, whose rows are followed by those that it is multiplied with.
FN void put_gate(thread const Task &a, threadgroup const float *space, uint token, uint row, uint tid)
{
    UNROLL for (uint u = 0; u < 8; ++u) {
        const uint t = tid / 32 + u * 4, r = tid % 32;
        if (token + t >= a.n || row + r >= a.m0) continue;
        const float g = space[t * OUT_STRIDE + r], up = space[t * OUT_STRIDE + 32 + r];
        const float v = a.mode == SWIGLU ? g * (1.0f / (1.0f + exp(-g))) * up : relu2(g, up);
        const ulong at = ulong(token + t) * a.m0 + row + r;
        if (a.narrow) ((device bfloat *)a.y0)[at] = bfloat(v);
        else a.y0[at] = v;
    }
}

// Tile group.y of the rows of all matrices, for the tokens of group.x. Shared memory: stages of x and w, then half of the results.
template <typename X, uint W> FN void matmul(thread const Task &a, device const X *x, threadgroup float *space, uint2 group, uint tid, uint simd)
{
    typedef typename Staged<X>::T T;
    constexpr uint DEEP = deep<T>(), STRIDE = stride<T>();
    const uint tokens = a.wide ? WIDE_TOKENS : TOKENS, rows = a.wide ? WIDE_ROWS : ROWS, token = group.x * tokens, k = a.k;
    if (token >= a.n) return;
    const bool gated = a.mode >= SWIGLU;
    uint tile = group.y, m = a.m0;
    Matrix one = a.first;
    device float *y = a.y0;
    if (!gated && tile >= (m + rows - 1) / rows) {
        tile -= (m + rows - 1) / rows;
        m = a.m1; one = a.second; y = a.y1;
        if (tile >= (m + rows - 1) / rows) {
            tile -= (m + rows - 1) / rows;
            m = a.m2; one = a.third; y = a.y2;
        }
    }
    Matrix two = one;
    if (gated) two = a.second;
    // From 32 staged rows to the next, and from 64 to the next.
    const uint step = gated ? 0 : 32, leap = gated ? 32 : 64, row = tile * (gated ? rows / 2 : rows);
    threadgroup T *xs = (threadgroup T *)space, *ws = xs + tokens * STRIDE;
    // A thread stages piece tid % 4 of tokens and rows tid / 4, tid / 4 + 32, …
    const uint part = tid % 4 * (DEEP / 4), line = tid / 4, r = row + line;
    const bool x0 = token + line < a.n, x1 = !a.wide && token + line + 32 < a.n;
    const bool w0 = r < m, w1 = r + step < m, w2 = a.wide && r + leap < m, w3 = a.wide && r + leap + step < m;
    const ulong xr = ulong(token + line) * k, x_on = ulong(32) * k, wr = ulong(r) * k, w_on = ulong(step) * k, w_far = ulong(leap) * k;
    simdgroup_float8x8 sum[4][4];
    UNROLL for (uint i = 0; i < 4; ++i) UNROLL for (uint j = 0; j < 4; ++j) sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    Piece<T> a0 = {}, a1 = {}, b0 = {}, b1 = {}, b2 = {}, b3 = {};
    const uint at_x = a.wide ? 0 : simd / 2 * 32 * STRIDE, at_w = (a.wide ? simd : simd % 2) * 32 * STRIDE;
    // Each stage is read while the one before it is multiplied.
    ROLLED for (uint i = 0; i < k + DEEP; i += DEEP) {
        if (i != 0) {
            threadgroup T *to_x = xs + line * STRIDE + part, *to_w = ws + line * STRIDE + part;
            keep(to_x, a0);
            keep(to_w, b0);
            keep(to_w + 32 * STRIDE, b1);
            if (a.wide) {
                keep(to_w + 64 * STRIDE, b2);
                keep(to_w + 96 * STRIDE, b3);
            } else keep(to_x + 32 * STRIDE, a1);
            BARRIER();
        }
        if (i < k) {
            const uint e = i + part;
            if (x0) take_left(a0, x, a.x_scales, xr, e, k, a.group);
            if (x1) take_left(a1, x, a.x_scales, xr + x_on, e, k, a.group);
            if (w0) take_right<W>(b0, one, wr, e, k);
            if (w1) take_right<W>(b1, two, wr + w_on, e, k);
            if (w2) take_right<W>(b2, one, wr + w_far, e, k);
            if (w3) take_right<W>(b3, two, wr + w_far + w_on, e, k);
        }
        if (i != 0) {
            multiply(sum, xs + at_x, ws + at_w);
            BARRIER();
        }
    }
    UNROLL for (uint h = 0; h < 2; ++h) {
        if (simd / 2 == h) UNROLL for (uint i = 0; i < 4; ++i) UNROLL for (uint j = 0; j < 4; ++j)
            simdgroup_store(sum[i][j], space + i * 8 * OUT_STRIDE + simd % 2 * 32 + j * 8, OUT_STRIDE);
        BARRIER();
        const uint to_token = token + (a.wide ? 0 : h * 32), to_row = row + (a.wide ? h * leap : 0);
        if (gated) put_gate(a, space, to_token, to_row, tid);
        else put(y, a.add, space, to_token, to_row, a.n, m, tid);
        BARRIER();
    }
}

// Grid: ⌈n / tokens of a tile⌉, and its rows of a matrix after the other; of a gate half as many. `add` f32 [n, m0] is used in mode ADD.
#define MATMUL(name, X, W) \
KERNEL(name, 128, IN(0, X, x), IN(1, float, x_scales), IN(2, uchar, w0), IN(3, uchar, w1), IN(4, uchar, w2), IN(5, uchar, s0), IN(6, uchar, s1), IN(7, uchar, s2), \
       IN(8, uchar, h0), IN(9, uchar, h1), IN(10, uchar, h2), IN(11, float, add), OUT(12, float, y0), OUT(13, float, y1), OUT(14, float, y2), COUNT(15, tokens), \
       VAL(19, uint, m0), VAL(20, uint, m1), VAL(21, uint, m2), VAL(22, uint, k), VAL(23, uint, group), VAL(24, uint, mode), VAL(25, uint, narrow), VAL(26, uint, wide)) \
{ \
    SHARED(float, space, [(WIDE_TOKENS + WIDE_ROWS) * STAGE_BYTES / 4]); \
    const Matrix first = {w0, s0, h0}, second = {w1, s1, h1}, third = {w2, s2, h2}; \
    const Task a = {x_scales, first, second, third, mode == ADD ? add : 0, y0, y1, y2, COUNTED(tokens), m0, m1, m2, k, group, mode, narrow != 0, wide != 0}; \
    matmul<X, W>(a, x, space, GROUP.xy, TID, SIMD); \
}
