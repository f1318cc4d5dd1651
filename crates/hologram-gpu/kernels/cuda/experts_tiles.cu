// Products of a few tokens with the matrices of the experts that each has chosen, alone, two with their gate, or one with the sum of its results: as
// `experts.k` and `expert_sums.k`, on tensor cores. Of F8_E4M3 weights and f32 activations with the tiles of `float8_tile.h`, of weights with a table and
// 8-bit activations with those of `table_tile.h`.
//
// A warp has a tile of 16 rows (of a gate: 8 of each matrix) of a slot's expert, and every `slices`-th block along them; the first blocks are on
// their way while activations come to shared memory.
#include "dialect.h"
#include "packed.h"
#include "stream.h"
#include "codes.h"
#include "expert_gate.h"
#include "table_tile.h"
#include "float8_tile.h"

#define THREADS 256
// Threads of a sum's workgroup: of floats, and of tables, whose many registers leave a multiprocessor two workgroups of them.
#define SUM_THREADS 512
#define TABLE_SUM_THREADS 256
HOST(THREADS, SUM_THREADS, TABLE_SUM_THREADS)

// What tiles have, by the type of their weights: elements of a row in a block, bytes of a row's codes and of its scales, and a warp's blocks under way,
// of sums as well, which need registers for their activations.
template <uint W> struct Blocks {
  static constexpr uint LEN = 256, RING = 3, SUM_RING = scaled_halves<W>() || W == MXFP4 ? 2 : 3;
  typedef TableStep<W> Block;
  static FN uint codes(uint k) { return k / 2; }
  static FN uint scales(uint k) { return k / 32 / record_chunks<W>() * record_bytes<W>(); }
};
template <> struct Blocks<F8_E4M3> {
  static constexpr uint LEN = TILE_BLOCK, RING = 4, SUM_RING = 4;
  typedef TileBlock Block;
  static FN uint codes(uint k) { return k; }
  static FN uint scales(uint k) { return k / SCALE_LEN * 4; }
};
// Bytes of a row of activations in shared memory before what belongs to them, and in all.
template <uint W> FN uint x_bytes(uint k) { return W == F8_E4M3 ? tile_bytes(k) : k; }
template <uint W> FN uint row_bytes(uint k) { return W == F8_E4M3 ? tile_bytes(k) + (k / SCALE_LEN + 1) / 2 * 16 : k + (k / 32 + 1) / 2 * 16 + 16; }

// A lane's two rows of a tile: where they are, and the blocks on their way.
template <uint W, uint RING> struct Tile {
  const uchar *w[2], *s[2];
  typename Blocks<W>::Block ring[RING];
};
template <uint W, uint RING> FN void load(Tile<W, RING> &tile, uint p, uint block, uint k, uint lane, ulong policy)
{
  if constexpr (W == F8_E4M3) load_rows(tile.ring[p], tile.w, tile.s, block, policy);
  else load_step<W>(tile.ring[p], tile.w, tile.s, block, lane % 4, k / 32, policy);
}
// Finds the rows, of which those beyond the last of m stand for it, and begins with every `step`-th block of them from `first` on.
template <uint W, uint RING> FN void begin(Tile<W, RING> &tile, const uchar *w0, const uchar *s0, const uchar *w1, const uchar *s1, bool gated, uint expert, uint row, uint m, uint k, uint first, uint step, uint blocks, uint lane, ulong policy)
{
  UNROLL for (uint h = 0; h < 2; ++h) {
    const ulong at = ulong(expert) * m + min(row + lane / 4 + (gated ? 0 : h * 8), m - 1);
    const bool second = gated && h == 1;
    tile.w[h] = (second ? w1 : w0) + at * Blocks<W>::codes(k) + lane % 4 * 16;
    tile.s[h] = (second ? s1 : s0) + at * Blocks<W>::scales(k);
  }
  UNROLL for (uint p = 0; p < RING; ++p) if (first + p * step < blocks) load<W>(tile, p, first + p * step, k, lane, policy);
}
// Adds the products of every step-th block; all lanes of a row have its sum.
template <uint W, uint RING> FN void finish(float *total, Tile<W, RING> &tile, uint first, uint step, uint blocks, const uchar *xs, uint k, uint lane, ulong policy)
{
  const uint2 *const meta = (const uint2 *)(xs + x_bytes<W>(k));
  float sum[2] = {};
  ROLLED for (uint block = first; block < blocks; block += RING * step) {
    UNROLL for (uint p = 0; p < RING; ++p) {
      const uint at = block + p * step, next = at + RING * step;
      if (at < blocks) {
        if constexpr (W == F8_E4M3) add_block(sum, tile.ring[p], xs, meta, k, at, lane);
        else add_step<W>(sum, tile.ring[p], xs, meta, zeros_after(meta, k), k, at, lane);
      }
      if (next < blocks) load<W>(tile, p, next, k, lane, policy);
    }
  }
  UNROLL for (uint h = 0; h < 2; ++h) {
    if (W != F8_E4M3) UNROLL for (uint m = 1; m < 4; m <<= 1) sum[h] += simd_shuffle_xor(sum[h], m);
    total[h] = sum[h];
  }
}

// Puts rows of activations into shared memory: floats, of which the first fours are here.
template <uint W, uint HELD> FN void put_floats(uchar *bytes, const float4 *x, float4 (&held)[HELD], float least, uint k, uint rows, uint tid, uint threads)
{
  const uint n = k / 4, all = rows * n;
  ROLLED for (uint from = 0;;) {
    // Whole warps take part.
    UNROLL for (uint j = 0; j < HELD; ++j) if (from + j * threads + tid / 32 * 32 < all) {
      const uint i = from + j * threads + tid, row = min(i, all - 1) / n;
      uchar *const to = bytes + row * row_bytes<W>(k);
      uint2 *const meta = (uint2 *)(to + x_bytes<W>(k));
      if constexpr (W == F8_E4M3) put_four(to, meta, k, i - row * n, i < all, held[j]);
      else quantize_packed(to, meta, k, i < all ? n : 0, i - row * n, held[j], least);
    }
    from += HELD * threads;
    if (from >= all) break;
    UNROLL for (uint j = 0; j < HELD; ++j) held[j] = fresh(x + min(from + j * threads + tid, all - 1));
  }
  if (W != F8_E4M3) ROLLED for (uint row = tid; row < rows; row += threads) *(uint4 *)(bytes + (row + 1) * row_bytes<W>(k) - 16) = make_uint4(0, 0, 0, 0);
}
// Codes with a scale for each 32, of which the first fours are here.
template <uint W, uint HELD> FN void put_codes(uchar *bytes, const uint *x, const float *scales, uint (&codes)[HELD], float (&held)[HELD], uint k, uint tid, uint threads)
{
  const uint n = k / 4;
  uint2 *const meta = (uint2 *)(bytes + x_bytes<W>(k));
  ROLLED for (uint from = 0;;) {
    UNROLL for (uint j = 0; j < HELD; ++j) if (from + j * threads + tid / 32 * 32 < n) put_packed(bytes, meta, k, n, from + j * threads + tid, codes[j], held[j]);
    from += HELD * threads;
    if (from >= n) break;
    UNROLL for (uint j = 0; j < HELD; ++j) {
      const uint at = min(from + j * threads + tid, n - 1);
      codes[j] = fresh(x + at);
      held[j] = fresh(scales + at / 8);
    }
  }
  if (tid == 0) *(uint4 *)(bytes + row_bytes<W>(k) - 16) = make_uint4(0, 0, 0, 0);
}

// Grid: tiles / (warps / slices) and slots; slices: a power of two. x has a row for each slot or, per_slot 0, for each token. An id of no expert is a
// fault. b0, b1: with `biased`, a row for each expert of what is added to the products with w0 and w1.
#define EXPERTS(name, W, T, GROUPS) KERNEL_SHARED(experts_##name, T, GROUPS, IN(0, uchar, x), IN(1, float, x_scales), IN(2, uchar, w0), IN(3, uchar, s0), IN(4, uchar, w1), IN(5, uchar, s1), IN(6, uint, ids), \
  IN(7, float, b0), IN(8, float, b1), OUT(9, float, y), COUNT(10, tokens), VAL(14, uint, k), VAL(15, uint, m), VAL(16, uint, slots), VAL(17, uint, experts), VAL(18, uint, per_slot), VAL(19, uint, after), \
  VAL(20, uint, biased), VAL(21, uint, slices), FAULT(22)) \
{ \
  constexpr uint WARPS = (T) / 32, HELD = W == F8_E4M3 ? 2 : 3; \
  DYNAMIC_SHARED(bytes); \
  SHARED(float, part, [WARPS * 16]); \
  const ulong policy = stream_policy(); \
  const bool gated = after != STORE; \
  const uint slot = GROUP.y, lane = LANE, warp = SIMD, slice = warp % slices, teams = WARPS / slices, team = warp / slices, of_tile = gated ? 8 : 16; \
  const uint row = (GROUP.x * teams + team) * of_tile, blocks = (k + Blocks<W>::LEN - 1) / Blocks<W>::LEN, n = k / 4; \
  DEPENDENCY_WAIT(); \
  DEPENDENCY_LAUNCH(); \
  if (slot >= COUNTED(tokens) * slots) return; \
  const uint expert = fresh(ids + slot), x_row = per_slot != 0 ? slot : slot / slots; \
  /* A thread has a row of a team. */ \
  const uint of_team = TID / of_tile, in_tile = TID % of_tile, to = (GROUP.x * teams + of_team) * of_tile + in_tile; \
  const bool writes = of_team < teams && to < m; \
  const float4 *const from = (const float4 *)x + ulong(x_row) * n; \
  const uint *const x_codes = (const uint *)x + ulong(x_row) * n; \
  const float *const scales = x_scales + ulong(x_row) * (k / 32); \
  /* Activations are asked for before weights, for which they would wait otherwise. */ \
  float4 floats[HELD]; \
  uint codes[HELD]; \
  float of_codes[HELD]; \
  UNROLL for (uint j = 0; j < HELD; ++j) { \
    const uint at = min(j * (T) + TID, n - 1); \
    if (W == F8_E4M3) floats[j] = fresh(from + at); \
    else { \
      codes[j] = fresh(x_codes + at); \
      of_codes[j] = fresh(scales + at / 8); \
    } \
  } \
  if (expert >= experts) { \
    if (TID == 0) note_fault(fault, expert, experts); \
    return; \
  } \
  float first_bias = 0, second_bias = 0; \
  if (biased != 0 && writes) { \
    first_bias = b0[ulong(expert) * m + to]; \
    if (gated) second_bias = b1[ulong(expert) * m + to]; \
  } \
  const bool busy = row < m; \
  Tile<W, Blocks<W>::RING> tile; \
  if (busy) begin<W>(tile, w0, s0, w1, s1, gated, expert, row, m, k, slice, slices, blocks, lane, policy); \
  if constexpr (W == F8_E4M3) put_floats<W, HELD>(bytes, from, floats, 0.0f, k, 1, TID, T); \
  else put_codes<W, HELD>(bytes, x_codes, scales, codes, of_codes, k, TID, T); \
  BARRIER(); \
  float sum[2] = {}; \
  if (busy) finish<W>(sum, tile, slice, slices, blocks, bytes, k, lane, policy); \
  if (lane % 4 == 0) { \
    part[warp * 16 + lane / 4] = sum[0]; \
    part[warp * 16 + 8 + lane / 4] = sum[1]; \
  } \
  BARRIER(); \
  if (!writes) return; \
  float v = first_bias, up = second_bias; \
  ROLLED for (uint i = 0; i < slices; ++i) { \
    v += part[(of_team * slices + i) * 16 + in_tile]; \
    if (gated) up += part[(of_team * slices + i) * 16 + 8 + in_tile]; \
  } \
  if (gated) v = gate_value(after, v, up); \
  y[ulong(slot) * m + to] = v; \
}

// Grid: tiles and tokens. slices: warps of a slot; if there are fewer warps than slots, they take several. x has a row of floats for each slot or, per_slot 0,
// for each token; least: of the magnitudes that codes are scaled by. An id of no expert is a fault. weights: of each slot; residual: with `added`, added to the
// sum; bias: with `biased`, a row for each expert of what is added to its products.
#define SUMS(name, W, T, GROUPS) KERNEL_SHARED(sums_##name, T, GROUPS, IN(0, float, x), IN(1, uchar, w), IN(2, uchar, s), IN(3, uint, ids), IN(4, float, weights), IN(5, float, residual), IN(6, float, bias), \
  OUT(7, float, y), COUNT(8, tokens), VAL(12, uint, k), VAL(13, uint, m), VAL(14, uint, slots), VAL(15, uint, experts), VAL(16, uint, per_slot), VAL(17, uint, added), VAL(18, uint, biased), \
  VAL(19, uint, slices), VAL(20, float, least), FAULT(21)) \
{ \
  constexpr uint WARPS = (T) / 32, HELD = W == F8_E4M3 ? 3 : 6; \
  DYNAMIC_SHARED(bytes); \
  SHARED(float, part, [WARPS * 16]); \
  const ulong policy = stream_policy(); \
  const uint token = GROUP.y, lane = LANE, warp = SIMD, slice = warp % slices, teams = WARPS / slices, row = GROUP.x * 16, blocks = (k + Blocks<W>::LEN - 1) / Blocks<W>::LEN, n = k / 4; \
  DEPENDENCY_WAIT(); \
  DEPENDENCY_LAUNCH(); \
  if (token >= COUNTED(tokens)) return; \
  const uint rows = per_slot != 0 ? slots : 1; \
  const float4 *const from = (const float4 *)x + ulong(token) * rows * n; \
  uint slot = warp / slices, expert = slot < slots ? fresh(ids + token * slots + slot) : 0; \
  float4 held[HELD]; \
  UNROLL for (uint j = 0; j < HELD; ++j) held[j] = fresh(from + min(j * (T) + TID, rows * n - 1)); \
  const ulong to = ulong(token) * m + row + TID; \
  float weight = 0, biases[2] = {}, before = 0; \
  if (added != 0 && TID < 16 && row + TID < m) before = fresh(residual + to); \
  if (slot < slots && expert < experts) { \
    weight = fresh(weights + token * slots + slot); \
    if (biased != 0) UNROLL for (uint h = 0; h < 2; ++h) biases[h] = bias[ulong(expert) * m + min(row + lane / 4 + h * 8, m - 1)]; \
  } \
  Tile<W, Blocks<W>::SUM_RING> tile; \
  if (slot < slots && expert < experts) begin<W>(tile, w, s, w, s, false, expert, row, m, k, slice, slices, blocks, lane, policy); \
  put_floats<W, HELD>(bytes, from, held, least, k, rows, TID, T); \
  BARRIER(); \
  float total[2] = {}; \
  ROLLED for (uint i = slot; i < slots; i += teams) { \
    if (i != slot) { \
      expert = fresh(ids + token * slots + i); \
      if (expert < experts) { \
        weight = fresh(weights + token * slots + i); \
        if (biased != 0) UNROLL for (uint h = 0; h < 2; ++h) biases[h] = bias[ulong(expert) * m + min(row + lane / 4 + h * 8, m - 1)]; \
        begin<W>(tile, w, s, w, s, false, expert, row, m, k, slice, slices, blocks, lane, policy); \
      } \
    } \
    if (expert >= experts) { \
      if (lane == 0) note_fault(fault, expert, experts); \
      continue; \
    } \
    float sum[2] = {}; \
    finish<W>(sum, tile, slice, slices, blocks, bytes + (per_slot != 0 ? i : 0) * row_bytes<W>(k), k, lane, policy); \
    UNROLL for (uint h = 0; h < 2; ++h) total[h] = fma(weight, sum[h] + (slice == 0 ? biases[h] : 0.0f), total[h]); \
  } \
  if (lane % 4 == 0) { \
    part[warp * 16 + lane / 4] = total[0]; \
    part[warp * 16 + 8 + lane / 4] = total[1]; \
  } \
  BARRIER(); \
  if (TID >= 16 || row + TID >= m) return; \
  float v = 0; \
  UNROLL for (uint i = 0; i < WARPS; ++i) v += part[i * 16 + TID]; \
  y[to] = added != 0 ? v + before : v; \
}
EXPERTS(f8_e4m3, F8_E4M3, THREADS, 3)
SUMS(f8_e4m3, F8_E4M3, SUM_THREADS, 1)
EXPERTS(iq4_nl, IQ4_NL, THREADS, 2)
SUMS(iq4_nl, IQ4_NL, TABLE_SUM_THREADS, 2)
EXPERTS(iq4_xs, IQ4_XS, THREADS, 2)
SUMS(iq4_xs, IQ4_XS, TABLE_SUM_THREADS, 2)
EXPERTS(mxfp4, MXFP4, THREADS, 2)
SUMS(mxfp4, MXFP4, TABLE_SUM_THREADS, 2)
EXPERTS(nvfp4, NVFP4, THREADS, 2)
SUMS(nvfp4, NVFP4, TABLE_SUM_THREADS, 2)
EXPERTS(iq2_n, IQ2_N, THREADS, 2)
SUMS(iq2_n, IQ2_N, TABLE_SUM_THREADS, 2)
EXPERTS(iq3_xxs_n, IQ3_XXS_N, THREADS, 2)
SUMS(iq3_xxs_n, IQ3_XXS_N, TABLE_SUM_THREADS, 2)
EXPERTS(iq3_s_n, IQ3_S_N, THREADS, 2)
SUMS(iq3_s_n, IQ3_S_N, TABLE_SUM_THREADS, 2)
