// only sm_90a
// Products of few tokens with packed weights whose codes bf16 holds: see gemm_exact.h.
#include "gemm_wgmma.h"

// Grid: as in gemm_wgmma.cu. Rows are whole stages of 256 elements. Types that are not `is_exact` are gemm_wide.cu's:
// their kernels are empty.
#define EXACT(name, W)                                                                                                                        \
    KERNEL_SHARED(exact_##name##_4_32, 128 * 5, 1, MAP(0, x), EARLY_MAP(1, w0), EARLY_MAP(2, w1), EARLY_MAP(3, w2), EARLY_MAP(4, h0), EARLY_MAP(5, h1),     \
        EARLY_MAP(6, h2), EARLY(7, uchar, s0), EARLY(8, uchar, s1), EARLY(9, uchar, s2), IN(10, float, add), OUT(11, void, y0), OUT(12, void, y1), \
        OUT(13, void, y2), IN(14, uint, step), VAL(15, uint, slot), VAL(16, uint, n), VAL(17, uint, m0), VAL(18, uint, m1), VAL(19, uint, m2),  \
        VAL(20, uint, k), VAL(21, uint, mode), VAL(22, uint, narrow), VAL(23, uint, splits))                                                   \
    {                                                                                                                                          \
        if constexpr (is_exact<planes::W>()) {                                                                                                 \
        const Operands in = {&x, &w0, &w1, &w2, s0, s1, s2, nullptr, nullptr, nullptr, nullptr, k, 0, {&h0, &h1, &h2}};                        \
        multiply<PACKED + planes::W, false, 4, 32, 4, true>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, narrow, step, slot, n, splits); \
        }                                                                                                                                      \
    }
#define EXACT_OF(name, W, ...) EXACT(name, W)
PACKED_TYPES(EXACT_OF)
