// Rows of f32 held in the registers of a workgroup: SIMD-group s holds elements 128·V·s and on, four a lane at a time, so that every
// access of a SIMD-group is one line and a group of up to 256 elements lies in one SIMD-group.

FN float workgroup_sum(float v, threadgroup float *part, uint lane, uint simd, uint nsimd)
{
    v = simd_sum(v);
    if (nsimd == 1) return v;
    if (lane == 0) part[simd] = v;
    BARRIER();
    return simd_sum(lane < nsimd ? part[lane] : 0.0f);
}

// The maximum of values, one a thread, none of them less than `least`.
FN float workgroup_max(float v, float least, threadgroup float *part, uint lane, uint simd, uint nsimd)
{
    v = simd_max(v);
    if (nsimd == 1) return v;
    if (lane == 0) part[simd] = v;
    BARRIER();
    return simd_max(lane < nsimd ? part[lane] : least);
}

// The widest of magnitudes, one a thread: their bits have their order.
FN float workgroup_widest(float v, threadgroup float *part, uint lane, uint simd, uint nsimd)
{
    v = as_f32(simd_max(as_u32(v)));
    if (nsimd == 1) return v;
    if (lane == 0) part[simd] = v;
    BARRIER();
    return as_f32(simd_max(as_u32(lane < nsimd ? part[lane] : 0.0f)));
}

FN float max4(float4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }
FN float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// The first element of a thread's v-th four.
template <uint V> FN uint element(uint v, uint lane, uint simd) { return ((simd * V + v) * 32 + lane) * 4; }

// A row of n elements, a multiple of 4; beyond it `fill`.
template <uint V> FN void load_row(thread float4 (&r)[V], device const float *x, uint n, float fill, uint lane, uint simd)
{
    UNROLL for (uint v = 0; v < V; ++v) {
        const uint i = element<V>(v, lane, simd);
        r[v] = i < n ? load4(x + i) : make_float4(fill, fill, fill, fill);
    }
}

// The code of x, rounded to nearest even and limited to -128 … 127, as the lowest byte of the result: beyond 1.5 · 2^23 the last bits of an
// f32 count ones.
FN uint code(float x) { return as_uint(clamp(x, -128.0f, 127.0f) + 12582912.0f) & 255u; }
FN uint codes4(float4 v, float inverse)
{
    return code(v.x * inverse) | code(v.y * inverse) << 8 | code(v.z * inverse) << 16 | code(v.w * inverse) << 24;
}

// Quantises a row to i8 in groups of 32, 64, 128 or 256 elements, or as one group where `group` is n. `codes` and `scales` are the row's.
template <uint V> FN void quantize_row(thread const float4 (&r)[V], device char *codes, device float *scales, uint n, uint group, float least,
                                       threadgroup float *part, uint lane, uint simd, uint nsimd)
{
    float a[V];
    UNROLL for (uint v = 0; v < V; ++v) a[v] = widest4(r[v]);
    if (group == n) {
        float greatest = least;
        UNROLL for (uint v = 0; v < V; ++v) greatest = wider(greatest, a[v]);
        greatest = workgroup_widest(greatest, part, lane, simd, nsimd);
        const float inverse = greatest == 0.0f ? 0.0f : 127.0f / greatest;
        UNROLL for (uint v = 0; v < V; ++v) {
            const uint i = element<V>(v, lane, simd);
            if (i < n) *(device uint *)(codes + i) = codes4(r[v], inverse);
        }
        if (lane == 0 && simd == 0) scales[0] = greatest / 127.0f;
        return;
    }
    // The greatest of groups of V lanes, of all V fours at once: lane l comes to hold that of four l % V.
    UNROLL for (uint m = 1; m < V; m *= 2) {
        const bool odd = (lane & m) != 0;
        UNROLL for (uint v = 0; v < V / (2 * m); ++v) {
            const float mine = odd ? a[2 * v + 1] : a[2 * v], other = odd ? a[2 * v] : a[2 * v + 1];
            a[v] = wider(mine, simd_shuffle_xor(other, m));
        }
    }
    // Then of whole groups, which are `lanes` lanes, or two fours where they are 256 elements.
    const uint lanes = min(group / 4, 32u);
    for (uint m = V; m < lanes; m *= 2) a[0] = wider(a[0], simd_shuffle_xor(a[0], m));
    if (group == 256) a[0] = wider(a[0], simd_shuffle_xor(a[0], 1u));
    const float greatest = wider(a[0], least);
    const float inverse = greatest == 0.0f ? 0.0f : 127.0f / greatest;
    UNROLL for (uint v = 0; v < V; ++v) {
        const uint i = element<V>(v, lane, simd);
        const uint word = codes4(r[v], simd_shuffle(inverse, (lane & ~(V - 1)) | v));
        if (i < n) *(device uint *)(codes + i) = word;
    }
    const uint i = element<V>(lane % V, lane & ~(lanes - 1), simd);
    if (i < n && (lane & (lanes - 1)) < V && i % group == 0) scales[i / group] = greatest / 127.0f;
}
