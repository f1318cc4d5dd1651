// Compile options, libraries with their functions, pipelines, and archives of pipelines.
#include "metal.h"
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What a faulty compiler makes of the texts that it is given: another text in the place of a piece.
static struct { char from[200], to[200]; } plant;
void metal_double_plant(const char *from, const char *to) {
  snprintf(plant.from, sizeof plant.from, "%s", from);
  snprintf(plant.to, sizeof plant.to, "%s", to);
}
char *planted(const char *text) {
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
const char *lacking(const char *text, NSUInteger version) {
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
@implementation DoublePipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup { return ((const Entry *)function->entry)->threads; }
- (NSUInteger)threadExecutionWidth { return 32; }
- (void)dealloc {
  [function release];
  [super dealloc];
}
@end
