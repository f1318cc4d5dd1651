// Weights for tensor cores that a lane holds as they are stored, a chunk of 32 elements of a row at a time, and widens to bf16 in registers: see gemm.h.
//
// The order of the elements in a product is the one in which lanes hold them, for activations as for weights: the four lanes of a row have neighbouring
// chunks, and the j-th product multiplies elements 4j to 4j + 3 of each.
#pragma once
#include "planes.h"

#define MEMBER __forceinline__
FN ulong stream_policy()
{
    ulong p; // Streams are read once: they leave the L2 first.
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}

// A chunk's bytes as they are stored, zeros for none: its values are then zero.
template <uint W> struct Stored : planes::Chunk<W> {
    MEMBER void load(const uchar *low, const uchar *high, const uchar *records, uint at, ulong policy)
    {
        constexpr uint CHUNKS = planes::record_chunks<W>();
        static_cast<planes::Chunk<W> &>(*this) =
            planes::load_chunk<W>(low + (size_t)at * planes::low_bytes<W>(), high + (size_t)at * planes::high_bytes<W>(),
                                  records + (size_t)(at / CHUNKS) * planes::record_bytes<W>(), at % CHUNKS, true, policy);
    }
    // The factor of codes plus 128 in half `i`, and what is added.
    MEMBER float2 line(uint i) const
    {
        const float2 s = planes::scale_of<W>(*this, i);
        return make_float2(s.x, fmaf(-float(128 + planes::bias_of<W>()), s.x, -s.y));
    }
    // Elements 4j to 4j + 3 as two words of bf16. Codes below 128 become 128 + code as f32, so that one operation makes the value.
    MEMBER void values(uint j, float2 line, uint &first, uint &second) const
    {
        if constexpr (planes::is_table<W>()) {
            const float4 v = planes::chunk_values<W>(*this, j);
            first = pack_bf16(v.x, v.y);
            second = pack_bf16(v.z, v.w);
        } else {
            const uint codes = planes::code_word<W>(*this, j);
            // A minimum would be rounded in the sum with 128 scales.
            constexpr bool EXACT = planes::has_minimum<W>();
            const float least = EXACT ? planes::scale_of<W>(*this, j / 4).y : 0.0f;
            const auto value = [&](uint order) {
                const float code = __uint_as_float(__byte_perm(codes, 0x43000000u, order));
                return EXACT ? fmaf(code - 128.0f, line.x, -least) : fmaf(code, line.x, line.y);
            };
            first = pack_bf16(value(0x7044), value(0x7144));
            second = pack_bf16(value(0x7244), value(0x7344));
        }
    }
};
// Codes in planes of 8 bits; those of 4 bits lie as packed ones do.
template <> struct Stored<planes::Q8> {
    uint4 codes[2];
    uint scale;
    MEMBER void load(const uchar *low, const uchar *, const uchar *records, size_t at, ulong policy)
    {
        codes[0] = planes::stream16(low + at * 32, policy);
        codes[1] = planes::stream16(low + at * 32 + 16, policy);
        scale = planes::stream2(records + at * 2);
    }
    MEMBER float2 line(uint) const
    {
        const float d = half_bits(scale);
        return make_float2(d, -32896.0f * d);
    }
    MEMBER void values(uint j, float2 line, uint &first, uint &second) const
    {
        const uint v = planes::word(codes[j / 4], j % 4) ^ 0x80808080u;
        first = decode_q8(v, line.x, line.y);
        second = decode_q8(v >> 16, line.x, line.y);
    }
};
template <> struct Stored<planes::Q4> {
    planes::Chunk<planes::Q4> chunk;
    MEMBER void load(const uchar *low, const uchar *, const uchar *records, size_t at, ulong policy)
    {
        chunk.low = planes::stream16(low + at * 16, policy);
        chunk.numbers = planes::stream2(records + at * 2);
    }
    MEMBER float2 line(uint) const
    {
        const float d = half_bits(chunk.numbers);
        return make_float2(d, -136.0f * d);
    }
    MEMBER void values(uint j, float2 line, uint &first, uint &second) const
    {
        const uint codes = planes::code_word<planes::Q4>(chunk, j);
        const auto value = [&](uint order) { return fmaf(__uint_as_float(__byte_perm(codes, 0x43000000u, order)), line.x, line.y); };
        first = pack_bf16(value(0x7044), value(0x7144));
        second = pack_bf16(value(0x7244), value(0x7344));
    }
};
// Elements of 16 bits.
enum Plain : uint { PLAIN_BF16 = 100, PLAIN_F16 };
template <bool HALF> struct StoredPlain {
    uint4 elements[4];
    MEMBER void load(const uchar *low, const uchar *, const uchar *, size_t at, ulong policy)
    {
        #pragma unroll
        for (uint i = 0; i < 4; ++i) elements[i] = planes::stream16(low + at * 64 + i * 16, policy);
    }
    MEMBER float2 line(uint) const { return make_float2(0, 0); }
    MEMBER void values(uint j, float2, uint &first, uint &second) const
    {
        first = planes::word(elements[j / 2], j % 2 * 2);
        second = planes::word(elements[j / 2], j % 2 * 2 + 1);
        if (HALF) {
            first = pack_bf16(half_bits(first & 0xffff), half_bits(first >> 16));
            second = pack_bf16(half_bits(second & 0xffff), half_bits(second >> 16));
        }
    }
};
template <> struct Stored<PLAIN_BF16> : StoredPlain<false> {};
template <> struct Stored<PLAIN_F16> : StoredPlain<true> {};

FN void mma(float (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN void copy16(uint to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
FN uint4 load128(uint address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

// Adds the products of a lane's 2 M rows, of which the four lanes of a row have 128 elements, with the activations at `x` of `count` tokens. Those of eight
// tokens are 2,048 bytes: 16 of each lane's, four times.
template <uint W, uint M, uint TILES> FN void multiply_block(float (&sum)[M][TILES][4], const Stored<W> (&rows)[2 * M], uint x, uint lane, uint count)
{
    float2 line[2 * M];
    #pragma unroll
    for (uint eight = 0; eight < 4; ++eight) {
        if (eight % 2 == 0)
            #pragma unroll
            for (uint i = 0; i < 2 * M; ++i) line[i] = rows[i].line(eight / 2);
        uint a[M][2][4];
        #pragma unroll
        for (uint i = 0; i < 2 * M; ++i)
            #pragma unroll
            for (uint s = 0; s < 2; ++s) rows[i].values(eight * 2 + s, line[i], a[i / 2][s][i % 2], a[i / 2][s][i % 2 + 2]);
        #pragma unroll
        for (uint j = 0; j < TILES; ++j)
            if (j * 8 < count) {
                const uint4 b = load128(x + ((j * 4 + eight) * 32 + (lane ^ eight * 2)) * 16);
                #pragma unroll
                for (uint i = 0; i < M; ++i) {
                    mma(sum[i][j], a[i][0], b.x, b.y);
                    mma(sum[i][j], a[i][1], b.z, b.w);
                }
            }
    }
}
