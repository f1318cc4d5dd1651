// f32 [rows, n] -> floats of a byte (e4m3) with an f32 scale for each group of a row, whose greatest magnitude becomes 448.
#include "words.h"
#include "arguments.h"

#if __CUDA_ARCH__ >= 900
FN void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
FN void dependency_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
FN void dependency_wait() {}
FN void dependency_launch() {}
#endif

// Two codes, of the nearest numbers; beyond 448 the greatest.
FN uint float8_codes(float low, float high)
{
#if __CUDA_ARCH__ >= 890
    uint r;
    asm("{.reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, %1, %2; cvt.u32.u16 %0, h;}" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    uint r = 0;
    for (uint i = 0; i < 2; ++i) {
        const float v = i ? high : low, m = fminf(fabsf(v), 448.0f);
        const uint bits = __float_as_uint(m);
        const uint code = m < 0.015625f ? (uint)__float2int_rn(m * 512.0f) : ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - 960u;
        r |= (code | (__float_as_uint(v) >> 24 & 128u)) << (8 * i);
    }
    return r;
#endif
}

// A workgroup for each group of a row; group: a multiple of 4.
KERNEL(quantize_f8, 512, IN(0, float4, x), OUT(1, uint, codes), OUT(2, float, scales), COUNT(3, groups), VAL(7, uint, group))
{
    __shared__ float part[16];
    dependency_wait();
    dependency_launch();
    if (blockIdx.x >= COUNTED(groups)) return;
    const size_t start = (size_t)blockIdx.x * (group / 4);
    // A NaN stays: it is the greatest of all bits.
    uint greatest = 0;
    for (uint i = threadIdx.x; i < group / 4; i += 512) {
        const float4 v = x[start + i];
        const uint a = max(__float_as_uint(fabsf(v.x)), __float_as_uint(fabsf(v.y))), b = max(__float_as_uint(fabsf(v.z)), __float_as_uint(fabsf(v.w)));
        greatest = max(greatest, max(a, b));
    }
    #pragma unroll
    for (uint m = 16; m; m >>= 1) greatest = max(greatest, __shfl_xor_sync(~0u, greatest, m));
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = __uint_as_float(greatest);
    __syncthreads();
    greatest = __float_as_uint(part[threadIdx.x & 15]);
    #pragma unroll
    for (uint m = 8; m; m >>= 1) greatest = max(greatest, __shfl_xor_sync(~0u, greatest, m));
    const float most = __uint_as_float(greatest);
    const float inverse = most == 0.0f ? 0.0f : 448.0f / most;
    for (uint i = threadIdx.x; i < group / 4; i += 512) {
        const float4 v = x[start + i];
        codes[start + i] = float8_codes(v.x * inverse, v.y * inverse) | float8_codes(v.z * inverse, v.w * inverse) << 16;
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = most / 448.0f;
}
