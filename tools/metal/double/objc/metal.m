// The device. All classes of the double answer to the selectors of Metal's protocols.
#include "metal.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct counts metal_double_counts;

static size_t max_buffer(void) {
  const char *bytes = getenv("METAL_DOUBLE_MAX_BUFFER");
  return bytes ? strtoull(bytes, NULL, 10) : 8ul << 30;
}

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
- (id)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)n { return [DoubleQueue of:n]; }
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
