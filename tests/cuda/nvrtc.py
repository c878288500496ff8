"""Compiles the kernels as the run-time does: NVRTC, for an architecture, by name."""

from functools import cache
from pathlib import Path

import pytest

from tests.cuda.emulation.library import CUDA, kernels

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100", "sm_120")


def compile_cubin(source: Path, names: list[str], architecture: str) -> tuple[bytes, list[str], str]:
    """Gives the machine code of instantiations, their symbols, and what the assembler said."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs torch's CUDA packages")
    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    for name in names:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    options = ["--std=c++17", f"--gpu-architecture={architecture}", f"-I{CUDA / 'include'}"]
    options += ["--ptxas-options=-v", "-DNDEBUG"]
    encoded = [option.encode() for option in options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    # NVRTC writes into it, and Python shares all bytes of length 1: an empty log must not be one.
    log = bytes(size + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode(errors="replace").rstrip("\0\n")
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, text
    symbols = [nvrtc.nvrtcGetLoweredName(program, name.encode())[1].decode() for name in names]
    _, num_bytes = nvrtc.nvrtcGetCUBINSize(program)
    cubin = bytes(num_bytes)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return cubin, symbols, text


@cache
def source_of(name: str) -> Path:
    """The file that holds the kernel of an instantiation."""
    return kernels()[name.removeprefix("chairlift::").partition("<")[0]]
