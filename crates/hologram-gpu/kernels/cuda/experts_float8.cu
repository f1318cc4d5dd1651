// Products of a few tokens' f32 activations with the F8_E4M3 matrices of the experts that each has chosen, alone, two with their gate, or one
// with the sum of its results: as `experts.k` and `expert_sums.k`, with the tiles of `float8_tile.h`.
//
// A warp has a tile of 16 rows (of a gate: 8 of each matrix) of a slot's expert, and every `slices`-th block along them; the first blocks are on
// their way while activations come to shared memory.
#include "dialect.h"
#include "packed.h"
#include "stream.h"
#include "float8_tile.h"

enum After : uint { STORE, SWIGLU, RELU2, CLAMPED_SWIGLU };
#define THREADS 256
#define SUM_THREADS 512
HOST(THREADS, SUM_THREADS)
// Blocks of a warp under way.
#define RING 4

// A lane's two rows of a tile: where they are, and the blocks on their way.
struct Tile {
  const uchar *w[2], *s[2];
  TileBlock ring[RING];
};
// Rows beyond the last of m stand for it.
FN void find_rows(Tile &t, const uchar *w0, const uchar *s0, const uchar *w1, const uchar *s1, bool gated, uint expert, uint row, uint m, uint k, uint lane)
{
  UNROLL for (uint h = 0; h < 2; ++h) {
    const ulong at = ulong(expert) * m + min(row + lane / 4 + (gated ? 0 : h * 8), m - 1);
    const bool second = gated && h == 1;
    t.w[h] = (second ? w1 : w0) + at * k + lane % 4 * 16;
    t.s[h] = (second ? s1 : s0) + at * (k / SCALE_LEN) * 4;
  }
}
FN void begin(Tile &t, uint first, uint step, uint blocks, ulong policy)
{
  UNROLL for (uint p = 0; p < RING; ++p) if (first + p * step < blocks) load_rows(t.ring[p], t.w, t.s, first + p * step, policy);
}
// Adds the products of every step-th block.
FN void finish(float *sum, Tile &t, uint first, uint step, uint blocks, const uchar *xs, const uint2 *meta, uint k, uint lane, ulong policy)
{
  ROLLED for (uint block = first; block < blocks; block += RING * step) {
    UNROLL for (uint p = 0; p < RING; ++p) {
      const uint at = block + p * step, next = at + RING * step;
      if (at < blocks) add_block(sum, t.ring[p], xs, meta, k, at, lane);
      if (next < blocks) load_rows(t.ring[p], t.w, t.s, next, policy);
    }
  }
}
// Bytes of a row of activations with what belongs to its elements.
FN constexpr uint row_bytes(uint k) { return tile_bytes(k) + (k / SCALE_LEN + 1) / 2 * 16; }

// Puts rows of f32 activations into shared memory, of which the first fours are here.
template <uint HELD> FN void put_rows(uchar *bytes, const float4 *x, const float4 (&held)[HELD], uint k, uint rows, uint tid, uint threads)
{
  const uint n = k / 4, all = rows * n;
  UNROLL for (uint j = 0; j < HELD; ++j) {
    const uint i = j * threads + tid, row = i / n;
    uchar *const to = bytes + row * row_bytes(k);
    if (i < all) put_four(to, (uint2 *)(to + tile_bytes(k)), k, i - row * n, true, held[j]);
  }
  ROLLED for (uint i = HELD * threads + tid; i < all; i += threads) {
    const uint row = i / n;
    uchar *const to = bytes + row * row_bytes(k);
    put_four(to, (uint2 *)(to + tile_bytes(k)), k, i - row * n, true, fresh(x + i));
  }
}

// gpt-oss' gate.
FN float clamped_swiglu(float gate, float up)
{
  const float g = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
  return g * (1.0f / (1.0f + exp(-1.702f * g))) * (u + 1.0f);
}

// Grid: tiles / (warps / slices) and slots; slices: a power of two. x has a row for each slot or, per_slot 0, for each token. An id of no expert is a
// fault. b0, b1: with `biased`, a row for each expert of what is added to the products with w0 and w1.
KERNEL_SHARED(experts_float8, THREADS, 3, IN(0, float, x), IN(1, uchar, w0), IN(2, uchar, s0), IN(3, uchar, w1), IN(4, uchar, s1), IN(5, uint, ids), IN(6, float, b0), IN(7, float, b1),
  OUT(8, float, y), COUNT(9, tokens), VAL(13, uint, k), VAL(14, uint, m), VAL(15, uint, slots), VAL(16, uint, experts), VAL(17, uint, per_slot), VAL(18, uint, after), VAL(19, uint, biased),
  VAL(20, uint, slices), FAULT(21))
{
  constexpr uint WARPS = THREADS / 32, HELD = 2;
  DYNAMIC_SHARED(bytes);
  SHARED(float, part, [WARPS * 16]);
  const ulong policy = stream_policy();
  const bool gated = after != STORE;
  const uint slot = GROUP.y, lane = LANE, warp = SIMD, slice = warp % slices, teams = WARPS / slices, team = warp / slices, of_tile = gated ? 8 : 16;
  const uint row = (GROUP.x * teams + team) * of_tile, blocks = k / TILE_BLOCK, n = k / 4;
  DEPENDENCY_WAIT();
  DEPENDENCY_LAUNCH();
  if (slot >= COUNTED(tokens) * slots) return;
  const uint expert = fresh(ids + slot);
  const float4 *const from = (const float4 *)x + ulong(per_slot != 0 ? slot : slot / slots) * n;
  float4 held[HELD];
  UNROLL for (uint j = 0; j < HELD; ++j) held[j] = fresh(from + min(j * THREADS + TID, n - 1));
  if (expert >= experts) {
    if (TID == 0) note_fault(fault, expert, experts);
    return;
  }
  const bool busy = row < m;
  Tile tile;
  find_rows(tile, w0, s0, w1, s1, gated, expert, min(row, m - 1), m, k, lane);
  if (busy) begin(tile, slice, slices, blocks, policy);
  put_rows<HELD>(bytes, from, held, k, 1, TID, THREADS);
  BARRIER();
  float sum[2] = {};
  if (busy) finish(sum, tile, slice, slices, blocks, bytes, (const uint2 *)(bytes + tile_bytes(k)), k, lane, policy);
  if (lane % 4 == 0) {
    part[warp * 16 + lane / 4] = sum[0];
    part[warp * 16 + 8 + lane / 4] = sum[1];
  }
  BARRIER();
  // A thread has a row of a team.
  const uint of_team = TID / of_tile, in_tile = TID % of_tile, to = (GROUP.x * teams + of_team) * of_tile + in_tile;
  if (of_team >= teams || to >= m) return;
  float v = 0, up = 0;
  ROLLED for (uint i = 0; i < slices; ++i) {
    v += part[(of_team * slices + i) * 16 + in_tile];
    if (gated) up += part[(of_team * slices + i) * 16 + 8 + in_tile];
  }
  if (biased != 0) {
    v += b0[ulong(expert) * m + to];
    if (gated) up += b1[ulong(expert) * m + to];
  }
  if (gated) v = after == SWIGLU ? v * (1.0f / (1.0f + exp(-v))) * up : after == RELU2 ? relu2(v, up) : clamped_swiglu(v, up);
  y[ulong(slot) * m + to] = v;
}

// Grid: tiles and tokens. slices: warps of a slot; if there are fewer warps than slots, they take several. x has a row for each slot or, per_slot 0, for
// each token. An id of no expert is a fault. weights: of each slot; residual: with `added`, added to the sum; bias: with `biased`, a row for each expert of
// what is added to its products.
KERNEL_SHARED(sums_float8, SUM_THREADS, 1, IN(0, float, x), IN(1, uchar, w), IN(2, uchar, s), IN(3, uint, ids), IN(4, float, weights), IN(5, float, residual), IN(6, float, bias),
  OUT(7, float, y), COUNT(8, tokens), VAL(12, uint, k), VAL(13, uint, m), VAL(14, uint, slots), VAL(15, uint, experts), VAL(16, uint, per_slot), VAL(17, uint, added), VAL(18, uint, biased),
  VAL(19, uint, slices), FAULT(20))
{
  constexpr uint WARPS = SUM_THREADS / 32, HELD = 3;
  DYNAMIC_SHARED(bytes);
  SHARED(float, part, [WARPS * 16]);
  const ulong policy = stream_policy();
  const uint token = GROUP.y, lane = LANE, warp = SIMD, slice = warp % slices, teams = WARPS / slices, row = GROUP.x * 16, blocks = k / TILE_BLOCK, n = k / 4;
  DEPENDENCY_WAIT();
  DEPENDENCY_LAUNCH();
  if (token >= COUNTED(tokens)) return;
  const uint rows = per_slot != 0 ? slots : 1;
  const float4 *const from = (const float4 *)x + ulong(token) * rows * n;
  uint slot = warp / slices, expert = slot < slots ? fresh(ids + token * slots + slot) : 0;
  float4 held[HELD];
  UNROLL for (uint j = 0; j < HELD; ++j) held[j] = fresh(from + min(j * SUM_THREADS + TID, rows * n - 1));
  Tile tile;
  if (slot < slots && expert < experts) {
    find_rows(tile, w, s, w, s, false, expert, row, m, k, lane);
    begin(tile, slice, slices, blocks, policy);
  }
  put_rows<HELD>(bytes, from, held, k, rows, TID, SUM_THREADS);
  BARRIER();
  float total[2] = {};
  ROLLED for (uint i = slot; i < slots; i += teams) {
    if (i != slot) {
      expert = fresh(ids + token * slots + i);
      if (expert < experts) {
        find_rows(tile, w, s, w, s, false, expert, row, m, k, lane);
        begin(tile, slice, slices, blocks, policy);
      }
    }
    if (expert >= experts) {
      if (lane == 0) note_fault(fault, expert, experts);
      continue;
    }
    float sum[2] = {};
    const uchar *const xs = bytes + (per_slot != 0 ? i : 0) * row_bytes(k);
    finish(sum, tile, slice, slices, blocks, xs, (const uint2 *)(xs + tile_bytes(k)), k, lane, policy);
    const float weight = fresh(weights + token * slots + i);
    UNROLL for (uint h = 0; h < 2; ++h) {
      if (biased != 0 && slice == 0) sum[h] += bias[ulong(expert) * m + min(row + lane / 4 + h * 8, m - 1)];
      total[h] = fma(weight, sum[h], total[h]);
    }
  }
  if (lane % 4 == 0) {
    part[warp * 16 + lane / 4] = total[0];
    part[warp * 16 + 8 + lane / 4] = total[1];
  }
  BARRIER();
  if (TID >= 16 || row + TID >= m) return;
  float v = 0;
  UNROLL for (uint i = 0; i < WARPS; ++i) v += part[i * 16 + TID];
  const ulong to = ulong(token) * m + row + TID;
  y[to] = added != 0 ? v + fresh(residual + to) : v;
}
