// Command buffers run on a thread of their queue, after `commit`, in order; the dispatches of a concurrent encoder
// between two barriers run in an order that is not the encoder's. And captures of command buffers.
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

// A dispatch or a copy. What is not retained here is kept by whoever submits, as command buffers with unretained
// references demand.
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

// A capture has the command buffers that are made after its start and committed before its end; its document says here
// how many.
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

@interface DoubleCommands : NSObject { @public DoubleQueue *queue; Work *work; size_t n; BOOL encoding; NSInteger status; const char *why; double start, end; BOOL captured;
  void (**handlers)(void *, void *); size_t handler_count; DoubleCommands *next; }
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

// The dispatches up to the next barrier, which nothing orders: they must leave the same bytes from the last to the
// first, their threadgroups too, and as they come.
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
+ (id)of:(NSUInteger)most {
  DoubleQueue *q = [DoubleQueue new];
  q->most = most;
  pthread_mutex_init(&q->lock, NULL);
  pthread_cond_init(&q->changed, NULL);
  CHECK(!pthread_create(&q->thread, NULL, serve, q), "there is no thread for a command queue");
  return q;
}
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
