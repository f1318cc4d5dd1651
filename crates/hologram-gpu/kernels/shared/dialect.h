// One kernel text, two GPU languages: every `.k` file begins with `#include "dialect.h"`.
//   NVRTC:  __CUDACC_RTC__ is defined.     Metal: newLibraryWithSource.
// Rules of the dialect :
//   * every pointer says device / threadgroup / constant / thread;   * shared arrays: SHARED(T, name, [N]) in kernels only
//   * positions: GROUP LOCAL LOCAL_SIZE (uint3), TID LANE SIMD NSIMD (uint);   * vectors are built with make_float4(...), no splat
//   * scalars of element type T go through f32(x) and to<T>(x);   * every lane takes part in simd_* operations
#ifdef __CUDACC_RTC__
//------------------------------------------------------------------------------------------------- CUDA
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar; typedef unsigned long long ulong;
typedef __nv_bfloat16 bfloat;
#define device
#define threadgroup
#define thread
#define constant const
#define FN __forceinline__      /* with -default-device: __device__ expands to __attribute__((device)), which the empty macro `device` would spoil */
#define SHARED(T, n, dims) __shared__ __align__(16) T n dims
#define GROUP blockIdx
#define LOCAL threadIdx
#define LOCAL_SIZE blockDim
#define TID (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))
#define LANE (TID & 31u)
#define SIMD (TID >> 5)
#define NSIMD ((blockDim.x * blockDim.y * blockDim.z + 31u) >> 5)
// Programmatic dependent launch: a kernel that may start early waits before it touches what other launches write or read, and lets the
// next one start when it has little left to do.
#if __CUDA_ARCH__ >= 900
#define DEPENDENCY_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#define DEPENDENCY_LAUNCH() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define DEPENDENCY_WAIT()
#define DEPENDENCY_LAUNCH()
#endif
#define NAN __int_as_float(0x7fffffff)
#define INFINITY __int_as_float(0x7f800000)
// The shared memory of KERNEL_SHARED.
#define DYNAMIC_SHARED(n) extern __shared__ __align__(16) uchar n[]
// Copies of 16 or 4 bytes to shared memory that the calling thread alone uses: COPY_WAIT(n) leaves at most the n newest groups under way.
// Streams are read once: they leave the L2 first. `to` must differ from thread to thread: ptxas 13.0 encodes a uniform one wrongly.
FN ulong stream_policy() { ulong p; asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p)); return p; }
#define COPY16(to, from, policy) asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" :: "r"((uint)__cvta_generic_to_shared(to)), "l"(from), "l"(policy) : "memory")
#define COPY4(to, from, policy) asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 4, %2;" :: "r"((uint)__cvta_generic_to_shared(to)), "l"(from), "l"(policy) : "memory")
#define COPY4_KEPT(to, from) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((uint)__cvta_generic_to_shared(to)), "l"(from) : "memory")
#define COPY_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPY_WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
#define PREFETCH(p) asm volatile("prefetch.global.L2 [%0];" :: "l"(p))
// Reads of what the launch before wrote, never moved before DEPENDENCY_WAIT() as the compiler may move those of IN parameters.
FN float4 fresh(const float4 *p) { float4 v; asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p)); return v; }
FN float fresh(const float *p) { float v; asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p)); return v; }
FN uint2 fresh(const uint2 *p) { uint2 v; asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p)); return v; }
FN uint fresh(const uint *p) { uint v; asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
FN int dot4(uint a, uint b, int c) { return __dp4a((int)a, (int)b, c); }
FN int dot4_unsigned(uint a, uint b, int c) { int d; asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }   /* a without, b with a sign */
FN float as_f32(uint x) { return __uint_as_float(x); }
FN uint as_u32(float x) { return __float_as_uint(x); }
FN float half_bits(uint x) { return __half2float(__ushort_as_half((ushort)x)); }
FN uint bfloat_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16(x)); }
FN float rounded_product(float a, float b) { return __fmul_rn(a, b); }   /* never part of an fma */
FN float inverse_root(float x) { return rsqrtf(x); }
#define BARRIER() __syncthreads()
#define BARRIER_DEVICE() __syncthreads()        /* orders the workgroup's accesses to device memory too */
// A barrier that says whether any thread's word is not zero; `words` is shared, one for each SIMD-group.
#define BARRIER_ANY(words, word, lane, simd, nsimd) __syncthreads_or(word)
// Whether this workgroup is the last of `of` to come here; it then sees what the others wrote. `flag` is shared. The counter ends at zero.
__forceinline__ bool arrives_last(uint *counter, uint of, uint *flag, uint tid)
{
    __syncthreads();
    if (tid == 0) {
        uint before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(__cvta_generic_to_global(counter)) : "memory");
        *flag = before == of - 1;
        if (*flag) *counter = 0;
    }
    __syncthreads();
    return *flag;
}
#define SIMD_BARRIER() __syncwarp()
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
template <class T> FN T simd_shuffle_xor(T x, uint m) { return __shfl_xor_sync(~0u, x, m); }
template <class T> FN T simd_broadcast(T x, uint l) { return __shfl_sync(~0u, x, l); }
template <class T> FN T simd_shuffle(T x, uint l) { return __shfl_sync(~0u, x, l); }
template <class T> FN T simd_sum(T x) { for (uint m = 16; m; m >>= 1) x = x + simd_shuffle_xor(x, m); return x; }
template <class T> FN T simd_max(T x) { for (uint m = 16; m; m >>= 1) x = max(x, simd_shuffle_xor(x, m)); return x; }
#if __CUDA_ARCH__ >= 800
FN uint simd_sum(uint x) { return __reduce_add_sync(~0u, x); }
FN uint simd_max(uint x) { return __reduce_max_sync(~0u, x); }
#endif
// The sum over the lanes before this one.
template <class T> FN T simd_sum_before(T x, uint lane)
{
    for (uint m = 1; m < 32; m *= 2) { const T y = __shfl_up_sync(~0u, x, m); if (lane >= m) x = x + y; }
    x = __shfl_up_sync(~0u, x, 1);
    return lane == 0 ? T(0) : x;
}
FN uint mulhi(uint a, uint b) { return __umulhi(a, b); }
FN uint as_uint(float x) { return __float_as_uint(x); } FN float as_float(uint x) { return __uint_as_float(x); }
FN float f32(float x) { return x; } FN float f32(half x) { return __half2float(x); } FN float f32(bfloat x) { return __bfloat162float(x); }
template <class T> FN T to(float x); template <> FN float to<float>(float x) { return x; } template <> FN half to<half>(float x) { return __float2half(x); } template <> FN bfloat to<bfloat>(float x) { return __float2bfloat16(x); }
#define VOP(op) FN float2 operator op(float2 a, float2 b) { return make_float2(a.x op b.x, a.y op b.y); } FN float2 operator op(float2 a, float b) { return make_float2(a.x op b, a.y op b); } \
  FN float4 operator op(float4 a, float4 b) { return make_float4(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); } FN float4 operator op(float4 a, float b) { return make_float4(a.x op b, a.y op b, a.z op b, a.w op b); }
VOP(+) VOP(-) VOP(*)
// Counters in shared memory
typedef uint counter;
FN void counter_set(counter *c, uint n) { *c = n; }
FN uint counter_get(counter *c) { return *c; }
FN uint counter_add(counter *c, uint n) { return atomicAdd(c, n); }
FN float clamp(float x, float least, float most) { return fminf(fmaxf(x, least), most); }
// The wider of two magnitudes, of which one that is no number is the widest.
FN float wider(float a, float b) { float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
FN float4 load4(const float *p) { return *(const float4 *)p; }
FN void store4(float *p, float4 v) { *(float4 *)p = v; }
FN void store4(half *p, float4 v) { union { half2 h[2]; uint2 w; } u; u.h[0] = __floats2half2_rn(v.x, v.y); u.h[1] = __floats2half2_rn(v.z, v.w); *(uint2 *)p = u.w; }
FN void store4(bfloat *p, float4 v) { union { __nv_bfloat162 h[2]; uint2 w; } u; u.h[0] = __floats2bfloat162_rn(v.x, v.y); u.h[1] = __floats2bfloat162_rn(v.z, v.w); *(uint2 *)p = u.w; }
FN float2 halves(uint w) { union { uint w; half2 h; } u; u.w = w; return __half22float2(u.h); }
FN float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
// 16x16 matrix tiles held by one SIMD-group
struct TileA { nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> f; };
struct TileB { nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::row_major> f; };
struct TileC { nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f; };
FN void tile_zero(TileC &c) { nvcuda::wmma::fill_fragment(c.f, 0.0f); }
FN void tile_load(TileA &a, const half *p, uint ld) { nvcuda::wmma::load_matrix_sync(a.f, p, ld); }
FN void tile_load(TileB &b, const half *p, uint ld) { nvcuda::wmma::load_matrix_sync(b.f, p, ld); }
FN void tile_mma(TileC &c, const TileA &a, const TileB &b) { nvcuda::wmma::mma_sync(c.f, a.f, b.f, c.f); }
FN void tile_store(float *p, const TileC &c, uint ld) { nvcuda::wmma::store_matrix_sync(p, c.f, ld, nvcuda::wmma::mem_row_major); }
#else
//------------------------------------------------------------------------------------------------- Metal
#include <metal_stdlib>
using namespace metal;
#define FN METAL_FUNC
// Kernels access arrays 16 bytes at a time, and MSL gives them only the alignment of their elements.
#define SHARED(T, n, dims) alignas(16) threadgroup T n dims
#define DEPENDENCY_WAIT()
#define DEPENDENCY_LAUNCH()
#define DYNAMIC_SHARED(n) threadgroup uchar *n = shared_bytes
FN ulong stream_policy() { return 0; }
#define COPY16(to, from, policy) (*(to) = *(device const uint4 *)(from))
#define COPY4(to, from, policy) (*(to) = *(device const uint *)(from))
#define COPY4_KEPT(to, from) (*(to) = *(device const uint *)(from))
#define COPY_COMMIT()
#define COPY_WAIT(n)
#define PREFETCH(p)
template <typename T> FN T fresh(device const T *p) { return *p; }
FN int dot4(uint a, uint b, int c) { const int4 p = int4(as_type<char4>(a)) * int4(as_type<char4>(b)); return c + p.x + p.y + p.z + p.w; }
FN int dot4_unsigned(uint a, uint b, int c) { const int4 p = int4(as_type<uchar4>(a)) * int4(as_type<char4>(b)); return c + p.x + p.y + p.z + p.w; }
FN float as_f32(uint x) { return as_type<float>(x); }
FN uint as_u32(float x) { return as_type<uint>(x); }
FN float half_bits(uint x) { return float(as_type<half>(ushort(x))); }
FN uint bfloat_bits(float x) { return as_type<ushort>(bfloat(x)); }
FN float rounded_product(float a, float b) {
#pragma clang fp contract(off)
  return a * b;
}
FN float inverse_root(float x) { return rsqrt(x); }
#define BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define BARRIER_DEVICE() threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)
#define BARRIER_ANY barrier_any
FN uint barrier_any(threadgroup uint *words, uint word, uint lane, uint simd, uint nsimd)
{
    word = simd_max(word);
    BARRIER();
    if (lane == 0) words[simd] = word;
    BARRIER();
    return simd_max(lane < nsimd ? words[lane] : 0u);
}
// Metal has no order of memory between workgroups of a launch: what they wrote is put together by a launch of its own.
FN bool arrives_last(device uint *, uint, threadgroup uint *, uint) { return false; }
#define SIMD_BARRIER() simdgroup_barrier(mem_flags::mem_threadgroup)
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLLED _Pragma("clang loop unroll(disable)")
FN float2 make_float2(float x, float y) { return float2(x, y); }
FN float4 make_float4(float x, float y, float z, float w) { return float4(x, y, z, w); }
template <typename T> FN T simd_sum_before(T x, uint) { return simd_prefix_exclusive_sum(x); }
FN uint as_uint(float x) { return as_type<uint>(x); } FN float as_float(uint x) { return as_type<float>(x); }
FN float f32(float x) { return x; } FN float f32(half x) { return float(x); } FN float f32(bfloat x) { return float(x); }
template <typename T> FN T to(float x) { return T(x); }
FN float wider(float a, float b) { return as_float(max(as_uint(a) & 0x7fffffffu, as_uint(b) & 0x7fffffffu)); }
typedef atomic_uint counter;
FN void counter_set(threadgroup counter *c, uint n) { atomic_store_explicit(c, n, memory_order_relaxed); }
FN uint counter_get(threadgroup counter *c) { return atomic_load_explicit(c, memory_order_relaxed); }
FN uint counter_add(threadgroup counter *c, uint n) { return atomic_fetch_add_explicit(c, n, memory_order_relaxed); }
FN float4 load4(device const float *p) { return *(device const float4 *)p; }
FN void store4(device float *p, float4 v) { *(device float4 *)p = v; }
FN void store4(device half *p, float4 v) { *(device half4 *)p = half4(v); }
FN void store4(device bfloat *p, float4 v) { *(device bfloat4 *)p = bfloat4(v); }
FN float2 halves(uint w) { return float2(as_type<half2>(w)); }
struct TileA { simdgroup_half8x8 f[2][2]; }; struct TileB { simdgroup_half8x8 f[2][2]; }; struct TileC { simdgroup_float8x8 f[2][2]; };
#define E4(i, j) for (uint i = 0; i < 2; ++i) for (uint j = 0; j < 2; ++j)
FN void tile_zero(thread TileC &c) { E4(i, j) c.f[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f); }
FN void tile_load(thread TileA &a, threadgroup const half *p, uint ld) { E4(i, j) simdgroup_load(a.f[i][j], p + i * 8 * ld + j * 8, ld); }
FN void tile_load(thread TileB &a, threadgroup const half *p, uint ld) { E4(i, j) simdgroup_load(a.f[i][j], p + i * 8 * ld + j * 8, ld); }
FN void tile_mma(thread TileC &c, thread const TileA &a, thread const TileB &b) { E4(i, j) for (uint k = 0; k < 2; ++k) simdgroup_multiply_accumulate(c.f[i][j], a.f[i][k], b.f[k][j], c.f[i][j]); }
FN void tile_store(device float *p, thread const TileC &c, uint ld) { E4(i, j) simdgroup_store(c.f[i][j], p + i * 8 * ld + j * 8, ld); }
#endif
#include "arguments.h"
// Notes that `index` is outside the `most` that there are in the launch's fault record, eight words of which the first says that it is set.
FN void note_fault(device uint *record, uint index, uint most)
{
    record[2] = most;
    record[3] = index;
    record[0] = 1;
}
// BitNet's squared-ReLU gate, in which a NaN is not lost.
FN float relu2(float gate, float up) { const float r = gate <= 0.0f ? 0.0f : gate; return r * r * up; }
FN float widest4(float4 v) { return wider(wider(fabs(v.x), fabs(v.y)), wider(fabs(v.z), fabs(v.w))); }
