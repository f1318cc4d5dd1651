"""The examples of the documents, executed."""

import doctest
import re
import runpy
import shutil

import pytest
from conftest import MODEL, ROOT

import hologram as hg


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("page", ["docs/python.md", "README.md", "python/README.md"])
def test_examples_of_pages(page, tmp_path, monkeypatch):
    found = blocks(ROOT / page)
    assert found
    shutil.copy(MODEL, tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "example"}
    for block in found:
        exec(compile(block, page, "exec"), scope)


def test_the_tour(tmp_path, monkeypatch, capsys):
    shutil.copy(MODEL, tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["tour.py"])
    runpy.run_path(str(ROOT / "python" / "examples" / "tour.py"))
    shown = capsys.readouterr().out
    assert "81.0]" in shown and "div by zero" in shown and shown.rstrip().endswith("]"), shown


@pytest.mark.parametrize("module", [hg, hg.llm, hg.nn, hg._compile, hg._gradients, hg._seeds])
def test_examples_of_modules(module):
    result = doctest.testmod(module, extraglobs={"MODEL": MODEL}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted and not result.failed
