// The bulk tensor copy engine (compute capability 9.0): barriers in shared memory that count arrivals and bytes, and copies of tiles.
#pragma once
#include "words.h"

struct alignas(64) TensorMap { uchar bytes[128]; };

FN void barrier_init(uint barrier, uint count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory"); }
FN void barrier_expect(uint barrier, uint bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
FN void barrier_wait(uint barrier, uint phase)
{
    uint done;
    do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
    while (!done);
}
FN void barrier_arrive(uint barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
FN void copy_tile(uint to, const TensorMap *map, uint x, uint y, uint barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
