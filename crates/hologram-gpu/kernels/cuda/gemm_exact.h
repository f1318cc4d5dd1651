// Packed weights whose codes tensor cores multiply as whole numbers, which bf16 holds exactly; scales are applied to
// the sums.
//
// A code c of 4 to 6 bits stands as 128 + c, one instruction for two. What that adds, with what the type takes off its
// codes and its minimum, is the same for a run of 16 or 32 elements: a number of the row times the sum of the token's
// activations there. Tensor cores make those products too, once for the 256 elements of a stage, with both factors as
// sums of two bf16; two warps add up the activations.
#pragma once
#include "packed_fragments.h"
#include "wgmma.h"

// What stands for value 0; which tables have values that bf16 holds with it; runs of a chunk of 32 elements.
template <uint P> constexpr uint offset_of() { return planes::is_table<P>() ? 192 : 128 + (P == planes::Q4 ? 8 : planes::bias_of<P>()); }
// Of codes of fewer bits 128 times a sum of activations, in two bf16, is not precise enough.
template <uint P> constexpr bool is_exact()
{
    if (planes::low_bits<P>() != 4) return false;
    if constexpr (planes::is_table<P>())
        for (uint i = 0; i < 16; ++i)
            if ((planes::table_word<P>(i / 4) >> i % 4 * 8) + 64 & 128) return false;
    return true;
}
template <uint P> constexpr uint runs_of()
{
    return planes::factors_of<P>() == planes::NIBBLES || planes::factors_of<P>() == planes::SIGNED_16 || planes::factors_of<P>() == planes::FLOATS_16 ? 2 : 1;
}

// A lane's factors: of its two rows and its two chunks of a stage the scales, and as pairs of bf16 what the sums of
// activations are multiplied with.
template <uint P> struct Factors {
    static constexpr uint RUNS = runs_of<P>();
    float scale[2][2][RUNS];
    uint high[2][RUNS], low[2][RUNS];

    __forceinline__ Factors(const Held<P> &held)
    {
        #pragma unroll
        for (uint h = 0; h < 2; ++h)
            #pragma unroll
            for (uint r = 0; r < RUNS; ++r) {
                float n[2];
                #pragma unroll
                for (uint b = 0; b < 2; ++b) {
                    const float2 s = planes::scale_of<P>(held.own(h, b), r);
                    scale[h][b][r] = s.x;
                    n[b] = -float(offset_of<P>()) * s.x - s.y;
                }
                high[h][r] = pack_bf16(n[0], n[1]);
                low[h][r] = pack_bf16(n[0] - __uint_as_float(high[h][r] << 16), n[1] - __uint_as_float(high[h][r] & 0xffff0000u));
            }
    }
};

// (v & mask) | more in one instruction.
template <uint MASK> FN uint masked(uint v, uint more)
{
    uint r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "n"(MASK), "r"(more));
    return r;
}
FN uint shifted(uint v, int to_left) { return to_left < 0 ? v >> -to_left : v << to_left; }

// The A fragments of a chunk of a warp's rows: of its first 16 elements, and of the others. base, first, high,
// high_first: as for load_packed, of the chunk.
template <uint P, int ACROSS, int PITCH> FN void load_exact(uint (&a)[2][4], uint base, uint first, uint high, uint high_first, uint row, uint pair, uint lane, uint exponents)
{
    constexpr uint HIGH = planes::high_bits<P>();
    const uint t = lane & 3;
    #pragma unroll
    for (uint h = 0; h < 2; ++h) {
        const uint r = row + h * pair, from = base + h * pair * ACROSS ^ first; // Rows that differ by 8 or 32 have the same pattern.
        if constexpr (planes::is_table<P>()) {
            // Codes lie one after the other.
            const uint at = from + (t & 2), by = (t & 1) * 8;
            #pragma unroll
            for (uint i = 0; i < 2; ++i) {
                const uint v = planes::table_values<P>((load16(at + i * 8) >> by & 0xff) | (load16(at + i * 8 + 4) >> by & 0xff) << 8).x & 0x7f7f7f7fu ^ 0x40404040u;
                a[i][h] = __byte_perm(v, 0x43434343u, 0x4140);
                a[i][h + 2] = __byte_perm(v, 0x43434343u, 0x4342);
            }
            continue;
        }
        uint codes[4]; // Of elements 2t and 2t + 1, and of those 8, 16 and 24 further.
        const uint low = from + 2 * t;
        const uint v = apart(load16(low)), u = apart(load16(low + 8));
        codes[0] = masked<0x000f000f>(v, exponents);
        codes[1] = masked<0x000f000f>(u, exponents);
        codes[2] = masked<0x000f000f>(v >> 4, exponents);
        codes[3] = masked<0x000f000f>(u >> 4, exponents);
        if constexpr (HIGH == 1) {
            const uint v = apart(load16(high + byte_place<PITCH>(r, high_first) + (t & 1) * 2)) >> (t >> 1);
            #pragma unroll
            for (int i = 0; i < 4; ++i) codes[i] = masked<0x00100010>(shifted(v, 4 - 2 * i), codes[i]);
        }
        if constexpr (HIGH == 2) {
            const uint at = high + byte_place<PITCH>(r, high_first) + (t & 1) * 2, by = (t >> 1) * 2;
            const uint v = apart(load16(at)) >> by, u = apart(load16(at + 4)) >> by;
            codes[0] = masked<0x00300030>(v << 4, codes[0]);
            codes[1] = masked<0x00300030>(v, codes[1]);
            codes[2] = masked<0x00300030>(u << 4, codes[2]);
            codes[3] = masked<0x00300030>(u, codes[3]);
        }
        a[0][h] = codes[0];
        a[0][h + 2] = codes[1];
        a[1][h] = codes[2];
        a[1][h + 2] = codes[3];
    }
}

FN void mma_bf16(float (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN void store16(uint to, uint v) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"((ushort)v) : "memory"); }

// A warp's part of the sums of a stage's activations: of N tokens those of each run, in a tile with rows of 128 bytes
// for wgmma: pieces of eight bf16, a chunk each. With a run a chunk: the sum twice, then what it lacks twice; with two
// the sums of the first runs and of the second, then what they lack.
template <uint RUNS, uint N, uint WARPS> FN void sum_activations(uint x, uint to, uint warp, uint lane)
{
    const uint q = lane >> 2, t = lane & 3;
    #pragma unroll 1
    for (uint i = 0; i < N / 2; i += WARPS) {
        // 16 tokens and a chunk.
        const uint item = i + warp, first = item / 8 * 16, c = item % 8;
        if (N / 2 % WARPS != 0 && item >= N / 2) break;
        float sum[RUNS][4];
        #pragma unroll
        for (uint r = 0; r < RUNS; ++r)
            #pragma unroll
            for (uint e = 0; e < 4; ++e) sum[r][e] = 0;
        #pragma unroll
        for (uint s = 0; s < 2; ++s) {
            uint a[4];
            load_matrices(a, x + c / 2 * (N * 128) + swizzle<128>(first + (lane & 15), c % 2 * 4 + s * 2 + (lane >> 4)));
            mma_bf16(sum[s * (RUNS - 1)], a, 0x3f803f80u, 0x3f803f80u);
        }
        // All columns are the same: each of four lanes writes a piece of two tokens.
        #pragma unroll
        for (uint e = 0; e < 2; ++e) {
            const float v = sum[RUNS == 2 && t & 1 ? RUNS - 1 : 0][e * 2];
            const uint high = pack_bf16(v, 0), low = pack_bf16(v - __uint_as_float(high << 16), 0);
            store16(to + swizzle<128>(first + q + e * 8, t) + c * 2, t & 2 ? low : high);
        }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
