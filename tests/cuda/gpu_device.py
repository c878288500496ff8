"""The engine of these tests on this machine's GPU: `CHAIRLIFT_TEST_DEVICE=cuda`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from chairlift.engine.engine import Engine
from chairlift.engine.loading.load import load_model
from chairlift.kernels.cuda.device import CudaDevice, CudaRecorder

ON_GPU = os.environ.get("CHAIRLIFT_TEST_DEVICE") == "cuda"
"""Whether small models run on the GPU, in place of the emulation."""

needs_emulation = pytest.mark.skipif(ON_GPU, reason="looks into the emulated device")


class CountingRecorder(CudaRecorder):
    """Counts replays on its device."""

    def __init__(self, recorder: CudaRecorder, device: CountingDevice) -> None:
        self.__dict__.update(recorder.__dict__)
        self._counted = device

    @property
    def is_closed(self) -> bool:
        return not self._graphs

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        replay = super().capture(launches)

        def counted() -> None:
            self._counted.num_replays += 1
            replay()

        return counted


class CountingDevice(CudaDevice):
    """A GPU that counts what it replays."""

    def __init__(self) -> None:
        super().__init__()
        self.num_replays = 0
        self.recording: CountingRecorder | None = None

    def recorder(self) -> CountingRecorder:
        recorder = super().recorder()
        assert isinstance(recorder, CudaRecorder)
        self.recording = CountingRecorder(recorder, self)
        self._recorder = self.recording
        return self.recording


class GpuEngine(Engine):
    """An engine on the GPU."""

    def __init__(self, model: str | Path, **settings: object) -> None:
        self.accelerator = CountingDevice()
        loader = partial(load_model, accelerator=self.accelerator)
        super().__init__(model, loader=loader, **settings)
        torch.cuda.synchronize()
