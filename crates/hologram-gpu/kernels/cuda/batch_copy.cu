// What products of tensors (batch.h) do before and after their tiles: lines copied to multiples of 16 bytes, i8 brought along k, sums of parts of the depth
// added.
#include "batch.h"

// Lines of `bytes` bytes, one after the other, to lines of `pitch` bytes, a multiple of 16, with zeros at their ends. A thread copies 16 bytes from five
// aligned words. Grid: 16 bytes of all lines / 256.
KERNEL(batch_pad, 256, IN(0, uint, x), OUT(1, uint4, y), COUNT(2, lines), VAL(6, uint, bytes), VAL(7, uint, pitch))
{
    dependency_wait();
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    const uint pieces = pitch / 16;
    const size_t line = i / pieces;
    if (line >= COUNTED(lines)) return;
    const uint at = i % pieces * 16, left = bytes - min(at, bytes);
    const size_t from = line * bytes + at, end = from + min(left, 16u);
    uint words[5];
    #pragma unroll
    for (uint w = 0; w < 5; ++w) words[w] = (from / 4 + w) * 4 < end ? x[from / 4 + w] : 0;
    uint out[4];
    #pragma unroll
    for (uint w = 0; w < 4; ++w) {
        const uint v = __funnelshift_r(words[w], words[w + 1], from % 4 * 8), there = left - min(w * 4, left);
        out[w] = there >= 4 ? v : v & ((1u << there * 8) - 1);
    }
    y[i] = make_uint4(out[0], out[1], out[2], out[3]);
}

// Bytes [matrices, rows, lines] to [matrices, lines, pitch], pitch a multiple of 16, with zeros from `rows` on: 64 × 64 of them through shared memory.
// Grid: tiles of lines · tiles of the pitch · matrices.
KERNEL(batch_turn, 256, IN(0, uchar, x), OUT(1, uchar, y), COUNT(2, matrices), EXTENT(6, rows), VAL(8, uint, lines), VAL(9, uint, pitch))
{
    __shared__ uchar tile[64][68];
    dependency_wait();
    const uint across = (lines + 63) / 64, down = (pitch + 63) / 64, matrix = blockIdx.x / (across * down), rest = blockIdx.x % (across * down);
    const uint line = rest % across * 64, row = rest / across * 64, most = rows_most, there = ACTUAL(rows);
    if (matrix >= COUNTED(matrices)) return;
    const uchar *from = x + (size_t)matrix * most * lines;
    for (uint i = threadIdx.x; i < 4096; i += 256) {
        const uint r = i / 64, l = i % 64;
        tile[r][l] = row + r < there && line + l < lines ? from[(size_t)(row + r) * lines + line + l] : 0;
    }
    __syncthreads();
    for (uint i = threadIdx.x; i < 1024; i += 256) {
        const uint l = i / 16, r = i % 16 * 4;
        if (line + l < lines && row + r < pitch)
            *(uint *)(y + ((size_t)matrix * lines + line + l) * pitch + row + r) = tile[r][l] | tile[r + 1][l] << 8 | tile[r + 2][l] << 16 | (uint)tile[r + 3][l] << 24;
    }
}

// The sums of `splits` parts [splits, rows, m] as the result [rows, m]. Grid: elements / 256; four a thread of 32 bits where m allows.
template <class T, class Sum> FN void join(const Sum *sums, const T *bias, const T *residual, T *y, uint rows, uint m, uint splits, uint finish)
{
    const size_t all = (size_t)rows * m;
    if constexpr (sizeof(Sum) == 4) if (m % 4 == 0) {
        const size_t i = ((size_t)blockIdx.x * 256 + threadIdx.x) * 4;
        if (i >= all) return;
        union { uint4 w; Sum v[4]; } total, part;
        total.w = *(const uint4 *)(sums + i);
        #pragma unroll 1
        for (uint s = 1; s < splits; ++s) {
            part.w = *(const uint4 *)(sums + s * all + i);
            #pragma unroll
            for (uint e = 0; e < 4; ++e) total.v[e] += part.v[e];
        }
        union { uint2 half; uint4 w; T v[4]; } out;
        #pragma unroll
        for (uint e = 0; e < 4; ++e) round_to(out.v[e], finished(total.v[e], finish, bias, residual, (uint)(i % m) + e, i + e));
        if (sizeof(T) == 2) *(uint2 *)(y + i) = out.half;
        else *(uint4 *)(y + i) = out.w;
        return;
    }
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= all) return;
    Sum total = sums[i];
    #pragma unroll 1
    for (uint s = 1; s < splits; ++s) total += sums[s * all + i];
    round_to(y[i], finished(total, finish, bias, residual, (uint)(i % m), i));
}
#define JOIN(name, T, Sum)                                                                                                                 \
    KERNEL(name, 256, IN(0, Sum, sums), IN(1, void, bias), IN(2, void, residual), OUT(3, void, y), COUNT(4, rows), VAL(8, uint, m),           \
        VAL(9, uint, splits), VAL(10, uint, finish))                                                                                        \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        join<T, Sum>((const Sum *)sums, (const T *)bias, (const T *)residual, (T *)y, COUNTED(rows), m, splits, finish);                     \
    }
JOIN(batch_join_bf16, __nv_bfloat16, float)
JOIN(batch_join_f16, half, float)
JOIN(batch_join_f32, float, float)
JOIN(batch_join_i32, int, int)
JOIN(batch_join_f64, double, double)
