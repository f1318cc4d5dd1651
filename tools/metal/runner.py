"""Runs kernels of a library that mslc.py built, on arrays of bytes."""
import ctypes, re, subprocess


class Launch(ctypes.Structure):
    """MslLaunch of shim/runtime.cpp."""
    _fields_ = [("grid", ctypes.c_uint32 * 3), ("tg", ctypes.c_uint32 * 3), ("threads", ctypes.c_uint32 * 3),
                ("tgmem", ctypes.c_uint32 * 8), ("seed", ctypes.c_uint64), ("strict", ctypes.c_uint32), ("flush", ctypes.c_uint32), ("backwards", ctypes.c_uint32), ("none", ctypes.c_uint32),
                ("buf", ctypes.c_void_p * 32), ("len", ctypes.c_uint64 * 32), ("err", ctypes.c_char * 512),
                ("switches", ctypes.c_uint64), ("barriers", ctypes.c_uint64), ("simd_ops", ctypes.c_uint64),
                ("accesses", ctypes.c_uint64), ("tg_bytes", ctypes.c_uint32), ("loaded", ctypes.c_uint64 * 32),
                ("stored", ctypes.c_uint64 * 32), ("unique", ctypes.c_uint64 * 32)]


class Fault(Exception):
    """What a launch ended with, accesses named by file and line."""


class Library:
    def __init__(self, path):
        self.path, self.lib = path, ctypes.CDLL(path)
        self.lib.msl_find.restype = ctypes.c_void_p
        self.lib.msl_find.argtypes = [ctypes.c_char_p]
        self.lib.msl_launch.argtypes = [ctypes.c_void_p, ctypes.POINTER(Launch)]

    def run(self, kernel, grid, tg, buffers, tgmem=(), seed=0, flush=False, backwards=False):
        """Runs `kernel` on `grid` threadgroups of `tg` threads; `buffers` are arrays or bytearrays, by binding, None where
        nothing is bound; `flush`: subnormal numbers of f32 count as 0; `backwards`: the last threadgroup runs first."""
        found = self.lib.msl_find(kernel.encode())
        if not found:
            raise Fault(f"{self.path} has no kernel {kernel}")
        launch = Launch()
        launch.grid[:] = (*grid, 1, 1)[:3]
        launch.tg[:] = (*tg, 1, 1)[:3]
        launch.seed, launch.strict, launch.flush, launch.backwards = seed, 1, flush, backwards
        for i, n in enumerate(tgmem):
            launch.tgmem[i] = n
        # What has no bytes lies somewhere all the same.
        views = [memoryview(b"" if b is None else b or bytearray(1)).cast("B") for b in buffers]
        for i, view in enumerate(views):
            launch.len[i] = len(view)
            launch.buf[i] = ctypes.addressof((ctypes.c_char * len(view)).from_buffer(view)) if len(view) else None
        if self.lib.msl_launch(found, ctypes.byref(launch)):
            raise Fault(self.named(launch.err.decode()))
        return launch

    def named(self, message):
        """@offset as file:line: the innermost function that is not the shim's."""
        def one(m):
            done = subprocess.run(["addr2line", "-i", "-e", self.path, hex(int(m[1], 16) - 1)], capture_output=True, text=True)
            places = done.stdout.split()
            place = next((p.rsplit("/", 1)[-1] for p in places if "/shim/" not in p and "??" not in p), "?")
            return place.replace("-:", "line ")
        return re.sub(r"@([0-9a-f]+)", one, message)
