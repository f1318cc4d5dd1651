// only sm_90a
// Products of plain, Q8_0, Q4_0 and ternary weights: see gemm_wgmma.h.
#include "gemm_wgmma.h"

// PARTS: of 64 elements in a stage; with four of them rows are whole stages.
// Grid: workgroups that go through the tiles, or with splits > 1 (clusters of that many) splits · tiles. step: the step block or null; n: tokens at most.
#define MULTIPLY(name, W, I8, GROUPS, N, PARTS)                                                                                                     \
    KERNEL_SHARED(name, 128 * (GROUPS + 1), GROUPS == 1 ? 2 : 1, MAP(0, x), EARLY_MAP(1, w0), EARLY_MAP(2, w1), EARLY_MAP(3, w2), IN(4, float, x_scales),        \
        EARLY(5, half, s0), EARLY(6, half, s1), EARLY(7, half, s2), IN(8, float, add), OUT(9, void, y0), OUT(10, void, y1), OUT(11, void, y2),          \
        IN(12, uint, step), VAL(13, uint, slot), VAL(14, uint, n), VAL(15, uint, m0), VAL(16, uint, m1), VAL(17, uint, m2), VAL(18, uint, k),  \
        VAL(19, uint, group), VAL(20, uint, mode), VAL(21, uint, narrow), VAL(22, uint, splits))                                               \
    {                                                                                                                                      \
        const Operands in = {&x, &w0, &w1, &w2, (const uchar *)s0, (const uchar *)s1, (const uchar *)s2, nullptr, nullptr, nullptr, x_scales, k, group}; \
        multiply<W, I8, GROUPS, N, PARTS>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, narrow, step, slot, n, splits);                    \
    }
MULTIPLY(wgmma_bf16_2_256, BF16, false, 2, 256, 1)
MULTIPLY(wgmma_bf16_2_128, BF16, false, 2, 128, 1)
MULTIPLY(wgmma_bf16_3_128, BF16, false, 3, 128, 1)
MULTIPLY(wgmma_bf16_2_64, BF16, false, 2, 64, 1)
MULTIPLY(wgmma_bf16_2_32, BF16, false, 2, 32, 1)
MULTIPLY(wgmma_f16_2_256, F16, false, 2, 256, 1)
MULTIPLY(wgmma_f16_2_128, F16, false, 2, 128, 1)
MULTIPLY(wgmma_f16_3_128, F16, false, 3, 128, 1)
MULTIPLY(wgmma_f16_2_64, F16, false, 2, 64, 1)
MULTIPLY(wgmma_f16_2_32, F16, false, 2, 32, 1)
MULTIPLY(wgmma_q8_2_256, Q8, false, 2, 256, 1)
MULTIPLY(wgmma_q8_2_128, Q8, false, 2, 128, 1)
MULTIPLY(wgmma_q8_3_128, Q8, false, 3, 128, 1)
MULTIPLY(wgmma_q8_2_64, Q8, false, 2, 64, 1)
MULTIPLY(wgmma_q8_2_32, Q8, false, 2, 32, 1)
MULTIPLY(wgmma_q8_1_32, Q8, false, 1, 32, 1)
MULTIPLY(wgmma_q4_2_256, Q4, false, 2, 256, 1)
MULTIPLY(wgmma_q4_2_128, Q4, false, 2, 128, 1)
MULTIPLY(wgmma_q4_3_128, Q4, false, 3, 128, 1)
MULTIPLY(wgmma_q4_2_64, Q4, false, 2, 64, 1)
MULTIPLY(wgmma_q4_2_32, Q4, false, 2, 32, 1)
MULTIPLY(wgmma_q4_1_32, Q4, false, 1, 32, 1)
MULTIPLY(wgmma_q4_4_32, Q4, false, 4, 32, 4)
MULTIPLY(wgmma_q4_4_64, Q4, false, 4, 64, 4)
MULTIPLY(wgmma_t2_2_128, T2, true, 2, 128, 1)
MULTIPLY(wgmma_t2_2_32, T2, true, 2, 32, 1)
