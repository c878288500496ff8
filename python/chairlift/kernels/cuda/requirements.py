"""The requirements of the CUDA kernels, checked before a model is read."""

from typing import Final, NamedTuple

import torch

from chairlift.api.errors import ConfigError
from chairlift.kernels.cuda.build import compiler_version, unknown_architecture

CAPABILITY: Final = (8, 0)
"""The oldest with `cp.async` and bfloat16, which `cuda/include/chairlift/mma.cuh` uses."""

DRIVERS: Final = {13: 580}
"""The oldest driver, on Linux, for machine code of a major version of CUDA."""


class Gpu(NamedTuple):
    """A GPU as its driver describes it, and the compiler of its kernels."""

    capability: tuple[int, int]
    """Compute capability, major and minor."""
    driver: tuple[int, int] = (0, 0)
    """The newest CUDA that the driver supports, major and minor."""
    compiler: tuple[int, int] = (0, 0)
    """The CUDA that kernels are compiled for."""
    compiler_problem: str | None = None
    """Why kernels cannot be compiled for it; None if they can."""


def installed_gpu() -> Gpu | None:
    """Return the first GPU of this machine; None where PyTorch finds none."""
    if not torch.cuda.is_available():
        return None
    capability = torch.cuda.get_device_capability(0)
    try:
        compiler = compiler_version()
    except ConfigError as error:
        return Gpu(capability, compiler_problem=str(error))
    return Gpu(capability, _driver_version(), compiler, unknown_architecture(*capability))


def machine_unsupported_reason(gpu: Gpu | None) -> str | None:
    """Return why kernels cannot run on a GPU and what to do, in one line; None if they can."""
    if gpu is None:
        return "device: expected cpu or auto on a machine without a GPU for PyTorch, got cuda"
    if gpu.capability < CAPABILITY:
        return (
            f"device: expected a GPU of compute capability {_dotted(CAPABILITY)} or newer, got"
            f" {_dotted(gpu.capability)}"
        )
    if gpu.compiler_problem is not None:
        return gpu.compiler_problem
    needed = gpu.compiler[0]
    if gpu.driver[0] < needed:
        named = f", which is {DRIVERS[needed]} or newer" if needed in DRIVERS else ""
        return (
            f"device: expected a driver of CUDA {needed} or newer{named}, got one of CUDA"
            f" {_dotted(gpu.driver)}: update the driver"
        )
    return None


def _driver_version() -> tuple[int, int]:
    from cuda.bindings import driver

    _, version = driver.cuDriverGetVersion()
    return divmod(int(version) // 10, 100)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
