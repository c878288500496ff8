"""An accelerator whose kernels are emulated: the engine's whole path for a GPU, on the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from chairlift.engine.engine import Engine
from chairlift.engine.loading import LoadedModel, load_model
from chairlift.kernels.cuda.launch import Argument, Grid, install

from tests.cuda import emulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from chairlift.kernels.cuda.sources import ModelKernels

NUM_RESIDENT = 3
"""Blocks that run at once; a work list has to be walked by few."""


class EmulatedLauncher:
    """Runs each launch to its end, on tensors of the CPU."""

    def __init__(self, kernels: ModelKernels) -> None:
        names = kernels.names()
        with ThreadPoolExecutor() as pool:
            libraries = pool.map(lambda name: emulation.build([name]), names)
            self._libraries = dict(zip(names, libraries, strict=True))

    def launch(
        self, name: str, grid: Grid, num_threads: int, shared_bytes: int, *arguments: Argument
    ) -> None:
        values = [a if a is None or isinstance(a, torch.Tensor) else a.value for a in arguments]
        self._libraries[name].launch(name, grid, num_threads, shared_bytes, values)

    def num_resident(self, name: str, num_threads: int, shared_bytes: int) -> int:
        return NUM_RESIDENT


class Done:
    def synchronize(self) -> None:
        """Waits for nothing: the work is done."""


class EmulatedDevice:
    """A device that has done all work when it is given; recorded launches are run again."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.num_replays = 0

    def load(self, kernels: ModelKernels, on_progress: object = None) -> None:
        install(self.device, EmulatedLauncher(kernels))

    def free_bytes(self) -> int:
        return 1 << 30

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def record(self) -> Done:
        return Done()

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.num_replays += 1
            launches()

        return replay


class EmulatedEngine(Engine):
    """An engine on an emulated GPU."""

    def load_model(self, model, config, on_progress) -> LoadedModel:
        self.accelerator = EmulatedDevice()
        return load_model(model, config, on_progress, self.accelerator)
