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

FN float max4(float4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }
FN float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
FN float4 abs4(float4 v) { return make_float4(fabs(v.x), fabs(v.y), fabs(v.z), fabs(v.w)); }

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

// One word of four codes.
FN uint codes4(float4 v, float inverse)
{
    const int a = int(clamp(rint(v.x * inverse), -128.0f, 127.0f)), b = int(clamp(rint(v.y * inverse), -128.0f, 127.0f));
    const int c = int(clamp(rint(v.z * inverse), -128.0f, 127.0f)), d = int(clamp(rint(v.w * inverse), -128.0f, 127.0f));
    return (uint(a) & 255u) | (uint(b) & 255u) << 8 | (uint(c) & 255u) << 16 | uint(d) << 24;
}

// Quantises a row to i8 in groups of 4, 8 … 256 elements, or as one group where `group` is n. `codes` and `scales` are the row's.
template <uint V> FN void quantize_row(thread const float4 (&r)[V], device char *codes, device float *scales, uint n, uint group, float least,
                                       threadgroup float *part, uint lane, uint simd, uint nsimd)
{
    if (group == n) {
        float a = 0;
        UNROLL for (uint v = 0; v < V; ++v) a = max(a, max4(abs4(r[v])));
        a = max(workgroup_max(a, 0.0f, part, lane, simd, nsimd), least);
        const float inverse = a == 0.0f ? 0.0f : 127.0f / a;
        UNROLL for (uint v = 0; v < V; ++v) {
            const uint i = element<V>(v, lane, simd);
            if (i < n) *(device uint *)(codes + i) = codes4(r[v], inverse);
        }
        if (lane == 0 && simd == 0) scales[0] = a / 127.0f;
        return;
    }
    UNROLL for (uint v = 0; v < V; v += 2) {
        float a[2] = {max4(abs4(r[v])), max4(abs4(r[v + 1]))};
        for (uint m = 1; m < 32 && 4 * m < group; m *= 2) {
            a[0] = max(a[0], simd_shuffle_xor(a[0], m));
            a[1] = max(a[1], simd_shuffle_xor(a[1], m));
        }
        if (group == 256) a[0] = a[1] = max(a[0], a[1]);
        UNROLL for (uint e = 0; e < 2; ++e) {
            const uint i = element<V>(v + e, lane, simd);
            const float greatest = max(a[e], least);
            const float inverse = greatest == 0.0f ? 0.0f : 127.0f / greatest;
            if (i < n) {
                *(device uint *)(codes + i) = codes4(r[v + e], inverse);
                if (i % group == 0) scales[i / group] = greatest / 127.0f;
            }
        }
    }
}
