// Attention of many tokens over a paged cache on tensor cores, with q, k, v and the softmax's weights rounded to bf16, sums in f32.
// A first launch rounds the blocks of keys and values that are read to bf16; the second computes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention_tiles.h"

// ---- rounding of the cache: grid any number for the blocks of a sequence, sequences, kv heads; 256 threads
template <class T> __device__ __forceinline__ void round_block(const T *from, __nv_bfloat16 *to, unsigned elements)
{
    for (unsigned i = threadIdx.x * 8; i < elements; i += 256 * 8) {
        float x[8];
        load8(from + i, x);
        uint4 w = make_uint4(pair_bf16(x[0], x[1]), pair_bf16(x[2], x[3]), pair_bf16(x[4], x[5]), pair_bf16(x[6], x[7]));
        *reinterpret_cast<uint4 *>(to + i) = w;
    }
}

template <class T> __device__ __forceinline__ void round_cache(const T *k, const T *v, const unsigned *positions, const unsigned *sequences,
                                                               const unsigned *table, __nv_bfloat16 *kb, __nv_bfloat16 *vb, unsigned tokens,
                                                               unsigned blocks, unsigned columns, unsigned kv_heads, unsigned of_block, unsigned shift, unsigned *fault)
{
    const unsigned sequence = blockIdx.y, head = blockIdx.z;
    // The blocks that the step's tokens of this sequence read.
    __shared__ unsigned most;
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    unsigned end = 0;
    for (unsigned t = threadIdx.x; t < tokens; t += 256)
        if (sequences[t] == sequence) end = max(end, min(positions[t] >> shift, columns - 1) + 1);
    end = __reduce_max_sync(~0u, end);
    if (threadIdx.x % 32 == 0) atomicMax(&most, end);
    __syncthreads();
    for (unsigned column = blockIdx.x; column < most; column += gridDim.x) {
        const unsigned block = table[sequence * columns + column];
        if (block >= blocks) {
            if (threadIdx.x == 0) note_fault(fault, block, blocks);
            continue;
        }
        const size_t at = (size_t(block) * kv_heads + head) * of_block;
        round_block(k + at, kb + at, of_block);
        round_block(v + at, vb + at, of_block);
    }
}

#define ROUND_CACHE(name, T) \
extern "C" __global__ __launch_bounds__(256) void name(const T *k, const T *v, const unsigned *positions, const unsigned *sequences, const unsigned *table, \
    __nv_bfloat16 *kb, __nv_bfloat16 *vb, const unsigned *step, unsigned tokens_slot, unsigned tokens_most, unsigned blocks, unsigned columns, unsigned kv_heads, \
    unsigned of_block, unsigned shift, unsigned *fault) \
{ \
    dependency_wait(); \
    dependency_launch(); \
    round_cache<T>(k, v, positions, sequences, table, kb, vb, count(step, tokens_slot, tokens_most), blocks, columns, kv_heads, of_block, shift, fault); \
}
ROUND_CACHE(attention_round_f32, float)
ROUND_CACHE(attention_round_f16, __half)

// ---- attention
// D elements a head; WARPS of MT times 16 rows each; 64 positions at a time, two tiles on their way.
template <int D, int WARPS, int MT> struct Prefill {
    static constexpr int THREADS = WARPS * 32, ROWS = WARPS * MT * 16, KEYS = 64, LINE = D + 8, STEPS = D / 16;
    static constexpr int TILE = KEYS * LINE; // elements of a tile of keys or values
    static constexpr int SHARED = (ROWS * LINE + 4 * TILE) * 2;

    // Finds where rows base, base + 1, … lie, in chunks of 8 elements; NOWHERE from `len` on.
    static __device__ __forceinline__ void look_up(unsigned *places, const Tokens &t, const unsigned *blocks, unsigned head, unsigned base, unsigned len)
    {
        if (threadIdx.x >= KEYS) return;
        const unsigned p = base + threadIdx.x, block = p < len ? blocks[p >> t.shift] : ~0u;
        if (p < len && block >= t.blocks) note_fault(t.fault, block, t.blocks);
        places[threadIdx.x] = block < t.blocks ? (((block * t.kv_heads + head) << t.shift) + (p & ((1u << t.shift) - 1))) * (D / 8) : NOWHERE;
    }

    // Starts the copy of a tile of keys or values; zeros where there are none.
    static __device__ __forceinline__ void fetch(__nv_bfloat16 *tile, const __nv_bfloat16 *cache, const unsigned *places)
    {
        constexpr int CHUNKS = D / 8;
#pragma unroll
        for (int i = 0; i < (KEYS * CHUNKS + THREADS - 1) / THREADS; ++i) {
            const unsigned at = threadIdx.x + i * THREADS, r = at / CHUNKS, c = at % CHUNKS;
            if (KEYS * CHUNKS % THREADS != 0 && r >= KEYS) break;
            const unsigned place = places[r];
            copy16(tile + r * LINE + c * 8, cache + size_t(place == NOWHERE ? 0 : place + c) * 8, place != NOWHERE);
        }
    }

    static __device__ __forceinline__ void run(const Tokens &t, const float *q, const __nv_bfloat16 *kb, const __nv_bfloat16 *vb, float *out, float scale)
    {
        extern __shared__ __align__(16) unsigned char memory[];
        __nv_bfloat16 *queries = reinterpret_cast<__nv_bfloat16 *>(memory), *keys = queries + ROWS * LINE, *values = keys + 2 * TILE;
        __shared__ Rows rows;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const unsigned of_kv = t.heads / t.kv_heads, per = ROWS / of_kv, head = blockIdx.x;
        const unsigned tiles = (t.tokens + per - 1) / per;
        if (blockIdx.y >= tiles) return;
        // The tokens that read most come last in a prompt: they begin first.
        const unsigned first = (tiles - 1 - blockIdx.y) * per, count = min(per, t.tokens - first);
        find_rows<THREADS>(rows, t, first, count);

        // Where each row's query begins, in chunks of 4 elements.
        __shared__ unsigned starts[ROWS], places[3][KEYS];
        for (unsigned r = threadIdx.x; r < ROWS; r += THREADS) {
            const unsigned token = r / of_kv;
            starts[r] = token < count ? ((first + token) * t.heads + head * of_kv + r - token * of_kv) * (D / 4) : NOWHERE;
        }
        __syncthreads();
        constexpr int FOURS = ROWS * (D / 4) / THREADS, BATCH = FOURS % 8 == 0 ? 8 : FOURS % 5 == 0 ? 5 : 4;
        static_assert(ROWS * (D / 4) % THREADS == 0 && FOURS % BATCH == 0, "queries are staged in whole batches");
#pragma unroll 1
        for (int i0 = 0; i0 < FOURS; i0 += BATCH) {
            float4 x[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const unsigned at = threadIdx.x + (i0 + i) * THREADS, start = starts[at / (D / 4)];
                x[i] = start != NOWHERE ? reinterpret_cast<const float4 *>(q)[start + at % (D / 4)] : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const unsigned at = threadIdx.x + (i0 + i) * THREADS;
                *reinterpret_cast<uint2 *>(queries + at / (D / 4) * LINE + at % (D / 4) * 4) =
                    make_uint2(pair_bf16(x[i].x * scale, x[i].y * scale), pair_bf16(x[i].z * scale, x[i].w * scale));
            }
        }

        float sums[MT][D / 8][4], most[MT][2], total[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            most[m][0] = most[m][1] = -1e38f;
            total[m][0] = total[m][1] = 0;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
        }
        __syncthreads();

        // Tokens of one sequence that follow each other are worked on together; those of others see nothing meanwhile.
        for (unsigned from = 0; from < count;) {
            const Run run = next_run(rows, from, count);
            const unsigned *blocks = t.table + size_t(run.sequence) * t.columns;
            int limit[MT][2];
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const unsigned token = ((warp * MT + m) * 16 + h * 8 + lane / 4) / of_kv;
                    limit[m][h] = token >= from && token < run.end ? int(rows.position[token]) : -1;
                }
            const unsigned len = run.most + 1, steps = (len + KEYS - 1) / KEYS;
            look_up(places[0], t, blocks, head, 0, len);
            look_up(places[1], t, blocks, head, KEYS, len);
            __syncthreads();
            fetch(keys, kb, places[0]);
            fetch(values, vb, places[0]);
            copies_commit();
            for (unsigned s = 0; s < steps; ++s) {
                if (s + 1 < steps) {
                    const unsigned side = (s + 1) % 2 * TILE;
                    fetch(keys + side, kb, places[(s + 1) % 3]);
                    fetch(values + side, vb, places[(s + 1) % 3]);
                }
                copies_commit();
                look_up(places[(s + 2) % 3], t, blocks, head, (s + 2) * KEYS, len);
                copies_wait<1>();
                __syncthreads();
                const __nv_bfloat16 *k = keys + s % 2 * TILE, *v = values + s % 2 * TILE;
                const bool masked = run.shortened || (s + 1) * KEYS - 1 > run.least;
#pragma unroll
                for (int half = 0; half < KEYS / 32; ++half) {
                    float scores[MT][4][4];
#pragma unroll
                    for (int m = 0; m < MT; ++m)
#pragma unroll
                        for (int n = 0; n < 4; ++n) scores[m][n][0] = scores[m][n][1] = scores[m][n][2] = scores[m][n][3] = 0;
#pragma unroll
                    for (int d = 0; d < STEPS; ++d) {
                        unsigned b[4][2];
#pragma unroll
                        for (int n = 0; n < 4; n += 2) {
                            // Rows n·8 … n·8 + 15 of keys, 16 elements: two fragments.
                            const unsigned r = half * 32 + n * 8 + (lane & 7) + (lane >> 4) * 8, c = d * 16 + (lane >> 3 & 1) * 8;
                            load_matrix(b[n][0], b[n][1], b[n + 1][0], b[n + 1][1], k + r * LINE + c);
                        }
#pragma unroll
                        for (int m = 0; m < MT; ++m) {
                            unsigned a[4];
                            load_matrix(a[0], a[1], a[2], a[3], queries + ((warp * MT + m) * 16 + (lane & 15)) * LINE + d * 16 + (lane >> 4) * 8);
#pragma unroll
                            for (int n = 0; n < 4; ++n) multiply(scores[m][n], a, b[n]);
                        }
                    }
                    unsigned weights[MT][2][4];
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
                        if (masked) {
#pragma unroll
                            for (int n = 0; n < 4; ++n)
#pragma unroll
                                for (int i = 0; i < 4; ++i) {
                                    const int p = int(s * KEYS) + half * 32 + n * 8 + int(lane % 4) * 2 + (i & 1);
                                    if (p > limit[m][i >> 1]) scores[m][n][i] = -__int_as_float(0x7f800000);
                                }
                        }
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            float greatest = most[m][h];
#pragma unroll
                            for (int n = 0; n < 4; ++n) greatest = fmaxf(greatest, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
                            greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
                            greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
                            const float correction = exp2_fast(most[m][h] - greatest);
                            most[m][h] = greatest;
                            float sum = 0;
#pragma unroll
                            for (int n = 0; n < 4; ++n)
#pragma unroll
                                for (int i = 2 * h; i < 2 * h + 2; ++i) {
                                    scores[m][n][i] = exp2_fast(scores[m][n][i] - greatest);
                                    sum += scores[m][n][i];
                                }
                            total[m][h] = total[m][h] * correction + sum;
#pragma unroll
                            for (int n = 0; n < D / 8; ++n) {
                                sums[m][n][2 * h] *= correction;
                                sums[m][n][2 * h + 1] *= correction;
                            }
                        }
#pragma unroll
                        for (int j = 0; j < 2; ++j) {
                            weights[m][j][0] = pair_bf16(scores[m][2 * j][0], scores[m][2 * j][1]);
                            weights[m][j][1] = pair_bf16(scores[m][2 * j][2], scores[m][2 * j][3]);
                            weights[m][j][2] = pair_bf16(scores[m][2 * j + 1][0], scores[m][2 * j + 1][1]);
                            weights[m][j][3] = pair_bf16(scores[m][2 * j + 1][2], scores[m][2 * j + 1][3]);
                        }
                    }
#pragma unroll
                    for (int j = 0; j < 2; ++j)
#pragma unroll
                        for (int n = 0; n < D / 8; n += 2) {
                            // 16 positions, elements n·8 … n·8 + 15, transposed: two fragments.
                            unsigned b[2][2];
                            const unsigned r = half * 32 + j * 16 + (lane & 15), c = n * 8 + (lane >> 4) * 8;
                            load_transposed(b[0][0], b[0][1], b[1][0], b[1][1], v + r * LINE + c);
#pragma unroll
                            for (int m = 0; m < MT; ++m) {
                                multiply(sums[m][n], weights[m][j], b[0]);
                                multiply(sums[m][n + 1], weights[m][j], b[1]);
                            }
                        }
                }
                __syncthreads();
            }
            copies_wait<0>();
            from = run.end;
        }

#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float l = total[m][h];
                l += __shfl_xor_sync(~0u, l, 1);
                l += __shfl_xor_sync(~0u, l, 2);
                const unsigned r = (warp * MT + m) * 16 + h * 8 + lane / 4;
                if (starts[r] == NOWHERE) continue;
                const float inverse = 1.0f / l;
                float *to = out + size_t(starts[r]) * 4 + lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < D / 8; ++n)
                    *reinterpret_cast<float2 *>(to + n * 8) = make_float2(sums[m][n][2 * h] * inverse, sums[m][n][2 * h + 1] * inverse);
            }
    }
};

// Grid: kv heads, tiles of tokens; dynamic shared memory: Prefill::SHARED.
#define ATTENTION_PREFILL(D, WARPS, MT) \
extern "C" __global__ __launch_bounds__(WARPS * 32) void attention_prefill_##D(const float *q, const __nv_bfloat16 *kb, const __nv_bfloat16 *vb, const unsigned *positions, \
    const unsigned *sequences, const unsigned *table, float *out, const unsigned *step, unsigned tokens_slot, unsigned tokens_most, unsigned heads, unsigned kv_heads, \
    unsigned shift, unsigned blocks, unsigned rows, unsigned columns, float scale, unsigned *fault) \
{ \
    dependency_wait(); \
    dependency_launch(); \
    const Tokens t = {positions, sequences, table, count(step, tokens_slot, tokens_most), heads, kv_heads, shift, blocks, rows, columns, fault}; \
    Prefill<D, WARPS, MT>::run(t, q, kb, vb, out, scale); \
}
ATTENTION_PREFILL(64, 8, 1)
ATTENTION_PREFILL(80, 4, 1)
ATTENTION_PREFILL(96, 8, 1)
ATTENTION_PREFILL(128, 8, 1)
ATTENTION_PREFILL(256, 4, 1)
