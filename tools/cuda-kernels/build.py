#!/usr/bin/env python3
"""Compiles the native CUDA kernels with NVRTC, without a GPU, into the images that the binary carries.

    build.py                    compiles every source that is not the one its images were made of
    build.py NAME…              compiles these
    build.py --check            compiles every source for one architecture and fails if an image in the tree is not recorded as made
                                of it, or has no source
    build.py --check --known DIR
                                leaves out those that this folder says were compiled so before, by the digest of text and compiler
    build.py --check --all      compiles them for both
    build.py -v …               prints registers, shared memory and spills of every kernel
    build.py --ptxas            prints where the assembler is

Sources: crates/hologram-gpu/kernels/shared/*.k (text that serves Metal too) and .../kernels/cuda/*.cu.
Images: crates/hologram-cuda/images/NAME.sm_80.ptx (newer drivers translate it) and NAME.sm_90a.cubin; cargo compresses them for the binary.
Needs the packages in requirements.txt. A spilled register, warpgroup products that the assembler puts one after
the other, or an error fails the build.
"""
import ctypes, functools, glob, hashlib, lzma, os, re, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "crates")
SHARED, CUDA, IMAGES = (os.path.normpath(os.path.join(ROOT, d)) for d in ("hologram-gpu/kernels/shared", "hologram-gpu/kernels/cuda", "hologram-cuda/images"))
# The binary carries them all, compressed: in two thirds of what the check makes of them, which takes a tenth of the time.
MOST_BYTES = 12 << 20


def toolkit():
    import site
    for packages in site.getsitepackages():
        path = os.path.join(packages, "nvidia", "cu13")
        if os.path.isdir(path):
            return path
    sys.exit("build.py: install the packages of tools/cuda-kernels/requirements.txt")


def library(path):
    ctypes.CDLL(glob.glob(path + "/lib/libnvrtc-builtins.so.13.0*")[0], mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(path + "/lib/libnvrtc.so.13")


def compile(nvrtc, path, name, text, arch, cubin):
    """PTX or cubin of a source for an architecture; ends the program on an error or a spill."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    options = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", f"-I{SHARED}", f"-I{CUDA}",
               f"-I{path}/include"] + (["--ptxas-options=-v"] if cubin else [])
    array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    failed = nvrtc.nvrtcCompileProgram(program, len(options), array)

    def get(what):
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, data)
        return data.raw

    log = get("ProgramLog").decode().rstrip("\0\n")
    if failed:
        sys.exit(f"{name} for {arch}: {log}")
    check_spills(f"{name} for {arch}", log)
    image = get("CUBIN") if cubin else get("PTX").rstrip(b"\0")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return image, log


def check_spills(what, log):
    for line in log.splitlines():
        if re.search(r"[1-9]\d* bytes spill", line) or "warning" in line.lower() or "Potential Performance Loss" in line:
            sys.exit(f"{what}: {log}")


def assemble(path, name, ptx):
    """What ptxas says of PTX for sm_80."""
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        run = subprocess.run([f"{path}/bin/ptxas", "-v", "-arch=sm_80", file.name, "-o", "/dev/null"],
                             capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{name} for sm_80: {run.stderr}")
    check_spills(f"{name} for sm_80", run.stderr)


def images(nvrtc, path, source):
    name = os.path.basename(source)
    text = open(source).read()
    out = {}
    if ptx_of(source) in names_of(source):
        ptx, _ = compile(nvrtc, path, name, text, "compute_80", False)
        assemble(path, name, ptx)
        out[ptx_of(source)] = ptx
    cubin, log = compile(nvrtc, path, name, text, "sm_90a", True)
    out[cubin_of(source)] = cubin
    return out, log


def compiled_once(nvrtc, path, source):
    """Compiles a source for sm_80, or for sm_90a, which takes longer, where it is for that only. What the other compilation
    gave when the images were made is in their record."""
    name, text = os.path.basename(source), open(source).read()
    if ptx_of(source) not in names_of(source):
        return compile(nvrtc, path, name, text, "compute_90a", False)
    ptx, log = compile(nvrtc, path, name, text, "compute_80", False)
    assemble(path, name, ptx)
    return ptx, log


def known_as(source):
    """The digest of what decides the result of `compiled_once`: the source as CUDA compiles it, its architecture, the
    compilers and this program."""
    with open(os.path.abspath(__file__), "rb") as f:
        return hashlib.sha256(f.read() + pins().encode() + f"{sorted(names_of(source))}{text_of(source, set())}".encode()).hexdigest()


def compiled_or_known(nvrtc, path, source, folder):
    """`compiled_once`, but for a source that passed it before."""
    passed = os.path.join(folder, os.path.basename(source) + ".passed")
    digest = known_as(source)
    if os.path.exists(passed) and open(passed).read() == digest:
        return None, "compiled before"
    result = compiled_once(nvrtc, path, source)
    with open(passed, "w") as f:
        f.write(digest)
    return result


def ptx_of(source):
    return os.path.basename(source).rsplit(".", 1)[0] + ".sm_80.ptx"


def cubin_of(source):
    return os.path.basename(source).rsplit(".", 1)[0] + ".sm_90a.cubin"


def names_of(source):
    """The names of the images of a source."""
    return {cubin_of(source)} if "// only sm_90a" in open(source).read() else {ptx_of(source), cubin_of(source)}


def for_cuda(lines):
    """The lines without those that only Metal compiles, where __CUDACC_RTC__ is not defined."""
    # Of each open condition, whether CUDA compiles the lines: None where it is another condition.
    open_ifs = []
    for line in lines:
        words = re.sub(r"//.*", "", line).replace("#", "# ").split()
        if words[:2] in (["#", "ifdef"], ["#", "ifndef"], ["#", "if"]):
            named = words[2:] == ["__CUDACC_RTC__"]
            open_ifs.append(words[1] == "ifdef" if named else None)
        elif words[:2] == ["#", "else"] and open_ifs[-1] is not None:
            open_ifs[-1] = not open_ifs[-1]
        elif words[:2] == ["#", "endif"]:
            open_ifs.pop()
        elif False not in open_ifs:
            yield line
            continue
        # A condition of CUDA's own is part of its text.
        if False not in open_ifs:
            yield line


def text_of(path, seen):
    """A source with what it includes, as CUDA compiles it, without comments, blank lines and what only the host reads."""
    if path in seen:
        return ""
    seen.add(path)
    text = []
    for line in for_cuda(open(path)):
        include = re.match(r'\s*#include "(.+)"', line)
        found = include and next((f for d in (SHARED, CUDA) if os.path.exists(f := os.path.join(d, include[1]))), None)
        line = text_of(found, seen) if found else re.sub(r"//.*", "", line).strip() + "\n"
        text.append(line if line.strip() and not line.startswith("HOST(") else "")
    return "".join(text)


def pins():
    """The versions of the compilers."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements.txt")) as f:
        return "".join(re.findall(r"^nvidia.*\n", f.read(), re.M))


def record_of(source, files):
    """What is recorded of a source and its images. NVRTC orders and names registers of some kernels differently every time, so that
    images cannot be compared with what comes out."""
    digest = lambda data: hashlib.sha256(data).hexdigest()
    text = text_of(source, set())
    if "metal_stdlib" in text or "simdgroup_" in text:
        sys.exit(f"{source}: Metal's half is part of its record")
    lines = [f"text {digest((pins() + text).encode())}"]
    return "\n".join(lines + [f"{file} {digest(files[file])}" for file in sorted(files)]) + "\n"


def in_tree(source):
    """The images of a source in the tree."""
    files = glob.glob(os.path.join(IMAGES, os.path.basename(source).rsplit(".", 1)[0] + ".sm_*"))
    return {os.path.basename(f): open(f, "rb").read() for f in files}


def fresh(source):
    """Whether the images in the tree are recorded as made of this text."""
    record = os.path.join(IMAGES, os.path.basename(source).rsplit(".", 1)[0] + ".made")
    files = in_tree(source)
    return bool(files) and os.path.exists(record) and open(record).read() == record_of(source, files)


def leftovers(sources):
    """What is wrong with the folder of images as a whole."""
    stems = {os.path.basename(s).rsplit(".", 1)[0] for s in sources}
    files = {os.path.basename(f): len(lzma.compress(open(f, "rb").read(), lzma.FORMAT_ALONE, preset=0)) for f in glob.glob(IMAGES + "/*.sm_*")}
    for file in sorted(files):
        if file.split(".", 1)[0] not in stems:
            yield f"{file}: has no source"
    if sum(files.values()) > MOST_BYTES:
        yield f"{sum(files.values())} bytes of quickly compressed images, more than {MOST_BYTES}"


def main():
    if "--ptxas" in sys.argv:
        return print(toolkit() + "/bin/ptxas")
    check, once, verbose = "--check" in sys.argv, "--all" not in sys.argv, "-v" in sys.argv
    arguments, known = sys.argv[1:], None
    if "--known" in arguments:
        at = arguments.index("--known")
        known = arguments[at + 1]
        del arguments[at:at + 2]
        os.makedirs(known, exist_ok=True)
    names = [a for a in arguments if not a.startswith("-")]
    path = toolkit()
    nvrtc = library(path)
    sources = sorted(glob.glob(SHARED + "/*.k") + glob.glob(CUDA + "/*.cu"))
    if names:
        sources = [s for s in sources if os.path.basename(s).rsplit(".", 1)[0] in names]
    elif not check:
        sources = [s for s in sources if not fresh(s)]
    wrong = []
    for source in sources if check else []:
        if set(in_tree(source)) != names_of(source) or not fresh(source):
            wrong.append(f"{os.path.basename(source)}: its images are not made of it; run tools/cuda-kernels/build.py")
    make = compiled_once if check and once else images
    if make is compiled_once and known:
        make = functools.partial(compiled_or_known, folder=known)
    with ThreadPoolExecutor(2) as pool:
        for source, (out, log) in zip(sources, pool.map(lambda s: make(nvrtc, path, s), sources)):
            sizes = [{n: len(b) for n, b in out.items()}] if make is images else []
            print(os.path.basename(source), *sizes, *[log] if out is None else [], flush=True)
            if verbose:
                print(log)
            if not check:
                for file, data in out.items():
                    open(os.path.join(IMAGES, file), "wb").write(data)
                open(os.path.join(IMAGES, os.path.basename(source).rsplit(".", 1)[0] + ".made"), "w").write(record_of(source, out))
    if check and not names:
        wrong.extend(leftovers(sources))
    if wrong:
        sys.exit("\n".join(wrong))


main()
