#!/usr/bin/env python3
"""Links the `hologram` command for aarch64-apple-darwin without a Mac, and reads back what it asks of the system.

    link.py [OUT]     the stub SDK comes into the folder OUT (by default a temporary one), the command into Cargo's target folder

A stub SDK says which symbols each library of the system has, as Apple's own does (`.tbd`), and nothing else. For libSystem these are
the ones that Rust's std for this target leaves undefined, and those below that other crates call. The linker is the one that comes with Rust
(`rust-lld`). Any other symbol fails the link: two small programs show that this is so. Objective-C classes and selectors
are looked up when a program runs, which a link says nothing of.
"""
import hashlib, os, struct, subprocess, sys, tempfile

TARGET = "aarch64-apple-darwin"
FRAMEWORKS = "/System/Library/Frameworks"
# What crates beside std call of libSystem: C's library, signals, terminals, maps, and the blocks of Objective-C.
SYSTEM = """
    _Block_copy _Block_release _NSConcreteGlobalBlock _NSConcreteStackBlock getentropy getpagesize kevent
    kqueue madvise select statvfs tcgetattr tcsetattr
    acos asin atan atan2 cos cosh exp exp2 exp2f expf expm1 fmodf hypot log log10 log1p log2 log2f logf pow powf sin sinh tan tanh
"""
# Other libraries: the install name of each, and its functions and data.
LIBRARIES = {
    "usr/lib/libiconv.tbd": ("/usr/lib/libiconv.2.dylib", "iconv iconv_close iconv_open"),
    "usr/lib/libobjc.tbd": ("/usr/lib/libobjc.A.dylib", """
        objc_alloc objc_allocWithZone objc_autorelease objc_autoreleasePoolPop objc_autoreleasePoolPush
        objc_autoreleaseReturnValue objc_getClass objc_getProtocol objc_lookUpClass objc_msgSend objc_msgSendSuper objc_release
        objc_retain objc_retainAutorelease objc_retainAutoreleaseReturnValue objc_retainAutoreleasedReturnValue
        object_getClass object_setClass sel_getName sel_registerName class_getInstanceMethod class_getName class_getSuperclass
        class_isMetaClass class_respondsToSelector method_getName method_getTypeEncoding
    """),
    "Metal": (f"{FRAMEWORKS}/Metal.framework/Versions/A/Metal", "MTLCreateSystemDefaultDevice MTLCopyAllDevices"),
    "Foundation": (f"{FRAMEWORKS}/Foundation.framework/Versions/C/Foundation", "NSLocalizedDescriptionKey"),
    "CoreFoundation": (f"{FRAMEWORKS}/CoreFoundation.framework/Versions/A/CoreFoundation", "CFRetain CFRelease"),
    "IOKit": (f"{FRAMEWORKS}/IOKit.framework/Versions/A/IOKit",
              "IOServiceMatching IOServiceGetMatchingService IORegistryEntryCreateCFProperty IOObjectRelease"),
    "CoreGraphics": (f"{FRAMEWORKS}/CoreGraphics.framework/Versions/A/CoreGraphics", "CGMainDisplayID"),
}
# A command-line program gets a default device only when CoreGraphics is linked too.
NEEDED = ["Metal", "CoreGraphics", "IOKit"]


class Object:
    """A Mach-O file for 64 bits: its symbols, and the libraries that it names."""

    def __init__(self, data):
        magic, self.processor, _, self.kind, commands = struct.unpack_from("<5I", data)
        if magic != 0xFEEDFACF:
            raise ValueError("not a Mach-O file for 64 bits")
        self.libraries, self.defined, self.undefined, self.oldest, at = [], set(), {}, None, 32
        for _ in range(commands):
            command, size = struct.unpack_from("<2I", data, at)
            if command in (0xC, 0x80000018, 0x8000001F):  # LC_LOAD_DYLIB, …_WEAK_…, LC_REEXPORT_DYLIB
                name = at + struct.unpack_from("<I", data, at + 8)[0]
                self.libraries.append(data[name:data.index(0, name)].decode())
            elif command == 0x32:  # LC_BUILD_VERSION: the platform, and the oldest version of it
                self.oldest = struct.unpack_from("<2I", data, at + 8)
            elif command == 2:  # LC_SYMTAB
                self.symbols(data, *struct.unpack_from("<4I", data, at + 8))
            at += size

    def symbols(self, data, table, count, strings, _):
        for at in range(table, table + 16 * count, 16):
            name, kind, _, more, value = struct.unpack_from("<IBBHQ", data, at)
            if kind & 0xE0 or not kind & 1:  # for debuggers, or local
                continue
            name = data[strings + name:data.index(0, strings + name)].decode()
            if kind & 0x0E or value:
                self.defined.add(name)
            else:
                self.undefined[name] = more >> 8  # the number of its library

    def library(self, symbol):
        """The library that a symbol is to come from."""
        number = self.undefined.get(symbol, 0)
        return self.libraries[number - 1] if 0 < number <= len(self.libraries) else None


def members(path):
    """The object files of an archive."""
    data, at = open(path, "rb").read(), 8
    while at + 60 <= len(data):
        name, size = data[at:at + 16].decode(), int(data[at + 48:at + 58])
        skip = int(name[3:]) if name.startswith("#1/") else 0
        body = data[at + 60 + skip:at + 60 + size]
        if body[:4] == b"\xcf\xfa\xed\xfe":
            yield Object(body)
        at += 60 + size + size % 2


def rustc(*what):
    return subprocess.run(["rustc", *what], check=True, capture_output=True, text=True).stdout.strip()


def left_undefined(folder):
    """The symbols that std's archives take from the system."""
    objects = [o for f in sorted(os.listdir(folder)) if f.endswith(".rlib") for o in members(os.path.join(folder, f))]
    if not objects:
        sys.exit(f"there is no std in {folder}: rustup target add {TARGET}")
    defined = set().union(*(o.defined for o in objects))
    # What the compiler makes for each program: the allocator's entries.
    made = lambda name: "__rust" in name
    return {name for o in objects for name in o.undefined if name not in defined and not made(name)}


def write_stub(path, install_name, symbols):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    names = ", ".join(f"'{name}'" for name in sorted(symbols))
    text = ("--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\n"
            f"install-name: '{install_name}'\ncurrent-version: 1\n"
            f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {names} ]\n...\n")
    open(path, "w").write(text)
    return text


def write_sdk(sdk):
    """Writes the stubs, and gives their texts."""
    system = left_undefined(rustc("--print", "target-libdir", "--target", TARGET))
    system |= {"_" + name for name in SYSTEM.split()} | {"dyld_stub_binder"}
    stubs = [write_stub(f"{sdk}/usr/lib/lib{name}.tbd", "/usr/lib/libSystem.B.dylib", system) for name in ("System", "c", "m")]
    for name, (install_name, symbols) in LIBRARIES.items():
        path = name if name.endswith(".tbd") else f"{FRAMEWORKS}/{name}.framework/{name}.tbd"
        stubs.append(write_stub(os.path.join(sdk, path.lstrip("/")), install_name, {"_" + s for s in symbols.split()}))
    return stubs


def check(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


def main():
    out = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="hologram-link-")
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    sdk = os.path.join(out, "sdk")
    stubs = write_sdk(sdk)
    host = next(line.split()[1] for line in rustc("-vV").splitlines() if line.startswith("host:"))
    linker = os.path.join(rustc("--print", "sysroot"), "lib/rustlib", host, "bin/rust-lld")
    env = {**os.environ, "SDKROOT": sdk}

    # A link that takes any symbol proves nothing.
    for name, links in [("MTLCreateSystemDefaultDevice", True), ("MTLCreateSystemDefaultDevise", False)]:
        source = os.path.join(out, "one.rs")
        open(source, "w").write('#[link(name = "Metal", kind = "framework")] unsafe extern "C" { fn %s() -> *const u8; }\n'
                                "fn main() { assert!(!unsafe { %s() }.is_null()); }\n" % (name, name))
        one = os.path.join(out, "one")
        done = subprocess.run(["rustc", "--edition=2024", "--target", TARGET, f"-Clinker={linker}", source, "-o", one], env=env,
                              capture_output=True, text=True)
        check((done.returncode == 0) == links, f"the link of a program that calls {name}: {done.stderr}")
        check(links or f"undefined symbol: _{name}" in done.stderr, f"the link fails for another reason: {done.stderr}")
        check(not links or Object(open(one, "rb").read()).library("_" + name) == LIBRARIES["Metal"][0], f"{name} is not Metal's")

    # Only the link counts here: nothing is optimised.
    env |= {"CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER": linker, "CARGO_PROFILE_DEV_OPT_LEVEL": "0", "CARGO_PROFILE_DEV_DEBUG": "false",
            "CARGO_INCREMENTAL": "0"}
    # Cargo would take a command that another SDK was linked with for up to date.
    digest = hashlib.sha256("".join(stubs).encode()).hexdigest()[:16]
    done = subprocess.run(["cargo", "rustc", "--bin", "hologram", "--package", "hologram-cli", "--target", TARGET, "--", "-Dwarnings",
                           "-Clink-arg=--error-limit=0", f"-Cmetadata={digest}"], env=env, cwd=root)
    check(done.returncode == 0, f"hologram does not link for {TARGET}")
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(root, "target"))
    found = Object(open(os.path.join(target, TARGET, "debug/hologram"), "rb").read())
    check((found.processor, found.kind) == (0x100000C, 2), "the command is no executable for arm64")
    check(found.oldest == (1, 14 << 16), f"the command is for other systems than macOS 14 and later: {found.oldest}")
    for name in NEEDED:
        check(LIBRARIES[name][0] in found.libraries, f"the command does not name {name}: {found.libraries}")
    check(found.library("_MTLCreateSystemDefaultDevice") == LIBRARIES["Metal"][0], "the device does not come from Metal")
    print(f"{len(found.undefined)} symbols of {', '.join(os.path.basename(l) for l in found.libraries)}")


main()
