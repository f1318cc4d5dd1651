// Weights in planes of every kind, and the chunks of 32 elements that packed ones (`PlaneLayout::Chunks` in `format/row.rs`) are read in.

// A row for each packed type: its name in those of kernels and as a value, bits of a code in the low and in the high plane, chunks and bytes of
// a record, what is taken off codes, whether codes are indices of a table, whether there are minimums, what d is divided by, and the factors of a record.
// Then the tables.
// Generated from the rows in `format/blocks.rs` by the test `packed_header`: to change it, set WRITE_HEADER=1.
#define PACKED_TYPES(DO) \
  DO(q4_1, Q4_1, 4, 0, 1, 4, 0, 0, 1, 1, ONE) \
  DO(q5_0, Q5_0, 4, 1, 1, 2, 16, 0, 0, 1, ONE) \
  DO(q5_1, Q5_1, 4, 1, 1, 4, 0, 0, 1, 1, ONE) \
  DO(q2_k, Q2_K, 2, 0, 8, 20, 0, 0, 1, 1, NIBBLES) \
  DO(q3_k, Q3_K, 2, 1, 8, 18, 4, 0, 0, 1, SIGNED_16) \
  DO(q4_k, Q4_K, 4, 0, 8, 20, 0, 0, 1, 1, PAIRS) \
  DO(q5_k, Q5_K, 4, 1, 8, 20, 0, 0, 1, 1, PAIRS) \
  DO(q6_k, Q6_K, 4, 2, 8, 18, 32, 0, 0, 1, SIGNED_16) \
  DO(iq4_nl, IQ4_NL, 4, 0, 1, 2, 0, 1, 0, 1, ONE) \
  DO(iq4_xs, IQ4_XS, 4, 0, 8, 10, 0, 1, 0, 1, SIGNED_32) \
  DO(mxfp4, MXFP4, 4, 0, 1, 1, 0, 1, 0, 1, EXPONENT) \
  DO(nvfp4, NVFP4, 4, 0, 2, 4, 0, 1, 0, 1, FLOATS_16) \
  DO(iq2_n, IQ2_N, 4, 0, 8, 18, 0, 1, 0, 8, SIGNED_16) \
  DO(iq3_xxs_n, IQ3_XXS_N, 4, 0, 8, 10, 0, 1, 0, 4, SIGNED_32) \
  DO(iq3_s_n, IQ3_S_N, 4, 0, 8, 10, 0, 1, 0, 1, SIGNED_32)
#define TABLES(DO) \
  DO(IQ4_NL, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u) \
  DO(IQ4_XS, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u) \
  DO(MXFP4, 0x3020100u, 0xc080604u, 0xfdfeff00u, 0xf4f8fafcu) \
  DO(NVFP4, 0x3020100u, 0xc080604u, 0xfdfeff00u, 0xf4f8fafcu) \
  DO(IQ2_N, 0x8090107u, 0x2b19u, 0xf8f7fff9u, 0xd5e7u) \
  DO(IQ3_XXS_N, 0x1c140c04u, 0x3e342c24u, 0xe4ecf4fcu, 0xc2ccd4dcu) \
  DO(IQ3_S_N, 0x7050301u, 0xf0d0b09u, 0xf9fbfdffu, 0xf1f3f5f7u)
// End of what is generated.

#define PACKED_TYPE(name, T, ...) , T
enum Weights : uint { Q8, Q4, T2 PACKED_TYPES(PACKED_TYPE) };
// A record's factors: none, two bytes for each 32 elements, two nibbles for each 16, a signed byte for each 16 or 32; without numbers a power of two, or
// for each 16 elements a float of a byte.
enum Factors : uint { ONE, PAIRS, NIBBLES, SIGNED_16, SIGNED_32, EXPONENT, FLOATS_16 };

template <uint W> FN constexpr bool packed() { return W > T2; }
#define LOW_BITS(name, T, low, ...) W == T ? low :
template <uint W> FN constexpr uint low_bits() { return PACKED_TYPES(LOW_BITS) 4; }
#define HIGH_BITS(name, T, low, high, ...) W == T ? high :
template <uint W> FN constexpr uint high_bits() { return PACKED_TYPES(HIGH_BITS) 0; }
#define RECORD_CHUNKS(name, T, low, high, chunks, ...) W == T ? chunks :
template <uint W> FN constexpr uint record_chunks() { return PACKED_TYPES(RECORD_CHUNKS) 1; }
#define RECORD_BYTES(name, T, low, high, chunks, bytes, ...) W == T ? bytes :
template <uint W> FN constexpr uint record_bytes() { return PACKED_TYPES(RECORD_BYTES) 4; }
#define BIAS_OF(name, T, low, high, chunks, bytes, bias, ...) W == T ? bias :
template <uint W> FN constexpr int bias_of() { return PACKED_TYPES(BIAS_OF) 0; }
#define IS_TABLE(name, T, low, high, chunks, bytes, bias, table, ...) W == T ? table != 0 :
template <uint W> FN constexpr bool is_table() { return PACKED_TYPES(IS_TABLE) false; }
#define HAS_MINIMUM(name, T, low, high, chunks, bytes, bias, table, minimum, ...) W == T ? minimum != 0 :
template <uint W> FN constexpr bool has_minimum() { return PACKED_TYPES(HAS_MINIMUM) false; }
#define DIVISOR_OF(name, T, low, high, chunks, bytes, bias, table, minimum, divisor, ...) W == T ? divisor :
template <uint W> FN constexpr uint divisor_of() { return PACKED_TYPES(DIVISOR_OF) 1; }
#define FACTORS_OF(name, T, low, high, chunks, bytes, bias, table, minimum, divisor, factors) W == T ? uint(factors) :
template <uint W> FN constexpr uint factors_of() { return PACKED_TYPES(FACTORS_OF) uint(ONE); }
template <uint W> FN constexpr bool has_numbers() { return factors_of<W>() != EXPONENT && factors_of<W>() != FLOATS_16; }
// Word i of a type's table.
#define TABLE_WORD(T, a, b, c, d) W == T ? (i == 0 ? a : i == 1 ? b : i == 2 ? c : d) :
template <uint W> FN constexpr uint table_word(uint i) { return TABLES(TABLE_WORD) 0u; }
template <uint W> FN constexpr uint low_bytes() { return low_bits<W>() * 4; }
template <uint W> FN constexpr uint high_bytes() { return high_bits<W>() * 4; }

FN uint word(uint4 v, uint i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// A chunk: its codes, the numbers d and m of its record as f16, its bytes of factors.
template <uint W> struct Chunk { uint4 low; uint2 high; uint numbers, factors; };
// The numbers, where they are `wanted`, and the factors of chunk t of a record.
template <uint W> FN void load_record(thread Chunk<W> &c, device const uchar *record, uint t, bool wanted)
{
  c.numbers = !wanted || !has_numbers<W>() ? 0 : record_bytes<W>() % 4 == 0 ? stream4(record) : stream2(record);
  if (factors_of<W>() == EXPONENT) c.factors = stream1(record);
  else if (factors_of<W>() == FLOATS_16) c.factors = stream2(record + t * 2);
  else if (factors_of<W>() == SIGNED_32) c.factors = stream1(record + (record_bytes<W>() - 8) + t);
  else if (factors_of<W>() != ONE) c.factors = stream2(record + (record_bytes<W>() - 16) + t * 2);
}
// Chunk t of a record.
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
  load_record<W>(c, record, t, wanted);
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

// The table's entries for eight codes: those of a word's lower half and of its upper.
#ifdef __CUDACC_RTC__
template <uint W> FN uint2 table_values(uint codes)
{
  const uint three = codes & 0x77777777u, upper = ((codes >> 1) & 0x44444444u) | 0x32103210u;
  constexpr uint a = table_word<W>(0), b = table_word<W>(1), c = table_word<W>(2), d = table_word<W>(3);
  return make_uint2(__byte_perm(__byte_perm(a, b, three), __byte_perm(c, d, three), upper),
                    __byte_perm(__byte_perm(a, b, three >> 16), __byte_perm(c, d, three >> 16), upper >> 16));
}
#else
template <uint W> FN uint table_value(uint code) { return table_word<W>(code / 4) >> (code % 4 * 8) & 0xffu; }
template <uint W> FN uint2 table_values(uint codes)
{
  uint2 v = uint2(0, 0);
  for (uint i = 0; i < 4; ++i) {
    v.x |= table_value<W>(codes >> (i * 4) & 15u) << (i * 8);
    v.y |= table_value<W>(codes >> (i * 4 + 16) & 15u) << (i * 8);
  }
  return v;
}
#endif

FN int signed_byte(uint v, uint i) { return int(v << (24 - 8 * i)) >> 24; }

// Scales that are floats of a byte: a power of two, of whose exponents the two smallest are subnormal (then the second number is the
// greater); and half of a float with four bits of exponent and
// three of mantissa, of which 127 is 0.
#ifdef __CUDACC_RTC__
FN float of_bits(uint v) { return __uint_as_float(v); }
#else
FN float of_bits(uint v) { return as_f32(v); }
#endif
FN float exponent_scale(uint v) { return of_bits(uint(max(int(v << 23) - 0x00800000, int((v + 1) << 21)))); }
FN float float_scale(uint v)
{
  const uint b = v & 127u;
  return v == 127u ? 0.0f : b < 8 ? float(b) * (1.0f / 1024.0f) : of_bits((b << 20) + (119u << 23));
}

// The sum of products of a chunk's values with codes of activations: d and e are those of its codes' halves, first and second the sums of
// the activations' codes.
template <uint W> FN float scaled_sum(thread const Chunk<W> &c, int d, int e, int first, int second)
{
  if (factors_of<W>() == EXPONENT) return exponent_scale(c.factors) * float(d + e);
  if (factors_of<W>() == FLOATS_16) return fma(float_scale(c.factors & 0xffu), float(d), float_scale(c.factors >> 8) * float(e));
  const float scale = half_bits(c.numbers & 0xffffu) * (1.0f / divisor_of<W>()), number = half_bits(c.numbers >> 16);
  if (factors_of<W>() == ONE) {
    if (has_minimum<W>()) return fma(number, float(first + second), scale * float(d + e));
    return scale * float(d + e - bias_of<W>() * (first + second));
  }
  if (factors_of<W>() == SIGNED_32) return scale * float(signed_byte(c.factors, 0) * (d + e - bias_of<W>() * (first + second)));
  if (factors_of<W>() == SIGNED_16)
    return scale * float(signed_byte(c.factors, 0) * (d - bias_of<W>() * first) + signed_byte(c.factors, 1) * (e - bias_of<W>() * second));
  const uint f = c.factors;
  if (factors_of<W>() == NIBBLES) {
    const int least = int(f >> 4 & 15u) * first + int(f >> 12 & 15u) * second;
    return fma(scale, float(int(f & 15u) * d + int(f >> 8 & 15u) * e), -number * float(least));
  }
  return fma(scale, float(int(f & 0xffu) * (d + e)), -number * float(int(f >> 8) * (first + second)));
}

// The scale and the minimum of half `i` of a chunk.
template <uint W> FN float2 scale_of(thread const Chunk<W> &c, uint i)
{
  const uint f = c.factors >> (i * 8);
  if (factors_of<W>() == EXPONENT) return make_float2(exponent_scale(c.factors), 0);
  if (factors_of<W>() == FLOATS_16) return make_float2(float_scale(f & 0xffu), 0);
  const float d = half_bits(c.numbers & 0xffffu) * (1.0f / divisor_of<W>()), m = half_bits(c.numbers >> 16);
  if (factors_of<W>() == ONE) return make_float2(d, has_minimum<W>() ? -m : 0);
  if (factors_of<W>() == SIGNED_32) return make_float2(d * float(signed_byte(c.factors, 0)), 0);
  if (factors_of<W>() == SIGNED_16) return make_float2(d * float(signed_byte(f, 0)), 0);
  if (factors_of<W>() == NIBBLES) return make_float2(d * float(f & 15u), m * float(f >> 4 & 15u));
  return make_float2(d * float(c.factors & 0xffu), m * float(c.factors >> 8));
}

// Values of elements 4j to 4j + 3 of a chunk.
template <uint W> FN float4 chunk_values(thread const Chunk<W> &c, uint j)
{
  const float2 s = scale_of<W>(c, j / 4);
  uint codes;
  int off = bias_of<W>();
  if (is_table<W>()) {
    const uint2 both = table_values<W>(word(c.low, j / 2));
    codes = (j % 2 == 0 ? both.x : both.y) ^ 0x80808080u;   // as the others without a sign
    off = 128;
  } else codes = code_word<W>(c, j);
  const float4 v = make_float4(float(int(codes & 0xffu) - off), float(int(codes >> 8 & 0xffu) - off), float(int(codes >> 16 & 0xffu) - off), float(int(codes >> 24) - off));
  return make_float4(s.x * v.x - s.y, s.x * v.y - s.y, s.x * v.z - s.y, s.x * v.w - s.y);
}
