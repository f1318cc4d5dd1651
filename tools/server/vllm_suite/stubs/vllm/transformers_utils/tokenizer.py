"""The model that stands in has no tokenizer in Python: tests that compare with one cannot run."""

import pytest


def get_tokenizer(*_, **__):
    pytest.skip("compares with the tokenizer of the model that the test would download")
