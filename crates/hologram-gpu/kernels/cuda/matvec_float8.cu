// Products of one token's f32 activations with weights in F8_E4M3, y = x wᵀ: as `matvec_i8.k` divides them, with the tiles of
// `float8_tile.h`. What is not served here (more tokens, a norm of longer rows) `matvec.k` serves.
#include "dialect.h"
#include "matvec_i8.h"
#include "float8_tile.h"

template <> constexpr uint lanes_of<F8_E4M3>() { return 4; }
template <> constexpr uint rows_of<F8_E4M3>() { return 2; }
template <> constexpr uint chunk_len<F8_E4M3>() { return 16; }
template <> constexpr uint block_len<F8_E4M3>() { return SCALE_LEN; }
template <> constexpr uint scale_bytes<F8_E4M3>() { return 4; }
template <> constexpr uint ring_len<F8_E4M3>() { return 6; }
template <> constexpr bool of_floats<F8_E4M3>() { return true; }
template <> FN constexpr uint floats_bytes<F8_E4M3>(uint k) { return tile_bytes(k); }
template <> FN void put_floats<F8_E4M3>(uchar *xs, uint2 *meta, uint k, uint i, bool inside, float4 v) { put_four(xs, meta, k, i, inside, v); }
template <> struct Block<F8_E4M3> { TileBlock tile; };
template <> FN void load<F8_E4M3>(Block<F8_E4M3> &b, const Rows<F8_E4M3> &r, uint block, uint, uint, ulong policy) { load_rows(b.tile, r.w, r.s, block, policy); }
template <> FN void multiply<F8_E4M3>(float *sum, const Block<F8_E4M3> &b, const uchar *xs, const uint2 *meta, uint k, uint block, uint lane)
{
  add_block(sum, b.tile, xs, meta, k, block, lane);
}

#define MATVEC_FLOAT8(name, GATED, HELD) KERNEL_SHARED(float8_##name##_h##HELD, THREADS, 1, IN(0, float, x), IN(1, float, norm), IN(2, uchar, w0), IN(3, uchar, w1), IN(4, uchar, w2), \
  IN(5, uchar, s0), IN(6, uchar, s1), IN(7, uchar, s2), OUT(8, float, y0), OUT(9, float, y1), OUT(10, float, y2), IN(11, float, residual), IN(12, uint, step), \
  VAL(13, uint, slot), VAL(14, uint, k), VAL(15, uint, m0), VAL(16, uint, m1), VAL(17, uint, each), VAL(18, uint, over), VAL(19, uint, teams), VAL(20, uint, slices), VAL(21, uint, magic), \
  VAL(22, uint, after), VAL(23, float, eps), VAL(24, float, per) AHEAD(25)) \
{ \
  DYNAMIC_SHARED(bytes); \
  DEPENDENCY_LAUNCH(); \
  const Task a = {x, norm, w0, w1, w2, s0, s1, s2, y0, y1, y2, residual, step, slot, k, m0, m1, each, over, teams, slices, magic, after, eps, 0.0f, per}; \
  const Ahead ahead = AHEAD_VALUE; \
  products<F8_E4M3, GATED, HELD>(a, ahead, bytes, GROUP.x, LOCAL.x); \
}
// With a norm rows of up to 4,096 and 8,192 elements; without one, longer ones go in rounds.
MATVEC_FLOAT8(rows, false, 2)
MATVEC_FLOAT8(gate, true, 2)
MATVEC_FLOAT8(rows, false, 4)
MATVEC_FLOAT8(gate, true, 4)
