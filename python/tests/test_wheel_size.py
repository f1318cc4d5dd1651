"""What the workflow of releases does with wheels: packs them again, and checks their size."""

import importlib.util
import os
import pathlib
import random
import subprocess
import sys
import zipfile
import zlib

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tools" / "release"
SCRIPT = FOLDER / "wheel_size.py"


@pytest.mark.parametrize(("size", "code"), [(19_900_000, 0), (20_100_000, 1)])
def test_a_wheel_above_20_mb_is_refused(tmp_path, size, code):
    wheel = tmp_path / "example-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr("example/library.so", random.Random(1).randbytes(size))
        file.writestr("example/__init__.py", "")
    run = subprocess.run([sys.executable, SCRIPT, wheel], capture_output=True, text=True)
    assert run.returncode == code, run.stdout + run.stderr
    assert "library.so" in run.stdout


def test_no_wheel_is_refused():
    assert subprocess.run([sys.executable, SCRIPT], capture_output=True).returncode == 1


def packer():
    spec = importlib.util.spec_from_file_location("pack_wheel", FOLDER / "pack_wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(tmp_path):
    wheel = tmp_path / "example-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        info = zipfile.ZipInfo("example/ä.txt", (2026, 11, 26, 18, 30, 58))
        info.external_attr, info.compress_type = 0o100755 << 16, zipfile.ZIP_DEFLATED
        file.writestr(info, "".join(f"line {n * n % 977}\n" for n in range(20_000)))
        file.writestr("example/noise", random.Random(1).randbytes(999))
        file.writestr("example/__init__.py", "")
    return wheel


def contents(wheel):
    with zipfile.ZipFile(wheel) as file:
        assert file.testzip() is None
        return [(e.filename, e.date_time, e.external_attr, file.read(e)) for e in file.infolist()]


def test_a_packed_wheel_is_smaller_and_has_the_same_files(wheel):
    before = contents(wheel)
    sizes = packer().pack(str(wheel), lambda data: zlib.compress(data, 9, wbits=-15))
    assert sizes[1] == os.path.getsize(wheel) < sizes[0]
    assert contents(wheel) == before and os.listdir(wheel.parent) == [wheel.name]


def test_a_wheel_that_would_grow_or_be_damaged_stays(wheel):
    bytes_before = wheel.read_bytes()
    assert len(set(packer().pack(str(wheel), lambda data: zlib.compress(data, 0, wbits=-15)))) == 1
    assert wheel.read_bytes() == bytes_before
    with pytest.raises((ValueError, zipfile.BadZipFile, zlib.error)):
        packer().pack(str(wheel), lambda data: zlib.compress(data[:-1], 9, wbits=-15))
    assert wheel.read_bytes() == bytes_before
