// What the parts of the double of Metal know of each other.
#include "double.h"
#include <pthread.h>

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
struct counts { long commits, waits, buffers, dispatches, barriers, encoders, copies, archives_written, archives_read, captured, residency_requests, residents; };
extern struct counts metal_double_counts;
#define COUNT(what) __atomic_add_fetch(&metal_double_counts.what, 1, __ATOMIC_RELAXED)

@interface DoubleBuffer : NSObject { @public char *bytes; NSUInteger length; BOOL owned, freed; void (^deallocator)(void *, NSUInteger); }
@end
// Bytes of all buffers.
extern long allocated;

// macOS 15's set of allocations that stay wired; what is added or removed counts from the next commit on.
@interface DoubleResidencySet : NSObject { @public DoubleBuffer **members; size_t n; BOOL *committed, *leaving; pthread_mutex_t lock; }
- (BOOL)holds:(DoubleBuffer *)b;
@end
@interface MTLResidencySetDescriptor : NSObject
@end

// Language versions: the major number's 16 bits above the minor's. A program that names none, and was built for no
// later system, as Rust builds for, gets 2.3.
#define VERSION(major, minor) ((NSUInteger)(major) << 16 | (minor))
enum { SAFE = 0, FAST = 2 };
@interface MTLCompileOptions : NSObject { @public NSUInteger version; NSInteger mode, functions; }
@end
// The first name of a text that its language version lacks.
const char *lacking(const char *text, NSUInteger version);
// A text as a faulty compiler gets it: see `metal_double_plant`.
char *planted(const char *text);

@interface DoubleLibrary : NSObject { @public void *image; }
@end
@interface DoubleFunction : NSObject { @public DoubleLibrary *library; const void *entry; }
@end
@interface MTLComputePipelineDescriptor : NSObject { @public DoubleFunction *function; id archives; }
@end
@interface MTLBinaryArchiveDescriptor : NSObject { @public NSURL *url; }
@end
// An archive holds no code here: what counts is that it is written, found and read.
#define ARCHIVE "an archive of the Metal test double"
@interface DoubleArchive : NSObject { @public NSUInteger functions; }
@end
@interface DoublePipeline : NSObject { @public DoubleFunction *function; Run run; }
- (NSUInteger)maxTotalThreadsPerThreadgroup;
@end

@class DoubleCommands;
@interface DoubleQueue : NSObject { @public pthread_t thread; pthread_mutex_t lock; pthread_cond_t changed; DoubleCommands *first, *last;
  BOOL closing, ignores; NSUInteger most, made; DoubleResidencySet *set; }
// A queue with room for so many command buffers.
+ (id)of:(NSUInteger)most;
@end
