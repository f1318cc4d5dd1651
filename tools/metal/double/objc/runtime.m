// What GCC's libobjc lacks of the runtime that objc2 and block2 call: reference counting, autorelease pools, blocks; and the count of
// objects that live.
#include "double.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void misuse(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "metal double: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  abort();
}

static long live;
void metal_double_born(void) { __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST); }
void metal_double_dead(void) { __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST); }
// The thread of a queue lets go of the last command buffer when others know already that it has ended: it is given a moment.
long metal_double_live_objects(void) {
  long left;
  for (int i = 0; (left = __atomic_load_n(&live, __ATOMIC_SEQ_CST)) && i < 2000; i++) usleep(1000);
  return left;
}

// A process whose objects outlive it leaks them on a Mac too.
static void at_end(void) {
  long left = metal_double_live_objects();
  if (left) {
    fprintf(stderr, "metal double: %ld objects are alive at the end of the process\n", left);
    _exit(70);
  }
}
__attribute__((constructor)) static void at_start(void) { atexit(at_end); }

id objc_retain(id o) { return o ? [(NSObject *)o retain] : nil; }
void objc_release(id o) { if (o) [(NSObject *)o release]; }

static _Thread_local struct { id *objects; size_t n, capacity, depth; } pool;
// What Metal autoreleases within a call without a pool stays until the thread's end.
void metal_double_in_pool(const char *call) { CHECK(pool.depth, "%s without an autorelease pool", call); }
// A token is the number of objects before the pool, and one: never null.
void *objc_autoreleasePoolPush(void) {
  pool.depth++;
  return (void *)(pool.n + 1);
}
void objc_autoreleasePoolPop(void *token) {
  CHECK(pool.depth, "an autorelease pool is popped that was not pushed");
  pool.depth--;
  size_t to = (size_t)token - 1;
  while (pool.n > to) objc_release(pool.objects[--pool.n]);
  if (!pool.depth) {
    free(pool.objects);
    pool.objects = NULL;
    pool.capacity = 0;
  }
}
id objc_autorelease(id o) {
  if (!o) return nil;
  CHECK(pool.depth, "%s is autoreleased without a pool: it would never be freed", class_getName([(NSObject *)o class]));
  if (pool.n == pool.capacity) {
    pool.capacity = pool.capacity ? 2 * pool.capacity : 64;
    pool.objects = realloc(pool.objects, pool.capacity * sizeof(id));
  }
  return pool.objects[pool.n++] = o;
}
id objc_autoreleaseReturnValue(id o) { return objc_autorelease(o); }
id objc_retainAutorelease(id o) { return objc_autorelease(objc_retain(o)); }
id objc_retainAutoreleaseReturnValue(id o) { return objc_retainAutorelease(o); }
id objc_retainAutoreleasedReturnValue(id o) { return objc_retain(o); }

// Blocks, by Apple's published block ABI.
struct descriptor { unsigned long reserved, size; void (*copy)(void *, const void *); void (*dispose)(const void *); };
struct block { void *isa; volatile int flags; int reserved; void *invoke; struct descriptor *descriptor; };
enum { NEEDS_FREE = 1 << 24, HAS_COPY = 1 << 25, IS_GLOBAL = 1 << 28, COUNT = 0xfffe };
void *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32], *_NSConcreteGlobalBlock[32];
void *_Block_copy(const void *source) {
  struct block *b = (void *)source;
  if (!b || b->flags & IS_GLOBAL) return b;
  if (b->flags & NEEDS_FREE) {
    __atomic_add_fetch(&b->flags, 2, __ATOMIC_SEQ_CST);
    return b;
  }
  struct block *copy = malloc(b->descriptor->size);
  memcpy(copy, b, b->descriptor->size);
  copy->flags = (copy->flags & ~COUNT) | NEEDS_FREE | 2;
  copy->isa = _NSConcreteMallocBlock;
  if (copy->flags & HAS_COPY) b->descriptor->copy(copy, b);
  metal_double_born();
  return copy;
}
void _Block_release(const void *source) {
  struct block *b = (void *)source;
  if (!b || !(b->flags & NEEDS_FREE)) return;
  if ((__atomic_sub_fetch(&b->flags, 2, __ATOMIC_SEQ_CST) & COUNT) == 0) {
    if (b->flags & HAS_COPY) b->descriptor->dispose(b);
    free(b);
    metal_double_dead();
  }
}

// GCC's runtime has this in its header only.
Class double_object_getClass(id o) __asm__("object_getClass");
Class double_object_getClass(id o) { return o ? *(Class *)o : Nil; }
