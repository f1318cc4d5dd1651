#include "dialect.h"
#include "matmul_simdgroup.h"
// Products of many tokens with packed weights, which are decoded when they are staged; activations f32.

MATMUL(matmul_f32_q4_1, float, Q4_1)
MATMUL(matmul_f32_q5_0, float, Q5_0)
MATMUL(matmul_f32_q5_1, float, Q5_1)
MATMUL(matmul_f32_iq4_nl, float, IQ4_NL)
MATMUL(matmul_f32_iq4_xs, float, IQ4_XS)
MATMUL(matmul_f32_q2_k, float, Q2_K)
MATMUL(matmul_f32_q3_k, float, Q3_K)
MATMUL(matmul_f32_q4_k, float, Q4_K)
MATMUL(matmul_f32_q5_k, float, Q5_K)
MATMUL(matmul_f32_q6_k, float, Q6_K)
