"""An accelerator whose kernels are emulated: the engine's whole path for a GPU, on the CPU."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch
from chairlift.engine.engine import Engine
from chairlift.engine.loading.load import load_model
from chairlift.kernels.cuda.launch import Argument, Grid, install
from torch.distributed.distributed_c10d import ProcessGroupGloo, Store

from tests.cuda import emulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chairlift.kernels.cuda.sources import ModelKernels

NUM_RESIDENT = 3
"""Blocks that run at once; a work list has to be walked by few."""


RANK_MODULE = "tests.cuda.emulated_rank"
"""Has the process of another rank."""


class EmulatedLauncher:
    """Gives each launch, on tensors of the CPU, to who runs it to its end."""

    def __init__(self, kernels: ModelKernels, give: Callable[[Callable[[], None]], None]) -> None:
        self._give = give
        self._library = emulation.build(kernels.names())

    def launch(
        self, name: str, grid: Grid, num_threads: int, shared_bytes: int, *arguments: Argument
    ) -> None:
        values = [a if a is None or isinstance(a, torch.Tensor) else a.value for a in arguments]
        self._give(lambda: self._library.launch(name, grid, num_threads, shared_bytes, values))

    def num_resident(self, name: str, num_threads: int, shared_bytes: int) -> int:
        return NUM_RESIDENT


@dataclass(frozen=True)
class Mark:
    """An event: so much was launched, on one of the two streams."""

    device: EmulatedDevice
    position: int
    is_on_side: bool

    def synchronize(self) -> None:
        if self.is_on_side:
            self.device.run_side_stream(self.position)


class EmulatedDevice:
    """A device that has done all work when it is given; recorded launches are run again.

    The side stream runs as late as can be: when an event of it is waited for. Without that wait it
    never runs, and a test fails.

    Attributes:
        side_stream_after: How many launches in order the side stream has waited for.
    """

    device = torch.device("cpu")

    def __init__(self, num_devices: int = 2) -> None:
        self.num_devices = num_devices
        self.num_replays = 0
        self.num_launches = 0
        self.side_stream_after = 0
        self.recording: EmulatedRecorder | None = None
        self._is_on_side = False
        self._side_stream: deque[Callable[[], None]] = deque()
        self._num_run_on_side = 0

    def load(self, kernels: ModelKernels, on_progress: object = None) -> None:
        install(self.device, EmulatedLauncher(kernels, self._give))

    def connect(
        self, store: Store, rank: int, num_ranks: int, timeout_s: float
    ) -> ProcessGroupGloo:
        """Meet by gloo: the same interface, with tensors of the CPU; its caller waits."""
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(interface="lo")]
        options._timeout = timedelta(seconds=timeout_s)
        return ProcessGroupGloo(store, rank, num_ranks, options)

    def _give(self, launch: Callable[[], None]) -> None:
        if self._is_on_side:
            self._side_stream.append(launch)
        else:
            self.num_launches += 1
            launch()

    def run_side_stream(self, position: int) -> None:
        """Run the side stream up to the launch with this number."""
        while self._num_run_on_side < position:
            self._side_stream.popleft()()
            self._num_run_on_side += 1

    def free_bytes(self) -> int:
        return 1 << 30

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def record(self) -> Mark:
        num_on_side = self._num_run_on_side + len(self._side_stream)
        position = num_on_side if self._is_on_side else self.num_launches
        return Mark(self, position, self._is_on_side)

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        self._is_on_side = True
        try:
            yield
        finally:
            self._is_on_side = False

    def wait_for(self, event: Mark) -> None:
        if self._is_on_side:
            self.side_stream_after = max(self.side_stream_after, event.position)
        else:
            event.synchronize()

    def recorder(self) -> EmulatedRecorder:
        if self.recording is not None:
            self.recording.is_closed = True
        self.recording = EmulatedRecorder(self)
        return self.recording


class EmulatedRecorder:
    """Recorded launches are run again; those of an earlier recorder are gone."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device
        self.is_closed = False

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        assert not self.is_closed, "a later recorder has taken its place"

        def replay() -> None:
            assert not self.is_closed, "what was recorded for a runner that is gone"
            self.device.num_replays += 1
            launches()

        return replay


class EmulatedEngine(Engine):
    """An engine on an emulated GPU."""

    def __init__(
        self,
        model: str | Path,
        accelerator: EmulatedDevice | None = None,
        rank_module: str = RANK_MODULE,
        **settings: object,
    ) -> None:
        self.accelerator = accelerator or EmulatedDevice()
        loader = partial(load_model, accelerator=self.accelerator, rank_module=rank_module)
        super().__init__(model, loader=loader, **settings)
