#include "dialect.h"
#include "stream.h"
#include "packed.h"
// Products of a few tokens' f32 activations with weights in planes of codes, y = x wᵀ, bound by reading the weights: decoding. Before: an optional
// RMS norm. After: up to three matrices' outputs, a gate, or an addition.
//
// Apple GPUs have no instruction for products of bytes, and shifts, extracts and conversions take four times as long as logic and float
// instructions. So codes stay where they are in a word: masked, and under the bits of 1,024 in f16 they are numbers, two at a time, from which
// one subtraction takes 1,024 and the codes' offset, exactly. A nibble of the upper half counts 16 times: the activations that meet it
// are divided by 16 beforehand. Only the odd bytes are shifted, eight nibbles at once.
//
// A SIMD-group computes ROWS rows at a time (of a gate: half of them of either matrix), each lane a chunk of 32 elements of each, with the same
// activations. Sums of activations, for types with minimums, and of their squares, for the norm, come along: nothing is shared, and
// workgroups wait for nothing.

#define THREADS 128
#define ROWS 4
#define SIMDS (THREADS / 32)
HOST(THREADS, ROWS)
enum After : uint { STORE, SWIGLU, RELU2, RESIDUAL };

struct Matrix { device const uchar *w; device const uchar *s; device const uchar *h; };
struct Task {
  device const float *x; device const float *norm;
  Matrix first, second, third;
  device float *y0; device float *y1; device float *y2; device const float *residual;
  uint m0, m1, m2, k, after, workgroups;
  float eps;              // below 0: no norm
};

// What is taken off the codes; whether they are nibbles that stay in place; whether two bits of each.
template <uint W> FN constexpr uint offset_of() { return W == Q8 ? 128 : W == Q4 ? 8 : uint(bias_of<W>()); }
template <uint W> FN constexpr bool nibbles() { return W == Q4 || (W != Q8 && low_bits<W>() == 4 && high_bits<W>() == 0 && !is_table<W>()); }
template <uint W> FN constexpr bool pairs() { return packed<W>() && low_bits<W>() == 2 && high_bits<W>() == 0; }

// A chunk of a row: codes and factors; of Q8 the second half of the codes.
template <uint W> struct Piece { Chunk<W> chunk; uint4 more; };
template <uint W> FN void load(thread Piece<W> &p, thread const Matrix &a, ulong chunk, uint lane)
{
  if (W == Q8) {
    p.chunk.low = stream16(a.w + chunk * 32, 0);
    p.more = stream16(a.w + chunk * 32 + 16, 0);
    p.chunk.numbers = stream2(a.s + chunk * 2);
  } else if (W == Q4) {
    p.chunk.low = stream16(a.w + chunk * 16, 0);
    p.chunk.numbers = stream2(a.s + chunk * 2);
  } else {
    const uint t = uint(chunk % record_chunks<W>());
    p.chunk = load_chunk<W>(a.w + chunk * low_bytes<W>(), a.h + chunk * high_bytes<W>(), a.s + chunk / record_chunks<W>() * record_bytes<W>(), t,
                            record_chunks<W>() != 8 || lane % 8 == 0, 0);
  }
}

// The numbers below 1,024 in both halves of a word, less `off` − 1,024.
FN float2 integers(uint bits, half off)
{
  const half2 v = as_type<half2>(bits | 0x64006400u) - half2(off);
  return float2(v);
}
// Adds the products of four neighbours with codes in the bits of `mask`, at the same place of each byte.
FN float four(uint codes, uint odd, uint mask, half off, float4 x, float sum)
{
  const float2 a = integers(codes & mask, off), b = integers(odd & mask, off);
  return fma(b.y, x.w, fma(a.y, x.z, fma(b.x, x.y, fma(a.x, x.x, sum))));
}

// Divides activations by what the codes that they meet are multiplied by where they lie.
template <uint W> FN void prescale(thread float4 *x)
{
  if (nibbles<W>()) UNROLL for (uint j = 4; j < 8; ++j) x[j] = x[j] * (1.0f / 16.0f);
  if (pairs<W>()) UNROLL for (uint j = 0; j < 8; ++j) x[j] = x[j] * (1.0f / float(1 << j % 4 * 2));
}

// The product of a chunk. `x`: prescaled activations; sums: of the activations of both halves; table: 16 values.
template <uint W> FN float product(thread const Piece<W> &p, thread const float4 *x, float2 sums, threadgroup const float *table)
{
  const Chunk<W> c = p.chunk;
  constexpr uint off = 1024 + offset_of<W>();
  float d = 0, e = 0;
  if (W == Q8) {
    UNROLL for (uint j = 0; j < 4; ++j) {
      const uint low = word(c.low, j) ^ 0x80808080u, high = word(p.more, j) ^ 0x80808080u;
      d = four(low, low >> 8, 0x00ff00ffu, half(off), x[j], d);
      e = four(high, high >> 8, 0x00ff00ffu, half(off), x[4 + j], e);
    }
  } else if (nibbles<W>()) {
    UNROLL for (uint j = 0; j < 4; ++j) {
      const uint codes = word(c.low, j), odd = codes >> 8;
      d = four(codes, odd, 0x000f000fu, half(off), x[j], d);
      e = four(codes, odd, 0x00f000f0u, half(1024 + 16 * offset_of<W>()), x[4 + j], e);
    }
  } else if (pairs<W>()) {
    UNROLL for (uint h = 0; h < 2; ++h) {
      const uint codes = h ? c.low.y : c.low.x, odd = codes >> 8;
      float sum = 0;
      UNROLL for (uint j = 0; j < 4; ++j) sum = four(codes, odd, 0x00030003u << (2 * j), half(1024 + (offset_of<W>() << 2 * j)), x[4 * h + j], sum);
      if (h) e = sum; else d = sum;
    }
  } else if (is_table<W>()) {
    UNROLL for (uint j = 0; j < 4; ++j) {
      uint codes = word(c.low, j);
      float sum = 0;
      UNROLL for (uint i = 0; i < 2; ++i) {
        const float4 v = x[2 * j + i];
        sum = fma(table[codes & 15u], v.x, sum);
        sum = fma(table[codes >> 4 & 15u], v.y, sum);
        sum = fma(table[codes >> 8 & 15u], v.z, sum);
        sum = fma(table[codes >> 12 & 15u], v.w, sum);
        codes >>= 16;
      }
      if (j < 2) d += sum; else e += sum;
    }
  } else {
    UNROLL for (uint j = 0; j < 4; ++j) {
      const uint low = code_word<W>(c, j), high = code_word<W>(c, j + 4);
      d = four(low, low >> 8, 0x00ff00ffu, half(off), x[j], d);
      e = four(high, high >> 8, 0x00ff00ffu, half(off), x[4 + j], e);
    }
  }
  if (!packed<W>()) return half_bits(c.numbers) * (d + e);
  const float2 s = scale_of<W>(c, 0), u = scale_of<W>(c, 1);
  const float sum = fma(u.x, e, s.x * d);
  return has_minimum<W>() ? sum - fma(u.y, sums.y, s.y * sums.x) : sum;
}

FN float sum_of(float4 a, float4 b, float4 c, float4 d)
{
  const float4 s = (a + b) + (c + d);
  return (s.x + s.y) + (s.z + s.w);
}

// Tiles of each matrix after those of the one before it.
template <uint W, bool GATED> FN void products(thread const Task &a, threadgroup const float *table, uint group, uint token, uint simd, uint lane)
{
  constexpr uint EACH = GATED ? ROWS / 2 : ROWS;
  const uint chunks = a.k / 32, n0 = (a.m0 + EACH - 1) / EACH, n1 = GATED ? 0 : (a.m1 + EACH - 1) / EACH, n2 = GATED ? 0 : (a.m2 + EACH - 1) / EACH;
  device const float4 *x = (device const float4 *)(a.x + ulong(token) * a.k), *gains = (device const float4 *)a.norm;
  const bool norm = a.eps >= 0.0f;
  ROLLED for (uint all = group * SIMDS + simd; all < n0 + n1 + n2; all += a.workgroups * SIMDS) {
    uint tile = all, m = a.m0;
    Matrix one = a.first, two = a.second;
    device float *y = a.y0;
    if (tile >= n0) {
      tile -= n0; m = a.m1; one = a.second; y = a.y1;
      if (tile >= n1) { tile -= n1; m = a.m2; one = a.third; y = a.y2; }
    }
    const uint row = tile * EACH;
    float sum[ROWS], squares = 0;
    UNROLL for (uint r = 0; r < ROWS; ++r) sum[r] = 0;
    ROLLED for (uint from = 0; from < chunks; from += 32) {
      const uint c = from + lane;
      const bool there = c < chunks;
      Piece<W> p[ROWS];
      // Rows of a tile that the matrix lacks are its last.
      UNROLL for (uint r = 0; r < ROWS; ++r) {
        p[r].chunk.numbers = 0;
        if (there) load<W>(p[r], GATED && r >= EACH ? two : one, ulong(min(row + r % EACH, m - 1)) * chunks + c, lane);
        // One lane of eight reads the numbers of a record for all.
        if (packed<W>() && record_chunks<W>() == 8) p[r].chunk.numbers = simd_shuffle(p[r].chunk.numbers, lane & 24u);
      }
      if (!there) continue;
      float4 v[8];
      UNROLL for (uint j = 0; j < 8; ++j) {
        v[j] = x[c * 8 + j];
        if (norm) {
          squares += dot(v[j], v[j]);
          v[j] = v[j] * gains[c * 8 + j];
        }
      }
      float2 sums = float2(0.0f);
      if (packed<W>() && has_minimum<W>()) sums = float2(sum_of(v[0], v[1], v[2], v[3]), sum_of(v[4], v[5], v[6], v[7]));
      prescale<W>(v);
      UNROLL for (uint r = 0; r < ROWS; ++r) sum[r] += product<W>(p[r], v, sums, table);
    }
    float factor = 1;
    if (norm) factor = inverse_root(simd_sum(squares) * (1.0f / float(a.k)) + a.eps);
    UNROLL for (uint r = 0; r < ROWS; ++r) sum[r] = simd_sum(sum[r]) * factor;
    if (lane != 0) continue;
    UNROLL for (uint r = 0; r < EACH; ++r) if (row + r < m) {
      const ulong at = ulong(token) * m + row + r;
      float v = sum[r];
      if (GATED) v = a.after == SWIGLU ? v * (1.0f / (1.0f + exp(-v))) * sum[ROWS - EACH + r] : relu2(v, sum[ROWS - EACH + r]);
      else if (a.after == RESIDUAL) v += a.residual[at];
      y[at] = v;
    }
  }
}

// Grid: workgroups, and tokens.
#define FLOATS(name, W, GATED, TABLE_LEN) \
KERNEL(name, THREADS, IN(0, float, x), IN(1, float, norm), IN(2, uchar, w0), IN(3, uchar, w1), IN(4, uchar, w2), IN(5, uchar, s0), IN(6, uchar, s1), IN(7, uchar, s2), \
       IN(8, uchar, h0), IN(9, uchar, h1), IN(10, uchar, h2), OUT(11, float, y0), OUT(12, float, y1), OUT(13, float, y2), IN(14, float, residual), COUNT(15, tokens), \
       VAL(19, uint, m0), VAL(20, uint, m1), VAL(21, uint, m2), VAL(22, uint, k), VAL(23, uint, after), VAL(24, uint, workgroups), VAL(25, float, eps)) \
{ \
  SHARED(float, table, [TABLE_LEN]); \
  if (TABLE_LEN == 16) { \
    if (TID < 16) table[TID] = float(signed_byte(table_word<W>(TID / 4), TID % 4)); \
    BARRIER(); \
  } \
  if (GROUP.y >= COUNTED(tokens)) return; \
  const Matrix first = {w0, s0, h0}, second = {w1, s1, h1}, third = {w2, s2, h2}; \
  const Task a = {x, norm, first, second, third, y0, y1, y2, residual, m0, m1, m2, k, after, workgroups, eps}; \
  products<W, GATED>(a, table, GROUP.x, GROUP.y, SIMD, LANE); \
}
#define FLOATS_ROWS(name, W, low, high, chunks, bytes, bias, table, ...) FLOATS(name##_rows, W, false, table * 15 + 1)
FLOATS(q8_rows, Q8, false, 1)
FLOATS(q8_gate, Q8, true, 1)
FLOATS(q4_rows, Q4, false, 1)
FLOATS(q4_gate, Q4, true, 1)
PACKED_TYPES(FLOATS_ROWS)
// Of types that are rare a gate is a launch of its own.
FLOATS(q5_0_gate, Q5_0, true, 1)
FLOATS(iq4_xs_gate, IQ4_XS, true, 16)
FLOATS(mxfp4_gate, MXFP4, true, 16)
FLOATS(q3_k_gate, Q3_K, true, 1)
FLOATS(q4_k_gate, Q4_K, true, 1)
FLOATS(q5_k_gate, Q5_K, true, 1)
FLOATS(q6_k_gate, Q6_K, true, 1)
