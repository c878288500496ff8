"""Runs the CUDA kernels on the CPU: `launch` has the shape of a launch on a GPU.

The sources under `cuda/` are compiled by g++ against the headers here, the wanted instantiations
into one library, which is kept under `target/emulation` until a source or a name changes.
"""

from tests.cuda.emulation.library import (
    EmulationError,
    Library,
    build,
    launch,
    preload,
    reversed_turns,
)
from tests.cuda.emulation.memory import guarded

__all__ = [
    "EmulationError",
    "Library",
    "build",
    "guarded",
    "launch",
    "preload",
    "reversed_turns",
]
