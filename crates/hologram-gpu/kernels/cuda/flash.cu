// Attention of whole sequences of bf16 or f16 and its gradients, with scores in registers only (Dao, 2023, arXiv:2307.08691), for compute
// capability 8.0 and up.
//
// q [heads, n, D], k and v [heads / group, m, D]; query i sees all keys, or those up to i + m − n. The scale is
// greater than 0. Products have sums in f32; the weights and their
// gradients are rounded to the type before they are multiplied. Lines in shared memory have 16 bytes more than D elements, so that eight of
// them lie in different banks.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention_tiles.h"

#define INFINITE __int_as_float(0x7f800000)

struct Sizes {
    unsigned n, m, group, causal;
    // The number of keys that query i sees.
    __device__ __forceinline__ unsigned seen(unsigned i) const { return causal ? min(m, i + 1 + m - n) : m; }
    // The first query that sees key j.
    __device__ __forceinline__ unsigned first(unsigned j) const { return causal && j + n > m ? j + n - m : 0; }
};

#define TYPE(E, name, words)                                                                                                                   \
    __device__ __forceinline__ void mma(E, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)                                     \
    {                                                                                                                                          \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                   \
    }                                                                                                                                          \
    __device__ __forceinline__ unsigned pair(E, float low, float high)                                                                         \
    {                                                                                                                                          \
        unsigned w;                                                                                                                            \
        asm("cvt.rn." name "x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));                                                               \
        return w;                                                                                                                              \
    }                                                                                                                                          \
    __device__ __forceinline__ float2 both(E, unsigned w)                                                                                      \
    {                                                                                                                                          \
        const words x = *reinterpret_cast<const words *>(&w);                                                                                  \
        return make_float2(float(x.x), float(x.y));                                                                                            \
    }
TYPE(__nv_bfloat16, "bf16", __nv_bfloat162)
TYPE(__half, "f16", __half2)

// What the kernels share, for elements E and D of them a head, in workgroups of WARPS warps with 16 lines each.
template <class E, int D, int WARPS> struct Lines {
    static constexpr int THREADS = WARPS * 32, ROWS = WARPS * 16, LINE = D + 8, CHUNKS = D / 8, STEPS = D / 16, COLUMNS = D / 8;

    // Starts the copy of COUNT lines from line `first` on; those from `lines` on become zeros.
    template <int COUNT> static __device__ __forceinline__ void fetch(E *to, const E *from, unsigned first, unsigned lines)
    {
        static_assert(COUNT * CHUNKS % THREADS == 0, "every thread copies as much");
#pragma unroll
        for (int i = 0; i < COUNT * CHUNKS / THREADS; ++i) {
            const unsigned at = threadIdx.x + i * THREADS, r = at / CHUNKS, c = at % CHUNKS, line = first + r;
            copy16(to + r * LINE + c * 8, from + size_t(line < lines ? line : 0) * D + c * 8, line < lines);
        }
    }

    // The left side of products: 16 lines of the warp, elements 16·step to 16·step + 15.
    static __device__ __forceinline__ void left(unsigned (&a)[4], const E *lines, int step)
    {
        const unsigned lane = threadIdx.x % 32;
        load_matrix(a[0], a[1], a[2], a[3], lines + (lane & 15) * LINE + step * 16 + (lane >> 4) * 8);
    }

    // sums [16 lines, 8·N lines of the right] += left · rightᵀ; `a` gives the left side's fragments.
    template <int N, class Left> static __device__ __forceinline__ void along(float (&sums)[N][4], const Left &a, const E *right)
    {
        const unsigned lane = threadIdx.x % 32;
        const E *from = right + ((lane & 7) + (lane >> 4) * 8) * LINE + (lane >> 3 & 1) * 8;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            unsigned f[4];
            a(f, step);
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                unsigned b[4];
                load_matrix(b[0], b[1], b[2], b[3], from + j * 8 * LINE + step * 16);
                mma(E(), sums[j], f, b[0], b[1]);
                mma(E(), sums[j + 1], f, b[2], b[3]);
            }
        }
    }

    // sums [16 lines, D] += weights [16 lines, 8·N] · right [8·N, D], with the weights rounded.
    template <int N> static __device__ __forceinline__ void across(float (&sums)[COLUMNS][4], const float (&weights)[N][4], const E *right)
    {
        const unsigned lane = threadIdx.x % 32;
        const E *from = right + (lane & 15) * LINE + (lane >> 4) * 8;
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const float(&low)[4] = weights[j], (&high)[4] = weights[j + 1];
            const unsigned a[4] = {pair(E(), low[0], low[1]), pair(E(), low[2], low[3]), pair(E(), high[0], high[1]), pair(E(), high[2], high[3])};
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 2) {
                unsigned b[4];
                load_transposed(b[0], b[1], b[2], b[3], from + j * 8 * LINE + c * 8);
                mma(E(), sums[c], a, b[0], b[1]);
                mma(E(), sums[c + 1], a, b[2], b[3]);
            }
        }
    }

    // Stores sums · factors of the warp's lines below `lines`; the line of the first is `first`.
    static __device__ __forceinline__ void store(E *to, const float (&sums)[COLUMNS][4], const float (&factors)[2], unsigned first, unsigned lines)
    {
        const unsigned lane = threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned line = first + h * 8 + lane / 4;
            if (line >= lines) continue;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                *reinterpret_cast<unsigned *>(to + size_t(line) * D + c * 8 + lane % 4 * 2) = pair(E(), sums[c][2 * h] * factors[h], sums[c][2 * h + 1] * factors[h]);
        }
    }
};

// ---- softmax(scale · q · kᵀ) · v, and ln Σ exp(scale · q · kᵀ). With VALUES false only the latter.
template <class E, int D, int WARPS, int KEYS, bool VALUES> struct Forward {
    using L = Lines<E, D, WARPS>;
    static constexpr int TILE = KEYS * L::LINE, N = KEYS / 8;

    static __device__ __forceinline__ void run(const E *q, const E *k, const E *v, E *out, float *sums_out, float scale, const Sizes &sizes)
    {
        extern __shared__ __align__(16) unsigned char memory[];
        E *queries = reinterpret_cast<E *>(memory), *tiles = queries + L::ROWS * L::LINE;
        constexpr int STAGE = VALUES ? 2 * TILE : TILE;
        const unsigned head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        // The queries that see most begin first.
        const unsigned first = (gridDim.y - 1 - blockIdx.y) * L::ROWS, own = first + warp * 16;
        q += size_t(head) * sizes.n * D;
        k += size_t(head / sizes.group) * sizes.m * D;
        if (VALUES) v += size_t(head / sizes.group) * sizes.m * D;
        const unsigned end = sizes.seen(min(first + L::ROWS, sizes.n) - 1);
        auto fetch = [&](unsigned base, unsigned stage) {
            L::template fetch<KEYS>(tiles + stage * STAGE, k, base, sizes.m);
            if (VALUES) L::template fetch<KEYS>(tiles + stage * STAGE + TILE, v, base, sizes.m);
            copies_commit();
        };
        L::template fetch<L::ROWS>(queries, q, first, sizes.n);
        fetch(0, 0);
        copies_wait<0>();
        __syncthreads();
        unsigned left[L::STEPS][4];
#pragma unroll
        for (int i = 0; i < L::STEPS; ++i) L::left(left[i], queries + warp * 16 * L::LINE, i);
        float sums[L::COLUMNS][4] = {}, most[2] = {-1e38f, -1e38f}, total[2] = {};
        const float factor = scale * LOG2_E;
        unsigned stage = 0;
        for (unsigned base = 0; base < end; base += KEYS, stage ^= 1) {
            if (base + KEYS < end) fetch(base + KEYS, stage ^ 1);
            const E *keys = tiles + stage * STAGE;
            // The warp's last query sees the most keys.
            if (base < sizes.seen(min(own + 15, sizes.n - 1))) {
                float s[N][4] = {};
                L::along(s, [&](unsigned(&a)[4], int i) {
#pragma unroll
                    for (int x = 0; x < 4; ++x) a[x] = left[i][x];
                }, keys);
                if (base + KEYS > sizes.seen(min(own, sizes.n - 1)))
#pragma unroll
                    for (int i = 0; i < N * 4; ++i) {
                        const unsigned key = base + i / 4 * 8 + lane % 4 * 2 + i % 2, row = own + i % 4 / 2 * 8 + lane / 4;
                        if (key >= sizes.seen(min(row, sizes.n - 1))) s[i / 4][i % 4] = -INFINITE;
                    }
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float greatest = s[0][2 * h];
#pragma unroll
                    for (int j = 0; j < N; ++j) greatest = fmaxf(greatest, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
                    greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
                    greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
                    const float new_most = fmaxf(most[h], greatest * factor);
                    const float correction = exp2_fast(most[h] - new_most);
                    most[h] = new_most;
                    total[h] *= correction;
                    if (VALUES)
#pragma unroll
                        for (int c = 0; c < L::COLUMNS; ++c) {
                            sums[c][2 * h] *= correction;
                            sums[c][2 * h + 1] *= correction;
                        }
#pragma unroll
                    for (int j = 0; j < N; ++j)
#pragma unroll
                        for (int x = 2 * h; x < 2 * h + 2; ++x) total[h] += s[j][x] = exp2_fast(fmaf(s[j][x], factor, -new_most));
                }
                if (VALUES) L::across(sums, s, keys + TILE);
            }
            copies_wait<0>();
            __syncthreads();
        }
        float factors[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            total[h] += __shfl_xor_sync(~0u, total[h], 1);
            total[h] += __shfl_xor_sync(~0u, total[h], 2);
            factors[h] = 1.0f / total[h];
            const unsigned row = own + h * 8 + lane / 4;
            if (!VALUES && lane % 4 == 0 && row < sizes.n) sums_out[size_t(head) * sizes.n + row] = (most[h] + __log2f(total[h])) / LOG2_E;
        }
        if (VALUES) L::store(out + size_t(head) * sizes.n * D, sums, factors, own, sizes.n);
    }
};

// ---- the gradient by the queries, and each query's delta: the sum of its gradient times its result.
template <class E, int D, int WARPS, int KEYS> struct ByQueries {
    using L = Lines<E, D, WARPS>;
    static constexpr int TILE = KEYS * L::LINE, N = KEYS / 8;

    static __device__ __forceinline__ void run(const E *q, const E *k, const E *v, const E *out, const float *sums, const E *grad, E *by_q, float *delta_out, float scale, const Sizes &sizes)
    {
        extern __shared__ __align__(16) unsigned char memory[];
        // First the queries, the gradients and the results, then tiles of keys and values in their place.
        E *tiles = reinterpret_cast<E *>(memory);
        constexpr int STAGE = 2 * TILE, SIDE = L::ROWS * L::LINE;
        const unsigned head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const unsigned first = (gridDim.y - 1 - blockIdx.y) * L::ROWS, own = first + warp * 16;
        const size_t at = size_t(head) * sizes.n * D;
        k += size_t(head / sizes.group) * sizes.m * D;
        v += size_t(head / sizes.group) * sizes.m * D;
        const unsigned end = sizes.seen(min(first + L::ROWS, sizes.n) - 1);
        L::template fetch<L::ROWS>(tiles, q + at, first, sizes.n);
        L::template fetch<L::ROWS>(tiles + SIDE, grad + at, first, sizes.n);
        L::template fetch<L::ROWS>(tiles + 2 * SIDE, out + at, first, sizes.n);
        copies_commit();
        float sum[2], delta[2] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned row = own + h * 8 + lane / 4;
            // Of queries that are not there every weight is 0.
            sum[h] = row < sizes.n ? sums[size_t(head) * sizes.n + row] * LOG2_E : INFINITE;
        }
        copies_wait<0>();
        __syncthreads();
        unsigned queries[L::STEPS][4], grads[L::STEPS][4];
#pragma unroll
        for (int i = 0; i < L::STEPS; ++i) {
            unsigned result[4];
            L::left(queries[i], tiles + warp * 16 * L::LINE, i);
            L::left(grads[i], tiles + SIDE + warp * 16 * L::LINE, i);
            L::left(result, tiles + 2 * SIDE + warp * 16 * L::LINE, i);
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const float2 g = both(E(), grads[i][x]), o = both(E(), result[x]);
                delta[x % 2] = fmaf(g.x, o.x, fmaf(g.y, o.y, delta[x % 2]));
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            delta[h] += __shfl_xor_sync(~0u, delta[h], 1);
            delta[h] += __shfl_xor_sync(~0u, delta[h], 2);
            const unsigned row = own + h * 8 + lane / 4;
            if (lane % 4 == 0 && row < sizes.n) delta_out[size_t(head) * sizes.n + row] = delta[h];
        }
        __syncthreads();
        auto fetch = [&](unsigned base, unsigned stage) {
            L::template fetch<KEYS>(tiles + stage * STAGE, k, base, sizes.m);
            L::template fetch<KEYS>(tiles + stage * STAGE + TILE, v, base, sizes.m);
            copies_commit();
        };
        fetch(0, 0);
        float by[L::COLUMNS][4] = {};
        const float factor = scale * LOG2_E;
        unsigned stage = 0;
        for (unsigned base = 0; base < end; base += KEYS, stage ^= 1) {
            copies_wait<0>();
            __syncthreads();
            if (base + KEYS < end) fetch(base + KEYS, stage ^ 1);
            const E *keys = tiles + stage * STAGE;
            if (base >= sizes.seen(min(own + 15, sizes.n - 1))) continue;
            float s[N][4] = {}, dp[N][4] = {};
            L::along(s, [&](unsigned(&a)[4], int i) {
#pragma unroll
                for (int x = 0; x < 4; ++x) a[x] = queries[i][x];
            }, keys);
            L::along(dp, [&](unsigned(&a)[4], int i) {
#pragma unroll
                for (int x = 0; x < 4; ++x) a[x] = grads[i][x];
            }, keys + TILE);
            const bool cut = base + KEYS > sizes.seen(min(own, sizes.n - 1));
#pragma unroll
            for (int i = 0; i < N * 4; ++i) {
                const int h = i % 4 / 2;
                float &x = s[i / 4][i % 4];
                x = exp2_fast(fmaf(x, factor, -sum[h])) * (dp[i / 4][i % 4] - delta[h]);
                if (cut && base + i / 4 * 8 + lane % 4 * 2 + i % 2 >= sizes.seen(min(own + h * 8 + lane / 4, sizes.n - 1))) x = 0;
            }
            L::across(by, s, keys);
        }
        L::store(by_q + at, by, {scale, scale}, own, sizes.n);
    }
};

// ---- the gradients by the keys and values
template <class E, int D, int WARPS, int QUERIES, int PART> struct ByKeys {
    using L = Lines<E, D, WARPS>;
    static constexpr int TILE = QUERIES * L::LINE, N = PART / 8, SIDE = L::ROWS * L::LINE;
    // Longer lines of keys and values stay in shared memory.
    static constexpr bool HELD = D <= 64;

    static __device__ __forceinline__ void copy4(float *to, const float *from, bool there)
    {
        const unsigned at = unsigned(__cvta_generic_to_shared(to)), bytes = there ? 4 : 0;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
    }

    static __device__ __forceinline__ void run(const E *q, const E *k, const E *v, const float *sums, const E *grad, const float *deltas, E *by_k, E *by_v, float scale, const Sizes &sizes)
    {
        extern __shared__ __align__(16) unsigned char memory[];
        E *keys = reinterpret_cast<E *>(memory), *tiles = HELD ? keys : keys + 2 * SIDE;
        constexpr int STAGE = 2 * TILE;
        __shared__ float stats[2][2][QUERIES];
        const unsigned head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const unsigned first = blockIdx.y * L::ROWS, own = first + warp * 16;
        const size_t at = size_t(head) * sizes.m * D;
        L::template fetch<L::ROWS>(keys, k + at, first, sizes.m);
        L::template fetch<L::ROWS>(keys + SIDE, v + at, first, sizes.m);
        copies_commit();
        const E *own_keys = keys + warp * 16 * L::LINE;
        unsigned left[2][HELD ? L::STEPS : 1][4];
        if (HELD) {
            copies_wait<0>();
            __syncthreads();
#pragma unroll
            for (int i = 0; i < (HELD ? L::STEPS : 1); ++i) {
                L::left(left[0][i], own_keys, i);
                L::left(left[1][i], own_keys + SIDE, i);
            }
            __syncthreads();
        }
        // Tiles of the queries that see these keys, of one head after the other.
        const unsigned start = sizes.first(first) / QUERIES * QUERIES;
        auto fetch = [&](unsigned g, unsigned base, unsigned stage) {
            const size_t row = size_t(head * sizes.group + g) * sizes.n;
            L::template fetch<QUERIES>(tiles + stage * STAGE, q + row * D, base, sizes.n);
            L::template fetch<QUERIES>(tiles + stage * STAGE + TILE, grad + row * D, base, sizes.n);
            if (threadIdx.x < 2 * QUERIES) {
                const unsigned i = threadIdx.x % QUERIES, which = threadIdx.x / QUERIES;
                const bool there = base + i < sizes.n;
                copy4(&stats[stage][which][i], (which ? deltas : sums) + row + (there ? base + i : 0), there);
            }
            copies_commit();
        };
        float dk[L::COLUMNS][4] = {}, dv[L::COLUMNS][4] = {};
        const float factor = scale * LOG2_E;
        // A key that no query sees has no tile.
        unsigned g = start < sizes.n ? 0 : sizes.group, base = start, stage = 0;
        if (g < sizes.group) fetch(g, base, 0);
        while (g < sizes.group) {
            copies_wait<0>();
            __syncthreads();
            const unsigned here = base;
            base += QUERIES;
            if (base >= sizes.n) {
                base = start;
                ++g;
            }
            if (g < sizes.group) fetch(g, base, stage ^ 1);
            const E *queries = tiles + stage * STAGE, *grads = queries + TILE;
#pragma unroll
            for (int part = 0; part < QUERIES / PART; ++part) {
                const unsigned from = here + part * PART;
                // Not seen by the last query of the part, by none.
                if (from >= sizes.n || from + PART - 1 < sizes.first(min(own, sizes.m - 1))) continue;
                float s[N][4] = {}, dp[N][4] = {};
                L::along(s, [&](unsigned(&a)[4], int i) {
                    if constexpr (HELD) {
#pragma unroll
                        for (int x = 0; x < 4; ++x) a[x] = left[0][i][x];
                    } else L::left(a, own_keys, i);
                }, queries + part * PART * L::LINE);
                L::along(dp, [&](unsigned(&a)[4], int i) {
                    if constexpr (HELD) {
#pragma unroll
                        for (int x = 0; x < 4; ++x) a[x] = left[1][i][x];
                    } else L::left(a, own_keys + SIDE, i);
                }, grads + part * PART * L::LINE);
                const bool cut = from + PART > sizes.n || from < sizes.first(min(own + 15, sizes.m - 1));
#pragma unroll
                for (int i = 0; i < N * 4; ++i) {
                    const unsigned column = part * PART + i / 4 * 8 + lane % 4 * 2 + i % 2, query = here + column;
                    float &p = s[i / 4][i % 4], &x = dp[i / 4][i % 4];
                    p = exp2_fast(fmaf(p, factor, -LOG2_E * stats[stage][0][column]));
                    if (cut && (query >= sizes.n || query < sizes.first(min(own + i % 4 / 2 * 8 + lane / 4, sizes.m - 1)))) p = 0;
                    x = p * (x - stats[stage][1][column]);
                }
                L::across(dv, s, grads + part * PART * L::LINE);
                L::across(dk, dp, queries + part * PART * L::LINE);
            }
            stage ^= 1;
        }
        L::store(by_k + at, dk, {scale, scale}, own, sizes.m);
        L::store(by_v + at, dv, {1, 1}, own, sizes.m);
    }
};

// Grids: heads of queries, tiles of queries; of flash_keys heads of keys, tiles of keys. Dynamic shared memory: the lines of a workgroup's tiles.
#define BEGIN                                                                                                                                  \
    dependency_wait();                                                                                                                         \
    dependency_launch();                                                                                                                       \
    const Sizes sizes = {n, m, group, causal};
#define FLASH_FORWARD(name, E, D, WARPS, KEYS)                                                                                                  \
KERNEL(name, WARPS * 32, IN(0, E, q), IN(1, E, k), IN(2, E, v), OUT(3, E, out), VAL(4, float, scale), VAL(5, uint, n), VAL(6, uint, m), VAL(7, uint, group), VAL(8, uint, causal)) \
{ \
    BEGIN \
    Forward<E, D, WARPS, KEYS, true>::run(q, k, v, out, nullptr, scale, sizes); \
}
#define FLASH_SUMS(name, E, D, WARPS, KEYS) \
KERNEL(name, WARPS * 32, IN(0, E, q), IN(1, E, k), OUT(2, float, out), VAL(3, float, scale), VAL(4, uint, n), VAL(5, uint, m), VAL(6, uint, group), VAL(7, uint, causal)) \
{ \
    BEGIN \
    Forward<E, D, WARPS, KEYS, false>::run(q, k, nullptr, nullptr, out, scale, sizes); \
}
#define FLASH_QUERIES(name, E, D, WARPS, KEYS) \
KERNEL(name, WARPS * 32, IN(0, E, q), IN(1, E, k), IN(2, E, v), IN(3, E, result), IN(4, float, sums), IN(5, E, grad), OUT(6, E, by_q), OUT(7, float, deltas), \
    VAL(8, float, scale), VAL(9, uint, n), VAL(10, uint, m), VAL(11, uint, group), VAL(12, uint, causal)) \
{ \
    BEGIN \
    ByQueries<E, D, WARPS, KEYS>::run(q, k, v, result, sums, grad, by_q, deltas, scale, sizes); \
}
// by_q: all gradients, in which those by the keys begin at element `keys_at`, and those by the values after these.
#define FLASH_KEYS(name, E, D, WARPS, QUERIES, PART) \
KERNEL(name, WARPS * 32, IN(0, E, q), IN(1, E, k), IN(2, E, v), IN(3, float, sums), IN(4, E, grad), IN(5, float, deltas), OUT(6, E, by), VAL(7, uint, keys_at), \
    VAL(8, float, scale), VAL(9, uint, n), VAL(10, uint, m), VAL(11, uint, group), VAL(12, uint, causal)) \
{ \
    BEGIN \
    E *by_k = by + keys_at; \
    ByKeys<E, D, WARPS, QUERIES, PART>::run(q, k, v, sums, grad, deltas, by_k, by_k + size_t(gridDim.x) * m * D, scale, sizes); \
}
FLASH_FORWARD(flash_forward_bf16_64, __nv_bfloat16, 64, 4, 64)
FLASH_FORWARD(flash_forward_bf16_128, __nv_bfloat16, 128, 4, 32)
FLASH_FORWARD(flash_forward_f16_64, __half, 64, 4, 64)
FLASH_FORWARD(flash_forward_f16_128, __half, 128, 4, 32)
FLASH_SUMS(flash_sums_bf16_64, __nv_bfloat16, 64, 8, 64)
FLASH_SUMS(flash_sums_bf16_128, __nv_bfloat16, 128, 8, 64)
FLASH_SUMS(flash_sums_f16_64, __half, 64, 8, 64)
FLASH_SUMS(flash_sums_f16_128, __half, 128, 8, 64)
FLASH_QUERIES(flash_queries_bf16_64, __nv_bfloat16, 64, 4, 32)
FLASH_QUERIES(flash_queries_bf16_128, __nv_bfloat16, 128, 4, 32)
FLASH_QUERIES(flash_queries_f16_64, __half, 64, 4, 32)
FLASH_QUERIES(flash_queries_f16_128, __half, 128, 4, 32)
FLASH_KEYS(flash_keys_bf16_64, __nv_bfloat16, 64, 4, 64, 16)
FLASH_KEYS(flash_keys_bf16_128, __nv_bfloat16, 128, 4, 32, 32)
FLASH_KEYS(flash_keys_f16_64, __half, 64, 4, 64, 16)
FLASH_KEYS(flash_keys_f16_128, __half, 128, 4, 32, 32)
