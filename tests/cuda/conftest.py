"""Where the kernels of these tests run (emulated, and on a GPU where there is one), and models."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cuda.emulation import launch, preload
from tests.cuda.emulation.library import compiler
from tests.cuda.instantiations import tested_instances

Launch = Callable[..., None]
Model = tuple[Path, torch.nn.Module]


def launch_emulated(name: str, *args: object) -> None:
    """Launch; at a kernel's first launch, all its tested instantiations are built at once."""
    kernel = name.partition("<")[0]
    preload(other for other in tested_instances() if other.partition("<")[0] == kernel)
    launch(name, *args)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def run(request: pytest.FixtureRequest) -> Launch:
    """Launch a kernel on tensors of the CPU: `run(name, grid, num_threads, bytes, args)`."""
    if request.param == "emulated":
        if compiler() is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)("needs g++")
        return launch_emulated
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    from tests.cuda.device import launch as launch_on_gpu

    return launch_on_gpu


@pytest.fixture
def nvrtc() -> None:
    """Skip where the compiler of the kernels is not installed."""
    if any(importlib.util.find_spec(part) is None for part in ("cuda", "cuda.core")):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs chairlift[cuda]")


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A folder, and the same model by `transformers`."""
    return _written(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """As `model`."""
    return _written("llama", tmp_path_factory)


def _written(name: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    # Tests of kernels alone do without `transformers`.
    from tests.cuda.small_models import MODELS, write

    folder = tmp_path_factory.mktemp(name)
    return folder, write(folder, MODELS[name])
