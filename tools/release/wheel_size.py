#!/usr/bin/env python3
"""Says what a wheel consists of, and refuses one of more than 20 MB.

    python tools/release/wheel_size.py WHEEL…

The parts are the sections of the package's library, as zip's method packs each alone: code, tables for unwinding, and
constants, which are mostly the built-in model and the images of CUDA kernels. Without `readelf` (macOS, Windows) the
whole library is one part.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib

LIMIT = 20_000_000
"""Bytes. PyPI's users download it for each version of each environment."""


def sections(library):
    """The names and packed sizes of an ELF file's sections; nothing for other files."""
    with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
        file.write(library)
    try:
        run = subprocess.run(["readelf", "-SW", file.name], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    finally:
        os.unlink(file.name)
    found = re.findall(r"\] (\.\S+)\s+(?!NOBITS)\S+\s+[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", run.stdout)
    parts = ((name, int(offset, 16), int(size, 16)) for name, offset, size in found)
    return [(name, len(zlib.compress(library[offset : offset + size], 9))) for name, offset, size in parts]


def parts(path):
    """The names and packed sizes of a wheel's parts, the largest first."""
    with zipfile.ZipFile(path) as wheel:
        entries = wheel.infolist()
        library = max(entries, key=lambda entry: entry.file_size)
        found = sections(wheel.read(library)) or [(library.filename, library.compress_size)]
    found.append(("other files", sum(entry.compress_size for entry in entries if entry is not library)))
    return sorted(found, key=lambda part: -part[1])


def main(paths):
    good = bool(paths)
    for path in paths:
        size = os.path.getsize(path)
        print(f"{os.path.basename(path)}: {size:,} bytes of {LIMIT:,}")
        for name, packed in parts(path):
            if packed >= 10_000:
                print(f"  {packed:12,}  {name}")
        good &= size <= LIMIT
    return 0 if good else "a wheel is too large, or none is given"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
