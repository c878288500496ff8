"""How a compiled kernel is started: on a GPU, or by a launcher that replaces it in tests.

There is one interface with two launchers, so that all code above it runs in tests on a machine
without a GPU: `CudaLauncher` here, and the emulation of `tests/cuda`, which executes the same
sources on the CPU.
"""

import ctypes
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from chairlift.kernels.cuda.build import Binary

Argument = Tensor | None | ctypes.c_int | ctypes.c_longlong | ctypes.c_float
"""A pointer (None is null) or a number, of the type that the kernel declares."""

Grid = tuple[int, int, int]


class Launcher(Protocol):
    """Starts kernels on one device."""

    def launch(
        self, name: str, grid: Grid, num_threads: int, shared_bytes: int, *arguments: Argument
    ) -> None:
        """Start a kernel after those started before, without waiting for it.

        Args:
            name: Name expression of the kernel.
            grid: Blocks.
            num_threads: Threads of a block.
            shared_bytes: Dynamic shared memory of a block.
            arguments: The arguments, in the order in which the kernel declares them.
        """

    def num_resident(self, name: str, num_threads: int, shared_bytes: int) -> int:
        """Return how many blocks of a kernel the device runs at once."""


SHARED_BYTES: Final = 48 << 10
"""Shared memory that every kernel may use; for more of it a limit of the kernel must be raised."""

_launchers: Final[dict[str, Launcher]] = {}
_lock: Final = threading.Lock()


def install(device: torch.device, launcher: Launcher) -> None:
    """Set the launcher for the tensors of a device."""
    _launchers[str(device)] = launcher


def launcher_of(tensor: Tensor) -> Launcher:
    """Return the launcher of the device that holds a tensor of any shape.

    Raises:
        RuntimeError: It has none.
    """
    launcher = _launchers.get(str(tensor.device))
    if launcher is None:
        message = f"no CUDA kernels are loaded for device {tensor.device}"
        raise RuntimeError(message)
    return launcher


class LoadedKernels:
    """The kernels that are loaded on a device: each model adds some, and none is unloaded.

    A captured graph launches a kernel again by its address, so a kernel that was loaded once stays
    for as long as the process lives.
    """

    def __init__(self, load: Callable[[Binary], Any], allow: Callable[[Any, int], None]) -> None:
        """Start with no kernels.

        Args:
            load: Returns the kernel of a binary.
            allow: Lets a kernel use so many bytes of shared memory; a later call replaces it.
        """
        self._load = load
        self._allow = allow
        self._lock = threading.Lock()
        self._kernels: dict[str, Any] = {}
        self._allowed: dict[str, int] = {}

    def add(self, binaries: Iterable[Binary]) -> None:
        """Load the kernels that are not loaded yet."""
        with self._lock:
            for binary in binaries:
                if binary.name not in self._kernels:
                    self._kernels[binary.name] = self._load(binary)

    def get(self, name: str, shared_bytes: int) -> Any:  # noqa: ANN401, cuda.core is optional
        """Return a kernel that may use so many bytes of shared memory, or more.

        The limit belongs to the kernel, which launches of several sizes share: it only rises.
        """
        kernel = self._kernels[name]
        if shared_bytes > self._allowed.get(name, SHARED_BYTES):
            with self._lock:
                if shared_bytes > self._allowed.get(name, SHARED_BYTES):
                    self._allow(kernel, shared_bytes)
                    self._allowed[name] = shared_bytes
        return kernel


class CudaLauncher:
    """Starts kernels on a GPU, on the current stream of PyTorch."""

    def __init__(self, device: torch.device) -> None:
        """Make a launcher that has no kernels yet.

        Args:
            device: A device of type `cuda`, with an index.
        """
        from cuda.core import Device

        self._device = device
        self._cuda_device = Device(device.index)
        self._cuda_device.set_current()
        self._threads = threading.local()
        self._modules: list[Any] = []
        self._kernels = LoadedKernels(self._load, self._allow_shared_bytes)
        self._streams: dict[int, Any] = {}
        self._num_resident: dict[tuple[str, int, int], int] = {}
        self._num_processors: int = torch.cuda.get_device_properties(device).multi_processor_count

    def add(self, binaries: Iterable[Binary]) -> None:
        """Load the machine code that is not loaded yet."""
        self._enter()
        self._kernels.add(binaries)

    def launch(
        self, name: str, grid: Grid, num_threads: int, shared_bytes: int, *arguments: Argument
    ) -> None:
        """Start a kernel on the current stream; see `Launcher.launch`."""
        from cuda.core import LaunchConfig, launch

        self._enter()
        kernel = self._kernels.get(name, shared_bytes)
        config = LaunchConfig(grid=grid, block=num_threads, shmem_size=shared_bytes)
        # A plain int is a pointer.
        values = (
            a.data_ptr() if isinstance(a, Tensor) else 0 if a is None else a for a in arguments
        )
        launch(self._stream(), config, kernel, *values)

    def _stream(self) -> Any:  # noqa: ANN401, cuda.core is optional
        """Return PyTorch's current stream as `cuda.core` has it; PyTorch destroys no stream."""
        handle = torch.cuda.current_stream(self._device).cuda_stream
        stream = self._streams.get(handle)
        if stream is None:
            from cuda.core import Stream

            stream = self._streams[handle] = Stream.from_handle(handle)
        return stream

    def num_resident(self, name: str, num_threads: int, shared_bytes: int) -> int:
        """Return the resident blocks of all processors; see `Launcher.num_resident`."""
        key = name, num_threads, shared_bytes
        if key not in self._num_resident:
            self._enter()
            occupancy = self._kernels.get(name, shared_bytes).occupancy
            blocks = occupancy.max_active_blocks_per_multiprocessor(num_threads, shared_bytes)
            self._num_resident[key] = self._num_processors * max(1, int(blocks))
        return self._num_resident[key]

    def _enter(self) -> None:
        """The device is current for each thread by itself."""
        if not getattr(self._threads, "entered", False):
            self._cuda_device.set_current()
            self._threads.entered = True

    def _load(self, binary: Binary) -> Any:  # noqa: ANN401, cuda.core is optional
        from cuda.core import ObjectCode

        code = binary.cubin.read_bytes()
        module = ObjectCode.from_cubin(code, symbol_mapping={binary.name: binary.symbol})
        # A module must outlive its kernels.
        self._modules.append(module)
        return module.get_kernel(binary.name)

    def _allow_shared_bytes(self, kernel: Any, shared_bytes: int) -> None:  # noqa: ANN401
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        status, *_ = driver.cuKernelSetAttribute(
            attribute, shared_bytes, kernel.handle, driver.CUdevice(self._device.index)
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            message = f"{shared_bytes} bytes of shared memory: {status!r}"
            raise RuntimeError(message)


def cuda_launcher(device: torch.device) -> CudaLauncher:
    """Return the launcher of a GPU, which all models of the process share."""
    with _lock:
        launcher = _launchers.get(str(device))
        if not isinstance(launcher, CudaLauncher):
            launcher = CudaLauncher(device)
            install(device, launcher)
        return launcher
