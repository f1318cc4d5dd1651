// What the attention kernels on tensor cores share: the tokens of a workgroup, copies to shared memory, matrix instructions.
#include "words.h"
// Rows of the cache are written and read.
#define ARGUMENTS_OVERLAP
#include "arguments.h"

__device__ __forceinline__ void dependency_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void dependency_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Notes that `index` is outside the `most` that there are (`note_fault` in dialect.h).
__device__ __forceinline__ void note_fault(unsigned *record, unsigned index, unsigned most)
{
    record[2] = most;
    record[3] = index;
    record[0] = 1;
}
constexpr unsigned NOWHERE = ~0u;

__device__ __forceinline__ unsigned pair_bf16(float low, float high)
{
    unsigned w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
}
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
constexpr float LOG2_E = 1.44269504f;
// cap · tanh(s / cap)
__device__ __forceinline__ float capped(float s, float cap) { return cap - __fdividef(2.0f * cap, 1.0f + exp2_fast(fminf(s * __fdividef(2.0f * LOG2_E, cap), 125.0f))); }
__device__ __forceinline__ void load8(const float *p, float (&x)[8])
{
    const float4 a = *reinterpret_cast<const float4 *>(p), b = *reinterpret_cast<const float4 *>(p + 4);
    x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w; x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
}
__device__ __forceinline__ void load8(const __half *p, float (&x)[8])
{
    union { uint4 w; __half2 h[4]; } u;
    u.w = *reinterpret_cast<const uint4 *>(p);
    for (int i = 0; i < 4; ++i) {
        const float2 f = __half22float2(u.h[i]);
        x[2 * i] = f.x;
        x[2 * i + 1] = f.y;
    }
}

// ---- copies to shared memory that run while the threads go on
__device__ __forceinline__ void copy16(void *to, const void *from, bool there)
{
    const unsigned at = unsigned(__cvta_generic_to_shared(to)), bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- matrix fragments
__device__ __forceinline__ void load_matrix(unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *p)
{
    const unsigned at = unsigned(__cvta_generic_to_shared(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *p)
{
    const unsigned at = unsigned(__cvta_generic_to_shared(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at) : "memory");
}
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The greatest, and the sum, of the four lanes that have a fragment's row.
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// ---- the tokens of a workgroup
struct Tokens {
    const unsigned *positions, *sequences, *table;
    unsigned tokens, heads, kv_heads, shift, blocks, rows, columns;
    unsigned *fault;
    const unsigned *firsts; // the first position that each token sees, or null: as many as the window has
    unsigned window;
};
// Positions, the first ones seen, and sequences of at most 128 tokens.
struct Rows {
    unsigned position[128], first[128], sequence[128];
};
// Tokens of one sequence that follow each other, up to `end`, with the least and the greatest of their positions and of the first ones that they
// see; `shortened` when the workgroup has others.
struct Run {
    unsigned sequence, end, least, most, first_least, first_most;
    bool shortened;
};

// Call before a barrier.
template <int THREADS> __device__ __forceinline__ void find_rows(Rows &rows, const Tokens &t, unsigned first, unsigned count)
{
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        rows.position[i] = t.positions[first + i];
        rows.sequence[i] = t.sequences[first + i];
        const unsigned position = rows.position[i];
        rows.first[i] = t.firsts ? min(t.firsts[first + i], position) : position >= t.window ? position + 1 - t.window : 0;
        const bool known = rows.sequence[i] < t.rows, reached = position < t.columns << t.shift;
        if (known && reached) continue;
        note_fault(t.fault, known ? rows.position[i] : rows.sequence[i], known ? t.columns << t.shift : t.rows);
        rows.position[i] = rows.first[i] = rows.sequence[i] = 0;
    }
}

// The run that begins with token `from`; every thread of the workgroup finds the same.
__device__ __forceinline__ Run next_run(const Rows &rows, unsigned from, unsigned count)
{
    const unsigned lane = threadIdx.x % 32, sequence = rows.sequence[from];
    unsigned end = count;
    for (unsigned i = from + lane; i < count; i += 32)
        if (rows.sequence[i] != sequence) { end = i; break; }
    end = __reduce_min_sync(~0u, end);
    unsigned least = ~0u, most = 0, first_least = ~0u, first_most = 0;
    for (unsigned i = from + lane; i < end; i += 32) {
        least = min(least, rows.position[i]);
        most = max(most, rows.position[i]);
        first_least = min(first_least, rows.first[i]);
        first_most = max(first_most, rows.first[i]);
    }
    return {sequence, end, __reduce_min_sync(~0u, least), __reduce_max_sync(~0u, most), __reduce_min_sync(~0u, first_least), __reduce_max_sync(~0u, first_most),
            from > 0 || end < count};
}
