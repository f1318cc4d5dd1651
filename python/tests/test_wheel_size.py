"""The check of the wheel's size, which the workflow of releases runs."""

import pathlib
import random
import subprocess
import sys
import zipfile

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "release" / "wheel_size.py"


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
