"""A device as the engine uses it beside its kernels: memory, streams, and recorded launches."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from chairlift.kernels.cuda.build import OnKernelBuilt, architecture_of, build
from chairlift.kernels.cuda.launch import CudaLauncher, cuda_launcher
from chairlift.kernels.cuda.sources import ModelKernels

_NCCL_SETTINGS: Final = {
    # Ranks of one machine meet on the loopback interface, which no other machine reaches.
    "NCCL_SOCKET_IFNAME": "lo",
    # PyTorch's own watches end the process where a rank is lost; the engine goes on.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""The environment of NCCL, where the user has set nothing else."""


class Event(Protocol):
    """A point in the sequence of a device's launches."""

    def synchronize(self) -> None:
        """Wait until the device has reached it."""


class Recorder(Protocol):
    """Records launches; all its recordings share memory, so that only one runs at a time."""

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        """Record launches; return a function that replays all at once, on the same memory."""


class Collectives(Protocol):
    """What the devices of several processes do together: a backend of `torch.distributed`."""

    def _allgather_base(self, output: Tensor, part: Tensor, /) -> Any:  # noqa: ANN401, a `Work`
        """Write the parts `[N]` of all processes to `output` `[num_ranks * N]`, in order."""

    def abort(self) -> None:
        """End what waits for others; it may return late."""


class Accelerator(Protocol):
    """A device that runs launches beside the thread that makes them, in their order.

    Launches on the `side_stream` run in an order of their own; events tie the two together:

        in order      | a ··· | record | b ···················· | wait_for | c ···
        side stream           | wait_for | copies ····· | record |
    """

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""

    @property
    def num_devices(self) -> int:
        """Return how many such devices the machine has."""

    def connect(self, store: Store, rank: int, num_ranks: int, timeout_s: float) -> Collectives:
        """Begin to meet the devices of other processes; the first operation may wait for all.

        Args:
            store: Where they find one another.
            rank: Number of this process.
            num_ranks: How many there are.
            timeout_s: How long an operation takes at most, where there is a bound: a device that
                works beside its caller has none.
        """

    def load(self, kernels: ModelKernels, on_progress: OnKernelBuilt | None = None) -> None:
        """Make the kernels of a model ready to launch."""

    def free_bytes(self) -> int:
        """Return the bytes of memory that a model may use."""

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate zeros of a shape on the host, for asynchronous copies to and from the device."""

    def record(self) -> Event:
        """Mark the end of the launches so far; inside `side_stream`, of those there alone."""

    def side_stream(self) -> AbstractContextManager[object]:
        """Run the launches inside beside those outside, before or after."""

    def wait_for(self, event: Event) -> None:
        """Let later launches wait for an event; inside `side_stream`, those there alone.

        The device waits, not its caller.
        """

    def recorder(self) -> Recorder:
        """Begin to record launches anew; earlier recordings are dropped, and must not run.

        Raises:
            RuntimeError: An earlier launch has failed.
        """


def pinned_bytes(num_bytes: int) -> int:
    """Return what PyTorch allocates for so many bytes of pinned memory: the next power of two."""
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


class CudaDevice:
    """A GPU."""

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        self._recorder: CudaRecorder | None = None
        # PyTorch's streams do not wait for the default stream by themselves.
        self._side: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    @property
    def num_devices(self) -> int:
        """Return how many GPUs PyTorch finds."""
        return torch.cuda.device_count()

    def connect(self, store: Store, rank: int, num_ranks: int, timeout_s: float) -> Collectives:
        """Begin to meet by NCCL; see `Accelerator.connect`."""
        from torch.distributed.distributed_c10d import ProcessGroupNCCL

        for name, value in _NCCL_SETTINGS.items():
            os.environ.setdefault(name, value)
        # It is of the thread, and NCCL takes the current one.
        torch.cuda.set_device(self.device)
        backend: Any = ProcessGroupNCCL  # its stubs know no timeout
        collectives: Collectives = backend(store, rank, num_ranks, timedelta(seconds=timeout_s))
        return collectives

    def load(self, kernels: ModelKernels, on_progress: OnKernelBuilt | None = None) -> None:
        """Compile what is not on disk, and load it.

        Raises:
            ConfigError: The compiler is not installed, or a kernel does not compile.
        """
        architecture = architecture_of(*torch.cuda.get_device_capability(self.device))
        binaries = build(kernels.names(), architecture, on_progress)
        cuda_launcher(self.device).add(binaries.values())

    def free_bytes(self) -> int:
        """Return the free memory that the driver reports."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate zeros of a shape in pinned memory, which takes `pinned_bytes`."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def record(self) -> Event:
        """Record an event on the current stream."""
        event: Event = torch.cuda.current_stream(self.device).record_event()
        return event

    def side_stream(self) -> AbstractContextManager[object]:
        """Make a second stream the current one."""
        return torch.cuda.stream(self._side)

    def wait_for(self, event: Event) -> None:
        """Let the current stream wait for an event."""
        stream: Any = torch.cuda.current_stream(self.device)
        stream.wait_event(event)

    def recorder(self) -> Recorder:
        """Free the graphs of an earlier runner, and begin anew; see `Accelerator.recorder`."""
        torch.cuda.synchronize(self.device)
        if self._recorder is not None:
            self._recorder.close()
        gc.collect()  # what an earlier runner still holds of the device
        self._recorder = CudaRecorder(self.device, cuda_launcher(self.device))
        return self._recorder


class CudaRecorder:
    """CUDA graphs of one runner, with a pool of memory and a stream of their own.

    cuBLAS keeps a workspace for each stream. The first capture takes it from the pool, and the
    others find it there; the end of a graph frees the workspaces of its stream. So no graph of
    another runner may be captured on this stream or use this pool.
    """

    def __init__(self, device: torch.device, launcher: CudaLauncher) -> None:
        self._device = device
        # The kernels of a graph must outlive it.
        self._launcher = launcher
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        """Capture a CUDA graph; run the launches once before, since the first run allocates."""
        launches()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with (
            _no_collection(),
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
        ):
            launches()
        self._graphs.append(graph)

        def replay() -> None:
            assert self._graphs, "what was recorded for a runner that is gone must not run"
            graph.replay()

        return replay

    def close(self) -> None:
        """Free the graphs; none of them may be running."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage inside: freeing memory of the device amid a capture ends the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
