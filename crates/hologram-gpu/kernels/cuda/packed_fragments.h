// Packed weights as the A operand of warpgroup matrix instructions: the factors that a lane holds, and fragments
// widened to bf16.
#pragma once
#include "planes.h"
#define constant
namespace planes {
#include "float8.h"
}
#undef constant

// What a lane holds of the factors of its two rows for 256 elements: the numbers of their records, and the bytes of the
// 64 elements that the lane is responsible for among the four lanes of a row.
template <uint P> struct Held {
    static constexpr uint CHUNKS = planes::record_chunks<P>(), BYTES = P == planes::Q4 ? 2 : planes::record_bytes<P>(), FACTORS = planes::factors_of<P>();
    static constexpr bool PAIR = CHUNKS == 1 && BYTES == 4; // Two words for 64 elements.
    uint numbers[2], raw[2][PAIR ? 2 : 1];

    // all: the records of each row's matrix; rows: the rows, ~0 for none; chunk: the first of 32 elements; chunks:
    // those of a row, of which the first `end` are read.
    __forceinline__ void load(const uchar *const (&all)[2], const uint (&rows)[2], uint chunk, uint chunks, uint end, uint t)
    {
        #pragma unroll
        for (uint h = 0; h < 2; ++h) {
            numbers[h] = raw[h][0] = 0;
            if constexpr (PAIR) raw[h][1] = 0;
            const uint own = chunk + 2 * t;
            if (rows[h] == ~0u || own >= end) continue;
            const uchar *const row = all[h] + (size_t)rows[h] * (chunks / CHUNKS * BYTES);
            if constexpr (FACTORS == planes::WHOLE) raw[h][0] = planes::stream4(row + own / CHUNKS * 4);
            else if constexpr (PAIR) {
                const uint2 v = planes::stream8(row + own * 4);
                raw[h][0] = v.x;
                raw[h][1] = v.y;
            } else if constexpr (FACTORS == planes::EXPONENT) raw[h][0] = planes::stream2(row + own);
            else if constexpr (CHUNKS < 8) raw[h][0] = planes::stream4(row + own * 2);
            else {
                const uchar *const record = row + chunk / CHUNKS * BYTES;
                numbers[h] = BYTES % 4 == 0 ? planes::stream4(record) : planes::stream2(record);
                if constexpr (FACTORS == planes::SIGNED_32) raw[h][0] = planes::stream2(record + 2 + t * 2);
                else if constexpr (FACTORS == planes::SIGNED_16) raw[h][0] = planes::stream2(record + 2 + t * 4) | planes::stream2(record + 4 + t * 4) << 16;
                else raw[h][0] = planes::stream4(record + 4 + t * 4);
            }
        }
    }
    // The numbers and factors of row h's chunk `b` of its own 64 elements.
    __forceinline__ planes::Chunk<P> own(uint h, uint b) const
    {
        planes::Chunk<P> c;
        const uint v = raw[h][PAIR ? b : 0];
        if constexpr (PAIR || FACTORS == planes::WHOLE) c.numbers = v;
        else if constexpr (FACTORS == planes::ONE) c.numbers = v >> 16 * b & 0xffff;
        else {
            c.numbers = numbers[h];
            c.factors = FACTORS == planes::SIGNED_32 || FACTORS == planes::EXPONENT ? v >> 8 * b & 0xff : v >> 16 * b & 0xffff;
        }
        return c;
    }
    // The numbers and factors of row h's chunk `b` of the 64 elements that lane `from` holds.
    __forceinline__ planes::Chunk<P> chunk(uint h, uint b, uint from) const
    {
        planes::Chunk<P> c;
        if constexpr (PAIR) c.numbers = __shfl_sync(~0u, raw[h][b], from);
        else {
            const uint v = __shfl_sync(~0u, raw[h][0], from);
            if constexpr (FACTORS == planes::WHOLE) c.numbers = v;
            else if constexpr (FACTORS == planes::ONE) c.numbers = v >> 16 * b & 0xffff;
            else {
                c.numbers = numbers[h];
                c.factors = FACTORS == planes::SIGNED_32 || FACTORS == planes::EXPONENT ? v >> 8 * b & 0xff : v >> 16 * b & 0xffff;
            }
        }
        return c;
    }
};

// Two bytes at bits 0 and 16.
FN uint apart(uint v) { return __byte_perm(v, 0, 0x4140); }

// Codes at bits 0 and 16, with the scale and minimum of their half of a chunk, as two bf16: rounded once.
template <uint P> FN uint decode_pair(uint codes, float2 s)
{
    const float low = __uint_as_float(__byte_perm(codes, 0x43000000u, 0x7044)), high = __uint_as_float(__byte_perm(codes, 0x43000000u, 0x7244)); // 128 + code
    // A minimum would be rounded in the sum with 128 scales.
    if constexpr (planes::has_minimum<P>()) return pack_bf16(fmaf(low - 128.0f, s.x, -s.y), fmaf(high - 128.0f, s.x, -s.y));
    const float c = -float(128 + planes::bias_of<P>()) * s.x;
    return pack_bf16(fmaf(low, s.x, c), fmaf(high, s.x, c));
}
// Values of the table, plus 128, in bytes `first` and `first` + 1 of v, times the scale.
FN uint table_pair(uint v, uint first, float scale)
{
    const float low = __uint_as_float(__byte_perm(v, 0x47000000u, 0x7604 + (first << 4))), high = __uint_as_float(__byte_perm(v, 0x47000000u, 0x7614 + (first << 4)));
    return pack_bf16((low - 32896.0f) * scale, (high - 32896.0f) * scale); // 2^15 + 128 + value
}

// Two floats of a byte (E4M3) times the scale, rounded once.
FN uint float8_pair(uint v, float scale)
{
    uint r;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(r) : "r"(v));
    return pack_bf16(half_bits(r & 0xffff) * scale, half_bits(r >> 16) * scale);
}

// As load_fragments, for packed weights: 64 elements of the rows, whose factors the lane `from` holds. base: the rows'
// codes in tiles of ACROSS bytes of a row, in which the part's begin at byte `first`; high: their bytes of the high
// plane, PITCH of a row, in which the part's begin at byte `high_first`.
template <uint P, int ACROSS, int PITCH> FN void load_packed(uint (&a)[4][4], uint base, uint first_byte, uint high, uint high_first, uint row, uint pair, uint lane, const Held<P> &held, uint from)
{
    constexpr uint LOW = planes::low_bits<P>(), HIGH = planes::high_bits<P>();
    const uint t = lane & 3;
    #pragma unroll
    for (uint h = 0; h < 2; ++h) {
        const uint r = row + h * pair;
        #pragma unroll
        for (uint b = 0; b < 2; ++b) {
            const planes::Chunk<P> chunk = held.chunk(h, b, from);
            const float2 first = planes::scale_of<P>(chunk, 0), second = planes::scale_of<P>(chunk, 1);
            if constexpr (planes::is_table<P>()) {
                // Codes lie one after the other.
                const uint at = base + byte_place<ACROSS>(r, first_byte + b * 16) + (t & 2), by = (t & 1) * 8;
                #pragma unroll
                for (uint i = 0; i < 2; ++i) {
                    const uint v = planes::table_values<P>((load16(at + i * 8) >> by & 0xff) | (load16(at + i * 8 + 4) >> by & 0xff) << 8).x ^ 0x80808080u;
                    a[2 * b + i][h] = table_pair(v, 0, i ? second.x : first.x);
                    a[2 * b + i][h + 2] = table_pair(v, 2, i ? second.x : first.x);
                }
                continue;
            }
            uint codes[4]; // Of elements 2t and 2t + 1, and of those 8, 16 and 24 further.
            if constexpr (LOW == 4) {
                const uint at = base + byte_place<ACROSS>(r, first_byte + b * 16) + 2 * t;
                const uint v = apart(load16(at)), u = apart(load16(at + 8));
                codes[0] = v & 0x000f000fu;
                codes[1] = u & 0x000f000fu;
                codes[2] = v >> 4 & 0x000f000fu;
                codes[3] = u >> 4 & 0x000f000fu;
            } else {
                const uint at = base + byte_place<ACROSS>(r, first_byte + b * 8) + (t & 1) * 2, by = (t >> 1) * 2;
                const uint v = apart(load16(at)) >> by, u = apart(load16(at + 4)) >> by;
                codes[0] = v & 0x00030003u;
                codes[1] = v >> 4 & 0x00030003u;
                codes[2] = u & 0x00030003u;
                codes[3] = u >> 4 & 0x00030003u;
            }
            if constexpr (HIGH == 1) {
                const uint v = apart(load16(high + byte_place<PITCH>(r, high_first + b * 4) + (t & 1) * 2)) >> (t >> 1);
                #pragma unroll
                for (uint i = 0; i < 4; ++i) codes[i] |= (v >> 2 * i & 0x00010001u) << LOW;
            }
            if constexpr (HIGH == 2) {
                const uint at = high + byte_place<PITCH>(r, high_first + b * 8) + (t & 1) * 2, by = (t >> 1) * 2;
                const uint v = apart(load16(at)) >> by, u = apart(load16(at + 4)) >> by;
                codes[0] |= (v & 0x00030003u) << LOW;
                codes[1] |= (v >> 4 & 0x00030003u) << LOW;
                codes[2] |= (u & 0x00030003u) << LOW;
                codes[3] |= (u >> 4 & 0x00030003u) << LOW;
            }
            a[2 * b][h] = decode_pair<P>(codes[0], first);
            a[2 * b][h + 2] = decode_pair<P>(codes[1], first);
            a[2 * b + 1][h] = decode_pair<P>(codes[2], second);
            a[2 * b + 1][h + 2] = decode_pair<P>(codes[3], second);
        }
    }
}

// As load_packed, for floats of a byte.
template <uint P, int ACROSS> FN void load_float8(uint (&a)[4][4], uint base, uint first_byte, uint row, uint pair, uint lane, const Held<P> &held, uint from)
{
    const uint t = lane & 3;
    #pragma unroll
    for (uint h = 0; h < 2; ++h) {
        const uint r = row + h * pair;
        const float scale = __uint_as_float(held.chunk(h, 0, from).numbers);
        #pragma unroll
        for (uint s = 0; s < 4; ++s) {
            const uint at = base + byte_place<ACROSS>(r, first_byte + s * 16) + 2 * t;
            a[s][h] = float8_pair(load16(at), scale);
            a[s][h + 2] = float8_pair(load16(at + 8), scale);
        }
    }
}
