#include "dialect.h"
#include "matmul_simdgroup.h"
// Products of many tokens with weights in f32, f16, bf16, or codes and scales in planes; activations f32, bf16, or i8 in groups with f32 scales.
// Beside bf16, weights of f16 are rounded to bf16, as on NVIDIA GPUs: f16 could not hold all activations.

#define MATMUL_16(x, X) MATMUL(matmul_##x##_f16, X, W_F16) MATMUL(matmul_##x##_bf16, X, W_BF16) MATMUL(matmul_##x##_q8, X, Q8) MATMUL(matmul_##x##_q4, X, Q4) MATMUL(matmul_##x##_t2, X, T2)
#define MATMUL_ALL(x, X) MATMUL(matmul_##x##_f32, X, W_F32) MATMUL_16(x, X)
MATMUL_ALL(f32, float)
MATMUL_16(bf16, bfloat)
MATMUL_ALL(i8, char)
