// Weights in planes of every kind, and the chunks of 32 elements that packed ones (`src/packed.rs`) are read in.
enum Weights : uint { Q8, Q4, T2, Q4_1, Q5_0, Q5_1, IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS };

template <uint W> FN constexpr bool packed() { return W > T2; }
template <uint W> FN constexpr bool is_table() { return W == IQ4_NL || W == IQ4_XS; }
// Bits of a code in the low and in the high plane, bytes of a chunk there, chunks of a record, what is taken off codes.
template <uint W> FN constexpr uint low_bits() { return W == Q2_K || W == Q3_K ? 2 : 4; }
template <uint W> FN constexpr uint high_bits() { return W == Q6_K ? 2 : W == Q3_K || W == Q5_0 || W == Q5_1 || W == Q5_K ? 1 : 0; }
template <uint W> FN constexpr uint low_bytes() { return low_bits<W>() * 4; }
template <uint W> FN constexpr uint high_bytes() { return high_bits<W>() * 4; }
template <uint W> FN constexpr uint record_chunks() { return W < Q2_K ? 1 : 8; }
template <uint W> FN constexpr uint record_bytes()
{
  return W == Q5_0 || W == IQ4_NL ? 2 : W < Q2_K ? 4 : W == Q3_K || W == Q6_K ? 18 : W == IQ4_XS ? 10 : 20;
}
template <uint W> FN constexpr int bias_of() { return W == Q3_K ? 4 : W == Q5_0 ? 16 : W == Q6_K ? 32 : 0; }

FN uint word(uint4 v, uint i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// A chunk: its codes, the numbers d and m of its record as f16, its bytes of factors.
template <uint W> struct Chunk { uint4 low; uint2 high; uint numbers, factors; };
// Chunk t of a record; its numbers are read only where they are `wanted`.
template <uint W> FN Chunk<W> load_chunk(device const uchar *low, device const uchar *high, device const uchar *record, uint t, bool wanted, ulong policy)
{
  Chunk<W> c;
  if (low_bits<W>() == 4) c.low = stream16(low, policy);
  else {
    const uint2 v = stream8(low);
    c.low.x = v.x;
    c.low.y = v.y;
  }
  if (high_bits<W>() == 2) c.high = stream8(high);
  if (high_bits<W>() == 1) c.high.x = stream4(high);
  c.numbers = !wanted ? 0 : record_bytes<W>() % 4 == 0 ? stream4(record) : stream2(record);
  if (W == IQ4_XS) c.factors = stream1(record + 2 + t);
  else if (record_chunks<W>() == 8) c.factors = stream2(record + (record_bytes<W>() - 16) + t * 2);
  return c;
}

// v shifted to the left by `by`, or to the right by −by.
FN uint shifted(uint v, int by) { return by < 0 ? v >> uint(-by) : v << uint(by); }

// The codes of elements 4j to 4j + 3 of a chunk, a byte each, before what is taken off them.
template <uint W> FN uint code_word(thread const Chunk<W> &c, uint j)
{
  uint codes;
  if (low_bits<W>() == 4) codes = (word(c.low, j % 4) >> (j / 4 * 4)) & 0x0f0f0f0fu;
  else codes = ((j < 4 ? c.low.x : c.low.y) >> (j % 4 * 2)) & 0x03030303u;
  const int to = int(low_bits<W>());
  if (high_bits<W>() == 1) codes |= shifted(c.high.x, to - int(j)) & (0x01010101u << low_bits<W>());
  if (high_bits<W>() == 2) codes |= shifted(j < 4 ? c.high.x : c.high.y, to - int(j % 4 * 2)) & (0x03030303u << low_bits<W>());
  return codes;
}

// What eight codes of the IQ4 types stand for: those of a word's lower half and of its upper.
#ifdef __CUDACC_RTC__
FN uint2 iq4_values(uint codes)
{
  const uint three = codes & 0x77777777u, upper = ((codes >> 1) & 0x44444444u) | 0x32103210u;
  const uint a = 0xbfad9881u, b = 0xf6eaddcfu, c = 0x26190d01u, d = 0x71594535u;
  return make_uint2(__byte_perm(__byte_perm(a, b, three), __byte_perm(c, d, three), upper),
                    __byte_perm(__byte_perm(a, b, three >> 16), __byte_perm(c, d, three >> 16), upper >> 16));
}
#else
FN uint iq4_value(uint code)
{
  const uint four = code < 4 ? 0xbfad9881u : code < 8 ? 0xf6eaddcfu : code < 12 ? 0x26190d01u : 0x71594535u;
  return four >> (code % 4 * 8) & 0xffu;
}
FN uint2 iq4_values(uint codes)
{
  uint2 v = uint2(0, 0);
  for (uint i = 0; i < 4; ++i) {
    v.x |= iq4_value(codes >> (i * 4) & 15u) << (i * 8);
    v.y |= iq4_value(codes >> (i * 4 + 16) & 15u) << (i * 8);
  }
  return v;
}
#endif

FN int signed_byte(uint v, uint i) { return int(v << (24 - 8 * i)) >> 24; }

// The sum of products of a chunk's values with codes of activations: d and e are those of its codes' halves, first and second the sums of
// the activations' codes.
template <uint W> FN float scaled_sum(thread const Chunk<W> &c, int d, int e, int first, int second)
{
  const float scale = half_bits(c.numbers & 0xffffu), number = half_bits(c.numbers >> 16);
  if (W == Q4_1 || W == Q5_1) return fma(number, float(first + second), scale * float(d + e));
  if (W == IQ4_NL) return scale * float(d + e);
  if (W == Q5_0) return scale * float(d + e - bias_of<W>() * (first + second));
  if (W == IQ4_XS) return scale * float(signed_byte(c.factors, 0) * (d + e));
  if (W == Q3_K || W == Q6_K)
    return scale * float(signed_byte(c.factors, 0) * (d - bias_of<W>() * first) + signed_byte(c.factors, 1) * (e - bias_of<W>() * second));
  const uint f = c.factors;
  if (W == Q2_K) {
    const int least = int(f >> 4 & 15u) * first + int(f >> 12 & 15u) * second;
    return fma(scale, float(int(f & 15u) * d + int(f >> 8 & 15u) * e), -number * float(least));
  }
  return fma(scale, float(int(f & 0xffu) * (d + e)), -number * float(int(f >> 8) * (first + second)));
}

// The scale and the minimum of half `i` of a chunk.
template <uint W> FN float2 scale_of(thread const Chunk<W> &c, uint i)
{
  const float d = half_bits(c.numbers & 0xffffu), m = half_bits(c.numbers >> 16);
  const uint f = c.factors >> (i * 8);
  if (W == Q4_1 || W == Q5_1) return make_float2(d, -m);
  if (W == Q5_0 || W == IQ4_NL) return make_float2(d, 0);
  if (W == IQ4_XS) return make_float2(d * float(signed_byte(c.factors, 0)), 0);
  if (W == Q3_K || W == Q6_K) return make_float2(d * float(signed_byte(f, 0)), 0);
  if (W == Q2_K) return make_float2(d * float(f & 15u), m * float(f >> 4 & 15u));
  return make_float2(d * float(c.factors & 0xffu), m * float(c.factors >> 8));
}

// Values of elements 4j to 4j + 3 of a chunk.
template <uint W> FN float4 chunk_values(thread const Chunk<W> &c, uint j)
{
  const float2 s = scale_of<W>(c, j / 4);
  uint codes;
  int off = bias_of<W>();
  if (is_table<W>()) {
    const uint2 both = iq4_values(word(c.low, j / 2));
    codes = (j % 2 == 0 ? both.x : both.y) ^ 0x80808080u;   // as the others without a sign
    off = 128;
  } else codes = code_word<W>(c, j);
  const float4 v = make_float4(float(int(codes & 0xffu) - off), float(int(codes >> 8 & 0xffu) - off), float(int(codes >> 16 & 0xffu) - off), float(int(codes >> 24) - off));
  return make_float4(s.x * v.x - s.y, s.x * v.y - s.y, s.x * v.z - s.y, s.x * v.w - s.y);
}
