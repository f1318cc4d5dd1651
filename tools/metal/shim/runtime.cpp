// Runs threadgroups on one CPU thread: each GPU thread is a fiber, a barrier is a switch. With MSL_CHECK=1 every access of a kernel is
// looked up (checked.h). A library of kernels is linked to this one.
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>

#include "abi.h"

typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
#define MSL_API extern "C" __attribute__((visibility("default")))

// A launch. `grid`: threadgroups; `tg`: threads of each; `threads`: the grid's exact size in threads (dispatchThreads), or zeros;
// `tgmem`: bytes of each [[threadgroup(n)]]; `seed`: shuffles the order in which threads run, unless 0; `strict`: a SIMD-group
// function that some lanes do not reach is an error; `flush`: f32 arithmetic counts subnormal numbers as 0, as Apple's GPUs do; `backwards`: the last threadgroup
// runs first. `loaded`, `stored` and `unique` (bytes that were loaded, each counted once) are for each buffer, in checked mode.
struct MslLaunch {
  uint grid[3], tg[3], threads[3], tgmem[8]; ulong seed; uint strict, flush, backwards, none; void *buf[32]; ulong len[32]; char err[512];
  ulong switches, barriers, simd_ops, accesses; uint tg_bytes; ulong loaded[32], stored[32], unique[32];
};

namespace msl_rt {
enum State { READY, AT_SIMD, AT_BARRIER, DONE };
struct Fiber { void *sp; State state; int site; uint flags, sflags, lane, sg; ulong parity; char *stack; Args args; };
// What the lanes of a SIMD-group show each other, in two sets used in turn.
struct Simd { alignas(64) char slot[2][32][64]; ulong active; };
static const size_t STACK = 256 << 10;
static const uint THREADS = 1024, TG_LIMIT = 32768, ARENA = 4 * TG_LIMIT, SLOTS = 1024; // threadgroup variables of a whole library

// One launch in progress. The memory outlives it, for the next launch of this CPU thread.
struct Machine {
  Fiber *fib; Simd *simd; char *stacks, *arena;
  const Entry *kernel; uint n, nsimd; Fiber *cur; void *main_sp;
  struct { uint off; bool set; } slot[SLOTS];
  uint used, peak; ulong switches, barriers, simd_ops, rng; char err[512]; bool failed, strict;
};
static thread_local Machine *M;
struct Home {
  Machine m{};
  ~Home() {
    if (m.fib) { munmap(m.fib, THREADS * sizeof(Fiber)); munmap(m.simd, THREADS / 32 * sizeof(Simd)); munmap(m.stacks, THREADS * STACK); munmap(m.arena, ARENA); }
  }
};
static thread_local Home home;

static void *map(size_t bytes) {
  void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) { fprintf(stderr, "no memory for a simulated launch\n"); __builtin_trap(); }
  return p;
}
__attribute__((format(printf, 1, 2))) static void fail(const char *format, ...) {
  if (M->failed) return;
  M->failed = true;
  va_list list; va_start(list, format); vsnprintf(M->err, sizeof M->err, format, list); va_end(list);
}

extern "C" void msl_switch(void **save, void *to);
#if !defined(__x86_64__)
#error "the switch between fibers is written for x86-64"
#endif
asm(R"(
.text
.hidden msl_switch
.globl msl_switch
.type msl_switch,@function
msl_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size msl_switch,.-msl_switch
)");
__attribute__((noinline)) static void to_main() { msl_switch(&M->cur->sp, M->main_sp); }
static void start() {
  M->kernel->run(&M->cur->args);
  M->cur->state = DONE;
  to_main();
  __builtin_trap();
}
__attribute__((noinline)) static void resume(Fiber *f) {
  M->cur = f; M->switches++;
  msl_switch(&M->main_sp, f->sp);
}
} // namespace msl_rt
#if MSL_CHECK
#include "checked.h"
#endif
namespace msl_rt {
static uint random() { M->rng ^= M->rng << 13; M->rng ^= M->rng >> 7; M->rng ^= M->rng << 17; return (uint)(M->rng >> 20); }
} // namespace msl_rt

MSL_API void msl_rt_barrier(uint flags, int line) {
  using namespace msl_rt; Fiber *f = M->cur;
  f->state = AT_BARRIER; f->site = line; f->flags = flags;
  to_main();
}
MSL_API void msl_rt_simd_barrier(uint flags, int line) {
  using namespace msl_rt; Fiber *f = M->cur;
  f->state = AT_SIMD; f->site = line; f->sflags = flags;
  to_main();
}
// Shows this lane's value to the others; gives all values, and which lanes took part.
MSL_API void *msl_rt_simd_xchg(const void *mine, uint size, int line, ulong *active) {
  using namespace msl_rt; Fiber *f = M->cur; Simd *s = &M->simd[f->sg]; ulong p = f->parity++ & 1;
  memcpy(s->slot[p][f->lane], mine, size);
  f->state = AT_SIMD; f->site = line; f->sflags = 0;
  to_main();
  *active = s->active;
  return s->slot[p];
}
MSL_API uint msl_rt_lane(void) { return msl_rt::M->cur->lane; }
// The place of a threadgroup variable: as near to the one before as its alignment lets it, which is all that MSL promises.
MSL_API void *msl_rt_tg_slot(int id, ulong size, ulong align) {
  using namespace msl_rt;
  if ((uint)id >= SLOTS) { fail("more than %u threadgroup variables", SLOTS); to_main(); }
  auto &s = M->slot[id];
  if (!s.set) {
    s.set = true; s.off = (M->used + (uint)align - 1) & ~((uint)align - 1); M->used = s.off + (uint)size;
#if MSL_CHECK
    K->reg[32].len = M->used; // arrays stand next to each other: one that runs into the next shows as a race or an unwritten read
#endif
    if (M->used > TG_LIMIT) { fail("threadgroup memory: %u bytes, more than %u", M->used, TG_LIMIT); to_main(); }
  }
  return M->arena + s.off;
}

namespace msl_rt {
static void reset(Fiber *f) {
  ulong *sp = (ulong *)(f->stack + STACK);
  *--sp = 0; // alignment: at entry the stack pointer is 8 mod 16
  *--sp = (ulong)(void *)&start;
  for (int i = 0; i < 6; i++) *--sp = 0;
  f->sp = sp;
}
// Lets SIMD-groups go on whose lanes have all arrived; whether there was one.
static bool release_simd() {
  bool any = false;
  for (uint g = 0; g < M->nsimd; g++) {
    Fiber *a = &M->fib[g * 32]; const uint m = M->n - g * 32 < 32 ? M->n - g * 32 : 32;
    uint at = 0, other = 0; int site = 0x7fffffff, elsewhere = 0; bool mixed = false;
    for (uint i = 0; i < m; i++) {
      if (a[i].state != AT_SIMD) { other++; elsewhere = a[i].state == DONE ? 0 : a[i].site; continue; }
      if (at++ && a[i].site != site) { mixed = true; elsewhere = a[i].site; }
      if (a[i].site < site) site = a[i].site;
    }
    if (!at) continue;
    if ((mixed || other) && M->strict) { fail("divergent SIMD-group operation at line %d: %u of %u lanes arrived (another lane is at line %d)", site, at, m, elsewhere); return false; }
    ulong active = 0; uint flags = ~0u;
    for (uint i = 0; i < m; i++) if (a[i].state == AT_SIMD && a[i].site == site) { active |= 1ul << i; flags &= a[i].sflags; a[i].state = READY; }
#if MSL_CHECK
    if (flags) K->sub[g]++;
#endif
    M->simd[g].active = active; M->simd_ops++; any = true;
  }
  return any;
}
// A threadgroup from its threads' start to their end.
static void run_group() {
  const uint n = M->n;
  uint order[THREADS];
  for (uint i = 0; i < n; i++) order[i] = i;
  if (M->rng) for (uint i = n; i-- > 1;) { uint j = random() % (i + 1), t = order[i]; order[i] = order[j]; order[j] = t; }
  if (!M->kernel->waits) { // one stack serves them all
    for (uint q = 0; q < n && !M->failed; q++) { Fiber *f = &M->fib[order[q]]; if (f->state == READY) { f->stack = M->stacks; reset(f); resume(f); } }
    return;
  }
  for (uint i = 0; i < n; i++) { M->fib[i].stack = M->stacks + i * STACK; reset(&M->fib[i]); }
  for (;;) {
    for (uint q = 0; q < n; q++) { Fiber *f = &M->fib[order[q]]; if (f->state == READY) { resume(f); if (M->failed) return; } }
    if (release_simd()) continue;
    if (M->failed) return;
    uint done = 0, waiting = 0; int site = -1, other = -1;
    for (uint i = 0; i < n; i++) {
      Fiber *f = &M->fib[i];
      if (f->state == DONE) { done++; continue; }
      if (!waiting++) site = f->site; else if (f->site != site) other = f->site;
    }
    if (!waiting) return;
    if (done) { fail("threadgroup_barrier at line %d: %u threads wait, %u have returned", site, waiting, done); return; }
    if (other >= 0) { fail("threads wait at different barriers: lines %d and %d", site, other); return; }
#if MSL_CHECK
    uint flags = ~0u;
    for (uint i = 0; i < n; i++) flags &= M->fib[i].flags;
    if (flags & 1) K->iv[0]++;
    if (flags & 2) K->iv[1]++;
#endif
    for (uint i = 0; i < n; i++) M->fib[i].state = READY;
    M->barriers++;
  }
}
// Places the threads of a group.
static void place(const MslLaunch *L, void *const *buf, void *const *tgm, V3 group, const uint *most) {
  uint i = 0;
  for (uint z = 0; z < L->tg[2]; z++) for (uint y = 0; y < L->tg[1]; y++) for (uint x = 0; x < L->tg[0]; x++, i++) {
    Fiber *f = &M->fib[i]; Args &a = f->args;
    f->lane = i & 31; f->sg = i >> 5; f->parity = 0; f->state = READY;
    memcpy(a.buf, buf, sizeof a.buf); memcpy(a.tgm, tgm, sizeof a.tgm);
    a.tpit = {x, y, z}; a.gpig = group; a.tpig = {group.x * L->tg[0] + x, group.y * L->tg[1] + y, group.z * L->tg[2] + z};
    a.tpt = {L->tg[0], L->tg[1], L->tg[2]}; a.tpg = {most[0], most[1], most[2]}; a.gpg = {L->grid[0], L->grid[1], L->grid[2]};
    a.tiit = {i, 0, 0}; a.lane = {i & 31, 0, 0}; a.sg = {i >> 5, 0, 0}; a.nsg = {M->nsimd, 0, 0}; a.spw = {32, 0, 0}; a.quad = {i & 3, 0, 0};
    if (a.tpig.x >= most[0] || a.tpig.y >= most[1] || a.tpig.z >= most[2]) f->state = DONE;
  }
}
} // namespace msl_rt

// The conversion to bf16 that clang calls where the processor has none, or must not use its own: to nearest, ties to even.
MSL_API __bf16 __truncsfbf2(float x) {
  uint bits;
  memcpy(&bits, &x, 4);
  const unsigned short rounded = (unsigned short)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  __bf16 result;
  memcpy(&result, &rounded, 2);
  return result;
}

// Lets this CPU thread count subnormal operands and results as 0, until the end of the scope.
struct Flush {
  const uint before = __builtin_ia32_stmxcsr();
  explicit Flush(bool on) { if (on) __builtin_ia32_ldmxcsr(before | 0x8040); }
  ~Flush() { __builtin_ia32_ldmxcsr(before); }
};

// Runs a launch to its end; 0, or 1 with `err`.
MSL_API int msl_launch(const msl_rt::Entry *kernel, MslLaunch *L) {
  using namespace msl_rt;
  Machine &m = home.m;
  M = &m;
  const ulong n = (ulong)L->tg[0] * L->tg[1] * L->tg[2];
  for (int i = 0; i < 31; i++) if (kernel->buffers >> i & 1 && !L->buf[i]) { snprintf(L->err, sizeof L->err, "nothing is bound to buffer(%d)", i); return 1; }
  if (n > kernel->threads) { snprintf(L->err, sizeof L->err, "%lu threads in a threadgroup of a kernel for at most %u", n, kernel->threads); return 1; }
  if (n == 0 || n > THREADS) { snprintf(L->err, sizeof L->err, "%lu threads in a threadgroup", n); return 1; }
  if (!m.fib) { m.fib = (Fiber *)map(THREADS * sizeof(Fiber)); m.simd = (Simd *)map(THREADS / 32 * sizeof(Simd)); m.stacks = (char *)map(THREADS * STACK); m.arena = (char *)map(ARENA); }
  m.kernel = kernel; m.n = (uint)n; m.nsimd = (m.n + 31) / 32; m.strict = L->strict; m.rng = L->seed;
  m.switches = m.barriers = m.simd_ops = 0; m.failed = false; m.err[0] = 0; m.peak = 0;
  void *buf[32];
  memcpy(buf, L->buf, sizeof buf);
#if MSL_CHECK
  Check check(L, buf);
  K = &check;
#endif
  const Flush flush(L->flush);
  uint most[3];
  for (int d = 0; d < 3; d++) most[d] = L->threads[d] ? L->threads[d] : L->grid[d] * L->tg[d];
  for (uint iz = 0; iz < L->grid[2] && !m.failed; iz++) for (uint iy = 0; iy < L->grid[1] && !m.failed; iy++) for (uint ix = 0; ix < L->grid[0] && !m.failed; ix++) {
    const uint gx = L->backwards ? L->grid[0] - 1 - ix : ix, gy = L->backwards ? L->grid[1] - 1 - iy : iy, gz = L->backwards ? L->grid[2] - 1 - iz : iz;
    m.used = 0; memset(m.slot, 0, sizeof m.slot);
    memset(m.arena, 0xff, m.peak ? m.peak + 64 : TG_LIMIT + 4096); // NaN: reading threadgroup memory before it is written shows
    void *tgm[8];
    for (int i = 0; i < 8; i++) { tgm[i] = m.arena + m.used; m.used += (L->tgmem[i] + 15) & ~15u; if (m.used > TG_LIMIT) fail("threadgroup memory: more than %u bytes", TG_LIMIT); }
    if (m.failed) break;
#if MSL_CHECK
    check.begin_group();
#endif
    place(L, buf, tgm, V3{gx, gy, gz}, most);
    run_group();
    if (m.used > m.peak) m.peak = m.used;
    if (m.failed) { size_t at = strlen(m.err); snprintf(m.err + at, sizeof m.err - at, " [threadgroup (%u,%u,%u)]", gx, gy, gz); }
  }
#if MSL_CHECK
  check.finish(L);
  K = nullptr;
#endif
  memcpy(L->err, m.err, sizeof m.err);
  L->switches = m.switches; L->barriers = m.barriers; L->simd_ops = m.simd_ops; L->tg_bytes = m.peak;
  return m.failed;
}
