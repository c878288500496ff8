"""Safetensors files.

```text
8 bytes   length of the header, little endian
header    JSON: name -> {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}
data      the tensors, one after another; offsets count from here
```
"""

import os
from contextlib import ExitStack
from io import FileIO
from math import prod
from pathlib import Path
from typing import Final, NoReturn, TypeGuard

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Opener, one_line, parse_json
from chairlift.checkpoints.files.stored import ITEM_BYTES, StoredTensor, open_regular

_HEADER_BYTES: Final = 32 << 20
"""Bytes of the longest header that is read; headers of large models take one or two megabytes."""
_MAX_AXES: Final = 8


def open_file(
    path: Path,
    files: ExitStack,
    max_header_bytes: int = _HEADER_BYTES,
    opener: Opener = os.open,
) -> dict[str, StoredTensor]:
    """Open a file, which closes with `files`; return its tensors by name.

    Raises:
        ModelError: The file is missing, truncated or corrupt.
    """
    file, num_bytes = open_regular(path, files, opener)
    try:
        length = int.from_bytes(_read_up_to(file, 8), "little")
        if num_bytes - length < 8:
            _fail(path, f"a header of {length} bytes in a file of {num_bytes}")
        if length > max_header_bytes:
            _fail(path, f"a header of {length} bytes, expected at most {max_header_bytes}")
        header = _read_up_to(file, length)
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
    if dtype in ITEM_BYTES and prod(shape) * ITEM_BYTES[dtype] != end - begin:
        _fail(path, f"{name}: {end - begin} bytes are not those of its shape")
    return StoredTensor(path, file, name, tuple(shape), dtype, data + begin, end - begin)


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    return (
        isinstance(values, list)
        and len(values) <= _MAX_AXES
        and all(
            isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
            for value in values
        )
    )


def _fail(path: Path, problem: str) -> NoReturn:
    message = f"{path}: not a whole safetensors file: {one_line(problem)}"
    raise ModelError(message)
