#include "double.h"
#include <stdlib.h>
#include <string.h>

void metal_double_born(void);
void metal_double_dead(void);

@implementation NSObject
+ (id)alloc {
  NSObject *o = class_createInstance(self, 0);
  o->references = 1;
  metal_double_born();
  return o;
}
+ (id)new { return [[self alloc] init]; }
+ (Class)class { return self; }
+ (id)retain { return self; }
+ (oneway void)release {}
+ (id)autorelease { return self; }
- (id)init { return self; }
- (Class)class { return isa; }
// A freed object stays as it is, so that a message to it is found instead of crashing.
- (void)dealloc { metal_double_dead(); }
- (id)retain {
  long before = __atomic_fetch_add(&references, 1, __ATOMIC_RELAXED);
  CHECK(before > 0, "%s is retained after it was freed", class_getName(isa));
  return self;
}
- (oneway void)release {
  long left = __atomic_sub_fetch(&references, 1, __ATOMIC_ACQ_REL);
  CHECK(left >= 0, "%s is released more often than it was retained", class_getName(isa));
  if (left == 0) [self dealloc];
}
- (id)autorelease { return objc_autorelease(self); }
- (NSUInteger)retainCount { return references; }
- (BOOL)isKindOfClass:(Class)c {
  for (Class k = isa; k; k = class_getSuperclass(k)) if (k == c) return YES;
  return NO;
}
- (BOOL)respondsToSelector:(SEL)s { return class_respondsToSelector(isa, s); }
- (NSUInteger)hash { return (NSUInteger)self >> 4; }
- (BOOL)isEqual:(id)o { return o == self; }
- (id)description { return [NSString fromC:class_getName(isa)]; }
@end

@implementation NSString
+ (id)fromC:(const char *)text { return [[[self alloc] initWithBytes:text length:strlen(text) encoding:4] autorelease]; }
- (id)initWithBytes:(const void *)bytes length:(NSUInteger)n encoding:(int)encoding {
  CHECK(encoding == 4, "a string in encoding %d, not UTF-8", encoding);
  utf8 = malloc(n + 1);
  memcpy(utf8, bytes, n);
  utf8[n] = 0;
  len = n;
  return self;
}
- (void)dealloc {
  free(utf8);
  utf8 = NULL;
  [super dealloc];
}
- (const char *)UTF8String { return utf8; }
- (NSUInteger)lengthOfBytesUsingEncoding:(int)encoding { return len; }
- (NSUInteger)length { return len; }
- (id)description { return self; }
@end

@implementation NSError
+ (id)message:(const char *)text {
  NSError *error = [self new];
  error->message = [[NSString fromC:text] retain];
  return [error autorelease];
}
- (void)dealloc {
  [message release];
  [super dealloc];
}
- (NSString *)localizedDescription { return message; }
@end

// The version of macOS.
NSInteger metal_double_system(void) {
  const char *version = getenv("METAL_DOUBLE_SYSTEM");
  return version ? atoi(version) : 15;
}

// Foundation's struct has no name in its encoding: {?=qqq}.
typedef struct { NSInteger major, minor, patch; } Version;
@interface NSProcessInfo : NSObject
@end
@implementation NSProcessInfo
+ (id)processInfo { return [[self new] autorelease]; }
- (Version)operatingSystemVersion {
  Version version = {metal_double_system(), 0, 0};
  return version;
}
@end

@implementation NSURL
+ (id)fileURLWithPath:(NSString *)p {
  NSURL *url = [self new];
  url->path = [p retain];
  return [url autorelease];
}
- (NSString *)path { return path; }
- (void)dealloc {
  [path release];
  [super dealloc];
}
@end

@interface NSNumber : NSObject { @public unsigned value; }
@end
@implementation NSNumber
- (unsigned)unsignedIntValue { return value; }
@end

// IOKit's registry, with one service: the GPU, and the number of its cores.
static NSObject *matching;
void *IOServiceMatching(const char *class) {
  CHECK(strcmp(class, "AGXAccelerator") == 0, "services of class %s", class);
  return matching = [NSObject new];
}
unsigned IOServiceGetMatchingService(unsigned port, void *dictionary) {
  CHECK(dictionary == matching, "services that match no dictionary");
  [matching release];
  return getenv("METAL_DOUBLE_CORES") ? 1 : 0;
}
id IORegistryEntryCreateCFProperty(unsigned entry, NSString *key, const void *allocator, unsigned options) {
  CHECK(entry == 1 && strcmp([key UTF8String], "gpu-core-count") == 0, "property %s of entry %u", [key UTF8String], entry);
  const char *cores = getenv("METAL_DOUBLE_CORES");
  // Another type than was asked for, where it is no number.
  if (!*cores) return [[NSString fromC:cores] retain];
  NSNumber *number = [NSNumber new];
  number->value = atoi(cores);
  return number;
}
int IOObjectRelease(unsigned object) {
  CHECK(object == 1, "object %u is released", object);
  return 0;
}

@interface NSArray : NSObject { id *objects; NSUInteger count; }
@end
@implementation NSArray
- (id)initWithObjects:(const id *)o count:(NSUInteger)n {
  objects = malloc(n * sizeof(id));
  count = n;
  for (NSUInteger i = 0; i < n; i++) objects[i] = [o[i] retain];
  return self;
}
- (NSUInteger)count { return count; }
- (id)objectAtIndex:(NSUInteger)i {
  CHECK(i < count, "object %lu of an array of %lu", i, count);
  return objects[i];
}
- (void)dealloc {
  for (NSUInteger i = 0; i < count; i++) [objects[i] release];
  free(objects);
  [super dealloc];
}
@end
