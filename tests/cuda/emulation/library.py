"""Builds the emulated kernels and launches them."""

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CUDA = ROOT / "cuda"
BUILD = ROOT / "target" / "emulation"
FLAGS = ["-std=c++20", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ["-fno-strict-aliasing", "-fvisibility=hidden", "-fno-gnu-unique"]
FLAGS += ["-DCHAIRLIFT_EMULATION"]
_KERNEL = re.compile(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(")

Argument = Tensor | int | float | None


class EmulationError(RuntimeError):
    """A kernel did what no kernel may: the message says which thread, and what."""


class Library:
    """Instantiations of kernels in one shared library."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for function in ("chairlift_error", "chairlift_signature"):
            getattr(self._library, function).restype = ctypes.c_char_p

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        num_threads: int,
        shared_bytes: int,
        args: Sequence[Argument],
    ) -> None:
        """Run a kernel to its end.

        Args:
            name: Of the instantiation, such as `chairlift::activate<float>`.
            grid: One to three numbers of blocks.
            num_threads: Of a block.
            shared_bytes: Of dynamic shared memory.
            args: Tensors for pointers, None for null, numbers as the signature has them.

        Raises:
            EmulationError: The kernel broke a rule of the machine.
            TypeError: The arguments are not those of the kernel.
        """
        letters = self.signature(name)
        if len(letters) != len(args):
            message = f"{name} takes {len(letters)} arguments, not {len(args)}"
            raise TypeError(message)
        values = [_value(*pair) for pair in zip(letters, args, strict=True)]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        blocks = (ctypes.c_int * 3)(*grid, *[1] * (3 - len(grid)))
        if self._library.chairlift_launch(
            name.encode(), blocks, num_threads, shared_bytes, pointers
        ):
            message = f"{name}: {self._library.chairlift_error().decode()}"
            raise EmulationError(message)

    def signature(self, name: str) -> str:
        """A letter per argument: `p`ointer, `i`nt, `l`ong long, `f`loat.

        Raises:
            KeyError: The library has no such kernel.
        """
        signature = self._library.chairlift_signature(name.encode())
        if signature is None:
            message = f"no kernel {name}"
            raise KeyError(message)
        return signature.decode()

    @contextmanager
    def reversed_turns(self) -> Iterator[None]:
        """The last block and thread go first: no result may depend on it."""
        self._library.chairlift_reverse(1)
        try:
            yield
        finally:
            self._library.chairlift_reverse(0)


def _value(letter: str, arg: Argument) -> ctypes._SimpleCData:
    if letter == "p" and (arg is None or isinstance(arg, Tensor)):
        return ctypes.c_void_p(None if arg is None else arg.data_ptr())
    if letter in "il" and isinstance(arg, int):
        return (ctypes.c_int if letter == "i" else ctypes.c_longlong)(arg)
    if letter == "f" and isinstance(arg, float | int):
        return ctypes.c_float(arg)
    message = f"{arg!r} is no argument of kind {letter!r}"
    raise TypeError(message)


def kernels(folder: Path = CUDA) -> dict[str, Path]:
    """The source of each kernel."""
    sources = sorted(folder.glob("*.cu"))
    return {name: path for path in sources for name in _KERNEL.findall(path.read_text())}


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build(names: Iterable[str], folder: Path = CUDA) -> Library:
    """Compile instantiations of the kernels in a folder, several at a time, and link them.

    Raises:
        RuntimeError: There is no compiler, or it refused.
    """
    units = [(path.read_text(), b"") for path in sorted(HERE.glob("*.cpp"))]
    # An object of each instantiation: it is part of many libraries.
    for source, wanted in _by_source(names, folder).items():
        units += [(_unit(source, name), source.read_bytes()) for name in wanted]
    headers = b"".join(path.read_bytes() for path in [*HERE.glob("*.h"), *CUDA.rglob("*.cuh")])
    with _alone(), ThreadPoolExecutor(os.cpu_count()) as pool:
        include = _precompiled()
        compiled = pool.map(lambda unit: _compile(*unit, headers, include), units)
        return Library(_link(list(compiled)))


@contextmanager
def _alone() -> Iterator[None]:
    """One process builds at a time: others wait, and find what it built."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _by_source(names: Iterable[str], folder: Path) -> dict[Path, list[str]]:
    sources, by_source = kernels(folder), dict[Path, list[str]]()
    for name in sorted(set(names)):
        kernel = re.match(r"chairlift::(\w+)", name)
        if kernel is None or kernel[1] not in sources:
            message = f"no kernel {name}"
            raise KeyError(message)
        by_source.setdefault(sources[kernel[1]], []).append(name)
    return by_source


def _unit(source: Path, name: str) -> str:
    registration = f'registration("{name}", emulation::Caller<&{name}>{{}});'
    return f'#include "{source}"\nstatic emulation::Registration {registration}\n'


def _precompiled() -> Path:
    """What every unit includes, which takes half of the time of most if it is read again."""
    content = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.h")))
    content += " ".join([str(compiler()), *FLAGS]).encode()
    path = BUILD / f"{hashlib.sha256(content).hexdigest()[:24]}.h"
    path.write_text(f'#include "{HERE / "cuda.h"}"\n#include "{HERE / "launch.h"}"\n')
    compiled = path.with_suffix(".h.gch")
    if not compiled.exists():
        _run([*FLAGS, f"-I{HERE}", "-x", "c++-header", path], compiled)
    return path


def _compile(unit: str, source: bytes, headers: bytes, include: Path) -> Path:
    content = unit.encode() + source + headers + " ".join(FLAGS).encode()
    path = BUILD / f"{hashlib.sha256(content).hexdigest()[:24]}.o"
    if not path.exists():
        folders = [f"-I{HERE}", f"-I{CUDA / 'include'}"]
        _run([*FLAGS, "-include", include, *folders, "-x", "c++", "-c", "-"], path, unit)
    return path


def _link(objects: list[Path]) -> Path:
    content = " ".join(path.name for path in objects).encode()
    path = BUILD / f"{hashlib.sha256(content).hexdigest()[:24]}.so"
    if not path.exists():
        _run(["-shared", *objects], path)
    return path


def _run(arguments: Sequence[str | Path], out: Path, stdin: str = "") -> None:
    """Run the compiler; `out` appears whole or not at all."""
    command = compiler()
    if command is None:
        message = "emulation needs g++"
        raise RuntimeError(message)
    unfinished = out.with_suffix(f".{os.getpid()}{out.suffix}")
    run = subprocess.run(
        [command, *arguments, "-o", unfinished],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise RuntimeError(run.stderr)
    unfinished.replace(out)


_built: dict[str, Library] = {}


def preload(names: Iterable[str]) -> None:
    """Build the library of several instantiations that `launch` will be asked for."""
    missing = [name for name in names if name not in _built]
    if missing:
        _built.update(dict.fromkeys(missing, build(missing)))


def launch(
    name: str,
    grid: Sequence[int],
    num_threads: int,
    shared_bytes: int,
    args: Sequence[Argument],
) -> None:
    """`Library.launch` of a kernel, which is built first if it was not preloaded."""
    preload([name])
    _built[name].launch(name, grid, num_threads, shared_bytes, args)


def signature_of(name: str) -> str:
    """`Library.signature` of a kernel."""
    preload([name])
    return _built[name].signature(name)


@contextmanager
def reversed_turns(name: str) -> Iterator[None]:
    """`Library.reversed_turns` for the launches of one kernel."""
    preload([name])
    with _built[name].reversed_turns():
        yield
