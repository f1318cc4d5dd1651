// The floats of a word's bytes (E4M3).
#ifdef __CUDACC_RTC__
FN uint float8_pair(uint v)
{
#if __CUDA_ARCH__ >= 890
  uint r;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(r) : "r"(v));
  return r;
#else
  // As f16 with the same exponent, of which the bias is 8 more.
  const uint b = __byte_perm(v, 0, 0x1404);
  uint r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"((b & 0x80008000u) | (b & 0x7f007f00u) >> 1), "r"(0x5c005c00u));
  return r;
#endif
}
FN float4 float8_values(uint v)
{
  const uint a = float8_pair(v), b = float8_pair(v >> 16);
  return make_float4(half_bits(a & 0xffffu), half_bits(a >> 16), half_bits(b & 0xffffu), half_bits(b >> 16));
}
#else
FN float float8_value(uint v)
{
  const uint b = v & 127u;
  const float m = b < 8 ? float(b) * (1.0f / 512.0f) : as_f32((b << 20) + (120u << 23));
  return v & 128u ? -m : m;
}
FN float4 float8_values(uint v) { return make_float4(float8_value(v), float8_value(v >> 8), float8_value(v >> 16), float8_value(v >> 24)); }
#endif
