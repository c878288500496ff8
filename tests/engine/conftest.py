from types import SimpleNamespace

import pytest
from chairlift.attention.cpu import CpuBackend
from chairlift.engine.engine import Engine
from chairlift.model.config import ModelConfig
from chairlift.model.kv_cache import kv_bytes_per_block

from tests.engine import tiny_model
from tests.engine.drive import Clock


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The tiny model: its folder, the reference, and bytes of a number of KV blocks."""
    folder = tmp_path_factory.mktemp("tiny")
    reference = tiny_model.write(folder)
    config = ModelConfig.load(folder)

    def kv_blocks(num_blocks):
        return (num_blocks + 1) * kv_bytes_per_block(config, CpuBackend(), 16)

    return SimpleNamespace(folder=folder, reference=reference, kv_blocks=kv_blocks)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_engine(tiny, clock):
    """Builds engines over the tiny model, with a clock that stands until it is moved."""

    def make(**settings):
        defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
        return Engine(tiny.folder, clock=clock, **{**defaults, **settings})

    return make


@pytest.fixture
def engine(make_engine):
    return make_engine()
