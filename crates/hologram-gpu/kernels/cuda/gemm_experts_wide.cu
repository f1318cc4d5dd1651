// only sm_90a
// Products of many tokens with the matrices of the experts that each has chosen, by warpgroup matrix instructions: see gemm_wgmma.h and experts_plan.h.
#include "gemm_wgmma.h"

// Rows of the activations in the plan's order: 16 bytes a lane, a row a warp. x: of each slot, or of each token.
KERNEL(expert_rows, 256, IN(0, uchar, x), IN(1, uint, plan), OUT(2, uchar, y), VAL(3, uint, most_tiles), VAL(4, uint, slots), VAL(5, uint, k), VAL(6, uint, per_slot))
{
    dependency_wait();
    const uint at = blockIdx.x * 8 + (threadIdx.x >> 5), tiles = plan[0], bytes = k * 2;
    // Slots of experts that do not exist are in no tile.
    const uint *const last = plan + HEADER + (tiles - 1) * TILE_WORDS;
    if (tiles > 0 && at < last[1] + last[2]) {
        const uint slot = plan[HEADER + most_tiles * TILE_WORDS + at], row = per_slot ? slot : slot / slots;
        for (uint i = (threadIdx.x & 31) * 16; i < bytes; i += 512) *(uint4 *)(y + (size_t)at * bytes + i) = *(const uint4 *)(x + (size_t)row * bytes + i);
    }
    dependency_launch();
}

// Tiles have few slots, or many where an expert has that many on average.
enum : uint { GROUPS = 3, FEW_SLOTS = 64, MANY_SLOTS = 128 };
HOST(GROUPS, FEW_SLOTS, MANY_SLOTS)

// Grid: workgroups that go through the tiles. x: the rows in order; k: their elements; m: rows of an expert's matrix.
#define EXPERTS(name, W, N)                                                                                                                     \
    KERNEL_SHARED(experts_wide_##name##_##N, 128 * (GROUPS + 1), 1, MAP(0, x), MAP(1, w0), MAP(2, w1), IN(3, uchar, h0), IN(4, uchar, h1), IN(5, uchar, s0), \
        IN(6, uchar, s1), IN(7, uint, plan), IN(8, float, b0), IN(9, float, b1), OUT(10, float, y), VAL(11, uint, most_tiles), VAL(12, uint, k), \
        VAL(13, uint, m), VAL(14, uint, mode), VAL(15, uint, biased))                                                                          \
    {                                                                                                                                          \
        const Operands in = {&x, &w0, &w1, nullptr, s0, s1, nullptr, h0, h1, nullptr, nullptr, k, 0};                                          \
        const Chosen chosen = {plan, most_tiles, {b0, b1}, biased != 0, mode == CLAMPED_SWIGLU};                                               \
        const Matrices all = {m, 0, 0, chosen.clamped ? SWIGLU : (Mode)mode};                                                                  \
        multiply<W, false, GROUPS, N, 1, false, true>(in, all, nullptr, y, nullptr, nullptr, false, nullptr, 0, 0, 1, chosen);                           \
    }
#define EXPERTS_OF(name, W) EXPERTS(name, W, 64) EXPERTS(name, W, 128)
#define PACKED_EXPERTS(name, W, ...) EXPERTS_OF(name, PACKED + planes::W)
EXPERTS_OF(bf16, BF16)
EXPERTS_OF(f16, F16)
EXPERTS_OF(q8, Q8)
EXPERTS_OF(q4, Q4)
EXPERTS_OF(f8_e4m3, PACKED + planes::F8_E4M3)
PACKED_TYPES(PACKED_EXPERTS)
