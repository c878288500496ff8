"""What the engine needs of a device beside its kernels: memory, order, and recorded launches."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from chairlift.kernels.cuda.build import Progress, architecture_of, build
from chairlift.kernels.cuda.launch import CudaLauncher, install
from chairlift.kernels.cuda.sources import ModelKernels


class Event(Protocol):
    """A point in the work that was given to a device."""

    def synchronize(self) -> None:
        """Waits until the device has come to it."""


class Accelerator(Protocol):
    """A device that works beside the thread that feeds it, in the order in which it is fed.

    What it is given `aside` it does in an order of its own; events tie the two together:

        in order   | a ··· | record | b ···················· | wait_for | c ···
        aside              | wait_for | copies ····· | record |
    """

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""

    def load(self, kernels: ModelKernels, on_progress: Progress | None = None) -> None:
        """Makes the kernels of a model ready to launch."""

    def free_bytes(self) -> int:
        """Gives how much memory a model may take."""

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocates zeros on the host that are copied to and from the device beside its work."""

    def record(self) -> Event:
        """Marks the end of what was given to the device so far; inside `aside`, of that alone."""

    def aside(self) -> AbstractContextManager[object]:
        """What is given inside is done beside what is given outside, before or after."""

    def wait_for(self, event: Event) -> None:
        """What is given from now on is done after an event; inside `aside`, of that alone.

        The device waits, not its caller.
        """

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        """Records launches; gives what does all of them again, on the same memory, at once."""


def pinned_bytes(num_bytes: int) -> int:
    """Gives what PyTorch allocates for so many bytes of pinned memory: the next power of two."""
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


class CudaDevice:
    """A GPU."""

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        self._pool: Any = None
        # PyTorch's streams do not wait for the default stream by themselves.
        self._side: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def load(self, kernels: ModelKernels, on_progress: Progress | None = None) -> None:
        """Compiles what is not on disk, and loads it.

        Raises:
            ConfigError: The compiler is not installed, or a kernel does not compile.
        """
        architecture = architecture_of(*torch.cuda.get_device_capability(self.device))
        binaries = build(kernels.names(), architecture, on_progress)
        install(self.device, CudaLauncher(binaries, self.device))

    def free_bytes(self) -> int:
        """As the driver tells."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocates pinned memory; it takes `pinned_bytes`."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def record(self) -> Event:
        """Records an event on the current stream."""
        event: Event = torch.cuda.current_stream(self.device).record_event()
        return event

    def aside(self) -> AbstractContextManager[object]:
        """Makes a second stream the current one."""
        return torch.cuda.stream(self._side)

    def wait_for(self, event: Event) -> None:
        """Lets the current stream wait for an event."""
        stream: Any = torch.cuda.current_stream(self.device)
        stream.wait_event(event)

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        """Captures a CUDA graph; runs the launches once before, for what they do the first time."""
        launches()
        torch.cuda.synchronize(self.device)
        # Launches allocate nothing that outlives them: what libraries take is shared.
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            launches()
        return graph.replay
