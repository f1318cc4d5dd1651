"""What the tests share."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "crates" / "hologram-cli" / "assets" / "rust-docs-bitnet.gguf"


@pytest.fixture(scope="session")
def model_path():
    return MODEL


@pytest.fixture(scope="module")
def model():
    import hologram as hg

    with hg.llm.load(MODEL, device="cpu", ctx=512) as model:
        yield model


@pytest.fixture(autouse=True, scope="session")
def on_the_cpu():
    import hologram as hg

    hg.set_default_device(os.environ.get("HOLOGRAM_TEST_DEVICE", "cpu"))


@pytest.fixture
def cpu():
    """For tests of what only the host's memory has, such as NumPy's views, whatever the device of the others is."""
    import hologram as hg

    before = hg.default_device()
    hg.set_default_device("cpu")
    yield
    hg.set_default_device(before)
