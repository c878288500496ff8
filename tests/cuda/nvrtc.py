"""Compiles the kernels as the run-time does: NVRTC, for an architecture, by name.

`python -m tests.cuda.nvrtc [ARCHITECTURE ...]` compiles every instantiation and prints what each
needs of a GPU.
"""

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path

from tests.cuda.emulation.library import CUDA, kernels
from tests.cuda.instantiations import every_instance

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100", "sm_120")


def compile_cubin(
    source: Path, names: list[str], architecture: str
) -> tuple[bytes, list[str], str]:
    """Gives the machine code of instantiations, their symbols, and what the assembler said."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    for name in names:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    options = ["--std=c++17", f"--gpu-architecture={architecture}", f"-I{CUDA / 'include'}"]
    options += ["--ptxas-options=-v"]
    encoded = [option.encode() for option in options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    # NVRTC writes into it, and Python shares all bytes of length 1: an empty log must not be one.
    log = bytes(size + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode(errors="replace").rstrip("\0\n")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(text)
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


def _report(job: tuple[str, str]) -> str:
    architecture, name = job
    cubin, _, log = compile_cubin(source_of(name), [name], architecture)
    registers, spilled = (
        re.findall(pattern, log) for pattern in (r"Used (\d+)", r"(\d+) bytes spill")
    )
    figures = f"{registers[0]:>4} registers {spilled[0]:>5} bytes spilled {len(cubin):>7} bytes"
    return f"{architecture:<8} {figures}  {name}"


if __name__ == "__main__":
    jobs = list(product(sys.argv[1:] or ARCHITECTURES, every_instance()))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(_report, jobs):
            print(line, flush=True)
