// What a kernel library and the runtime say to each other; mslc.py writes the entries.
#pragma once
namespace msl_rt {
struct V3 { unsigned x, y, z; };
// What a kernel may be given: buffers, threadgroup memory of the launch, and where the thread is.
struct Args {
  void *buf[32]; void *tgm[8];
  V3 tpig, tpit, gpig, tpt, tpg, gpg, tiit, lane, sg, nsg, spw, quad;
};
// A kernel of a library: `waits` says whether its threads may wait for each other, `buffers` has a bit for each that it declares,
// `written` one for each that it may write; `threads` is the most in a threadgroup that its max_total_threads_per_threadgroup allows; the image is the library's own memory.
struct Entry { const char *name; void (*run)(const Args *); int waits; unsigned buffers, written, threads; const char *image_begin, *image_end; };
} // namespace msl_rt
