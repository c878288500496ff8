"""What several folders of tests use."""

import os
import socket
import sys
from contextlib import closing
from pathlib import Path

import hypothesis
import pytest

from tests.tiers import mark_slow

# gRPC writes of connections that tests break on purpose, amid the dots.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
if not Path("/proc/driver/nvidia").exists():
    # Nothing here uses Triton, and it reports leaks of its own for a page when a process ends.
    sys.modules["triton"] = None

# The same cases each time, as in `make rust-test`, and no assertion about time.
hypothesis.settings.register_profile("chairlift", derandomize=True, deadline=None)
hypothesis.settings.load_profile("chairlift")


LONG_FILES = (
    "chaos/test_scenarios.py",
    "server/test_process.py",
    "cli/test_supervisor.py",
    "kernels/test_process.py",
)
"""Files that take a minute or more: begun last, one would run alone while a processor idles."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what is not in `make test`, and put the tests of the longest files first."""
    mark_slow(config, items)

    def place(item):
        name = item.path.relative_to(Path(__file__).parent).as_posix()
        return LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES)

    items.sort(key=place)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Llama of a few thousand parameters: 256 tokens of context, 390 of vocabulary."""
    # Not above: the process that only hands out tests does without transformers.
    from tests.engine import tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.write(folder)
    return folder


@pytest.fixture
def store_settings(tmp_path):
    """Settings of an engine that writes each block at its first use."""
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    return {
        "prefix_store": str(tmp_path / "store"),
        "prefix_store_bytes": "64MiB",
        "prefix_store_key": str(key),
        "prefix_store_uses": 1,
    }


@pytest.fixture
def free_port():
    """A port that nobody listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return probe.getsockname()[1]
