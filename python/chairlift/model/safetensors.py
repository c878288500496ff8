"""Safetensors files, read and not mapped: a file that shrinks is an error, not a signal.

```text
8 bytes   length of the header, little endian
header    JSON: name -> {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}
data      the tensors, one after another; offsets count from here
```
"""

import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Final, NoReturn, TypeGuard

import torch
from torch import Tensor

from chairlift.errors import ModelError
from chairlift.model.fields import one_line, parse_json

Shape = tuple[int, ...]

DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types that a model may be stored in."""

_HEADER_BYTES: Final = 32 << 20
"""Of the longest header that is read; those of large models take one or two megabytes."""
_BUFFER_BYTES: Final = 16 << 20
"""Of a tensor that are converted at a time."""
_MOST_AXES: Final = 8


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of an open file, not read yet."""

    path: Path
    file: FileIO
    name: str
    shape: Shape
    dtype: str
    begin: int
    """Where it begins in the file, in bytes."""
    num_bytes: int

    def read(self, out: Tensor) -> None:
        """Read the values into a contiguous tensor of the same shape, and convert them.

        Raises:
            ModelError: The file has become shorter, or cannot be read.
        """
        stored, out = DTYPES[self.dtype], out.view(-1)
        if stored == out.dtype:
            self._read_bytes(out, self.begin)
            return
        step = _BUFFER_BYTES // stored.itemsize
        buffer = torch.empty(min(step, len(out)), dtype=stored)
        for start in range(0, len(out), step):
            part = out[start : start + step]
            numbers = buffer[: len(part)]
            self._read_bytes(numbers, self.begin + start * stored.itemsize)
            part.copy_(numbers)

    def _read_bytes(self, numbers: Tensor, begin: int) -> None:
        rest = numbers.view(torch.uint8).numpy().data
        try:
            self.file.seek(begin)
            # A read may return less than was asked for; other threads run meanwhile.
            while rest and (num_read := self.file.readinto(rest)):
                rest = rest[num_read:]
        except OSError as error:
            _fail(self.path, f"{self.name} cannot be read: {(error.strerror or 'error').lower()}")
        if rest:
            _fail(self.path, f"it became shorter while {self.name} was read")


def open_file(path: Path, files: ExitStack) -> dict[str, StoredTensor]:
    """Open a file, which closes with `files`; return its tensors by name.

    Raises:
        ModelError: The file is missing, truncated or corrupt.
    """
    try:
        # Opening a pipe waits for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            _fail(path, "not a regular file")
        file = files.enter_context(FileIO(path, "rb"))
        num_bytes = os.fstat(file.fileno()).st_size
        length = int.from_bytes(_read_up_to(file, 8), "little")
        if num_bytes - length < 8:
            _fail(path, f"a header of {length} bytes in a file of {num_bytes}")
        if length > _HEADER_BYTES:
            _fail(path, f"a header of {length} bytes, expected at most {_HEADER_BYTES}")
        header = _read_up_to(file, length)
    except FileNotFoundError:
        message = f"{path}: no such file"
        raise ModelError(message) from None
    except OSError as error:
        _fail(path, (error.strerror or "cannot be read").lower())
    entries = parse_json(path, header, what="a whole safetensors file")
    entries.pop("__metadata__", None)
    tensors = {name: _stored(path, file, name, 8 + length, entries[name]) for name in entries}
    end = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.num_bytes)):
        if tensor.begin != end:
            _fail(path, f"{tensor.name} begins at byte {tensor.begin}, expected {end}")
        end += tensor.num_bytes
    if end != num_bytes:
        _fail(path, f"expected {end} bytes, got {num_bytes}")
    return tensors


def _read_up_to(file: FileIO, num_bytes: int) -> bytes:
    content = b""
    while len(content) < num_bytes and (more := file.read(num_bytes - len(content))):
        content += more
    return content


def _stored(path: Path, file: FileIO, name: str, data: int, entry: object) -> StoredTensor:
    """Check the description of a tensor, whose offsets count from the byte `data`."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets):
        _fail(path, f"{name}: expected dtype, shape and data_offsets")
    begin, end = offsets if len(offsets) == 2 else (0, -1)
    if end < begin:
        _fail(path, f"{name}: expected data_offsets [begin, end]")
    if dtype in DTYPES and prod(shape) * DTYPES[dtype].itemsize != end - begin:
        _fail(path, f"{name}: {end - begin} bytes are not those of its shape")
    return StoredTensor(path, file, name, tuple(shape), dtype, data + begin, end - begin)


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    return (
        isinstance(values, list)
        and len(values) <= _MOST_AXES
        and all(
            isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
            for value in values
        )
    )


def _fail(path: Path, problem: str) -> NoReturn:
    message = f"{path}: not a whole safetensors file: {one_line(problem)}"
    raise ModelError(message)
