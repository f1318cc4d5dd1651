// Classes that answer to the selectors of the Metal protocols. Command buffers run on a thread of their queue, after `commit`, in order;
// the dispatches of a concurrent encoder between two barriers run in an order that is not the encoder's.
#include "double.h"
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Metal.h gives the struct no name: its encoding is {?=QQQ}.
typedef struct { NSUInteger width, height, depth; } Size;
enum { BINDINGS = 31, CONSTANT_BYTES = 4096, SHARED_BYTES = 32768, THREADS = 1024 };
enum { NOT_ENQUEUED = 0, COMMITTED = 2, COMPLETED = 4, FAILED = 5 };

// MslLaunch of tools/metal/shim/runtime.cpp.
typedef struct {
  uint32_t grid[3], tg[3], threads[3], tgmem[8];
  uint64_t seed;
  uint32_t strict, flush, backwards, none;
  void *buf[32];
  uint64_t len[32];
  char err[512];
  uint64_t switches, barriers, simd_ops, accesses;
  uint32_t tg_bytes;
  uint64_t loaded[32], stored[32], unique[32];
} Launch;
// Entry of tools/metal/shim/abi.h.
typedef struct { const char *name; void (*run)(const void *); int waits; unsigned buffers, written, threads; } Entry;
typedef const void *(*Find)(const char *);
typedef int (*Run)(const void *, Launch *);

// What tests ask of: see src/lib.rs.
struct counts { long commits, waits, buffers, dispatches, barriers, encoders, copies, archives_written, archives_read, captured, residency_requests, residents; } metal_double_counts;
#define COUNT(what) __atomic_add_fetch(&metal_double_counts.what, 1, __ATOMIC_RELAXED)
// Command buffers that still run before `fail_next` of them fail, and why.
static long run_next, fail_next;
static const char *failure;
void metal_double_fail(long after, long n, const char *why) {
  failure = why;
  __atomic_store_n(&run_next, after, __ATOMIC_SEQ_CST);
  __atomic_store_n(&fail_next, n, __ATOMIC_SEQ_CST);
}
// Whether devices do nothing.
static int held;
void metal_double_hold(int hold) { __atomic_store_n(&held, hold, __ATOMIC_SEQ_CST); }
// Whether a count was not 0, and is one less.
static BOOL counted_down(long *count) {
  return __atomic_load_n(count, __ATOMIC_SEQ_CST) > 0 && __atomic_fetch_sub(count, 1, __ATOMIC_SEQ_CST) > 0;
}
// What a faulty compiler makes of the texts that it is given: another text in the place of a piece.
static struct { char from[200], to[200]; } plant;
void metal_double_plant(const char *from, const char *to) {
  snprintf(plant.from, sizeof plant.from, "%s", from);
  snprintf(plant.to, sizeof plant.to, "%s", to);
}
static char *planted(const char *text) {
  size_t n = strlen(plant.from), room = strlen(text) * (strlen(plant.to) + 1) + 1;
  char *out = malloc(n ? room : strlen(text) + 1), *o = out;
  while (*text) {
    if (n && strncmp(text, plant.from, n) == 0) {
      o = stpcpy(o, plant.to);
      text += n;
    } else *o++ = *text++;
  }
  *o = 0;
  return out;
}
static size_t max_buffer(void) {
  const char *bytes = getenv("METAL_DOUBLE_MAX_BUFFER");
  return bytes ? strtoull(bytes, NULL, 10) : 8ul << 30;
}

@interface DoubleBuffer : NSObject { @public char *bytes; NSUInteger length; BOOL owned, freed; void (^deallocator)(void *, NSUInteger); }
@end
static long allocated;
@implementation DoubleBuffer
- (void *)contents { return bytes; }
- (NSUInteger)length { return length; }
- (void)dealloc {
  freed = YES;
  // Memory that is somebody else's counts: Metal wires the pages of every buffer that a command buffer uses.
  __atomic_sub_fetch(&allocated, length, __ATOMIC_RELAXED);
  if (owned) {
    memset(bytes, 0xdd, length);
    free(bytes);
  }
  if (deallocator) {
    deallocator(bytes, length);
    _Block_release(deallocator);
  }
  [super dealloc];
}
@end

// macOS 15's set of allocations that stay wired; what is added or removed counts from the next commit on.
@interface DoubleResidencySet : NSObject { @public DoubleBuffer **members; size_t n; BOOL *committed, *leaving; pthread_mutex_t lock; }
@end
@implementation DoubleResidencySet
- (size_t)find:(id)b {
  size_t i = 0;
  while (i < n && members[i] != b) i++;
  return i;
}
- (void)addAllocation:(id)b {
  pthread_mutex_lock(&lock);
  CHECK([self find:b] == n, "a buffer is added to a residency set that has it");
  members = realloc(members, (n + 1) * sizeof *members);
  committed = realloc(committed, n + 1);
  leaving = realloc(leaving, n + 1);
  members[n] = [b retain];
  committed[n] = leaving[n] = NO;
  n++;
  pthread_mutex_unlock(&lock);
}
- (void)removeAllocation:(id)b {
  pthread_mutex_lock(&lock);
  const size_t i = [self find:b];
  CHECK(i < n && !leaving[i], "a buffer is removed from a residency set that lacks it");
  leaving[i] = YES;
  pthread_mutex_unlock(&lock);
}
- (void)commit {
  pthread_mutex_lock(&lock);
  size_t left = 0;
  for (size_t i = 0; i < n; i++) {
    if (leaving[i]) {
      [members[i] release];
    } else {
      members[left] = members[i];
      committed[left] = YES;
      leaving[left++] = NO;
    }
  }
  n = left;
  metal_double_counts.residents = n;
  pthread_mutex_unlock(&lock);
}
- (void)requestResidency { COUNT(residency_requests); }
- (BOOL)holds:(id)b {
  pthread_mutex_lock(&lock);
  const size_t i = [self find:b];
  const BOOL holds = i < n && committed[i];
  pthread_mutex_unlock(&lock);
  return holds;
}
- (void)dealloc {
  for (size_t i = 0; i < n; i++) [members[i] release];
  free(members);
  free(committed);
  free(leaving);
  [super dealloc];
}
@end
@interface MTLResidencySetDescriptor : NSObject
@end
@implementation MTLResidencySetDescriptor
@end

// Language versions: the major number's 16 bits above the minor's. A program that names none, and was built for no later system, as Rust
// builds for, gets 2.3.
#define VERSION(major, minor) ((NSUInteger)(major) << 16 | (minor))
enum { SAFE = 0, FAST = 2 };
@interface MTLCompileOptions : NSObject { @public NSUInteger version; NSInteger mode, functions; }
@end
@implementation MTLCompileOptions
- (id)init {
  version = VERSION(2, 3);
  mode = FAST;
  return self;
}
- (void)setLanguageVersion:(NSUInteger)v { version = v; }
// macOS 14 has one switch for the mode and for the functions.
- (BOOL)respondsToSelector:(SEL)s {
  if (metal_double_system() < 15 && (sel_isEqual(s, @selector(setMathMode:)) || sel_isEqual(s, @selector(setMathFloatingPointFunctions:)))) return NO;
  return [super respondsToSelector:s];
}
- (void)setMathMode:(NSInteger)m {
  CHECK(metal_double_system() >= 15, "setMathMode on macOS 14, which lacks it");
  mode = m;
}
- (void)setMathFloatingPointFunctions:(NSInteger)f {
  CHECK(metal_double_system() >= 15, "setMathFloatingPointFunctions on macOS 14, which lacks it");
  functions = f;
}
- (void)setFastMathEnabled:(BOOL)on {
  mode = on ? FAST : SAFE;
  functions = !on;
}
@end
// The first name of a text that its language version lacks.
static const char *lacking(const char *text, NSUInteger version) {
  static const struct { const char *name; NSUInteger since; } names[] = {
    {"bfloat", VERSION(3, 1)}, {"bfloat2", VERSION(3, 1)}, {"bfloat4", VERSION(3, 1)}, {"atomic_float", VERSION(3, 0)}, {"simdgroup_float8x8", VERSION(2, 3)}, {"simdgroup_half8x8", VERSION(2, 3)},
  };
#define PART(c) (isalnum((unsigned char)(c)) || (c) == '_')
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (version >= names[i].since) continue;
    const size_t n = strlen(names[i].name);
    for (const char *at = text; (at = strstr(at, names[i].name)); at += n)
      if ((at == text || !PART(at[-1])) && !PART(at[n])) return names[i].name;
  }
  return NULL;
}

@interface DoubleLibrary : NSObject { @public void *image; }
@end
@interface DoubleFunction : NSObject { @public DoubleLibrary *library; const void *entry; }
@end
@implementation DoubleFunction
- (void)dealloc {
  [library release];
  [super dealloc];
}
@end
@implementation DoubleLibrary
- (id)newFunctionWithName:(NSString *)name {
  const void *entry = ((Find)dlsym(image, "msl_find"))([name UTF8String]);
  if (!entry) return nil;
  DoubleFunction *f = [DoubleFunction new];
  f->library = [self retain];
  f->entry = entry;
  return f;
}
- (void)dealloc {
  dlclose(image);
  [super dealloc];
}
@end

@interface MTLComputePipelineDescriptor : NSObject { @public DoubleFunction *function; id archives; }
@end
@implementation MTLComputePipelineDescriptor
- (void)setComputeFunction:(id)f {
  [f retain];
  [function release];
  function = f;
}
- (void)setBinaryArchives:(id)a {
  [a retain];
  [archives release];
  archives = a;
}
- (void)dealloc {
  [function release];
  [archives release];
  [super dealloc];
}
@end

@interface MTLBinaryArchiveDescriptor : NSObject { @public NSURL *url; }
@end
@implementation MTLBinaryArchiveDescriptor
- (void)setUrl:(id)u {
  [u retain];
  [url release];
  url = u;
}
- (void)dealloc {
  [url release];
  [super dealloc];
}
@end

// An archive holds no code here: what counts is that it is written, found and read.
static const char ARCHIVE[] = "an archive of the Metal test double";
@interface DoubleArchive : NSObject { @public NSUInteger functions; }
@end
@implementation DoubleArchive
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)d error:(NSError **)error {
  CHECK(d->function, "an archive of a pipeline without a function");
  functions++;
  return YES;
}
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)error {
  CHECK(functions, "an empty archive is written");
  FILE *f = fopen([[url path] UTF8String], "w");
  if (f) {
    fputs(ARCHIVE, f);
    fclose(f);
    COUNT(archives_written);
  } else if (error) {
    *error = [NSError message:"the archive cannot be written"];
  }
  return f != NULL;
}
@end

@interface DoublePipeline : NSObject { @public DoubleFunction *function; Run run; }
@end
@implementation DoublePipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup { return ((const Entry *)function->entry)->threads; }
- (NSUInteger)threadExecutionWidth { return 32; }
- (void)dealloc {
  [function release];
  [super dealloc];
}
@end

// A dispatch or a copy. What is not retained here is kept by whoever submits, as command buffers with unretained references demand.
typedef struct {
  DoublePipeline *pipeline;
  DoubleBuffer *buffer[BINDINGS];
  NSUInteger offset[BINDINGS];
  char *constants[BINDINGS];
  NSUInteger shared[8];
  Size grid, block;
  BOOL barrier;              // before it
  NSUInteger from, to, size; // of a copy: buffer[0] to buffer[1]
} Work;

// A capture has the command buffers that are made after its start and committed before its end; its document says here how many.
static NSURL *document;
static long captured_before;
static int capturing;
static BOOL is_capturing(void) { return __atomic_load_n(&capturing, __ATOMIC_SEQ_CST) != 0; }
@interface MTLCaptureDescriptor : NSObject { @public id object; NSInteger destination; NSURL *url; }
@end
@implementation MTLCaptureDescriptor
- (void)setCaptureObject:(id)o { object = o; }
- (void)setDestination:(NSInteger)d { destination = d; }
- (void)setOutputURL:(NSURL *)u {
  [u retain];
  [url release];
  url = u;
}
- (void)dealloc {
  [url release];
  [super dealloc];
}
@end
@interface MTLCaptureManager : NSObject
@end
@implementation MTLCaptureManager
+ (id)sharedCaptureManager {
  // The process's own, which is never freed: no object that a program could leak.
  static MTLCaptureManager *shared;
  if (!shared) {
    shared = class_createInstance(self, 0);
    shared->references = 1;
  }
  return shared;
}
- (BOOL)supportsDestination:(NSInteger)destination {
  const char *enabled = getenv("METAL_CAPTURE_ENABLED");
  return destination == 2 && enabled && strcmp(enabled, "1") == 0;
}
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor *)d error:(NSError **)error {
  CHECK([d->object respondsToSelector:@selector(newCommandQueueWithMaxCommandBufferCount:)], "a capture of what is no device");
  const char *why = NULL;
  if (![self supportsDestination:d->destination]) why = "Capturing is not supported.";
  else if (is_capturing()) why = "A capture is already in progress.";
  else if (!d->url || access([[d->url path] UTF8String], F_OK) == 0) why = "The output URL is missing, or something is there.";
  if (why) {
    if (error) *error = [NSError message:why];
    return NO;
  }
  captured_before = metal_double_counts.captured;
  document = [d->url retain];
  __atomic_store_n(&capturing, 1, __ATOMIC_SEQ_CST);
  return YES;
}
- (void)stopCapture {
  CHECK(is_capturing(), "stopCapture without a capture");
  __atomic_store_n(&capturing, 0, __ATOMIC_SEQ_CST);
  FILE *f = fopen([[document path] UTF8String], "w");
  if (f) {
    fprintf(f, "%ld command buffers", metal_double_counts.captured - captured_before);
    fclose(f);
  }
  [document release];
  document = nil;
}
@end

@class DoubleQueue;
@interface DoubleCommands : NSObject { @public DoubleQueue *queue; Work *work; size_t n; BOOL encoding; NSInteger status; const char *why; double start, end; BOOL captured;
  void (**handlers)(void *, void *); size_t handler_count; DoubleCommands *next; }
@end
@interface DoubleQueue : NSObject { @public pthread_t thread; pthread_mutex_t lock; pthread_cond_t changed; DoubleCommands *first, *last;
  BOOL closing, ignores; NSUInteger most, made; DoubleResidencySet *set; }
@end

@interface DoubleEncoder : NSObject { @public DoubleCommands *commands; Work now; BOOL ended, concurrent; }
@end
static Work *push(DoubleCommands *c, const Work *work) {
  c->work = realloc(c->work, (c->n + 1) * sizeof(Work));
  Work *w = &c->work[c->n++];
  *w = *work;
  return w;
}
@implementation DoubleEncoder
- (void)setComputePipelineState:(id)pipeline {
  CHECK(!ended, "setComputePipelineState after endEncoding");
  now.pipeline = pipeline;
}
- (void)setBuffer:(id)b offset:(NSUInteger)offset atIndex:(NSUInteger)i {
  CHECK(!ended, "setBuffer after endEncoding");
  CHECK(i < BINDINGS, "setBuffer at index %lu, of %d", i, BINDINGS);
  CHECK(!b || offset < ((DoubleBuffer *)b)->length, "setBuffer at index %lu: offset %lu in a buffer of %lu bytes", i, offset, ((DoubleBuffer *)b)->length);
  now.buffer[i] = b;
  now.offset[i] = offset;
  now.constants[i] = NULL;
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)n atIndex:(NSUInteger)i {
  CHECK(!ended, "setBytes after endEncoding");
  CHECK(i < BINDINGS, "setBytes at index %lu, of %d", i, BINDINGS);
  CHECK(n > 0 && n <= CONSTANT_BYTES, "setBytes with %lu bytes, of 1 to %d", n, CONSTANT_BYTES);
  // With room behind it: what a kernel reads beyond is seen as such only in checked runs.
  char *copy = calloc(1, n + 64);
  memcpy(copy, bytes, n);
  now.buffer[i] = nil;
  now.constants[i] = copy;
  // Kept with the command buffer: a work without a pipeline.
  Work keep = {0};
  keep.constants[0] = copy;
  push(commands, &keep);
}
- (void)setThreadgroupMemoryLength:(NSUInteger)n atIndex:(NSUInteger)i {
  CHECK(!ended && i < 8, "setThreadgroupMemoryLength at index %lu", i);
  CHECK(n % 16 == 0 && n <= SHARED_BYTES, "setThreadgroupMemoryLength of %lu: a multiple of 16 up to %d", n, SHARED_BYTES);
  now.shared[i] = n;
}
- (void)memoryBarrierWithScope:(NSUInteger)scope {
  CHECK(!ended, "a barrier after endEncoding");
  CHECK(scope & 1, "a barrier that does not order buffers");
  COUNT(barriers);
  now.barrier = YES;
}
- (void)dispatchThreadgroups:(Size)grid threadsPerThreadgroup:(Size)block {
  CHECK(!ended, "a dispatch after endEncoding");
  CHECK(now.pipeline, "a dispatch without a pipeline");
  CHECK(grid.width && grid.height && grid.depth, "a dispatch of no threadgroups");
  NSUInteger threads = block.width * block.height * block.depth;
  const NSUInteger most = [now.pipeline maxTotalThreadsPerThreadgroup];
  CHECK(threads && threads <= most, "a dispatch with %lu threads in a threadgroup, of 1 to %lu", threads, most);
  CHECK(grid.width * block.width < 1ul << 32 && grid.height * block.height < 1ul << 32 && grid.depth * block.depth < 1ul << 32, "a dispatch with more than 2^32 threads in a dimension");
  COUNT(dispatches);
  Work *w = push(commands, &now);
  w->grid = grid;
  w->block = block;
  w->barrier = now.barrier || !concurrent;
  now.barrier = NO;
}
- (void)copyFromBuffer:(id)from sourceOffset:(NSUInteger)at toBuffer:(id)to destinationOffset:(NSUInteger)to_at size:(NSUInteger)n {
  DoubleBuffer *a = from, *b = to;
  CHECK(!ended, "a copy after endEncoding");
  CHECK(n && at + n <= a->length && to_at + n <= b->length, "a copy of %lu bytes from %lu of %lu to %lu of %lu", n, at, a->length, to_at, b->length);
  CHECK(a != b || at + n <= to_at || to_at + n <= at, "a copy within a buffer whose ranges overlap");
  COUNT(copies);
  Work copy = {0};
  copy.buffer[0] = a, copy.buffer[1] = b, copy.from = at, copy.to = to_at, copy.size = n, copy.barrier = YES;
  push(commands, &copy);
}
- (void)endEncoding {
  CHECK(!ended, "endEncoding twice");
  ended = YES;
  commands->encoding = NO;
}
- (void)dealloc {
  CHECK(ended, "an encoder is freed without endEncoding");
  [commands release];
  [super dealloc];
}
@end

static double now_in_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

// `backwards`: the last threadgroup runs first.
static void run_one(const Work *w, BOOL backwards) {
  if (w->size) {
    DoubleBuffer *a = w->buffer[0], *b = w->buffer[1];
    CHECK(!a->freed && !b->freed, "a copy from or to a buffer that was freed");
    memcpy(b->bytes + w->to, a->bytes + w->from, w->size);
    return;
  }
  Launch launch = {.grid = {w->grid.width, w->grid.height, w->grid.depth}, .tg = {w->block.width, w->block.height, w->block.depth}, .strict = 1, .flush = 1, .backwards = backwards};
  for (int i = 0; i < 8; i++) launch.tgmem[i] = w->shared[i];
  for (int i = 0; i < BINDINGS; i++) {
    DoubleBuffer *b = w->buffer[i];
    CHECK(!b || !b->freed, "a kernel runs with a buffer at index %d that was freed", i);
    launch.buf[i] = b ? b->bytes + w->offset[i] : w->constants[i];
    launch.len[i] = b ? b->length - w->offset[i] : 0;
  }
  if (w->pipeline->run(w->pipeline->function->entry, &launch)) misuse("a kernel: %s", launch.err);
}

// The memory that works may write: each buffer once, with a copy of its bytes.
typedef struct { DoubleBuffer *buffer; char *copy; } Saved;
static size_t saved(const Work *w, size_t n, Saved **out) {
  size_t count = 0;
  *out = NULL;
  for (size_t i = 0; i < n; i++)
    for (int k = 0; w[i].pipeline && k < BINDINGS; k++) {
      DoubleBuffer *b = w[i].buffer[k];
      if (!b || !(((const Entry *)w[i].pipeline->function->entry)->written >> k & 1)) continue;
      CHECK(!b->freed, "a kernel runs with a buffer at index %d that was freed", k);
      size_t at = 0;
      while (at < count && (*out)[at].buffer != b) at++;
      if (at < count) continue;
      *out = realloc(*out, (count + 1) * sizeof(Saved));
      (*out)[count++] = (Saved){b, memcpy(malloc(b->length), b->bytes, b->length)};
    }
  return count;
}

// The dispatches up to the next barrier, which nothing orders: they must leave the same bytes from the last to the first, their threadgroups too,
// and as they come.
static void run_together(const Work *w, size_t n) {
  size_t dispatches = 0;
  for (size_t i = 0; i < n; i++) dispatches += w[i].pipeline != nil;
  Saved *before, *after;
  const size_t count = dispatches > 1 ? saved(w, n, &before) : 0;
  for (size_t i = n; i-- > 0;) if (w[i].pipeline || w[i].size) run_one(&w[i], YES);
  if (dispatches < 2) return;
  const size_t same = saved(w, n, &after);
  CHECK(same == count, "the buffers of a command buffer changed while it ran");
  for (size_t i = 0; i < count; i++) memcpy(before[i].buffer->bytes, before[i].copy, before[i].buffer->length);
  for (size_t i = 0; i < n; i++) if (w[i].pipeline) run_one(&w[i], NO);
  for (size_t i = 0; i < count; i++) {
    const char *a = after[i].copy, *b = before[i].buffer->bytes;
    for (size_t at = 0; at < before[i].buffer->length; at++)
      CHECK(a[at] == b[at], "%zu dispatches without a barrier between them leave other bytes in another order: byte %zu of a buffer of %zu", dispatches, at, (size_t)before[i].buffer->length);
    free(before[i].copy);
    free(after[i].copy);
  }
  free(before);
  free(after);
}
static void run_all(DoubleCommands *c) {
  // Memory of a size that counts is in the queue's residency set.
  for (size_t i = 0; c->queue->set && i < c->n; i++) {
    for (int k = 0; k < BINDINGS; k++) {
      DoubleBuffer *b = c->work[i].pipeline ? c->work[i].buffer[k] : nil;
      CHECK(!b || b->freed || b->length < 1 << 20 || [c->queue->set holds:b], "a kernel runs with a buffer of %lu bytes at index %d that its residency set lacks", b->length, k);
    }
  }
  size_t from = 0;
  while (from < c->n) {
    size_t to = from + 1;
    while (to < c->n && !c->work[to].barrier) to++;
    run_together(c->work + from, to - from);
    from = to;
  }
}

@implementation DoubleCommands
- (id)computeCommandEncoderWithDispatchType:(NSUInteger)type {
  CHECK(!encoding, "a second encoder while the first encodes");
  CHECK(status == NOT_ENQUEUED, "an encoder of a committed command buffer");
  encoding = YES;
  COUNT(encoders);
  DoubleEncoder *e = [DoubleEncoder new];
  e->commands = [self retain];
  e->concurrent = type == 1;
  e->now.barrier = YES;
  return [e autorelease];
}
- (id)blitCommandEncoder { return [self computeCommandEncoderWithDispatchType:0]; }
- (void)addCompletedHandler:(void (^)(id))handler {
  CHECK(status == NOT_ENQUEUED, "addCompletedHandler after commit");
  handlers = realloc(handlers, (handler_count + 1) * sizeof *handlers);
  handlers[handler_count++] = _Block_copy((void *)handler);
}
- (void)commit {
  metal_double_in_pool("commit");
  CHECK(!encoding, "commit without endEncoding");
  CHECK(status == NOT_ENQUEUED, "commit twice");
  COUNT(commits);
  if (captured && is_capturing()) COUNT(captured);
  [self retain];
  pthread_mutex_lock(&queue->lock);
  status = COMMITTED;
  if (queue->last) queue->last->next = self; else queue->first = self;
  queue->last = self;
  pthread_cond_broadcast(&queue->changed);
  pthread_mutex_unlock(&queue->lock);
}
- (void)waitUntilCompleted {
  metal_double_in_pool("waitUntilCompleted");
  CHECK(status != NOT_ENQUEUED, "waitUntilCompleted before commit: it would wait for ever");
  pthread_mutex_lock(&queue->lock);
  if (status < COMPLETED) COUNT(waits);
  while (status < COMPLETED) pthread_cond_wait(&queue->changed, &queue->lock);
  pthread_mutex_unlock(&queue->lock);
}
- (NSUInteger)status {
  pthread_mutex_lock(&queue->lock);
  NSUInteger now = status;
  pthread_mutex_unlock(&queue->lock);
  return now;
}
- (id)error { return status == FAILED ? [NSError message:why] : nil; }
- (double)GPUStartTime { return start; }
- (double)GPUEndTime { return end; }
- (void)dealloc {
  CHECK(!encoding, "a command buffer is freed while it is encoded");
  for (size_t i = 0; i < n; i++) if (!work[i].pipeline && !work[i].size) free(work[i].constants[0]);
  free(work);
  for (size_t i = 0; i < handler_count; i++) _Block_release(handlers[i]);
  free(handlers);
  pthread_mutex_lock(&queue->lock);
  queue->made--;
  pthread_cond_broadcast(&queue->changed);
  pthread_mutex_unlock(&queue->lock);
  [queue release];
  [super dealloc];
}
@end

static void *serve(void *of) {
  DoubleQueue *q = of;
  pthread_mutex_lock(&q->lock);
  for (;;) {
    while (!q->first && !q->closing) pthread_cond_wait(&q->changed, &q->lock);
    DoubleCommands *c = q->first;
    if (!c) break;
    pthread_mutex_unlock(&q->lock);
    while (__atomic_load_n(&held, __ATOMIC_SEQ_CST)) usleep(100);
    c->start = now_in_seconds();
    BOOL fails = !counted_down(&run_next) && counted_down(&fail_next);
    if (fails) c->why = failure;
    else if (q->ignores) fails = YES, c->why = "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)";
    // What kept the display waiting is not let in again by its queue.
    if (fails && strstr(c->why, "ImpactingInteractivity")) q->ignores = YES;
    if (!fails) run_all(c);
    c->end = now_in_seconds();
    for (size_t i = 0; i < c->handler_count; i++) ((void (^)(id))c->handlers[i])(c);
    pthread_mutex_lock(&q->lock);
    q->first = c->next;
    if (!q->first) q->last = nil;
    c->status = fails ? FAILED : COMPLETED;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    [c release];
    pthread_mutex_lock(&q->lock);
  }
  pthread_mutex_unlock(&q->lock);
  return NULL;
}

@implementation DoubleQueue
- (void)addResidencySet:(id)s {
  CHECK(!set, "a second residency set for a queue");
  set = [s retain];
}
- (id)commandBufferWithUnretainedReferences {
  pthread_mutex_lock(&lock);
  CHECK(made < most, "a %luth command buffer before the first of them has ended: Metal waits, for ever if none was committed", made + 1);
  made++;
  pthread_mutex_unlock(&lock);
  DoubleCommands *c = [DoubleCommands new];
  c->queue = [self retain];
  c->captured = is_capturing();
  return [c autorelease];
}
- (void)dealloc {
  pthread_mutex_lock(&lock);
  CHECK(!first, "a command queue is freed while its command buffers run");
  closing = YES;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  // The last reference may be that of a command buffer which the queue's own thread frees.
  if (pthread_equal(pthread_self(), thread)) pthread_detach(thread); else pthread_join(thread, NULL);
  [set release];
  [super dealloc];
}
@end

@interface DoubleDevice : NSObject
@end
@implementation DoubleDevice
- (BOOL)respondsToSelector:(SEL)s {
  if (metal_double_system() < 15 && sel_isEqual(s, @selector(newResidencySetWithDescriptor:error:))) return NO;
  return [super respondsToSelector:s];
}
- (id)newResidencySetWithDescriptor:(id)descriptor error:(NSError **)error {
  CHECK(metal_double_system() >= 15, "a residency set on macOS 14, which lacks it");
  DoubleResidencySet *s = [DoubleResidencySet new];
  pthread_mutex_init(&s->lock, NULL);
  return s;
}
- (NSString *)name { return [NSString fromC:"Metal test double"]; }
- (BOOL)supportsFamily:(NSInteger)family { return family <= 1007; }
- (BOOL)hasUnifiedMemory { return YES; }
- (uint64_t)recommendedMaxWorkingSetSize { return 8ul << 30; }
- (NSUInteger)maxBufferLength { return max_buffer(); }
- (NSUInteger)maxThreadgroupMemoryLength { return SHARED_BYTES; }
- (Size)maxThreadsPerThreadgroup { return (Size){THREADS, THREADS, THREADS}; }
- (NSUInteger)currentAllocatedSize {
  metal_double_in_pool("currentAllocatedSize");
  return __atomic_load_n(&allocated, __ATOMIC_RELAXED);
}
- (id)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)n {
  DoubleQueue *q = [DoubleQueue new];
  q->most = n;
  pthread_mutex_init(&q->lock, NULL);
  pthread_cond_init(&q->changed, NULL);
  CHECK(!pthread_create(&q->thread, NULL, serve, q), "there is no thread for a command queue");
  return q;
}
- (id)newBufferWithLength:(NSUInteger)n options:(NSUInteger)options {
  CHECK(options == 0, "a buffer with options %lu: shared storage and tracked hazards are 0", options);
  if (!n || n > max_buffer()) return nil;
  DoubleBuffer *b = [DoubleBuffer new];
  b->bytes = aligned_alloc(16384, (n + 16383) & ~16383ul);
  if (!b->bytes) {
    [b release];
    return nil;
  }
  memset(b->bytes, 0, n);
  b->length = n;
  b->owned = YES;
  COUNT(buffers);
  __atomic_add_fetch(&allocated, n, __ATOMIC_RELAXED);
  return b;
}
- (id)newBufferWithBytesNoCopy:(void *)p length:(NSUInteger)n options:(NSUInteger)options deallocator:(void (^)(void *, NSUInteger))deallocator {
  metal_double_in_pool("newBufferWithBytesNoCopy");
  NSUInteger page = getpagesize();
  if ((uintptr_t)p % page || n % page || !n || n > max_buffer()) return nil;
  DoubleBuffer *b = [DoubleBuffer new];
  b->bytes = p;
  b->length = n;
  b->deallocator = _Block_copy((void *)deallocator);
  __atomic_add_fetch(&allocated, n, __ATOMIC_RELAXED);
  return b;
}
- (id)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
  CHECK(options && options->mode == SAFE && options->functions == 1, "kernels are compiled with other than safe, precise math");
  CHECK(options->version <= (metal_double_system() < 15 ? VERSION(3, 1) : VERSION(3, 2)), "the system does not know the language version %lx", options->version);
  const char *lacks = lacking([source UTF8String], options->version);
  if (lacks) {
    char why[100];
    snprintf(why, sizeof why, "error: unknown type name '%s'", lacks);
    if (error) *error = [NSError message:why];
    return nil;
  }
  char *message = NULL, *text = planted([source UTF8String]), *path = compile(text, &message);
  free(text);
  void *image = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  DoubleLibrary *library = nil;
  if (image) {
    library = [DoubleLibrary new];
    library->image = image;
  } else if (error) {
    *error = [NSError message:message ? message : dlerror()];
  }
  free(path);
  free(message);
  return library;
}
- (id)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)d error:(NSError **)error {
  if (d->url) {
    char text[sizeof ARCHIVE + 1] = {0};
    FILE *f = fopen([[d->url path] UTF8String], "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    if (n != strlen(ARCHIVE) || strcmp(text, ARCHIVE)) {
      if (error) *error = [NSError message:"the file is no archive"];
      return nil;
    }
    COUNT(archives_read);
  }
  return [DoubleArchive new];
}
- (id)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)d options:(NSUInteger)options reflection:(id *)reflection error:(NSError **)error {
  CHECK(d->function, "a pipeline without a function");
  DoublePipeline *p = [DoublePipeline new];
  p->function = [d->function retain];
  p->run = (Run)dlsym(p->function->library->image, "msl_launch");
  CHECK(p->run, "the library of a kernel has no msl_launch: %s", dlerror());
  return p;
}
@end
id MTLCreateSystemDefaultDevice(void) {
  CHECK(getenv("AGX_RELAX_CDM_CTXSTORE_TIMEOUT"), "a device is made before AGX_RELAX_CDM_CTXSTORE_TIMEOUT is set");
  return [DoubleDevice new];
}
