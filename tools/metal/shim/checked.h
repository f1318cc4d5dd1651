// Checked mode. Kernels are compiled with -fsanitize=thread for its calls only; these are the callees, no sanitizer's runtime is
// linked. Every load and store is looked up, a byte at a time, so that on the given input it finds, whatever the order of threads,
//   * two threads that touch a byte, one writing, with no barrier between that covers that memory (mem_threadgroup, mem_device);
//   * the same between threadgroups;  * accesses outside the buffers and the threadgroup's arrays;
//   * threadgroup memory that is read before it is written.
#pragma once
namespace msl_rt {
// What is known of a byte. A thread is group << 10 | thread, plus 1; 0: none yet.
struct Byte { uint writer, written_in, reader, read_in, writer_pc, reader_pc; ushort writer_sub, reader_sub; uchar flags, init; };
enum { MANY_READERS = 1, MANY_GROUPS = 2, ATOMIC = 4, LOADED = 8 };
struct Region { char *base; ulong len; Byte *bytes; int threadgroup; };
struct Check;
static thread_local Check *K;
struct Check {
  static constexpr ulong GAP = 65536; // around each buffer
  Region reg[33]; char *whole[32]; uint iv[2] = {0, 0}; uint group = 0; ushort sub[32]; bool atomic = false; ulong accesses = 0; int last = 0;
  ulong loaded[32] = {}, stored[32] = {}, unique[32] = {};

  Check(const MslLaunch *L, void **buf) {
    for (int i = 0; i < 32; i++) {
      const ulong len = L->len[i];
      whole[i] = nullptr; reg[i] = Region{(char *)1, 0, nullptr, 0};
      if (!L->buf[i] || !len) continue;
      whole[i] = (char *)map(len + 2 * GAP);
      memcpy(whole[i] + GAP, L->buf[i], len);
      buf[i] = whole[i] + GAP;
      reg[i] = Region{whole[i] + GAP, len, (Byte *)map(len * sizeof(Byte)), 0};
    }
    reg[32] = Region{M->arena, 0, (Byte *)map(ARENA * sizeof(Byte)), 1};
  }
  void begin_group() {
    group++; iv[0]++; iv[1]++;
    memset(sub, 0, sizeof sub); memset(reg[32].bytes, 0, (TG_LIMIT + 4096) * sizeof(Byte)); reg[32].len = M->used;
  }
  void finish(MslLaunch *L) {
    for (int i = 0; i < 32; i++) {
      L->loaded[i] = loaded[i]; L->stored[i] = stored[i]; L->unique[i] = unique[i];
      if (whole[i]) { memcpy(L->buf[i], whole[i] + GAP, L->len[i]); munmap(whole[i], L->len[i] + 2 * GAP); munmap(reg[i].bytes, L->len[i] * sizeof(Byte)); }
    }
    munmap(reg[32].bytes, ARENA * sizeof(Byte));
    L->accesses = accesses;
  }
};

// The first fault: what, where in memory, which thread at which place of the library, and the access before it that it clashes with.
static void report(const char *what, ulong pc, uint previous_pc, int region, long offset, uint who) {
  char name[24];
  if (region < 32) snprintf(name, sizeof name, "buffer(%d)", region); else snprintf(name, sizeof name, "threadgroup memory");
  const ulong at = pc - (ulong)M->kernel->image_begin; const uint thread = M->cur->args.tiit.x;
  if (previous_pc) fail("%s: %s byte %ld, thread %u @%lx and group %u thread %u @%x", what, name, offset, thread, at, ((who - 1) >> 10) - 1, (who - 1) & 1023, previous_pc);
  else fail("%s: %s byte %ld, thread %u @%lx", what, name, offset, thread, at);
  to_main(); // for good: the access itself might hit anything
}
// The region of an address; null outside, which is a fault unless the memory is the kernel's own.
static Region *find(const char *p, bool write, ulong pc) {
  Check *k = K;
  if ((ulong)(p - k->reg[k->last].base) < k->reg[k->last].len) return &k->reg[k->last];
  for (int i = 0; i < 33; i++) if ((ulong)(p - k->reg[i].base) < k->reg[i].len) { k->last = i; return &k->reg[i]; }
  const Entry *e = M->kernel;
  if (p >= e->image_begin && p < e->image_end && !write) return nullptr;
  if ((ulong)(p - (char *)M->fib) < THREADS * sizeof(Fiber) || (ulong)(p - (char *)M->simd) < THREADS / 32 * sizeof(Simd)) return nullptr;
  if ((ulong)(p - M->stacks) < (ulong)THREADS * STACK) { report("another thread's private memory", pc, 0, 32, 0, 0); return nullptr; }
  int nearest = 32; long least = 1l << 62;
  for (int i = 0; i < 33; i++) {
    const Region &r = k->reg[i];
    const long far = p < r.base ? r.base - p : p - (r.base + r.len) + 1;
    if (r.len && far < least) { least = far; nearest = i; }
  }
  report(write ? "write out of bounds" : "read out of bounds", pc, 0, nearest, p - k->reg[nearest].base, 0);
  return nullptr;
}
// Whether an earlier access by `who` is ordered before this thread's by SIMD-group barriers.
static bool ordered_in_simd(uint who, ushort then, const Fiber *f) { return ((who - 1) & 1023) >> 5 == f->sg && then < K->sub[f->sg]; }

__attribute__((noinline)) static void access(char *p, uint size, bool write, ulong pc) {
  Check *k = K;
  Fiber *f = k ? M->cur : nullptr;
  if (!f || M->failed || (ulong)(p - f->stack) < STACK) return;
  Region *r = find(p, write, pc);
  if (!r) return;
  k->accesses++;
  const ulong off = p - r->base; const int ri = (int)(r - k->reg);
  if (off + size > r->len) { report(write ? "write out of bounds" : "read out of bounds", pc, 0, ri, (long)off, 0); return; }
  const uint me = (k->group << 10 | f->args.tiit.x) + 1, now = k->iv[r->threadgroup], at = (uint)(pc - (ulong)M->kernel->image_begin);
  const ushort sub = k->sub[f->sg]; const bool global = !r->threadgroup;
  if (ri < 32) (write ? k->stored : k->loaded)[ri] += size;
  for (uint i = 0; i < size; i++) {
    Byte *b = &r->bytes[off + i];
    if (ri < 32 && !write && !(b->flags & LOADED)) { b->flags |= LOADED; k->unique[ri]++; }
    const bool both_atomic = k->atomic && (b->flags & ATOMIC);
    if (b->writer && b->writer != me && !both_atomic) {
      const bool foreign = (b->writer - 1) >> 10 != k->group;
      if (foreign ? global : b->written_in == now && !ordered_in_simd(b->writer, b->writer_sub, f)) {
        report(foreign ? "race between threadgroups" : write ? "write/write race" : "read/write race", pc, b->writer_pc, ri, (long)(off + i), b->writer);
        return;
      }
    }
    if (write || k->atomic) {
      if (b->reader && !both_atomic) {
        const bool many = b->flags & MANY_READERS;
        if ((b->flags & MANY_GROUPS) || (b->reader - 1) >> 10 != k->group) {
          if (global) { report("race between threadgroups", pc, b->reader_pc, ri, (long)(off + i), b->reader); return; }
        } else if (b->read_in == now && (b->reader != me || many) && (many || !ordered_in_simd(b->reader, b->reader_sub, f))) {
          report("read/write race", pc, b->reader_pc, ri, (long)(off + i), b->reader);
          return;
        }
      }
      b->writer = me; b->written_in = now; b->writer_sub = sub; b->writer_pc = at; b->init = 1;
      b->flags = (uchar)((b->flags & ~ATOMIC) | (k->atomic ? ATOMIC : 0));
      continue;
    }
    if (!global && !b->init) { report("threadgroup memory read before it is written", pc, 0, ri, (long)(off + i), 0); return; }
    if (b->reader && (b->reader - 1) >> 10 != k->group) b->flags = (uchar)((b->flags | MANY_GROUPS) & ~MANY_READERS);
    else if (b->reader && b->read_in == now) { if (b->reader != me) b->flags |= MANY_READERS; }
    else b->flags &= (uchar)~MANY_READERS;
    b->reader = me; b->read_in = now; b->reader_sub = sub; b->reader_pc = at;
  }
}
// The compiler took the address for a multiple of the access's size, or of 8 for more; an array has no more than its elements' alignment.
static void aligned(char *p, uint size, ulong pc) {
  if (!((ulong)p & ((size < 8 ? size : 8) - 1)) || !K || M->failed || (ulong)(p - M->cur->stack) < STACK) return;
  if (Region *r = find(p, false, pc)) report("misaligned access", pc, 0, (int)(r - K->reg), p - r->base, 0);
}
} // namespace msl_rt
#define MSL_PC (ulong)__builtin_return_address(0)
#define X(n) \
  MSL_API void __tsan_read##n(void *p) { msl_rt::aligned((char *)p, n, MSL_PC); msl_rt::access((char *)p, n, false, MSL_PC); } MSL_API void __tsan_write##n(void *p) { msl_rt::aligned((char *)p, n, MSL_PC); msl_rt::access((char *)p, n, true, MSL_PC); } \
  MSL_API void __tsan_unaligned_read##n(void *p) { msl_rt::access((char *)p, n, false, MSL_PC); } MSL_API void __tsan_unaligned_write##n(void *p) { msl_rt::access((char *)p, n, true, MSL_PC); } \
  MSL_API void __tsan_read_write##n(void *p) { msl_rt::access((char *)p, n, true, MSL_PC); } MSL_API void __tsan_unaligned_read_write##n(void *p) { msl_rt::access((char *)p, n, true, MSL_PC); }
X(1) X(2) X(4) X(8) X(16)
#undef X
MSL_API void __tsan_init() {}
MSL_API void __tsan_func_entry(void *) {}
MSL_API void __tsan_func_exit() {}
MSL_API void *__tsan_memcpy(void *d, const void *s, size_t n) { msl_rt::access((char *)s, (uint)n, false, MSL_PC); msl_rt::access((char *)d, (uint)n, true, MSL_PC); return memcpy(d, s, n); }
MSL_API void *__tsan_memset(void *d, int c, size_t n) { msl_rt::access((char *)d, (uint)n, true, MSL_PC); return memset(d, c, n); }
MSL_API void msl_rt_atomic(int on) { if (msl_rt::K) msl_rt::K->atomic = on; }
