// How the phases of one launch pass values from workgroup to workgroup: for `decode_stack.cu` and `decode_layers.cu`.
//
// A launch that follows another starts a microsecond after its end and reads what that wrote half a microsecond later. Within a launch, whose workgroups
// are all there at the same time, a value goes from one to another with one store and one load that is repeated until it is there.
//
// Values are f32 in `exchange`, whose lowest bit says in which use of the place they were written: it is 0 and 1 in turn, from use to use and so from run
// to run. So a value is known to be there by itself. A place is used again by the sixth phase with as many results, which writes all of it; by then every
// workgroup has read it, because in between it took values from all others that they computed after they had read. Each result is written to its tensor
// too, for whoever comes after.
#pragma once
constexpr float LOWEST = -1e38f;
constexpr uint PATIENCE = 1u << 22;             // polls, some seconds: what does not come then never comes

FN uint shared_address(const void *p) { return (uint)__cvta_generic_to_shared(p); }
FN void wait(uint bar, uint parity)
{
    asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" :: "r"(bar), "r"(parity) : "memory");
}
FN void arrive(uint bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory"); }
FN void bulk(uint to, const uchar *from, uint bytes, uint bar, ulong policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" :: "r"(to), "l"(from), "r"(bytes), "r"(bar), "l"(policy) : "memory");
}

// A place's tag in a run. Bit 0: the tag in even runs, bit 1: whether it turns with each run.
FN uint tag_of(uint tag, uint run) { return (tag ^ (run & tag >> 1)) & 1u; }
FN float tagged(float x, uint tag) { return as_f32((as_u32(x) & ~1u) | tag); }
FN void give(float *p, float v) { asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" :: "l"(p), "f"(v) : "memory"); }
FN void give(float *p, float2 v) { asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" :: "l"(p), "f"(v.x), "f"(v.y) : "memory"); }
FN void give(float *p, float4 v) { asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory"); }
FN float4 peek(const float4 *p) { float4 v; asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory"); return v; }
FN float2 peek(const float2 *p) { float2 v; asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory"); return v; }
FN float peek(const float *p) { float v; asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory"); return v; }
// Whether one of four values is of another use of its place.
FN uint others(float4 v, uint tag) { return ((as_u32(v.x) ^ tag) | (as_u32(v.y) ^ tag) | (as_u32(v.z) ^ tag) | (as_u32(v.w) ^ tag)) & 1u; }
FN bool fits(float4 v, uint tag) { return others(v, tag) == 0; }
FN bool fits(float2 v, uint tag) { return (((as_u32(v.x) ^ tag) | (as_u32(v.y) ^ tag)) & 1u) == 0; }
FN bool fits(float v, uint tag) { return ((as_u32(v) ^ tag) & 1u) == 0; }
FN void keep(float *p, float v) { asm volatile("st.global.f32 [%0], %1;" :: "l"(p), "f"(v) : "memory"); }
FN void keep(float *p, float4 v) { asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory"); }
