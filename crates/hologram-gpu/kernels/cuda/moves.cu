// Copies of views, and tensors joined along a dimension. Elements are words of 1, 2, 4, 8 or 16 bytes: the widest of which all offsets and
// lengths are multiples.
#include "words.h"
#include "arguments.h"

__device__ __forceinline__ void begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// y [.., n1, n2, n3] = the words of x from `offset` on with strides s0 … s3. Grid: workgroups of 256 words.
#define COPY_VIEW(name, T) \
KERNEL(name, 256, IN(0, T, x), OUT(1, T, y), COUNT(2, total), VAL(6, uint, n1), VAL(7, uint, n2), VAL(8, uint, n3), VAL(9, uint, s0), VAL(10, uint, s1), VAL(11, uint, s2), \
    VAL(12, uint, s3), VAL(13, uint, offset)) \
{ \
    begin(); \
    const unsigned i = blockIdx.x * 256 + threadIdx.x; \
    if (i >= COUNTED(total)) return; \
    const unsigned a = i / n3, b = a / n2, c = b / n1; \
    y[i] = x[size_t(offset) + size_t(c) * s0 + size_t(b - c * n1) * s1 + size_t(a - b * n2) * s2 + size_t(i - a * n3) * s3]; \
}
COPY_VIEW(copy_view_1, unsigned char)
COPY_VIEW(copy_view_2, unsigned short)
COPY_VIEW(copy_view_4, unsigned)
COPY_VIEW(copy_view_8, uint2)
COPY_VIEW(copy_view_16, uint4)

// y [.., rows, .., columns] = the words of x from `offset` on, of which those of a column lie one after the other: a square of SIDE × SIDE goes through
// shared memory, so that both are accessed in runs. Of the dimensions beside rows and columns n0 and n1 say the sizes, s0 and s1 the strides in x, and
// t0, t1 and t, that of rows, those in y; columns lie s words apart in x and one in y. Only the outermost dimension may vary. Grid: squares of a row ·
// rows of squares · n0 · n1.
#define TURN_VIEW(name, T, SIDE) \
KERNEL(name, 256, IN(0, T, x), OUT(1, T, y), COUNT(2, total), VAL(6, uint, n0), VAL(7, uint, n1), VAL(8, uint, rows), VAL(9, uint, columns), VAL(10, uint, s0), VAL(11, uint, s1), \
    VAL(12, uint, s), VAL(13, uint, t0), VAL(14, uint, t1), VAL(15, uint, t), VAL(16, uint, offset)) \
{ \
    __shared__ T square[SIDE][SIDE + 1]; \
    begin(); \
    const unsigned across = (columns + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE, other = blockIdx.x / across / down; \
    const unsigned column = blockIdx.x % across * SIDE, row = blockIdx.x / across % down * SIDE, a = other / n1, b = other % n1; \
    const unsigned first = threadIdx.x % SIDE, second = threadIdx.x / SIDE; \
    const size_t from = size_t(offset) + size_t(a) * s0 + size_t(b) * s1, to = size_t(a) * t0 + size_t(b) * t1; \
    const size_t end = COUNTED(total); \
    _Pragma("unroll") \
    for (unsigned i = 0; i < SIDE; i += 256 / SIDE) { \
        const unsigned r = row + first, c = column + second + i; \
        if (r < rows && c < columns && to + size_t(r) * t < end) square[second + i][first] = x[from + r + size_t(c) * s]; \
    } \
    __syncthreads(); \
    _Pragma("unroll") \
    for (unsigned i = 0; i < SIDE; i += 256 / SIDE) { \
        const unsigned r = row + second + i, c = column + first; \
        if (r < rows && c < columns && to + size_t(r) * t < end) y[to + size_t(r) * t + c] = square[first][second + i]; \
    } \
}
TURN_VIEW(turn_view_1, unsigned char, 64)
TURN_VIEW(turn_view_2, unsigned short, 64)
TURN_VIEW(turn_view_4, unsigned, 32)
TURN_VIEW(turn_view_8, uint2, 32)

// Runs of n0 words of a, n1 of b, and so on, after one another. Inputs that there are not have no words. Grid: workgroups of 256 words.
#define CONCAT(name, T) \
KERNEL(name, 256, IN(0, T, a), IN(1, T, b), IN(2, T, c), IN(3, T, d), OUT(4, T, y), COUNT(5, total), VAL(9, uint, n0), VAL(10, uint, n1), VAL(11, uint, n2), VAL(12, uint, n3)) \
{ \
    begin(); \
    const unsigned i = blockIdx.x * 256 + threadIdx.x, whole = n0 + n1 + n2 + n3; \
    if (i >= COUNTED(total)) return; \
    const unsigned row = i / whole, at = i - row * whole; \
    y[i] = at < n0 ? a[size_t(row) * n0 + at] : at < n0 + n1 ? b[size_t(row) * n1 + at - n0] : at < n0 + n1 + n2 ? c[size_t(row) * n2 + at - n0 - n1] \
                                                                                                : d[size_t(row) * n3 + at - n0 - n1 - n2]; \
}
CONCAT(concat_1, unsigned char)
CONCAT(concat_2, unsigned short)
CONCAT(concat_4, unsigned)
CONCAT(concat_8, uint2)
CONCAT(concat_16, uint4)
