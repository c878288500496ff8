"""Compiles kernels by NVRTC, in parallel, and keeps the machine code on disk.

No GPU is needed, nor nvcc: the compiler is a library (`pip install chairlift[cuda]`). What is kept
is named by a hash of all that it depends on, so that nothing on disk is ever stale.
"""

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import torch

from chairlift.errors import ConfigError
from chairlift.kernels.cuda import sources
from chairlift.machine import available_cores

ARCHITECTURES: Final = ("sm_80", "sm_90a", "sm_100", "sm_120")
"""What the kernels are compiled for where nobody says otherwise."""

STANDARD: Final = "c++17"

Progress = Callable[[int, int, str], None]
"""Called with the kernels that are done, how many there are, and the name of the last one."""


@dataclass(frozen=True, slots=True)
class Binary:
    """The machine code of one kernel for one architecture."""

    name: str
    """Its name expression."""
    symbol: bytes
    """What it is called inside."""
    cubin: Path


class Compiled(NamedTuple):
    """What the compiler made of a kernel."""

    code: bytes
    symbol: bytes
    log: str
    """Registers and spills, as the assembler tells them."""


def cache_folder() -> Path:
    """Gives the folder of compiled kernels."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "chairlift" / "kernels"


def build(
    names: Iterable[str],
    architecture: str,
    on_progress: Progress | None = None,
    folder: Path | None = None,
) -> dict[str, Binary]:
    """Gives the machine code of kernels, compiled now where it is not on disk.

    Args:
        names: Name expressions.
        architecture: Such as `sm_90a`.
        on_progress: Told of each kernel, from this thread.
        folder: Where machine code is kept; None is `cache_folder()`.

    Raises:
        ConfigError: The compiler is not installed, or a kernel does not compile.
    """
    wanted = list(names)
    place = cache_folder() if folder is None else folder
    # Whatever the machine code depends on beside its name.
    common = f"{sources.digest()} {STANDARD} {architecture} {_compiler_version()}"
    binaries: dict[str, Binary] = {}
    with ThreadPoolExecutor(max_workers=available_cores()) as pool:
        futures = [pool.submit(_binary, name, architecture, common, place) for name in wanted]
        for future in as_completed(futures):
            binary = future.result()
            binaries[binary.name] = binary
            if on_progress is not None:
                on_progress(len(binaries), len(wanted), binary.name)
    return binaries


def architecture_of(major: int, minor: int) -> str:
    """Gives the architecture that a GPU of a compute capability runs fastest."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def local_architectures() -> list[str]:
    """Gives the architectures of this machine's GPUs."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = (architecture_of(*torch.cuda.get_device_capability(i)) for i in range(count))
    return sorted(set(found))


def _binary(name: str, architecture: str, common: str, folder: Path) -> Binary:
    key = sha256(f"{common} {name}".encode()).hexdigest()[:32]
    cubin, about = folder / f"{key}.cubin", folder / f"{key}.json"
    if not about.exists():
        compiled = compile_kernel(name, architecture)
        _write(cubin, compiled.code)
        symbol = compiled.symbol.decode("ascii")
        note = {"name": name, "architecture": architecture, "symbol": symbol}
        # Last: who finds it finds the machine code too.
        _write(about, json.dumps(note).encode())
    noted = json.loads(about.read_bytes())
    return Binary(name, noted["symbol"].encode("ascii"), cubin)


def compile_kernel(name: str, architecture: str) -> Compiled:
    """Compiles a kernel, whatever is on disk.

    Raises:
        ConfigError: It does not compile; the message is the compiler's.
    """
    from cuda.core import Program, ProgramOptions

    source = sources.source_of(name)
    options = ProgramOptions(
        name=source.name,
        arch=architecture,
        std=STANDARD,
        include_path=str(sources.source_folder() / "include"),
        ptxas_options=["-v"],
    )
    log = io.StringIO()
    try:
        program = Program(source.read_text(encoding="utf-8"), "c++", options)
        compiled = program.compile("cubin", name_expressions=(name,), logs=log)
    except Exception as error:  # each library has its own
        message = f"kernel {name} for {architecture}: {error}"
        raise ConfigError(message) from error
    return Compiled(bytes(compiled.code), compiled.symbol_mapping[name], log.getvalue())


def _compiler_version() -> str:
    try:
        import cuda.core
        from cuda.bindings import nvrtc
    except ImportError as error:
        message = f"device: cuda needs `pip install chairlift[cuda]` ({error})"
        raise ConfigError(message) from error
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        message = f"device: cuda needs `pip install chairlift[cuda]`, and finds no NVRTC: {error}"
        raise ConfigError(message) from error
    return f"nvrtc {major}.{minor} ({int(status)}), cuda.core {cuda.core.__version__}"


def _write(path: Path, content: bytes) -> None:
    """Puts a whole file in its place: others may compile the same at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
