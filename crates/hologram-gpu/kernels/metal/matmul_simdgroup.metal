#include "dialect.h"
#include "matmul_simdgroup.h"
// Products of many tokens with weights in f32, f16, bf16, or codes and scales in planes; activations f32, bf16, or i8 in groups with f32 scales.

#define MATMUL_CODES(x, X) MATMUL(matmul_##x##_bf16, X, W_BF16) MATMUL(matmul_##x##_q8, X, Q8) MATMUL(matmul_##x##_q4, X, Q4) MATMUL(matmul_##x##_t2, X, T2)
#define MATMUL_ALL(x, X) MATMUL(matmul_##x##_f32, X, W_F32) MATMUL(matmul_##x##_f16, X, W_F16) MATMUL_CODES(x, X)
MATMUL_ALL(f32, float)
MATMUL_CODES(bf16, bfloat)
MATMUL_ALL(i8, char)
