// What the matrix product kernels share: D = W · Xᵀ on tensor cores, rows of W (weights, K-major) as the A operand and tokens as columns.
//
// Rows are handled in groups of 64, so that one launch serves up to three matrices that share x, one after the other, each padded to whole
// groups. In gated modes a group is 32 rows of w0 (gate) and the same 32 rows of w1 (up); a thread then holds both for the same element.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "half_bits.h"
#include "words.h"

// Matrices that the copy engine does not read are read by ordinary loads.
#define ARGUMENTS_OVERLAP
#include "arguments.h"

enum Weights { BF16, F16, Q8, Q4, T2 };
constexpr bool is_plain(int weights) { return weights == BF16 || weights == F16; }
// What happens to sums before they are stored.
enum Mode { STORE, ADD, SWIGLU, RELU2 };

#if __CUDA_ARCH__ >= 900
FN void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
FN void dependency_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
FN void dependency_wait() {}
FN void dependency_launch() {}
#endif

// Bytes of a weight row in a stage: 64 elements with bf16 activations, 128 with 8-bit ones; 128 bytes of activations both times.
template <int W, bool I8> constexpr int row_bytes() { return (is_plain(W) ? 128 : W == Q8 ? 64 : W == Q4 ? 32 : 16) * (I8 ? 2 : 1); }

// Byte of 16-byte chunk c in row r of a tile with rows of 128, 64 or 32 bytes, as the copy engine's swizzle modes of the same width
// lay it out: eight rows' same chunk falls into different banks.
template <int BYTES> FN uint swizzle(uint r, uint c)
{
    if (BYTES == 128) return r * 128 + ((c ^ (r & 7)) << 4);
    if (BYTES == 64) return r * 64 + ((c ^ ((r >> 1) & 3)) << 4);
    return r * 32 + ((c ^ ((r >> 2) & 1)) << 4);
}

// Byte `at` of row r of such a tile; rows of 16 bytes or fewer lie one after the other.
template <int BYTES> FN uint byte_place(uint r, uint at)
{
    if constexpr (BYTES < 32) return r * BYTES + at;
    else return swizzle<BYTES>(r, at >> 4) + (at & 15);
}

FN void load_matrices(uint (&a)[4], uint address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}
FN uint load16(uint address)
{
    ushort v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
    return v;
}
FN uint load32(uint address)
{
    uint v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

FN uint pack_bf16(float low, float high)
{
    uint r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
FN uint fma_bf16(uint a, uint b, uint c)
{
    uint r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// Two bytes of codes plus 128 (in the low half of v) times d, rounded to bf16. The bytes become 2^15 + byte as f32; with c = -(2^15 + 128)·d, which
// is exact as d has 11 bits, the sum is the exact product.
FN uint decode_q8(uint v, float d, float c)
{
    const float low = __uint_as_float(__byte_perm(v, 0x47000000u, 0x7604)), high = __uint_as_float(__byte_perm(v, 0x47000000u, 0x7614));
    return pack_bf16(fmaf(low, d, c), fmaf(high, d, c));
}

// The scale of a 4-bit block as the exact sum of two bf16, each twice in a word.
struct Q4Scale { uint high, low; };
FN Q4Scale split_scale(float d)
{
    const uint h = pack_bf16(d, d);
    const float rest = d - __uint_as_float(h << 16);
    return {h, pack_bf16(rest, rest)};
}
// Nibbles at bits 0 and 16 of v, less 8, times the scale, rounded once: code · low is exact in bf16, and the second product and sum round together.
FN uint decode_q4(uint v, Q4Scale s)
{
    // One instruction: of two constants the assembler would make two, so that one comes from a number that it does not know, the grid's 1 in z.
    uint exponents, x;
    asm("{.reg .u32 z; mov.u32 z, %%nctaid.z; mul.lo.u32 %0, z, 0x43004300;}" : "=r"(exponents));
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(x) : "r"(v), "r"(exponents)); // (v & …) | exponents
    const uint code = fma_bf16(x, 0x3f803f80u, 0xc308c308u); // 128 + nibble, less 136
    return fma_bf16(code, s.high, fma_bf16(code, s.low, 0x80008000u));
}

// The A fragments of a stage for one 16-row tile of a warp: four 16×16 tiles of bf16, or four 16×32 tiles of 8-bit codes.
// base: the tile's shared address; row: this lane's row (LANE / 4 added), whose partner is `pair` rows further; scales: address of 2 scales (f16)
// for each row of the group.
template <int W, bool I8, int BYTES = row_bytes<W, I8>(), int PITCH = 4> FN void load_fragments(uint (&a)[4][4], uint base, uint row, uint pair, uint lane, uint scales, uint first = 0)
{
    const uint t = lane & 3;
    if constexpr (is_plain(W)) {
        // Lane l gives the address of row l % 8 of matrix l / 8: the two row halves, then the second 8 columns.
        const uint r = row - (lane >> 2) + (lane & 7) + (lane >> 3 & 1) * pair;
        for (uint s = 0; s < 4; ++s) load_matrices(a[s], base + swizzle<BYTES>(r, 2 * s + (lane >> 4)));
        if constexpr (W == F16)
            for (uint s = 0; s < 4; ++s)
                for (uint i = 0; i < 4; ++i) a[s][i] = pack_bf16(half_bits(a[s][i] & 0xffff), half_bits(a[s][i] >> 16));
    } else if constexpr (W == Q8 && !I8) {
        for (uint h = 0; h < 2; ++h) {
            const uint r = row + h * pair, d2 = load32(scales + r * PITCH);
            for (uint s = 0; s < 4; ++s) {
                const float d = half_bits(s < 2 ? d2 & 0xffff : d2 >> 16), c = -32896.0f * d;
                const uint at = base + byte_place<BYTES>(r, first + s * 16) + 2 * t;
                a[s][h] = decode_q8(load16(at) ^ 0x8080, d, c);
                a[s][h + 2] = decode_q8(load16(at + 8) ^ 0x8080, d, c);
            }
        }
    } else if constexpr (W == Q4 && !I8) {
        for (uint h = 0; h < 2; ++h) {
            const uint r = row + h * pair, d2 = load32(scales + r * PITCH);
            for (uint b = 0; b < 2; ++b) {
                const Q4Scale d = split_scale(half_bits(b ? d2 >> 16 : d2 & 0xffff));
                const uint at = base + byte_place<BYTES>(r, first + b * 16) + 2 * t;
                const uint v = __byte_perm(load16(at), 0, 0x4140), u = __byte_perm(load16(at + 8), 0, 0x4140);
                a[2 * b][h] = decode_q4(v, d);
                a[2 * b][h + 2] = decode_q4(u, d);
                a[2 * b + 1][h] = decode_q4(v >> 4, d);
                a[2 * b + 1][h + 2] = decode_q4(u >> 4, d);
            }
        }
    } else if constexpr (W == Q8) {
        const uint r = row - (lane >> 2) + (lane & 7) + (lane >> 3 & 1) * pair;
        for (uint s = 0; s < 4; ++s) load_matrices(a[s], base + swizzle<BYTES>(r, 2 * s + (lane >> 4)));
    } else if constexpr (W == Q4) {
        for (uint h = 0; h < 2; ++h)
            for (uint s = 0; s < 4; ++s) {
                const uint v = load32(base + swizzle<BYTES>(row + h * pair, s) + 4 * t);
                a[s][h] = (((v & 0x0f0f0f0fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
                a[s][h + 2] = (((v >> 4 & 0x0f0f0f0fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
            }
    } else {
        for (uint h = 0; h < 2; ++h)
            for (uint c = 0; c < 2; ++c) {
                const uint v = load32(base + swizzle<BYTES>(row + h * pair, c) + 4 * t);
                for (uint s = 0; s < 4; ++s) a[s][h + 2 * c] = (((v >> 2 * s & 0x03030303u) | 0x80808080u) - 0x01010101u) ^ 0x80808080u;
            }
    }
}

// The matrices of a launch.
struct Matrices {
    uint m0, m1, m2; // Rows of each; in gated modes m0 is the rows of gate and of up.
    Mode mode;
    bool gated() const { return mode == SWIGLU || mode == RELU2; }
};

// A group of 64 rows: which matrix, its first row there, and the matrix's rows. Beyond the last group m is 0.
struct Group { uint matrix, row, m; };

FN Group locate(const Matrices &w, uint group)
{
    if (w.gated()) return {0, group * 32, group * 32 < w.m0 ? w.m0 : 0};
    const uint g0 = (w.m0 + 63) / 64, g1 = (w.m1 + 63) / 64;
    if (group < g0) return {0, group * 64, w.m0};
    group -= g0;
    if (group < g1) return {1, group * 64, w.m1};
    group -= g1;
    return {2, group * 64, group * 64 < w.m2 ? w.m2 : 0};
}

FN float swiglu(float gate, float up)
{
    float sigmoid; // The reciprocal is within 1 ulp; 1 + exp is at least 1, and infinity gives 0.
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + expf(-gate)));
    return gate * sigmoid * up;
}
FN float relu2(float gate, float up)
{
    // A NaN is not lost.
    gate = gate <= 0.0f ? 0.0f : gate;
    return gate * gate * up;
}

// Writes a group's results with 16-byte accesses: thread `thread` of 128, `count` tokens from `token` on; those from `n` on and rows beyond the
// matrix are left out. value(t, r): those of rows r to r + 4 of the group for the t-th of these tokens.
template <class Value>
FN void write_group(const Matrices &w, const Group &group, uint token, uint count, uint n, const float *add, void *out, bool narrow, uint thread, Value value)
{
    const uint shift = w.gated() ? 3 : 4; // Pieces of 4 rows in a group.
    #pragma unroll 4
    for (uint i = thread; i < count << shift; i += 128) {
        const uint t = i >> shift, r = (i & ((1u << shift) - 1)) * 4, row = group.row + r;
        if (token + t >= n || row >= group.m) continue;
        const size_t at = (size_t)(token + t) * group.m + row;
        float4 v;
        if (w.mode == ADD) {
            const float4 before = *(const float4 *)(add + at);
            v = value(t, r);
            v = make_float4(before.x + v.x, before.y + v.y, before.z + v.z, before.w + v.w);
        } else
            v = value(t, r);
        if (narrow) *(uint2 *)((__nv_bfloat16 *)out + at) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
        else *(float4 *)((float *)out + at) = v;
    }
}

// Tokens of this run: word `slot` of the step block, at most n; n where there is no step block.
FN uint tokens(const uint *step, uint slot, uint n) { return step ? min(step[slot], n) : n; }
