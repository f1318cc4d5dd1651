// Weights, which nothing writes while kernels run: loads of streams, each read once, and of what is kept.
#ifdef __CUDACC_RTC__
FN uint4 stream16(const uchar *p, ulong policy) { uint4 v; asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy)); return v; }
FN uint stream2(const uchar *p) { ushort v; asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p)); return v; }
FN uint stream1(const uchar *p) { ushort v; asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(v) : "l"(p)); return v; }
FN uint stream4(const uchar *p) { uint v; asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
FN uint2 stream8(const uchar *p) { uint2 v; asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p)); return v; }
FN float4 constant4(const float *p) { float4 v; asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p)); return v; }
#else
FN uint4 stream16(device const uchar *p, ulong) { return *(device const uint4 *)p; }
FN uint stream2(device const uchar *p) { return *(device const ushort *)p; }
FN uint stream1(device const uchar *p) { return *p; }
FN uint stream4(device const uchar *p) { return *(device const uint *)p; }
FN uint2 stream8(device const uchar *p) { return *(device const uint2 *)p; }
FN float4 constant4(device const float *p) { return *(device const float4 *)p; }
#endif

// Reading ahead: what the next launch with weights reads lies in up to six ranges of bytes (codes and scales). Workgroup x fetches `len`
// bytes from byte x · stride of each into the L2, while its own activations are on their way and the memory has little to do.
#ifdef __CUDACC_RTC__
struct Range { device const uchar *p; uint total, stride, len; };
struct Ahead { Range ranges[6]; };

FN void fetch_ahead(thread const Ahead &a, uint x, uint tid, uint threads)
{
  UNROLL for (uint i = 0; i < 6; ++i) {
    const uint at = x * a.ranges[i].stride, end = min(at + a.ranges[i].len, a.ranges[i].total);
    ROLLED for (uint b = at + tid * 128; b < end; b += threads * 128) PREFETCH(a.ranges[i].p + b);
  }
}

// The arguments that say it, after those before them, and the value that they make.
#define AHEAD_RANGE(i, n) IN(i, uchar, n), VAL(i + 1, uint, n##_total), VAL(i + 2, uint, n##_stride), VAL(i + 3, uint, n##_len)
#define AHEAD(i) , AHEAD_RANGE(i, ahead0), AHEAD_RANGE(i + 4, ahead1), AHEAD_RANGE(i + 8, ahead2), AHEAD_RANGE(i + 12, ahead3), AHEAD_RANGE(i + 16, ahead4), AHEAD_RANGE(i + 20, ahead5)
#define AHEAD_VALUE {{{ahead0, ahead0_total, ahead0_stride, ahead0_len}, {ahead1, ahead1_total, ahead1_stride, ahead1_len}, {ahead2, ahead2_total, ahead2_stride, ahead2_len}, \
  {ahead3, ahead3_total, ahead3_stride, ahead3_len}, {ahead4, ahead4_total, ahead4_stride, ahead4_len}, {ahead5, ahead5_total, ahead5_stride, ahead5_len}}}
#else
// Metal has no way to ask for it, and 31 arguments at most.
struct Ahead {};
FN void fetch_ahead(thread const Ahead &, uint, uint, uint) {}
#define AHEAD(i)
#define AHEAD_VALUE {}
#endif
