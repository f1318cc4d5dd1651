// Weights in planes (`packed.h`) for the matrix product kernels: see gemm.h.
#pragma once
#include "gemm.h"
#include "cluster.h"

// What the texts of planes, which serve Apple GPUs too, take from their dialect.
#define device
#define thread
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define PREFETCH(p) asm volatile("prefetch.global.L2 [%0];" ::"l"(p))
namespace planes {
#include "stream.h"
#include "packed.h"
}
#undef thread
#undef device
