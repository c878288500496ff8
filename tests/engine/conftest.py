from types import SimpleNamespace

import pytest
from chairlift.api.config import Dtype
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.cpu_int8 import Int8CpuBackend
from chairlift.engine.engine import Engine
from chairlift.engine.transfer import imports
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import kv_bytes_per_block

from tests.engine import tiny_model
from tests.engine.drive import Clock


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The tiny model: its folder and the reference."""
    folder = tmp_path_factory.mktemp("tiny")
    return SimpleNamespace(folder=folder, reference=tiny_model.write(folder))


@pytest.fixture(scope="session")
def kv_blocks(tiny):
    """Return the bytes of a number of KV blocks of a model."""

    def size(num_blocks, folder=tiny.folder, dtype=Dtype.AUTO, kv="auto"):
        model = ModelConfig.load(folder, dtype)
        backend = CpuBackend() if kv == "auto" else Int8CpuBackend(model.dtype)
        return (num_blocks + 1) * kv_bytes_per_block(model, backend, 16)

    return size


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory):
    """Return the folder of a small model of a family, which is written once."""
    folders = {}

    def of(family):
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp("family")
            tiny_model.write_family(folders[family], family)
        return folders[family]

    return of


@pytest.fixture
def transfers_anything(monkeypatch):
    """Small models have short prompts, and compute each in less time than a call takes."""
    monkeypatch.setattr(imports, "MIN_TOKENS", 16)
    monkeypatch.setattr(imports, "MIN_SAVED_NS", 0)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_engine(tiny, clock):
    """Build engines with a clock that stands until it is moved, and without drafts."""

    def make(folder=tiny.folder, **settings):
        defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "drafts": "off"}
        return Engine(folder, clock=clock, **{**defaults, **settings})

    return make


@pytest.fixture
def engine(make_engine):
    return make_engine()
