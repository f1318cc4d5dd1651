"""The examples of the page about PyTorch, executed."""

import re

import pytest
from conftest import ROOT

pytest.importorskip("torch")


def test_examples_of_the_page(monkeypatch, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/pytorch.md").read_text(encoding="utf-8"), re.S | re.M)
    assert blocks
    monkeypatch.chdir(tmp_path)
    # Dynamo reads the lines of functions from files.
    page = tmp_path / "page.py"
    page.write_text("\n".join(blocks), encoding="utf-8")
    exec(compile(page.read_text(encoding="utf-8"), str(page), "exec"), {"__name__": "example"})
