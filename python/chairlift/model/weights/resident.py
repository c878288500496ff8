"""Gives back memory of the process that loading a model leaves behind (Linux, glibc)."""

import ctypes
import re
import sys
from pathlib import Path
from typing import Final

_DONT_NEED: Final = 4
"""`MADV_DONTNEED` of Linux."""
_MAPPING: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-.p \S+ \S+ [1-9]\d* +/.*\n(?:[A-Z].*\n)*?Anonymous: +0 kB$",
    re.MULTILINE,
)
"""A private mapping of a file in `/proc/self/smaps`: not writable, without a page of its own."""


def trim_heap() -> None:
    """Return free memory of the heap to the system, where the C library can (glibc).

    Beside the packed weights, loading frees as much again, and by default up to 64 MiB of it stays.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def release_library_pages() -> None:
    """Take the pages of libraries out of the process; those in use come back from the page cache.

    The dynamic linker reads through libraries that a CPU never runs: 200 MB in a PyTorch for CUDA.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    c = ctypes.CDLL(None)
    for start, end in ((int(m[1], 16), int(m[2], 16)) for m in _MAPPING.finditer(smaps)):
        # An error changes nothing.
        c.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)
