// Products with weights that are floats, of 16 bits or of 8 with a scale for each 128, in phases of `decode_layers.cu`, which has the structures.
// Activations are f32 in shared memory, the first fours of all eights and then the second ones; a lane multiplies two eights of its warp's 512.
#pragma once

struct FloatsAt { uint warp_row, together, part, parts, chunks, lane, values[2], segment[2], eight[2]; float share[2]; };
FN float4 shared4(uint p) { float4 v; asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(p) : "memory"); return v; }

// Eight floats of a row as they are stored.
template <uint T> struct Eight { uint4 w; float scale; };
template <uint T> FN void take_eight(Eight<T> &e, uint from, uint scale)
{
    if (T == TYPE_F8) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(e.w.x), "=r"(e.w.y) : "r"(from));
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(e.scale) : "r"(scale));
    } else asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(e.w.x), "=r"(e.w.y), "=r"(e.w.z), "=r"(e.w.w) : "r"(from));
}
template <uint T> FN float4 four_floats(uint a, uint b)
{
    if (T == TYPE_F8) return float8_values(a);
    if (T == TYPE_BF16) return make_float4(as_f32(a << 16), as_f32(a & 0xffff0000u), as_f32(b << 16), as_f32(b & 0xffff0000u));
    return make_float4(half_bits(a & 0xffffu), half_bits(a >> 16), half_bits(b & 0xffffu), half_bits(b >> 16));
}
template <uint T> FN float eight_sum(const Eight<T> &e, float4 a, float4 b)
{
    if (T == TYPE_F8) return (dot(four_floats<T>(e.w.x, 0), a) + dot(four_floats<T>(e.w.y, 0), b)) * e.scale;
    return dot(four_floats<T>(e.w.x, e.w.y), a) + dot(four_floats<T>(e.w.z, e.w.w), b);
}

// The products of a piece's rows, as `multiply_piece`.
template <uint T> FN void multiply_floats(const Rows &piece, uint slot, const FloatsAt &at, uint matrices, float *sums)
{
    constexpr uint BYTES = T == TYPE_F8 ? 8 : 16;
    const uint n = piece.rows, all = n * matrices, row_bytes = at.chunks * 4 * BYTES, scale_bytes = at.chunks;
    uint low[2], scales[2];
    UNROLL for (uint j = 0; j < 2; ++j) {
        low[j] = slot + piece.at[3 * at.segment[j]] + at.eight[j] * BYTES;
        scales[j] = slot + piece.at[3 * at.segment[j] + 2] + at.eight[j] / 16 * 4;
    }
    // From the end of the first matrix's rows to the beginning of the second's.
    uint low_more = 0, scale_more = 0;
    if (matrices > 1) { low_more = piece.at[3] - piece.at[0] - n * row_bytes; scale_more = piece.at[5] - piece.at[2] - n * scale_bytes; }
    ROLLED for (uint r = at.warp_row; r < all; r += 4 * at.together) {
        float s[4] = {};
        UNROLL for (uint j = 0; j < 2; ++j) {
            Eight<T> e[4];
            UNROLL for (uint i = 0; i < 4; ++i) {
                const uint row = min(r + i * at.together, all - 1);
                const bool second = row >= n;
                take_eight(e[i], low[j] + (row * row_bytes + (second ? low_more : 0)), scales[j] + (row * scale_bytes + (second ? scale_more : 0)));
            }
            // Not in registers, which are scarce.
            const float4 a = shared4(at.values[j]), b = shared4(at.values[j] + MOST_SHORT * 2);
            UNROLL for (uint i = 0; i < 4; ++i) s[i] = fma(eight_sum(e[i], a, b), at.share[j], s[i]);
        }
        const float z = four_sums(s, at.lane);
        const uint row = r + lane_row(at.lane) * at.together, second = row >= n;
        if (at.lane % 8 == 0 && row < all) sums[(matrices > 1 ? (piece.first + row - second * n) * 2 + second : piece.first + row) * at.parts + at.part] = z;
    }
}

// A warp's products with the pieces of a phase. values: the phase's activations in shared memory, as they are before the norm's factor.
FN void float_products(const Run &a, Shared &sh, const Phase &f, const uchar *ring, Cursor &cursor, const float *values, uint warp, uint lane)
{
    FloatsAt at;
    at.lane = lane;
    at.parts = f.parts;
    at.chunks = f.chunks;
    at.warp_row = warp * f.magic >> 8;
    at.part = warp - at.warp_row * at.parts;
    at.together = WARPS / at.parts;
    const uint eights = f.k / 8;
    UNROLL for (uint j = 0; j < 2; ++j) {
        const uint wanted = at.part * (SHORT_OF_WARP / 8) + j * 32 + lane, e = min(wanted, eights - 1);
        at.values[j] = shared_address(values) + e * 16;
        at.segment[j] = f.segments > 1 ? (e / 4) * f.segment_magic >> 16 : 0;
        at.eight[j] = e - at.segment[j] * at.chunks * 4;
        at.share[j] = wanted < eights ? 1.0f : 0.0f;
    }
    const bool busy = at.warp_row < at.together, joined = f.flags & JOINED;
    const uint matrices = f.flags & GATED ? 2 : 1;
    for (bool last = false; !last;) {
        const Rows &piece = sh.pieces[cursor.slot];
        wait(shared_address(&sh.full[cursor.slot]), cursor.round & 1);
        if (joined && piece.first == 0) UNROLL for (uint j = 0; j < 2; ++j) at.share[j] *= sh.shares[at.segment[j]];
        last = piece.last;
        const uint slot = shared_address(ring) + cursor.slot * a.slot_bytes;
        if (busy) switch (piece.type) {
            case TYPE_BF16: multiply_floats<TYPE_BF16>(piece, slot, at, matrices, sh.sums); break;
            case TYPE_F16: multiply_floats<TYPE_F16>(piece, slot, at, matrices, sh.sums); break;
            case TYPE_F8: multiply_floats<TYPE_F8>(piece, slot, at, matrices, sh.sums); break;
        }
        __syncwarp();
        if (lane == 0) arrive(shared_address(&sh.empty[cursor.slot]));
        advance(cursor, a.ring_slots);
    }
}
