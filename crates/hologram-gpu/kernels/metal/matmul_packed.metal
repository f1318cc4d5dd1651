#include "dialect.h"
#include "matmul_simdgroup.h"
// Products of many tokens with packed weights, which are decoded when they are staged; activations f32 or bf16.

#define MATMUL_PACKED(name, W, ...) MATMUL(matmul_f32_##name, float, W) MATMUL(matmul_bf16_##name, bfloat, W)
PACKED_TYPES(MATMUL_PACKED)
