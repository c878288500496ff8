"""Compiles kernels by NVRTC, in parallel, and keeps the machine code on disk.

Neither a GPU nor nvcc is needed: the compiler is a library (`pip install chairlift[cuda]`). A file
is named by a hash of everything that it depends on, so that no file on disk is ever stale.
"""

import io
import json
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import torch

from chairlift.api.errors import ConfigError
from chairlift.api.home import cache_folder
from chairlift.api.machine import available_cores
from chairlift.kernels.cuda import sources

ARCHITECTURES: Final = ("sm_80", "sm_90a", "sm_100", "sm_120")
"""The architectures that kernels are compiled for by default."""

OPTIONS: Final = {"std": "c++17", "ptxas_options": ["-v"]}
"""Options of the compiler, beside the architecture and the folder of headers."""

OnKernelBuilt = Callable[[int, int, str], None]
"""Called with the kernels that are done, how many there are, and the name of the last one."""


@dataclass(frozen=True, slots=True)
class Binary:
    """The machine code of one kernel for one architecture."""

    name: str
    """Its name expression."""
    symbol: bytes
    """Its symbol in the machine code."""
    cubin: Path


class Compiled(NamedTuple):
    """The output of the compiler for a kernel."""

    code: bytes
    symbol: bytes
    log: str
    """Registers and spills, as the assembler reports them."""


def kernel_folder() -> Path:
    """Return the folder of compiled kernels.

    Raises:
        ConfigError: This user has no cache.
    """
    try:
        return cache_folder("kernels")
    except OSError as error:
        raise _not_kept(error) from error


def _not_kept(error: OSError) -> ConfigError:
    return ConfigError(f"compiled kernels: {error} (XDG_CACHE_HOME names another folder)")


def build(
    names: Iterable[str],
    architecture: str,
    on_progress: OnKernelBuilt | None = None,
    folder: Path | None = None,
) -> dict[str, Binary]:
    """Return the machine code of kernels, compiled now where it is not on disk.

    Args:
        names: Name expressions.
        architecture: Such as `sm_90a`.
        on_progress: Called for each kernel, on this thread.
        folder: Where machine code is kept; None is `kernel_folder()`.

    Raises:
        ConfigError: The compiler is not installed, a kernel does not compile, or the folder cannot
            be read and written.
    """
    wanted = list(names)
    place = kernel_folder() if folder is None else folder
    # Everything that the machine code depends on beside its name.
    options = json.dumps(OPTIONS, sort_keys=True)
    common = f"{sources.digest()} {options} {architecture} {_compiler_name()}"
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
    """Return the architecture that a GPU of a compute capability runs fastest."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def local_architectures() -> list[str]:
    """Return the architectures of this machine's GPUs."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = (architecture_of(*torch.cuda.get_device_capability(i)) for i in range(count))
    return sorted(set(found))


def _binary(name: str, architecture: str, common: str, folder: Path) -> Binary:
    key = sha256(f"{common} {name}".encode()).hexdigest()[:32]
    cubin, about = folder / f"{key}.cubin", folder / f"{key}.json"
    try:
        symbol = _kept_symbol(cubin, about)
        if symbol is None:
            compiled = compile_kernel(name, architecture)
            symbol = compiled.symbol.decode("ascii")
            note = {"name": name, "architecture": architecture, "symbol": symbol}
            _write(cubin, compiled.code)
            _write(about, json.dumps({**note, "sha256": _sum(compiled.code)}).encode())
    except OSError as error:
        raise _not_kept(error) from error
    return Binary(name, symbol.encode("ascii"), cubin)


def _kept_symbol(cubin: Path, about: Path) -> str | None:
    """Return the symbol of machine code that is on disk, whole; None where it is to be compiled."""
    try:
        note, code = json.loads(about.read_bytes()), cubin.read_bytes()
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(note, dict) or note.get("sha256") != _sum(code):
        return None
    symbol = note.get("symbol")
    return symbol if isinstance(symbol, str) and symbol.isascii() else None


def _sum(code: bytes) -> str:
    return sha256(code).hexdigest()


def compile_kernel(name: str, architecture: str) -> Compiled:
    """Compile a kernel, whatever is on disk.

    Raises:
        ConfigError: It does not compile; the message is the compiler's.
    """
    from cuda.core import Program, ProgramOptions

    source = sources.source_of(name)
    options = ProgramOptions(
        name=source.name,
        arch=architecture,
        include_path=str(sources.source_folder() / "include"),
        **OPTIONS,
    )
    log = io.StringIO()
    try:
        program = Program(source.read_text(encoding="utf-8"), "c++", options)
        compiled = program.compile("cubin", name_expressions=(name,), logs=log)
    except Exception as error:  # each library has its own
        message = f"kernel {name} for {architecture}: {error}"
        raise ConfigError(message) from error
    return Compiled(bytes(compiled.code), compiled.symbol_mapping[name], log.getvalue())


def compiler_version() -> tuple[int, int]:
    """Return the version of CUDA that NVRTC compiles for.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import cuda.core  # noqa: F401
        from cuda.bindings import nvrtc
    except ImportError as error:
        message = f"device: cuda needs `pip install chairlift[cuda]` ({error})"
        raise ConfigError(message) from error
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        message = f"device: cuda needs `pip install chairlift[cuda]`, and finds no NVRTC: {error}"
        raise ConfigError(message) from error
    return int(major), int(minor)


def unknown_architecture(major: int, minor: int) -> str | None:
    """Return why NVRTC cannot compile for a GPU of a compute capability; None if it can."""
    from cuda.bindings import nvrtc

    _, known = nvrtc.nvrtcGetSupportedArchs()
    if 10 * major + minor in known:
        return None
    return (
        f"device: expected a GPU that this NVRTC knows (compute capability up to"
        f" {max(known) / 10:.1f}), got {major}.{minor}"
    )


def _compiler_name() -> str:
    version = compiler_version()
    import cuda.core

    return f"nvrtc {version}, cuda.core {cuda.core.__version__}"


def _write(path: Path, content: bytes) -> None:
    """Put a whole file in its place: others may compile the same at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        unfinished = Path(file.name)
        try:
            file.write(content)
            file.flush()
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
