"""Holds the libraries of a peer to AVX2, whose kernels are chosen by what CPUID says.

An environment is copied (by links), and CPUID in its libraries is replaced by UD2, an instruction
of the same length that raises SIGILL. `mask_cpuid.c` handles the signal: it says what a processor
without AVX-512, AMX and VNNI says.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.processes import PeerError, call

HERE = Path(__file__).parent
CPUID = b"\x0f\xa2"
UD2 = b"\x0f\x0b"
_LINE = re.compile(r"^ *([0-9a-f]+):\t0f a2 +\tcpuid")
_SECTION = re.compile(r"^ *\d+ (\S+) +([0-9a-f]+) +([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+) ")


def held_environment(environment: Path) -> Path:
    """Return a copy of an environment whose libraries are held to AVX2, made once.

    Raises:
        PeerError: There is no C compiler or no disassembler.
    """
    held = environment.with_name(f"{environment.name}-avx2")
    if held.exists():
        return held
    partial = environment.with_name(f"{held.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(environment, partial, symlinks=True, copy_function=os.link)
    for library in partial.rglob("openvino/libs/*.so*"):
        hold(library)
    make_preloaded(partial)
    partial.rename(held)
    return held


def preloaded(environment: Path) -> Path:
    """Return the library that answers in the place of CPUID."""
    return environment / "mask_cpuid.so"


def make_preloaded(folder: Path) -> Path:
    """Compile the library that answers in the place of CPUID.

    Raises:
        PeerError: There is no C compiler.
    """
    library = preloaded(folder)
    call(["cc", "-O2", "-shared", "-fPIC", HERE / "mask_cpuid.c", "-o", library])
    return library


def hold(library: Path) -> None:
    """Replace CPUID in a library.

    Raises:
        PeerError: It cannot be disassembled.
    """
    contents = bytearray(library.read_bytes())
    if CPUID not in contents:
        return
    for place in _places(library):
        if contents[place : place + 2] != CPUID:
            message = f"{library}: expected CPUID at {place:#x}"
            raise PeerError(message)
        contents[place : place + 2] = UD2
    # A file of its own: the environment keeps the other.
    mode = library.stat().st_mode
    library.unlink()
    library.write_bytes(contents)
    library.chmod(mode)


def _places(library: Path) -> Iterator[int]:
    """Yield where in the file of a library CPUID stands."""
    headers = call(["objdump", "--section-headers", library])
    sections = [match.groups() for line in headers.splitlines() if (match := _SECTION.match(line))]
    bounds = [(int(at, 16), int(size, 16), int(offset, 16)) for _, size, at, offset in sections]
    command: list[str | Path] = ["objdump", "--disassemble", library]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as disassembly:
        for line in disassembly.stdout or ():
            if match := _LINE.match(line):
                address = int(match[1], 16)
                first, _, offset = next(b for b in bounds if b[0] <= address < b[0] + b[1])
                yield address - first + offset
