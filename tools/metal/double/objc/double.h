// A test double of the part of Foundation and Metal that the backend uses, on GCC's Objective-C runtime.
#include <objc/message.h>
#include <objc/objc.h>
#include <objc/runtime.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long NSUInteger;
typedef long NSInteger;

// Ends the process: what Metal leaves undefined, or reports in its debug layer only, is a failed test here.
void misuse(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
#define CHECK(condition, ...) do { if (!(condition)) misuse(__VA_ARGS__); } while (0)

@interface NSObject { Class isa; long references; }
+ (id)alloc;
+ (id)new;
+ (Class)class;
- (id)init;
- (void)dealloc;
- (id)retain;
- (oneway void)release;
- (id)autorelease;
- (NSUInteger)retainCount;
- (BOOL)isKindOfClass:(Class)c;
- (BOOL)respondsToSelector:(SEL)s;
- (NSUInteger)hash;
- (BOOL)isEqual:(id)o;
- (Class)class;
- (id)description;
@end

@interface NSString : NSObject { char *utf8; NSUInteger len; }
+ (id)fromC:(const char *)text;
- (id)initWithBytes:(const void *)bytes length:(NSUInteger)n encoding:(int)encoding;
- (const char *)UTF8String;
- (NSUInteger)lengthOfBytesUsingEncoding:(int)encoding;
- (NSUInteger)length;
@end

@interface NSURL : NSObject { NSString *path; }
+ (id)fileURLWithPath:(NSString *)p;
- (NSString *)path;
@end

@interface NSError : NSObject { NSString *message; }
+ (id)message:(const char *)text;
- (NSString *)localizedDescription;
@end

NSInteger metal_double_system(void);
void metal_double_in_pool(const char *call);
id objc_retain(id);
void objc_release(id);
id objc_autorelease(id);
void *_Block_copy(const void *);
void _Block_release(const void *);

// Compiles a text through tools/metal/mslc.py, or finds it in the cache; the library's path, or NULL with a message. Both are the caller's
// to free.
char *compile(const char *text, char **message);
