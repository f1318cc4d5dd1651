// Warpgroup matrix instructions (compute capability 9.0a): D (64 × N, registers) += A (registers) · B (shared memory), both K-major.
// The text of the instructions' operand lists is written out here in pieces of 16 registers.
#pragma once
#include "words.h"

#define D0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define D1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define D2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define D3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define D4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define D5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define D6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define D7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define R4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define R16(c, i) R4(c, i), R4(c, i + 4), R4(c, i + 8), R4(c, i + 12)
#define TEXT32 D0
#define REGS32(c) R16(c, 0)
#define TEXT64 D0 "," D1
#define REGS64(c) R16(c, 0), R16(c, 16)
#define TEXT128 D0 "," D1 "," D2 "," D3
#define REGS128(c) R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48)
#define TEXT256 D0 "," D1 "," D2 "," D3 "," D4 "," D5 "," D6 "," D7
#define REGS256(c) R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48), R16(c, 64), R16(c, 80), R16(c, 96), R16(c, 112)
#define FLOAT(r) "+f"(r)
#define INT(r) "+r"(r)


// Descriptor of a K-major tile in shared memory with rows of 128 bytes in the copy engine's 128-byte swizzle; 16 bytes on is + 1.
FN ulong describe(uint address) { return (ulong)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> FN void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

FN void wgmma(float (&d)[16], const uint (&a)[4], ulong b, int more)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" TEXT32 "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;}"
        : REGS32(FLOAT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}
FN void wgmma(int (&d)[16], const uint (&a)[4], ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {" TEXT32 "}, {%16,%17,%18,%19}, %20, 1;"
        : REGS32(INT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
FN void wgmma(float (&d)[32], const uint (&a)[4], ulong b, int more)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TEXT64 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
        : REGS64(FLOAT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}
FN void wgmma(float (&d)[64], const uint (&a)[4], ulong b, int more)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TEXT128 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;}"
        : REGS128(FLOAT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}
FN void wgmma(int (&d)[64], const uint (&a)[4], ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" TEXT128 "}, {%64,%65,%66,%67}, %68, 1;"
        : REGS128(INT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
FN void wgmma(float (&d)[128], const uint (&a)[4], ulong b, int more)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" TEXT256 "}, {%128,%129,%130,%131}, %132, p, 1, 1, 0;}"
        : REGS256(FLOAT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}
