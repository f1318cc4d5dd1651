// The floats of a cache's bytes: E4M3 without scales, where the codes 127 and 255 are no numbers.
#include "float8_values.h"
#ifdef __CUDACC_RTC__
// Two of them as f16, which has them all.
FN uint cached_pair(uint v)
{
#if __CUDA_ARCH__ >= 890
  return float8_pair(v);
#else
  // A carry out of the seven bits says which are none; ones become bits of theirs.
  const uint none = ((__byte_perm(v, 0, 0x1404) & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
  return float8_pair(v) | (none - (none >> 6));
#endif
}
FN float4 cached_values(uint v)
{
  const uint a = cached_pair(v), b = cached_pair(v >> 16);
  return make_float4(half_bits(a & 0xffffu), half_bits(a >> 16), half_bits(b & 0xffffu), half_bits(b >> 16));
}
#else
FN float cached_value(uint v) { return (v & 127u) == 127u ? as_f32(0x7fc00000u) : float8_value(v); }
FN float4 cached_values(uint v) { return make_float4(cached_value(v), cached_value(v >> 8), cached_value(v >> 16), cached_value(v >> 24)); }
#endif
struct float_byte { uchar code; };
