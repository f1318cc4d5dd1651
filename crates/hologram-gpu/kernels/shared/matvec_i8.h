// Products of one token with weights in planes, in 8-bit arithmetic: what `matvec_i8.k` and `matvec_packed.k` share.
#include "stream.h"
#include "packed.h"
#include "codes.h"
#include "table_tile.h"

enum After : uint { STORE, SWIGLU, RELU2, RESIDUAL };
// `eps` below 0: no norm; this: and the activations are quantised already. An argument that is not used may point anywhere.
#define QUANTISED -2.0f
#define THREADS 512
#define SIMDS (THREADS / 32)
// Blocks of weights that a SIMD-group has on their way: of ternary ones, of packed ones (of tables one more), of others; and elements of a packed block.
#define RING_T2 5
#define RING_PACKED 2
#define RING_CODES 3
#define PACKED_BLOCK 256
HOST(THREADS, RING_T2, RING_PACKED, RING_CODES, PACKED_BLOCK)

struct Task {
  device const float *x; device const float *norm;
  device const uchar *w0; device const uchar *w1; device const uchar *w2;
  device const uchar *s0; device const uchar *s1; device const uchar *s2;
  device float *y0; device float *y1; device float *y2; device const float *residual; device const uint *step;
  uint slot;                  // the number of tokens, 0 or 1: word `slot` of the step block; ~0: one
  uint k, m0, m1;             // length and numbers of rows; the third matrix has the others
  uint each, over;            // rows of a workgroup, and how many workgroups have one more
  uint teams, slices, magic;  // tiles that are worked on together, SIMD-groups of each, ⌊256 / teams⌋ + 1
  uint after; float eps, floor, per;   // eps: of the norm, or what stands for none; per: 1 / k
  // Of packed weights: high planes; scales of activations that are quantised already; the token that is computed.
  device const uchar *h0; device const uchar *h1; device const uchar *h2; device const float *x_scales; uint token;
};

// Whether tensor cores multiply what tables say: `table_tile.h`.
#ifdef __CUDACC_RTC__
template <uint W> FN constexpr bool tiled() { return packed<W>() && is_table<W>(); }
#else
template <uint W> FN constexpr bool tiled() { return false; }
#endif
// Lanes along a row, rows of a lane, elements in 16 bytes, elements that share a scale.
template <uint W> FN constexpr uint lanes_of() { return W == T2 || tiled<W>() ? 4 : 8; }
template <uint W> FN constexpr uint rows_of() { return lanes_of<W>() / 2; }
template <uint W> FN constexpr uint chunk_len() { return W == Q8 ? 16 : W == T2 ? 64 : 32; }
template <uint W> FN constexpr uint block_len() { return W == T2 ? 256 : 32; }
// Elements of a row in a block.
template <uint W> FN constexpr uint elements_of() { return packed<W>() ? PACKED_BLOCK : lanes_of<W>() * chunk_len<W>(); }
template <uint W> FN constexpr uint ring_len() { return W == T2 ? RING_T2 : packed<W>() ? RING_PACKED + (tiled<W>() && !scaled_halves<W>() ? 1 : 0) : RING_CODES; }

// A lane's rows of a tile: codes, high planes of packed ones, scales.
template <uint W> struct Rows { device const uchar *w[rows_of<W>()]; device const uchar *h[rows_of<W>()]; device const uchar *s[rows_of<W>()]; };
template <uint W, bool GATED> FN Rows<W> find_rows(thread const Task &a, uint tile, uint begin, uint rows, uint lane)
{
  constexpr uint LANES = lanes_of<W>(), R = rows_of<W>();
  Rows<W> out;
  UNROLL for (uint h = 0; h < R; ++h) {
    const uint in_tile = h * (32 / LANES) + lane / LANES;
    uint i = begin + min(GATED ? tile * 8 + in_tile % 8 : tile * 16 + in_tile, rows - 1);
    device const uchar *w = a.w0, *s = a.s0, *high = a.h0;
    if (GATED) {
      if (h >= R / 2) { w = a.w1; s = a.s1; high = a.h1; }
    } else if (i >= a.m0) {
      i -= a.m0; w = a.w1; s = a.s1; high = a.h1;
      if (i >= a.m1) { i -= a.m1; w = a.w2; s = a.s2; high = a.h2; }
    }
    const uint t = lane % LANES;
    if (packed<W>()) {
      const ulong chunk = ulong(i) * (a.k / 32) + t;
      out.w[h] = w + chunk * low_bytes<W>();
      out.h[h] = high + chunk * high_bytes<W>();
      out.s[h] = s + (chunk - t) / record_chunks<W>() * record_bytes<W>();
    } else {
      out.w[h] = w + ulong(i) * (a.k / chunk_len<W>() * 16) + t * 16;
      out.s[h] = s + ulong(i) * (a.k / block_len<W>() * 2) + t * chunk_len<W>() / block_len<W>() * 2;
    }
  }
  return out;
}

// Whether the lanes that share a record pass its numbers on, instead of each reading them. NVIDIA's caches do that for nothing.
#ifdef __CUDACC_RTC__
template <uint W> FN constexpr bool shares_numbers() { return false; }
#else
template <uint W> FN constexpr bool shares_numbers() { return record_chunks<W>() == 8; }
#endif

// A block: LANES chunks of each of a tile's rows.
template <uint W> struct Block {
  uint4 w[rows_of<W>()]; uint scale[rows_of<W>()]; Chunk<W> chunk[rows_of<W>()];
#ifdef __CUDACC_RTC__
  TableStep<W> step;
#endif
};
template <uint W> FN void load(thread Block<W> &b, thread const Rows<W> &r, uint block, uint t, uint chunks, ulong policy)
{
  constexpr uint ELEMENTS = elements_of<W>();
#ifdef __CUDACC_RTC__
  if constexpr (tiled<W>()) load_step<W>(b.step, r.w, r.s, block, t, chunks, policy);
  else
#endif
  if (packed<W>()) {
    // Rows of some types end within a block: beyond it the last chunk stands in, whose activations are taken as zero.
    const uint first = block * 8, c = record_chunks<W>() < 8 ? min(first + t, chunks - 1) : first + t;
    UNROLL for (uint h = 0; h < rows_of<W>(); ++h)
      b.chunk[h] = load_chunk<W>(r.w[h] + (int(c) - int(t)) * int(low_bytes<W>()), r.h[h] + (int(c) - int(t)) * int(high_bytes<W>()), r.s[h] + c / record_chunks<W>() * record_bytes<W>(), c % record_chunks<W>(), !shares_numbers<W>() || t == 0, policy);
  } else UNROLL for (uint h = 0; h < rows_of<W>(); ++h) {
    b.w[h] = stream16(r.w[h] + block * (lanes_of<W>() * 16), policy);
    b.scale[h] = stream2(r.s[h] + block * (ELEMENTS / block_len<W>() * 2));
  }
}

// Adds the products of a block. Activations: of T2 32 bytes stand between each 128, so that the lanes' accesses do not meet in a bank;
// of Q4 the second halves of all chunks follow the first. meta: of T2 the sums of 128 codes, else scale and −8 · sum of each 32.
// Packed: as of Q4, with the sums of both halves of the codes in a word.
template <uint W> FN void multiply(thread float *sum, thread const Block<W> &b, threadgroup const uchar *xs, threadgroup const uint2 *meta, uint k, uint block, uint lane)
{
  constexpr uint R = rows_of<W>();
  const uint t = lane % lanes_of<W>();
#ifdef __CUDACC_RTC__
  if constexpr (tiled<W>()) add_step<W>(sum, b.step, xs, meta, zeros_after(meta, k), k, block, lane);
  else
#endif
  if (packed<W>()) {
    const uint chunks = k / 32, wanted = block * 8 + t, c = record_chunks<W>() < 8 ? min(wanted, chunks - 1) : wanted;
    threadgroup const uint4 *x = (threadgroup const uint4 *)xs + c;
    const uint4 v = x[0], u = x[chunks];
    const uint2 m = meta[c];
    const float scale = c == wanted ? as_f32(m.x) : 0.0f;
    const int first = int(m.y << 16) >> 16, second = int(m.y) >> 16;
    UNROLL for (uint h = 0; h < R; ++h) {
      Chunk<W> chunk = b.chunk[h];
      if (shares_numbers<W>()) chunk.numbers = simd_shuffle(chunk.numbers, lane - t);
      int d = 0, e = 0;
      UNROLL for (uint j = 0; j < 4; ++j) {
        if (is_table<W>()) {
          const uint2 values = table_values<W>(word(chunk.low, j));
          if (j < 2) d = dot4(values.y, word(v, j * 2 + 1), dot4(values.x, word(v, j * 2), d));
          else e = dot4(values.y, word(u, j * 2 - 3), dot4(values.x, word(u, j * 2 - 4), e));
        } else {
          d = dot4(code_word<W>(chunk, j), word(v, j), d);
          e = dot4(code_word<W>(chunk, j + 4), word(u, j), e);
        }
      }
      sum[h] = fma(scaled_sum<W>(chunk, d, e, first, second), scale, sum[h]);
    }
  } else if (W == T2) {
    threadgroup const uchar *x = xs + (block * 2 + t / 2) * 160 + t % 2 * 16;
    // Codes are stored with a bias of 1: the sum of the activations is taken off, by one lane.
    const uint2 m = meta[block];
    const int bias = t == 0 ? int(m.x) + int(m.y) : 0;
    int d[R][4];
    UNROLL for (uint l = 0; l < 4; ++l) {
      const uint4 v = *(threadgroup const uint4 *)(x + l * 32);
      UNROLL for (uint h = 0; h < R; ++h) {
        d[h][l] = 0;
        UNROLL for (uint q = 0; q < 4; ++q) d[h][l] = dot4_unsigned(word(b.w[h], q) & 0x03030303u << (2 * l), word(v, q), d[h][l]);
      }
    }
    UNROLL for (uint h = 0; h < R; ++h) {
      const int all = d[h][0] + ((d[h][1] + ((d[h][2] + (d[h][3] >> 2)) >> 2)) >> 2) - bias;
      sum[h] = fma(float(all), half_bits(b.scale[h]), sum[h]);
    }
  } else {
    const uint c = block * lanes_of<W>() + t;
    threadgroup const uint4 *x = (threadgroup const uint4 *)xs + c;
    const uint4 v = x[0];
    uint4 u = v;
    if (W == Q4) u = x[k / 32];
    const uint2 m = meta[W == Q4 ? c : c / 2];
    UNROLL for (uint h = 0; h < R; ++h) {
      int d = W == Q4 ? int(m.y) : 0, e = 0;
      UNROLL for (uint q = 0; q < 4; ++q) {
        if (W == Q4) {
          d = dot4(word(b.w[h], q) & 0x0f0f0f0fu, word(v, q), d);
          e = dot4_unsigned(word(b.w[h], q) & 0xf0f0f0f0u, word(u, q), e);
        } else if (q % 2 == 0) {
          d = dot4(word(b.w[h], q), word(v, q), d);
        } else {
          e = dot4(word(b.w[h], q), word(v, q), e);
        }
      }
      sum[h] = fma(float(d + (W == Q4 ? e >> 4 : e)) * half_bits(b.scale[h]), as_f32(m.x), sum[h]);
    }
  }
}

// HELD: the fours of activations that a thread has; packed weights take those of longer rows in rounds of four (HELD 8: always, and with a norm, but of Q6_K).
template <uint W, bool GATED, uint HELD> FN void products(thread const Task &a, thread const Ahead &ahead, threadgroup uchar *shared, uint group, uint tid)
{
  constexpr uint LANES = lanes_of<W>(), R = rows_of<W>(), RING = ring_len<W>(), OF_GROUP = 32 / LANES;
  const uint lane = tid % 32, simd = tid / 32, t = lane % LANES, n = a.k / 4;
  const ulong policy = stream_policy();
  const uint begin = group * a.each + min(group, a.over), rows = a.each + (group < a.over ? 1 : 0);
  const uint tiles = (rows + (GATED ? 7 : 15)) / (GATED ? 8 : 16), blocks = (a.k + (elements_of<W>() - 1)) / elements_of<W>();
  // slice = simd / teams.
  const uint slices = a.slices, slice = simd * a.magic >> 8;
  uint tile = simd - slice * a.teams, block = slice;
  const bool busy = slice < slices && tile < tiles;
  // Shared memory: activations, what belongs to them, partial sums of the norm and the greatest magnitudes, sums of rows.
  threadgroup uchar *xs = shared;
  shared += W == T2 ? a.k / 128 * 160 : a.k;
  threadgroup uint2 *meta = (threadgroup uint2 *)shared;
  shared += (a.k / block_len<W>() + 1) / 2 * 16;
#ifdef __CUDACC_RTC__
  if (tiled<W>()) {
    if (tid == 0) *(uint4 *)shared = make_uint4(0, 0, 0, 0);
    shared += 16;
  }
#endif
  threadgroup float *part = (threadgroup float *)shared;
  threadgroup float *sums = part + 2 * SIMDS;

  Block<W> ring[RING];
  Rows<W> at;
  if (busy) {
    at = find_rows<W, GATED>(a, tile, begin, rows, lane);
    UNROLL for (uint p = 0; p < RING; ++p) if (block + p * slices < blocks) load<W>(ring[p], at, block + p * slices, t, a.k / 32, policy);
  }
  float4 v[HELD], gain[HELD];
  const bool norm = (HELD <= 4 || (packed<W>() && W != Q6_K)) && a.eps >= 0.0f;
  if (norm && HELD <= 4) { UNROLL for (uint j = 0; j < HELD; ++j) gain[j] = constant4(a.norm + min(j * THREADS + tid, n - 1) * 4); }

  DEPENDENCY_WAIT();
  const bool ready = packed<W>() && a.eps == QUANTISED, in_rounds = packed<W>() && (HELD > 4 || (W != Q6_K && n > HELD * THREADS));
  if (!ready && !in_rounds) UNROLL for (uint j = 0; j < HELD; ++j) v[j] = fresh((device const float4 *)a.x + min(j * THREADS + tid, n - 1));
  float residual = 0;
  if (a.after == RESIDUAL && tid < rows) residual = fresh(a.residual + begin + tid);
  uint tokens = a.token + 1;
  if (a.slot != ~0u) tokens = fresh(a.step + a.slot);
  if (packed<W>() && a.token > 0 && tokens <= a.token) return;
  fetch_ahead(ahead, group, tid, THREADS);

  float factor = 1, inverse = 0, scale = 0;
  if (norm || W == T2) {
    // The sum of squares and the greatest magnitude of the whole row.
    float s = 0, most = 0;
    if (HELD > 4 && packed<W>()) ROLLED for (uint from = tid; from < n; from += 3 * THREADS) {
      float4 u[3];
      UNROLL for (uint j = 0; j < 3; ++j) u[j] = fresh((device const float4 *)a.x + min(from + j * THREADS, n - 1));
      UNROLL for (uint j = 0; j < 3; ++j) if (from + j * THREADS < n) s = fma(u[j].w, u[j].w, fma(u[j].z, u[j].z, fma(u[j].y, u[j].y, fma(u[j].x, u[j].x, s))));
    } else UNROLL for (uint j = 0; j < HELD; ++j) {
      if (j * THREADS + tid >= n) v[j] = make_float4(0, 0, 0, 0);
      s = fma(v[j].w, v[j].w, fma(v[j].z, v[j].z, fma(v[j].y, v[j].y, fma(v[j].x, v[j].x, s))));
      if (norm) v[j] = v[j] * gain[j];
      if (W == T2) most = wider(most, widest4(v[j]));
    }
    if (W == T2) most = as_f32(simd_max(as_u32(most)));
    s = simd_sum(s);
    if (lane == 0) {
      part[simd] = s;
      part[SIMDS + simd] = most;
    }
    BARRIER();
    s = part[lane % SIMDS];
    UNROLL for (uint m = SIMDS / 2; m != 0; m >>= 1) s += simd_shuffle_xor(s, m);
    if (norm) factor = inverse_root(s * a.per + a.eps);
    if (W == T2) {
      most = wider(as_f32(simd_max(as_u32(part[SIMDS + lane % SIMDS]))) * factor, a.floor);
      inverse = most == 0.0f ? 0.0f : 127.0f / most;
      scale = most * (1.0f / 127.0f);
    }
  }
  if (ready) {
    ROLLED for (uint from = simd * 32; from < n; from += THREADS) {
      const uint i = from + lane;
      const uint codes = i < n ? fresh((device const uint *)a.x + i) : 0;
      put_packed(xs, meta, a.k, n, i, codes, i < n ? fresh(a.x_scales + i / 8) : 0.0f);
    }
  } else if (in_rounds) {
    ROLLED for (uint from = simd * 32; from < n; from += 4 * THREADS) {
      float4 u[4];
      UNROLL for (uint j = 0; j < 4; ++j) u[j] = fresh((device const float4 *)a.x + min(from + j * THREADS + lane, n - 1));
      UNROLL for (uint j = 0; j < 4; ++j) if (from + j * THREADS < n) {
        const uint i = from + j * THREADS + lane;
        if (HELD > 4 && norm) u[j] = u[j] * constant4(a.norm + min(i, n - 1) * 4) * factor;
        quantize_packed(xs, meta, a.k, n, i, u[j], a.floor);
      }
    }
  } else UNROLL for (uint j = 0; j < HELD; ++j) if (j * THREADS + simd * 32 < n) {
    const uint i = j * THREADS + tid;
    if (norm) v[j] = v[j] * factor;
    if (W == T2) {
      const uint codes = codes4(v[j], inverse);
      if (i < n) *(threadgroup uint *)(xs + i * 4 + i / 32 * 32) = codes;
      const uint s = simd_sum(uint(dot4(codes, 0x01010101u, 0)));
      if (lane == 0) ((threadgroup uint *)meta)[i / 32] = s;
    } else if (packed<W>()) quantize_packed(xs, meta, a.k, n, i, v[j], a.floor);
    else {
      const float most = widest_of_group(v[j], a.floor);
      const uint codes = codes4(v[j], most == 0.0f ? 0.0f : 127.0f / most);
      uint2 m;
      m.x = as_u32(most * (1.0f / 127.0f));
      m.y = 0;
      uint to = i * 4;
      if (W == Q4) {
        to = i / 8 * 16 + i % 4 * 4 + (i & 4) / 4 * (a.k / 2);
        // Codes of weights are stored with a bias of 8.
        int s = dot4(codes, 0x01010101u, 0);
        s += simd_shuffle_xor(s, 1);
        s += simd_shuffle_xor(s, 2);
        s += simd_shuffle_xor(s, 4);
        m.y = uint(-8 * s);
      }
      if (i < n) {
        *(threadgroup uint *)(xs + to) = codes;
        if (i % 8 == 0) meta[i / 8] = m;
      }
    }
  }
  BARRIER();

  float sum[R];
  UNROLL for (uint h = 0; h < R; ++h) sum[h] = 0;
  if (busy) ROLLED for (;;) {
    const bool ends = block + RING * slices >= blocks;
    const uint next_tile = ends ? tile + a.teams : tile, next = ends ? slice : block + RING * slices;
    const bool more = next_tile < tiles;
    // Long rows of many bits are never short of work: a block's place is filled at once. Ternary ones are mostly done in one round.
    if (W != T2 && ends && more) at = find_rows<W, GATED>(a, next_tile, begin, rows, lane);
    UNROLL for (uint p = 0; p < RING; ++p) {
      if (block + p * slices < blocks) multiply<W>(sum, ring[p], xs, meta, a.k, block + p * slices, lane);
      if (W != T2 && more && next + p * slices < blocks) load<W>(ring[p], at, next + p * slices, t, a.k / 32, policy);
    }
    if (W == T2 && more) {
      if (ends) at = find_rows<W, GATED>(a, next_tile, begin, rows, lane);
      UNROLL for (uint p = 0; p < RING; ++p) if (next + p * slices < blocks) load<W>(ring[p], at, next + p * slices, t, a.k / 32, policy);
    }
    if (ends) {
      UNROLL for (uint m = 1; m < LANES; m <<= 1) UNROLL for (uint h = 0; h < R; ++h) sum[h] += simd_shuffle_xor(sum[h], m);
      threadgroup float *to = sums + (slice * tiles + tile) * 16 + lane / LANES;
      UNROLL for (uint h = 0; h < R; ++h) {
        if (t == 0) to[h * OF_GROUP] = sum[h];
        sum[h] = 0;
      }
    }
    if (!more) break;
    tile = next_tile;
    block = next;
  }
  BARRIER();
  if (tokens <= a.token) return;
  ROLLED for (uint e = tid; e < rows; e += THREADS) {
    float y = 0, up = 0;
    threadgroup const float *from = sums + (GATED ? e / 8 * 16 + e % 8 : e);
    UNROLL for (uint q = 0; q < SIMDS; ++q) if (q < slices) {
      y += from[q * tiles * 16];
      if (GATED) up += from[q * tiles * 16 + 8];
    }
    if (W == T2) { y *= scale; up *= scale; }
    uint i = begin + e;
    if (GATED) {
      if (a.after == SWIGLU) y = y * (1.0f / (1.0f + exp(-y))) * up;
      else y = relu2(y, up);
      a.y0[i] = y;
    } else {
      if (a.after == RESIDUAL) y += e == tid ? residual : a.residual[i];
      device float *to = a.y0;
      if (i >= a.m0) {
        i -= a.m0; to = a.y1;
        if (i >= a.m1) { i -= a.m1; to = a.y2; }
      }
      to[i] = y;
    }
  }
}
