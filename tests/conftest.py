"""What several folders of tests use."""

import pytest

from tests.engine import tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Llama of a few thousand parameters: 256 tokens of context, 390 of vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.write(folder)
    return folder
