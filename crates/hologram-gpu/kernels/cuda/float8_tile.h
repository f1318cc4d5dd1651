// Tiles of 16 rows of F8_E4M3 weights times one token's f32 activations, by `mma.sync`: for `experts_float8.cu`.
//
// Weights become f16, which is exact. Activations become two f16 each, the rounded value and the rest, after a power of two for each
// 128 elements: 22 bits of every value within 2^-24 of the greatest of its 128. The two are columns of one product, whose sums are f32.
//
// A lane has 16 neighbours of row lane / 4 and of the row 8 below, 64 elements of each row being a block. The order of the elements in
// a product is the one in which lanes hold them, for activations as for weights.
#include "float8.h"
#include "float8_values.h"

template <> constexpr bool packed<F8_E4M3>() { return false; }

// Elements of a block, and those that share a scale of the weights and of the activations.
constexpr uint TILE_BLOCK = 64, SCALE_LEN = 128;

// Bytes of a row's activations in shared memory: the first f16 of every element, 16 bytes, the second ones, 16 bytes.
FN constexpr uint tile_bytes(uint k) { return k * 4 + 32; }

// Puts the i-th four neighbours of a row into shared memory. Whole warps take part, whose lanes have fours one after the other, the first
// a multiple of 32; `inside`: whether there are such elements. meta: of each 128 what takes the power of two off.
FN void put_four(uchar *xs, uint2 *meta, uint k, uint i, bool inside, float4 v)
{
  const uint most = simd_max(as_u32(inside ? widest4(v) : 0.0f)) & 0x7fffffffu, exponent = most >> 23;
  // The greatest comes to be between 2^14 and 2^15.
  const float up = as_f32((exponent < 14 ? 254u : 268u - exponent) << 23), down = as_f32(exponent < 15 ? 0x00400000u : (exponent - 14) << 23);
  const float4 s = v * up;
  const half2 a = __floats2half2_rn(s.x, s.y), b = __floats2half2_rn(s.z, s.w);
  const float2 c = __half22float2(a), d = __half22float2(b);
  // Of an infinite value there is no rest.
  const bool finite = exponent != 255;
  const half2 e = __floats2half2_rn(finite ? s.x - c.x : 0.0f, finite ? s.y - c.y : 0.0f), f = __floats2half2_rn(finite ? s.z - d.x : 0.0f, finite ? s.w - d.y : 0.0f);
  if (!inside) return;
  union { half2 h[2]; uint2 w; } value, rest;
  value.h[0] = a; value.h[1] = b;
  rest.h[0] = e; rest.h[1] = f;
  *(uint2 *)(xs + i * 8) = value.w;
  *(uint2 *)(xs + k * 2 + 16 + i * 8) = rest.w;
  if (i % 32 == 0) meta[i / 32] = make_uint2(as_u32(down), 0);
}

// A block of a lane's two rows.
struct TileBlock { uint4 w[2]; uint scale[2]; };

FN void load_rows(TileBlock &b, const uchar *const (&w)[2], const uchar *const (&s)[2], uint block, ulong policy)
{
  UNROLL for (uint h = 0; h < 2; ++h) {
    b.w[h] = stream16(w[h] + block * TILE_BLOCK, policy);
    b.scale[h] = stream4(s[h] + block / (SCALE_LEN / TILE_BLOCK) * 4);
  }
}

// Adds a block's products to the sums of a lane's two rows: the four lanes of a row come to have the same.
FN void add_block(float *sum, const TileBlock &b, const uchar *xs, const uint2 *meta, uint k, uint block, uint lane)
{
  // Even columns are the values, odd ones the rests: the first two say it all.
  const uint4 *const x = (const uint4 *)(xs + (lane / 4 % 2) * (k * 2 + 16) + (block * 4 + lane % 4) * 32);
  const uint4 low = x[0], high = x[1];
  float d[4] = {};
  UNROLL for (uint j = 0; j < 4; ++j) {
    const uint p = word(b.w[0], j), q = word(b.w[1], j);
    const uint4 &v = j < 2 ? low : high;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(float8_pair(p)), "r"(float8_pair(q)), "r"(float8_pair(p >> 16)), "r"(float8_pair(q >> 16)), "r"(j % 2 == 0 ? v.x : v.z), "r"(j % 2 == 0 ? v.y : v.w));
  }
  const float down = as_f32(meta[block / (SCALE_LEN / TILE_BLOCK)].x);
  sum[0] = fma(d[0] + d[1], as_f32(b.scale[0]) * down, sum[0]);
  sum[1] = fma(d[2] + d[3], as_f32(b.scale[1]) * down, sum[1]);
}
