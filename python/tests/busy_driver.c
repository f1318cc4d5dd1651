/* A driver of an NVIDIA GPU that is always behind: it keeps memory on the host and runs no kernel, but each takes 6 ms.
 * As the real one, it lets a full queue wait for room and loads code when the GPU is idle. Meanwhile no other call gets
 * through, which is the worst that a driver may do. Built by test_limits.py. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned Code;
typedef unsigned long long Address;

enum { ROOM = 1024, STREAMS = 64 };
static const int64_t KERNEL = 6000000; /* ns */

/* Work of a stream ends at these times. */
typedef struct {
  int64_t ends[ROOM], end;
  long count;
  int capturing, captured;
} Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Stream streams[STREAMS];
static int made;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void sleep_until(int64_t end) {
  while (now() < end) {
    struct timespec t = {0, 200000};
    nanosleep(&t, 0);
  }
}

static int64_t idle(void) {
  int64_t end = 0;
  for (int i = 0; i < made; i++)
    if (streams[i].end > end) end = streams[i].end;
  return end;
}

static Code add(Stream *s, int64_t time) {
  pthread_mutex_lock(&lock);
  int64_t *end = &s->ends[s->count++ % ROOM], start = now();
  if (*end > start) sleep_until(*end);
  if (s->end > start) start = s->end;
  *end = s->end = start + time;
  pthread_mutex_unlock(&lock);
  return 0;
}

static Code when_idle(void) {
  pthread_mutex_lock(&lock);
  sleep_until(idle());
  pthread_mutex_unlock(&lock);
  return 0;
}

static int64_t time_of(int64_t *event) {
  pthread_mutex_lock(&lock);
  int64_t end = *event;
  pthread_mutex_unlock(&lock);
  return end;
}

#define GIVE(to, what) return *(to) = (what), 0
#define NOTHING(name) Code name(void) { return 0; }

Code cuDriverGetVersion(int *version) { GIVE(version, 13000); }
Code cuGetErrorName(Code code, const char **text) { GIVE(text, "BUSY"); }
Code cuGetErrorString(Code code, const char **text) { GIVE(text, "an error"); }
Code cuDeviceGetCount(int *count) { GIVE(count, 1); }
Code cuDeviceGet(int *device, int ordinal) { GIVE(device, 0); }
Code cuDeviceGetName(char *name, int room, int device) { return strcpy(name, "Busy"), 0; }
Code cuDeviceTotalMem_v2(size_t *bytes, int device) { GIVE(bytes, 4ull << 30); }
Code cuDeviceGetAttribute(int *value, int which, int device) {
  GIVE(value, which == 75 ? 9 : which == 16 ? 132 : which == 97 ? 232448 : 0); /* capability 9.0 */
}
Code cuDevicePrimaryCtxRetain(void **context, int device) { GIVE(context, (void *)1); }
Code cuMemGetInfo_v2(size_t *free, size_t *total) { *total = 4ull << 30; GIVE(free, 4ull << 30); }
Code cuMemAlloc_v2(Address *address, size_t bytes) { GIVE(address, (Address)aligned_alloc(512, bytes)); }
Code cuMemFree_v2(Address address) { return when_idle(), free((void *)address), 0; }
Code cuMemHostAlloc(void **address, size_t bytes, Code flags) {
  GIVE(address, aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
}
Code cuMemFreeHost(void *address) { return when_idle(), free(address), 0; }
Code cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t n, Stream *s) {
  return memcpy((void *)to, from, n), add(s, n / 20);
}
Code cuMemcpyDtoHAsync_v2(void *to, Address from, size_t n, Stream *s) {
  return memcpy(to, (void *)from, n), add(s, n / 20);
}
Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, Stream *s) {
  return memcpy((void *)to, (void *)from, n), add(s, 0);
}
Code cuMemsetD8Async(Address to, unsigned char value, size_t n, Stream *s) {
  return memset((void *)to, value, n), add(s, 0);
}
Code cuStreamCreate(Stream **stream, Code flags) { GIVE(stream, &streams[made++]); }
Code cuStreamSynchronize(Stream *s) { return sleep_until(time_of(&s->end)), 0; }
Code cuStreamWaitEvent(Stream *s, int64_t *event, Code flags) {
  pthread_mutex_lock(&lock);
  if (*event > s->end) s->end = *event;
  pthread_mutex_unlock(&lock);
  return 0;
}
Code cuStreamBeginCapture_v2(Stream *s, int mode) { s->captured = 0; GIVE(&s->capturing, 1); }
Code cuStreamEndCapture(Stream *s, int **graph) {
  s->capturing = 0;
  *graph = malloc(sizeof(int));
  GIVE(*graph, s->captured);
}
Code cuEventCreate(int64_t **event, Code flags) { GIVE(event, calloc(1, sizeof(int64_t))); }
Code cuEventRecord(int64_t *event, Stream *s) {
  add(s, 0);
  pthread_mutex_lock(&lock);
  *event = s->end;
  pthread_mutex_unlock(&lock);
  return 0;
}
Code cuCtxRecordEvent(void *context, int64_t *event) { GIVE(event, idle()); }
Code cuEventSynchronize(int64_t *event) { return sleep_until(time_of(event)), 0; }
Code cuEventQuery(int64_t *event) { return now() < time_of(event) ? 600 : 0; }
Code cuEventElapsedTime(float *ms, int64_t *start, int64_t *end) { GIVE(ms, 1.0f); }
Code cuGraphInstantiateWithFlags(int **executable, int *graph, uint64_t flags) { GIVE(executable, graph); }
Code cuGraphUpload(int *graph, Stream *s) { return add(s, 0); }
Code cuGraphLaunch(int *graph, Stream *s) { return add(s, *graph * KERNEL); }
Code cuLinkComplete(void *link, void **image, size_t *bytes) {
  static char code[64];
  *bytes = sizeof code;
  GIVE(image, code);
}
Code cuModuleLoadData(void **module, const void *image) { *module = (void *)1; return when_idle(); }
Code cuModuleGetFunction(void **function, void *module, const char *name) { GIVE(function, (void *)1); }
Code cuLaunchKernelEx(const char *config, void *function, void **values, void **extra) {
  Stream *s = *(Stream **)(config + 32); /* behind seven sizes */
  if (s->capturing) return s->captured++, 0;
  return add(s, KERNEL);
}
NOTHING(cuInit) NOTHING(cuDevicePrimaryCtxRelease_v2) NOTHING(cuCtxSetCurrent) NOTHING(cuStreamDestroy_v2)
NOTHING(cuEventDestroy_v2) NOTHING(cuGraphDestroy) NOTHING(cuGraphExecDestroy) NOTHING(cuLinkCreate_v2)
NOTHING(cuLinkAddData_v2) NOTHING(cuLinkDestroy) NOTHING(cuModuleUnload) NOTHING(cuFuncSetAttribute)
NOTHING(cuTensorMapEncodeTiled)
