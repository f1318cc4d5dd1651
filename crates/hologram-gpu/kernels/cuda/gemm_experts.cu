// Products of many tokens with the matrices of the experts that each has chosen, on tensor cores: see gemm.h and stored.h.
//
// A slot is a token and one of its experts. `expert_order` sorts the slots by expert and divides those of an expert into tiles. A workgroup of
// 8 warps computes 128 M rows of a tile's expert (in gated modes half of them of gate and the same ones of up) for up to N slots. A warp has 16 M rows, which
// it reads once, as they are stored, the next 128 elements while it multiplies these; activations go through shared memory, three steps at a time.
#include "stored.h"
#include "experts_plan.h"
#define constant
namespace planes {
#include "float8.h"
}
#undef constant

// Floats of a byte, with a scale for each 128 elements.
template <> struct Stored<planes::F8_E4M3> {
    uint4 floats[2];
    float scale;
    MEMBER void load(const uchar *low, const uchar *, const uchar *records, size_t at, ulong policy)
    {
        floats[0] = planes::stream16(low + at * 32, policy);
        floats[1] = planes::stream16(low + at * 32 + 16, policy);
        scale = __uint_as_float(planes::stream4(records + at / planes::record_chunks<planes::F8_E4M3>() * 4));
    }
    MEMBER float2 line(uint) const { return make_float2(scale, 0); }
    MEMBER void values(uint j, float2 line, uint &first, uint &second) const
    {
        const uint v = planes::word(floats[j / 4], j % 4);
        const auto value = [&](uint i) { return planes::float8(v >> i) * line.x; };
        first = pack_bf16(value(0), value(8));
        second = pack_bf16(value(16), value(24));
    }
};

enum : uint { BLOCK = 128, STAGES = 3 };
HOST(MOST_EXPERTS, TILE_WORDS, HEADER, BLOCK, STAGES)

// Makes the plan. ids: the experts of n tokens, `slots` each; one that does not exist is a fault.
KERNEL(expert_order, 1024, IN(0, uint, ids), OUT(1, uint, plan), IN(2, uint, step), VAL(3, uint, slot), VAL(4, uint, n), VAL(5, uint, slots),
    VAL(6, uint, experts), VAL(7, uint, tile), VAL(8, uint, most_tiles), FAULT(9))
{
    __shared__ uint counts[MOST_EXPERTS];
    __shared__ uint2 of_warps[32];
    const uint tid = threadIdx.x, lane = tid & 31;
    counts[tid] = 0;
    __syncthreads();
    dependency_wait();
    const uint total = tokens(step, slot, n) * slots;
    for (uint i = tid; i < total; i += 1024) {
        const uint expert = ids[i];
        if (expert < experts) atomicAdd(&counts[expert], 1u);
        else {
            fault[2] = experts;
            fault[3] = expert;
            fault[0] = 1;
        }
    }
    __syncthreads();
    // An expert's slots and tiles, and those of all up to it.
    const uint own = counts[tid], own_tiles = (own + tile - 1) / tile;
    const auto summed = [&](uint v) {
        #pragma unroll
        for (uint by = 1; by < 32; by *= 2) {
            const uint before = __shfl_up_sync(~0u, v, by);
            if (lane >= by) v += before;
        }
        return v;
    };
    uint2 all = make_uint2(summed(own), summed(own_tiles));
    if (lane == 31) of_warps[tid >> 5] = all;
    __syncthreads();
    if (tid < 32) {
        const uint2 warp = of_warps[tid];
        of_warps[tid] = make_uint2(summed(warp.x), summed(warp.y));
    }
    __syncthreads();
    if (tid >= 32) {
        const uint2 before = of_warps[(tid >> 5) - 1];
        all = make_uint2(all.x + before.x, all.y + before.y);
    }
    if (tid == MOST_EXPERTS - 1) plan[0] = all.y;
    const uint first = all.x - own, first_tile = all.y - own_tiles;
    for (uint i = 0; i < own_tiles; ++i) {
        uint *const to = plan + HEADER + (first_tile + i) * TILE_WORDS;
        to[0] = tid;
        to[1] = first + i * tile;
        to[2] = min(tile, own - i * tile);
    }
    counts[tid] = first;
    __syncthreads();
    dependency_launch();
    uint *const order = plan + HEADER + most_tiles * TILE_WORDS;
    for (uint i = tid; i < total; i += 1024) {
        const uint expert = ids[i];
        if (expert < experts) order[atomicAdd(&counts[expert], 1u)] = i;
    }
}

struct Operands {
    const uchar *x;
    const uchar *low[2], *high[2], *records[2];
    const float *bias[2];
    uint slots, k, m;
    bool per_slot, biased; // Whether each slot has activations of its own, instead of each token; whether experts have biases.
    Mode mode;
};

template <uint W, uint N, uint M> FN void multiply(const Operands &in, const uint *plan, uint most_tiles, float *y)
{
    constexpr uint TILES = N / 8, STAGE = TILES * 2048;
    extern __shared__ __align__(128) uchar shared[];
    uint *const members = (uint *)(shared + STAGES * STAGE), *const rows = members + N; // The tile's slots, and their rows of activations.
    const uint base = shared_address(shared), tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    dependency_wait();
    if (blockIdx.y >= plan[0]) return;
    const uint *const tile = plan + HEADER + blockIdx.y * TILE_WORDS;
    const uint expert = tile[0], count = tile[2];
    if (tid < N) {
        const uint slot = tid < count ? plan[HEADER + most_tiles * TILE_WORDS + tile[1] + tid] : 0;
        members[tid] = slot;
        rows[tid] = in.per_slot ? slot : slot / in.slots;
    }
    __syncthreads();

    const bool gated = in.mode == SWIGLU || in.mode == RELU2 || in.mode == CLAMPED_SWIGLU;
    const uint chunks = in.k / 32, steps = (chunks + 3) / 4;
    const uint row0 = (blockIdx.x * 8 + warp) * (gated ? 8 : 16) * M + (lane >> 2);
    const ulong policy = stream_policy();
    // Rows i of a lane: of gate and of up M each, or 2 M of one matrix.
    const auto row_of = [&](uint i) { return row0 + (gated ? i % M : i) * 8; };
    const auto load = [&](Stored<W> (&to)[2 * M], uint step) {
        const uint chunk = step * 4 + (lane & 3);
        #pragma unroll
        for (uint i = 0; i < 2 * M; ++i) {
            const uint row = row_of(i);
            const bool up = gated && i >= M;
            to[i] = {};
            if (chunk < chunks && row < in.m)
                to[i].load(up ? in.low[1] : in.low[0], up ? in.high[1] : in.high[0], up ? in.records[1] : in.records[0],
                           ((size_t)expert * in.m + row) * chunks + chunk, policy);
        }
    };
    const auto fill = [&](uint step) {
        if (step < steps) {
            const uint stage = base + step % STAGES * STAGE;
            for (uint i = tid; i < N * 16; i += 256) {
                const uint t = i >> 4, p = i & 15, eight = p & 3, place = ((t & 7) * 4 + (p >> 2)) ^ eight * 2;
                const bool inside = t < count && step * 4 + (p >> 2) < chunks;
                copy16(stage + (((t >> 3) * 4 + eight) * 32 + place) * 16, in.x + (inside ? ((size_t)rows[t] * in.k + step * BLOCK + p * 8) * 2 : 0), inside);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    Stored<W> now[2 * M];
    load(now, 0);
    float sum[M][TILES][4];
    #pragma unroll
    for (uint i = 0; i < M; ++i)
        #pragma unroll
        for (uint j = 0; j < TILES; ++j)
            #pragma unroll
            for (uint e = 0; e < 4; ++e) sum[i][j][e] = 0;
    for (uint s = 0; s < STAGES - 1; ++s) fill(s);
    #pragma unroll 1
    for (uint step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fill(step + STAGES - 1);
        Stored<W> next[2 * M];
        load(next, step + 1);
        const uint x = base + step % STAGES * STAGE;
        multiply_block<W, M>(sum, now, x, lane, count);
        #pragma unroll
        for (uint i = 0; i < 2 * M; ++i) now[i] = next[i];
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    dependency_launch();
    #pragma unroll
    for (uint j = 0; j < TILES; ++j)
        #pragma unroll
        for (uint e = 0; e < 2; ++e) {
            const uint t = j * 8 + (lane & 3) * 2 + e;
            if (t >= count) continue;
            float *const to = y + (size_t)members[t] * in.m;
            #pragma unroll
            for (uint i = 0; i < 2 * M; ++i) {
                const uint row = row_of(i);
                if (row >= in.m) continue;
                const size_t of_expert = (size_t)expert * in.m + row;
                const float v = sum[i / 2][j][e + i % 2 * 2] + (in.biased ? in.bias[0][of_expert] : 0.0f);
                if (!gated) to[row] = v;
                else if (i < M) {
                    const float up = sum[(i + M) / 2][j][e + (i + M) % 2 * 2] + (in.biased ? in.bias[1][of_expert] : 0.0f);
                    to[row] = in.mode == SWIGLU ? swiglu(v, up) : in.mode == RELU2 ? relu2(v, up) : clamped_swiglu(v, up);
                }
            }
        }
}

// Grid: rows / (128 M) (gated: / (64 M)), tiles at most.
#define EXPERTS(name, W, N, M, PER_SM)                                                                                                          \
    KERNEL_SHARED(experts_##name##_##N, 256, PER_SM, IN(0, uchar, x), IN(1, uint, plan), IN(2, uchar, w0), IN(3, uchar, h0), IN(4, uchar, s0),  \
        IN(5, uchar, w1), IN(6, uchar, h1), IN(7, uchar, s1), OUT(8, float, y), VAL(9, uint, most_tiles), VAL(10, uint, slots), VAL(11, uint, k), \
        VAL(12, uint, m), VAL(13, uint, per_slot), VAL(14, uint, mode), IN(15, float, b0), IN(16, float, b1), VAL(17, uint, biased))            \
    {                                                                                                                                          \
        const Operands in = {x, {w0, w1}, {h0, h1}, {s0, s1}, {b0, b1}, slots, k, m, per_slot != 0, biased != 0, (Mode)mode};                  \
        multiply<W, N, M>(in, plan, most_tiles, y);                                                                                             \
    }
// Tiles of many slots, for which compute capability 9.0 has gemm_experts_wide.cu.
#if __CUDA_ARCH__ < 900
#define MANY(name, W, M, PER_SM) EXPERTS(name, W, 64, M, PER_SM)
#else
#define MANY(name, W, M, PER_SM)
#endif
#define EXPERTS_OF(name, W, ...) EXPERTS(name, planes::W, 8, 2, (planes::W == planes::NVFP4 ? 1 : 2)) MANY(name, planes::W, 1, (planes::W == planes::Q8 ? 1 : 2))
PACKED_TYPES(EXPERTS_OF)
EXPERTS_OF(q8, Q8)
EXPERTS_OF(q4, Q4)
EXPERTS(f8_e4m3, planes::F8_E4M3, 8, 2, 1)
MANY(f8_e4m3, planes::F8_E4M3, 1, 1)
EXPERTS(bf16, PLAIN_BF16, 8, 2, 1)
MANY(bf16, PLAIN_BF16, 2, 1)
EXPERTS(f16, PLAIN_F16, 8, 2, 1)
MANY(f16, PLAIN_F16, 2, 1)
