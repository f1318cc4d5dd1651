// Products of a few tokens with the matrices of the experts that each has chosen, y = x wᵀ, bound by reading the weights: what `experts.k` and
// `expert_sums.k` share.
//
// A slot is a token and one of its experts. A SIMD-group takes some rows of a slot's expert, whose chunks of 32 elements (of 4 or 8 where weights are
// floats) go round its lanes.
#include "stream.h"
#include "packed.h"
#include "codes.h"
#include "float8.h"
#include "float8_values.h"

enum Floats : uint { F32 = 100, F16, BF16 };
// X_SHARED: codes in shared memory, as `codes.h` puts them.
enum Activations : uint { X_F32, X_BF16, X_I8, X_SHARED };

struct Activity {
  device const uchar *x; device const float *x_scales;   // x_scales: of 8-bit codes in groups of 32
  threadgroup const uchar *codes; threadgroup const uint2 *meta;
  ulong first;   // the first element of the row
  uint k;
};
struct Matrix { device const uchar *w; device const uchar *h; device const uchar *s; };
template <uint W> FN constexpr bool floats() { return W >= F32; }
template <uint W> FN constexpr uint chunk_len() { return W == F32 ? 4 : floats<W>() ? 8 : 32; }

// A chunk as it is stored; of codes or floats in bytes `upper` are the second half's.
template <uint W> struct Piece { Chunk<W> chunk; uint4 upper; };
template <uint W> FN void load_piece(thread Piece<W> &p, device const uchar *w, device const uchar *h, device const uchar *s, ulong chunk, ulong policy)
{
  if (floats<W>()) p.chunk.low = stream16(w + chunk * 16, policy);
  else if (W == F8_E4M3) {
    p.chunk.low = stream16(w + chunk * 32, policy);
    p.upper = stream16(w + chunk * 32 + 16, policy);
    p.chunk.numbers = stream4(s + chunk / record_chunks<F8_E4M3>() * record_bytes<F8_E4M3>());
  } else if (W == Q8) {
    p.chunk.low = stream16(w + chunk * 32, policy);
    p.upper = stream16(w + chunk * 32 + 16, policy);
    p.chunk.numbers = stream2(s + chunk * 2);
  } else if (W == Q4) {
    p.chunk.low = stream16(w + chunk * 16, policy);
    p.chunk.numbers = stream2(s + chunk * 2);
  } else p.chunk = load_chunk<W>(w + chunk * low_bytes<W>(), h + chunk * high_bytes<W>(), s + chunk / record_chunks<W>() * record_bytes<W>(), uint(chunk % record_chunks<W>()), true, policy);
}

// Elements 4j to 4j + 3.
template <uint W> FN float4 values(thread const Piece<W> &p, uint j)
{
  if (W == F32) return make_float4(as_f32(p.chunk.low.x), as_f32(p.chunk.low.y), as_f32(p.chunk.low.z), as_f32(p.chunk.low.w));
  if (floats<W>()) {
    const uint a = word(p.chunk.low, j * 2), b = word(p.chunk.low, j * 2 + 1);
    if (W == BF16) return make_float4(as_f32(a << 16), as_f32(a & 0xffff0000u), as_f32(b << 16), as_f32(b & 0xffff0000u));
    return make_float4(half_bits(a & 0xffffu), half_bits(a >> 16), half_bits(b & 0xffffu), half_bits(b >> 16));
  }
  if (W == F8_E4M3) return float8_values(j < 4 ? word(p.chunk.low, j) : word(p.upper, j - 4)) * as_f32(p.chunk.numbers);
  if (W == Q8) {
    const float d = half_bits(p.chunk.numbers);
    const int a = int(j < 4 ? word(p.chunk.low, j) : word(p.upper, j - 4));
    return make_float4(d * float((a << 24) >> 24), d * float((a << 16) >> 24), d * float((a << 8) >> 24), d * float(a >> 24));
  }
  if (W == Q4) {
    const float d = half_bits(p.chunk.numbers);
    const uint a = code_word<W>(p.chunk, j);
    return make_float4(d * (float(a & 0xffu) - 8), d * (float(a >> 8 & 0xffu) - 8), d * (float(a >> 16 & 0xffu) - 8), d * (float(a >> 24) - 8));
  }
  return chunk_values<W>(p.chunk, j);
}

// The sum of products with the 32 codes in x, before their scale; first and second are the sums of the codes' halves.
template <uint W> FN float code_sum(thread const Piece<W> &p, uint4 low, uint4 upper, int first, int second)
{
  int d = 0, e = 0;
  UNROLL for (uint j = 0; j < 4; ++j) {
    if (W == Q8) {
      d = dot4(word(p.chunk.low, j), word(low, j), d);
      e = dot4(word(p.upper, j), word(upper, j), e);
    } else if (is_table<W>()) {
      const uint2 entries = table_values<W>(word(p.chunk.low, j));
      if (j < 2) d = dot4(entries.y, word(low, j * 2 + 1), dot4(entries.x, word(low, j * 2), d));
      else e = dot4(entries.y, word(upper, j * 2 - 3), dot4(entries.x, word(upper, j * 2 - 4), e));
    } else {
      d = dot4(code_word<W>(p.chunk, j), word(low, j), d);
      e = dot4(code_word<W>(p.chunk, j + 4), word(upper, j), e);
    }
  }
  if (W == Q8) return half_bits(p.chunk.numbers) * float(d + e);
  if (W == Q4) return half_bits(p.chunk.numbers) * float(d + e - 8 * (first + second));
  return scaled_sum<W>(p.chunk, d, e, first, second);
}

FN uint4 fresh_words(device const uchar *x)
{
  const float4 v = fresh((device const float4 *)x);
  uint4 w;
  w.x = as_u32(v.x);
  w.y = as_u32(v.y);
  w.z = as_u32(v.z);
  w.w = as_u32(v.w);
  return w;
}
// With bf16 activations weights are rounded to bf16.
FN float4 rounded(float4 v)
{
  return make_float4(as_f32(bfloat_bits(v.x) << 16), as_f32(bfloat_bits(v.y) << 16), as_f32(bfloat_bits(v.z) << 16), as_f32(bfloat_bits(v.w) << 16));
}
template <uint X> FN float4 activations(device const uchar *x, ulong i)
{
  if (X == X_F32) return fresh((device const float4 *)(x + i * 4));
  const uint2 v = fresh((device const uint2 *)(x + i * 2));
  return make_float4(as_f32(v.x << 16), as_f32(v.x & 0xffff0000u), as_f32(v.y << 16), as_f32(v.y & 0xffff0000u));
}

// Adds a chunk's products with the activations from element `at` of the row on.
template <uint W, uint X, uint R> FN void multiply(thread float *sum, thread const Piece<W> *p, thread const Activity &a, uint at)
{
  if (X == X_I8 || X == X_SHARED) {
    uint4 low, upper;
    float scale;
    int first = 0, second = 0;
    if (X == X_SHARED) {
      threadgroup const uint4 *x = (threadgroup const uint4 *)a.codes + at / 32;
      low = x[0];
      upper = x[a.k / 32];
      const uint2 m = a.meta[at / 32];
      scale = as_f32(m.x);
      first = int(m.y << 16) >> 16;
      second = int(m.y) >> 16;
    } else {
      low = fresh_words(a.x + a.first + at);
      upper = fresh_words(a.x + a.first + at + 16);
      scale = fresh(a.x_scales + (a.first + at) / 32);
      UNROLL for (uint j = 0; j < 4; ++j) {
        first = dot4(word(low, j), 0x01010101u, first);
        second = dot4(word(upper, j), 0x01010101u, second);
      }
    }
    UNROLL for (uint r = 0; r < R; ++r) sum[r] = fma(code_sum<W>(p[r], low, upper, first, second), scale, sum[r]);
  } else UNROLL for (uint j = 0; j < chunk_len<W>() / 4; ++j) {
    const float4 v = activations<X>(a.x, a.first + at + j * 4);
    UNROLL for (uint r = 0; r < R; ++r) sum[r] += dot(X == X_BF16 && W != BF16 ? rounded(values<W>(p[r], j)) : values<W>(p[r], j), v);
  }
}
