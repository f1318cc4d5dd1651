// Buffers, and the set of those that stay wired.
#include "metal.h"
#include <stdlib.h>
#include <string.h>

long allocated;

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
@implementation MTLResidencySetDescriptor
@end
