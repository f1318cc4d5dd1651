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
