#pragma once
#include <cuda_fp16.h>

#include "words.h"

// The number of the low 16 bits.
FN float half_bits(uint v) { return __half2float(__ushort_as_half((ushort)v)); }
