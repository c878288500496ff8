"""What several folders of tests use."""

import socket
from contextlib import closing

import hypothesis
import pytest

from tests.engine import tiny_model

# The same cases each time, as in `make rust-test`, and no assertion about time.
hypothesis.settings.register_profile("chairlift", derandomize=True, deadline=None)
hypothesis.settings.load_profile("chairlift")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Llama of a few thousand parameters: 256 tokens of context, 390 of vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.write(folder)
    return folder


@pytest.fixture
def free_port():
    """A port that nobody listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return probe.getsockname()[1]
