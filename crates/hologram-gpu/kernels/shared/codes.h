// Activations in 8 bits in shared memory, as packed weights meet them.

// Four codes: added to 1.5 · 2^23 a number is rounded to an even integer, whose low byte is the code.
FN uint codes4(float4 v, float inverse)
{
  const float big = 12582912.0f;
  const uint a = as_u32(rounded_product(v.x, inverse) + big), b = as_u32(rounded_product(v.y, inverse) + big);
  const uint c = as_u32(rounded_product(v.z, inverse) + big), d = as_u32(rounded_product(v.w, inverse) + big);
  return (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | d << 24;
}

// Puts four codes, the i-th four of n, where packed weights meet them, and with each 32 their scale and the sums of both halves.
FN void put_packed(threadgroup uchar *xs, threadgroup uint2 *meta, uint k, uint n, uint i, uint codes, float scale)
{
  int s = dot4(codes, 0x01010101u, 0);
  s += simd_shuffle_xor(s, 1);
  s += simd_shuffle_xor(s, 2);
  const int other = simd_shuffle_xor(s, 4);
  if (i >= n) return;
  *(threadgroup uint *)(xs + i / 8 * 16 + i % 4 * 4 + (i & 4) / 4 * (k / 2)) = codes;
  uint2 m;
  m.x = as_u32(scale);
  m.y = (uint(s) & 0xffffu) | uint(other) << 16;
  if (i % 8 == 0) meta[i / 8] = m;
}

// The greatest magnitude of 32 neighbours, of which each lane has four, or `least`.
FN float widest_of_group(float4 v, float least)
{
  float most = widest4(v);
  most = wider(most, simd_shuffle_xor(most, 1));
  most = wider(most, simd_shuffle_xor(most, 2));
  return wider(wider(most, simd_shuffle_xor(most, 4)), least);
}

// Quantises the i-th four of n for packed weights.
FN void quantize_packed(threadgroup uchar *xs, threadgroup uint2 *meta, uint k, uint n, uint i, float4 v, float least)
{
  const float most = widest_of_group(v, least);
  put_packed(xs, meta, k, n, i, codes4(v, most == 0.0f ? 0.0f : 127.0f / most), most * (1.0f / 127.0f));
}

