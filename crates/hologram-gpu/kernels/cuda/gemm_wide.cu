// only sm_90a
// Products of many tokens with packed weights, which are widened to bf16 in registers: see gemm_wgmma.h.
#include "gemm_wgmma.h"

// Grid: as in gemm_wgmma.cu.
#define WIDE(name, W, GROUPS, N, PARTS)                                                                                                              \
    KERNEL_SHARED(wide_##name##_##GROUPS##_##N, 128 * (GROUPS + 1), 1, MAP(0, x), EARLY_MAP(1, w0), EARLY_MAP(2, w1), EARLY_MAP(3, w2), EARLY(4, uchar, h0), EARLY(5, uchar, h1),   \
        EARLY(6, uchar, h2), EARLY(7, uchar, s0), EARLY(8, uchar, s1), EARLY(9, uchar, s2), IN(10, float, add), OUT(11, void, y0), OUT(12, void, y1),       \
        OUT(13, void, y2), IN(14, uint, step), VAL(15, uint, slot), VAL(16, uint, n), VAL(17, uint, m0), VAL(18, uint, m1), VAL(19, uint, m2),  \
        VAL(20, uint, k), VAL(21, uint, mode), VAL(22, uint, narrow), VAL(23, uint, splits))                                                   \
    {                                                                                                                                          \
        const Operands in = {&x, &w0, &w1, &w2, s0, s1, s2, h0, h1, h2, nullptr, k, 0};                                                        \
        multiply<PACKED + planes::W, false, GROUPS, N, PARTS>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, narrow, step, slot, n, splits);   \
    }
#define WIDE_OF(name, W, ...) WIDE(name, W, 2, 32, 1) WIDE(name, W, 3, 64, 1) WIDE(name, W, 2, 64, 1) WIDE(name, W, 2, 256, 1)
PACKED_TYPES(WIDE_OF)
