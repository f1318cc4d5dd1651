// only sm_90a
// Products of many tokens with weights in F8_E4M3: see gemm_wgmma.h. Of tokens in e4m3, with a scale each: sums of 128 products are added in f32, where
// they meet the block's scale, and a token's scale is the last factor. Of bf16 tokens: weights are widened as in gemm_wide.cu.
#include "gemm_wgmma.h"

// Grid: as in gemm_wgmma.cu.
#define FLOAT8(GROUPS, N)                                                                                                                    \
    KERNEL_SHARED(float8_##GROUPS##_##N, 128 * (GROUPS + 1), 1, MAP(0, x), EARLY_MAP(1, w0), EARLY_MAP(2, w1), EARLY_MAP(3, w2), IN(4, float, x_scales),         \
        EARLY(5, uchar, s0), EARLY(6, uchar, s1), EARLY(7, uchar, s2), IN(8, float, add), OUT(9, void, y0), OUT(10, void, y1), OUT(11, void, y2),       \
        IN(12, uint, step), VAL(13, uint, slot), VAL(14, uint, n), VAL(15, uint, m0), VAL(16, uint, m1), VAL(17, uint, m2), VAL(18, uint, k),  \
        VAL(19, uint, mode), VAL(20, uint, narrow), VAL(21, uint, splits))                                                                    \
    {                                                                                                                                      \
        const Operands in = {&x, &w0, &w1, &w2, s0, s1, s2, nullptr, nullptr, nullptr, x_scales, k, k};                                     \
        multiply<PACKED + planes::F8_E4M3, true, GROUPS, N>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, narrow, step, slot, n, splits); \
    }
FLOAT8(2, 128)
FLOAT8(2, 64)

#define WIDE(GROUPS, N)                                                                                                                       \
    KERNEL_SHARED(wide_f8_e4m3_##GROUPS##_##N, 128 * (GROUPS + 1), 1, MAP(0, x), EARLY_MAP(1, w0), EARLY_MAP(2, w1), EARLY_MAP(3, w2), EARLY(4, uchar, h0), EARLY(5, uchar, h1),    \
        EARLY(6, uchar, h2), EARLY(7, uchar, s0), EARLY(8, uchar, s1), EARLY(9, uchar, s2), IN(10, float, add), OUT(11, void, y0), OUT(12, void, y1),       \
        OUT(13, void, y2), IN(14, uint, step), VAL(15, uint, slot), VAL(16, uint, n), VAL(17, uint, m0), VAL(18, uint, m1), VAL(19, uint, m2),  \
        VAL(20, uint, k), VAL(21, uint, mode), VAL(22, uint, narrow), VAL(23, uint, splits))                                                   \
    {                                                                                                                                          \
        const Operands in = {&x, &w0, &w1, &w2, s0, s1, s2, nullptr, nullptr, nullptr, nullptr, k, 0};                                         \
        multiply<PACKED + planes::F8_E4M3, false, GROUPS, N>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, narrow, step, slot, n, splits); \
    }
WIDE(2, 32)
WIDE(3, 32)
WIDE(3, 64)
WIDE(2, 256)
