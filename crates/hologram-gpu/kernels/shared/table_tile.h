// Whether a chunk's halves have scales of their own.
template <uint W> FN constexpr bool scaled_halves() { return factors_of<W>() == SIGNED_16 || factors_of<W>() == FLOATS_16; }
#ifdef __CUDACC_RTC__
// Tiles of 16 rows of weights whose codes are indices of a table of 16 numbers, times one token's 8-bit activations, by `mma.sync`: for
// `matvec_packed.k` and `experts_tiles.cu`.
//
// Lookup is what such products wait for: seven instructions for eight codes here, thirteen with `table_values` and `dot4`. A permute of
// bytes knows eight entries, by three bits of a code; of a code with the fourth bit set it gives copies of the entry's sign, which is 0
// where the entry is positive. So one permute gives the first eight entries and 0 for other codes, and one of the codes with that bit
// turned over gives the rest. The two meet the activations in products of their own, whose difference is the sum.
//
// Lane (g, t) = (lane / 4, lane % 4) has chunk t of each four chunks of rows g and g + 8. A product adds up what the four lanes of a row
// have, but each chunk has its own scale. So column c of the activations has the elements of chunk c and zeros elsewhere. A step is eight
// chunks of a row, of which the second four are columns 4 to 7; lane (g, t) comes to have the sums of chunks 2t and 2t + 1.
#define STEP_CHUNKS 8

FN constexpr uint minus_bytes(uint v)
{
  return ((0u - v) & 0xffu) | ((0u - (v >> 8)) & 0xffu) << 8 | ((0u - (v >> 16)) & 0xffu) << 16 | ((0u - (v >> 24)) & 0xffu) << 24;
}
// Whether the first eight entries are the negative ones.
template <uint W> FN constexpr bool minus_first() { return (table_word<W>(0) >> 7 & 1u) != 0; }
// Words of the magnitudes of the entries of both halves.
template <uint W> FN constexpr uint magnitudes(uint i)
{
  return (i < 2) == minus_first<W>() ? minus_bytes(table_word<W>(i)) : table_word<W>(i);
}
template <uint W> FN constexpr bool has_magnitudes()
{
  return ((magnitudes<W>(0) | magnitudes<W>(1) | magnitudes<W>(2) | magnitudes<W>(3)) & 0x80808080u) == 0;
}

// A step of a lane's two rows: its codes, a record's number, and what each of chunks 2t and 2t + 1 has, as it was read: to put parts
// together here would wait for them.
template <uint W> struct TableStep { uint4 w[2][2]; uint numbers[2], factors[2][2]; };
// w: chunk t of each row; s: the records of each row, which has `chunks` chunks.
template <uint W> FN void load_step(TableStep<W> &b, const uchar *const *w, const uchar *const *s, uint step, uint t, uint chunks, ulong policy)
{
  const uint first = step * STEP_CHUNKS, last = chunks - 1, pair = first + 2 * t;
  UNROLL for (uint h = 0; h < 2; ++h) {
    // Beyond the row's end a chunk of it stands in, whose activations are taken as zero.
    UNROLL for (uint i = 0; i < 2; ++i) {
      const uint c = first + i * 4 + t;
      b.w[h][i] = stream16(w[h] + (long long)(record_chunks<W>() < 8 ? min(c, last) : c) * 16 - t * 16, policy);
    }
    if (record_chunks<W>() == 8) {
      const uchar *record = s[h] + step * record_bytes<W>();
      b.numbers[h] = stream2(record);
      b.factors[h][0] = stream2(record + 2 + (scaled_halves<W>() ? 4 : 2) * t);
      if (scaled_halves<W>()) b.factors[h][1] = stream2(record + 4 + 4 * t);
    } else if (factors_of<W>() == FLOATS_16) b.factors[h][0] = stream4(s[h] + min(pair, last) / 2 * 4);
    else UNROLL for (uint i = 0; i < 2; ++i) {
      const uint c = min(pair + i, last);
      b.factors[h][i] = factors_of<W>() == EXPONENT ? stream1(s[h] + c) : stream2(s[h] + c * 2);
    }
  }
}

FN uint permuted(uint a, uint b, uint by) { uint v; asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(by)); return v; }
FN void multiply_bytes(int (&d)[4], uint a0, uint a1, uint a2, uint a3, uint b0, uint b1)
{
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The zeros that stand after `meta`, of which each chunk has 8 bytes.
FN const uchar *zeros_after(const uint2 *meta, uint k) { return (const uchar *)meta + (k / 32 + 1) / 2 * 16; }

// Adds a step's products to the sums of a lane's two rows, of which each lane of a row has a part. xs, meta: as `put_packed` leaves them;
// zeros: `zeros_after`.
template <uint W> FN void add_step(float *sum, const TableStep<W> &b, const uchar *xs, const uint2 *meta, const uchar *zeros, uint k, uint step, uint lane)
{
  static_assert(has_magnitudes<W>(), "a table has eight entries of each sign");
  constexpr uint HALVES = scaled_halves<W>() ? 2 : 1;
  constexpr uint a = magnitudes<W>(0), c = magnitudes<W>(1), e = magnitudes<W>(2), f = magnitudes<W>(3);
  const uint g = lane / 4, t = lane % 4, chunks = k / 32, first = step * STEP_CHUNKS;
  int low[HALVES][4] = {}, high[HALVES][4] = {};
  UNROLL for (uint i = 0; i < 2; ++i) {
    const uint chunk = first + i * 4 + t;
    const bool mine = g == i * 4 + t && chunk < chunks;
    const uint4 *const x = (const uint4 *)(mine ? xs + chunk * 16 : zeros);
    const uint4 v = x[0], u = x[mine ? chunks : 0];
    UNROLL for (uint j = 0; j < 4; ++j) {
      const uint p = word(b.w[0][i], j), q = word(b.w[1][i], j), r = p ^ 0x88888888u, s = q ^ 0x88888888u;
      const uint4 &of = j < 2 ? v : u;
      const uint b0 = j % 2 == 0 ? of.x : of.z, b1 = j % 2 == 0 ? of.y : of.w;
      const uint half = j / (4 / HALVES) % HALVES;
      multiply_bytes(low[half], permuted(a, c, p), permuted(a, c, q), permuted(a, c, p >> 16), permuted(a, c, q >> 16), b0, b1);
      multiply_bytes(high[half], permuted(e, f, r), permuted(e, f, s), permuted(e, f, r >> 16), permuted(e, f, s >> 16), b0, b1);
    }
  }
  UNROLL for (uint i = 0; i < 2; ++i) {
    const uint chunk = min(first + 2 * t + i, chunks - 1);
    const float scale = as_f32(meta[chunk].x);
    UNROLL for (uint h = 0; h < 2; ++h) {
      int d[2] = {};
      UNROLL for (uint half = 0; half < HALVES; ++half) {
        const int difference = low[half][h * 2 + i] - high[half][h * 2 + i];
        d[half] = minus_first<W>() ? -difference : difference;
      }
      Chunk<W> of;
      of.numbers = factors_of<W>() == ONE ? b.factors[h][i] : b.numbers[h];
      of.factors = factors_of<W>() == FLOATS_16 ? b.factors[h][0] >> (16 * i) & 0xffffu
        : factors_of<W>() == SIGNED_32 ? b.factors[h][0] >> (8 * i) : b.factors[h][i];
      sum[h] = fma(scaled_sum<W>(of, d[0], d[1], 0, 0), scale, sum[h]);
    }
  }
}
#endif
