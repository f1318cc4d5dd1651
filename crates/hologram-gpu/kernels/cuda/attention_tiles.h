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
    bool own[128]; // whether the workgroup computes it
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
        rows.own[i] = true;
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

// ---- tiles of many sequences
// A tile of tokens that have a sequence each would read one sequence after the other. Where that can be, some more workgroups are launched than there
// are tiles; they share the runs of such tiles with the tiles' own workgroups.
constexpr unsigned MOST_RUNS = 2; // of a tile that is not shared

// The runs that begin with one of 32 tokens from `from` on, a bit for each.
__device__ __forceinline__ unsigned starts_of(const unsigned *sequences, unsigned from, unsigned count)
{
    const unsigned i = from + threadIdx.x % 32;
    return __ballot_sync(~0u, i < count && (i == 0 || sequences[i] != sequences[i - 1]));
}
__device__ __forceinline__ unsigned count_runs(const unsigned *sequences, unsigned count)
{
    unsigned runs = 0;
    for (unsigned from = 0; from < count; from += 32) runs += __popc(starts_of(sequences, from, count));
    return runs;
}
// The tiles that are shared, of the first ones.
struct SharedTiles {
    static constexpr unsigned MOST = 256;
    unsigned changes[MOST], tiles[MOST], count;
    // Call with all threads.
    template <int THREADS> __device__ __forceinline__ void find(const Tokens &t, unsigned per, unsigned all)
    {
        all = min(all, MOST);
        for (unsigned i = threadIdx.x; i < all; i += THREADS) changes[i] = 0;
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
#pragma unroll 4
        for (unsigned i = threadIdx.x + 1; i < min(t.tokens, all * per); i += THREADS)
            if (t.sequences[i] != t.sequences[i - 1] && i % per != 0) atomicAdd(&changes[i / per], 1);
        __syncthreads();
        if (threadIdx.x < 32) {
            unsigned before = 0;
            for (unsigned first = 0; first < all; first += 32) {
                const unsigned tile = first + threadIdx.x;
                const bool many = tile < all && changes[tile] >= MOST_RUNS;
                const unsigned mask = __ballot_sync(~0u, many);
                if (many) tiles[before + __popc(mask & ((1u << threadIdx.x) - 1))] = tile;
                before += __popc(mask);
            }
            if (threadIdx.x == 0) count = before;
        }
        __syncthreads();
    }
};
// A workgroup's tile, and which of its runs are its own: those whose number leaves `part`.
struct Share {
    unsigned tile, part, parts;
    // The first token of its next run from token `from` on; `count` if there is none.
    __device__ __forceinline__ unsigned next(const Rows &rows, unsigned from, unsigned count) const
    {
        if (parts == 1) return from;
        unsigned run = 0; // the first that begins among these 32 tokens
        for (unsigned first = 0; first < count; first += 32) {
            unsigned starts = starts_of(rows.sequence, first, count);
            for (; starts; starts &= starts - 1, ++run) {
                const unsigned at = first + __ffs(starts) - 1;
                if (at >= from && run % parts == part) return at;
            }
        }
        return count;
    }
};
// The share of this workgroup, if it has one, in shared memory: registers are scarce. Call with all threads. `extra`: the workgroups
// of a head beyond its tiles.
template <int THREADS> __device__ __forceinline__ bool find_share(Share &result, Rows &rows, const Tokens &t, unsigned per, unsigned extra)
{
    const unsigned tiles = (t.tokens + per - 1) / per, index = blockIdx.y;
    if (index >= tiles + extra) return false;
    // The tokens that read most come last in a prompt: they begin first.
    Share share = {tiles - 1 - index, 0, 1};
    __shared__ SharedTiles shared;
    if (index >= tiles) {
        shared.find<THREADS>(t, per, tiles);
        const unsigned number = index - tiles;
        if (shared.count == 0 || number >= extra / shared.count * shared.count) return false;
        share = {shared.tiles[number % shared.count], 1 + number / shared.count, 1 + extra / shared.count};
    }
    const unsigned first = share.tile * per, count = min(per, t.tokens - first);
    find_rows<THREADS>(rows, t, first, count);
    __syncthreads();
    const unsigned runs = extra == 0 ? 1 : count_runs(rows.sequence, count);
    if (runs > MOST_RUNS) {
        if (share.part >= runs) return false;
        if (share.part == 0 && share.tile < SharedTiles::MOST) {
            shared.find<THREADS>(t, per, tiles);
            if (shared.count) share.parts = 1 + extra / shared.count; // There is this one, unless a token is out of range.
        }
        for (unsigned i = threadIdx.x; i < count; i += THREADS) {
            unsigned run = 0;
            for (unsigned j = 1; j <= i; ++j) run += rows.sequence[j] != rows.sequence[j - 1];
            rows.own[i] = run % share.parts == share.part;
        }
    }
    if (threadIdx.x == 0) result = share;
    __syncthreads();
    return true;
}
