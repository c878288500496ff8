"""The header of a GGUF file: metadata and the places of its tensors.

```text
magic     "GGUF", version (2 or 3), number of tensors, number of metadata values
metadata  key, type, value; a value may be an array of strings or of numbers
tensors   name, sizes from the innermost axis on, type, offset from the start of the data
data      at a multiple of `general.alignment`
```

All integers are little endian; strings are a length and UTF-8. A model may be split over several
files, each with a header; the first has the metadata. The parser is our own because the `gguf`
package takes seconds for what is here some tens of milliseconds, and does not bound what it reads.

Source of the layout: the specification of GGUF in the repository of ggml.
"""

import re
import struct
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import one_line
from chairlift.checkpoints.files.stored import DTYPES, StoredTensor, open_regular

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_TENSORS: Final = 1 << 20
_MAX_VALUES: Final = 1 << 16
_MAX_HEADER_BYTES: Final = 128 << 20
"""A vocabulary of 256 thousand tokens and its merges take some ten megabytes."""
_MAX_ITEMS: Final = 1 << 22
"""Items of an array."""
_MAX_KEY_BYTES: Final = 1 << 16
_MAX_AXES: Final = 4
_MAX_SIZE: Final = 2**40
_MAX_ALIGNMENT: Final = 1 << 16
_MAX_FILES: Final = 1000
_READ_BYTES: Final = 4 << 20

_LENGTH: Final = struct.Struct("<Q")
_STRING: Final = 8
_ARRAY: Final = 9
_NUMBERS: Final = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""NumPy's names of the types of metadata."""

_TENSOR_TYPES: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
"""Names by number, also of types that are not supported, for messages."""

_BLOCKS: Final = [name for name in _core.BLOCK_TYPES if name in _TENSOR_TYPES.values()]
_SPLIT: Final = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a model of one or several GGUF files holds."""

    path: Path
    """Path of the first file."""
    metadata: dict[str, Any]
    """Numbers, strings, lists of strings and arrays of numbers, by key."""
    tensors: dict[str, StoredTensor]

    @classmethod
    def open(cls, path: Path, files: ExitStack) -> "GgufHeader":
        """Read the headers of a model; its files close with `files`.

        Args:
            path: The file, or any of those that the model is split over.
            files: Takes the open files.

        Raises:
            ModelError: A file is missing, truncated or corrupt, or not supported.
        """
        paths = _parts(path)
        headers = [_read_header(part, files) for part in paths]
        first = headers[0]
        tensors: dict[str, StoredTensor] = {}
        for header in headers:
            for name, tensor in header.tensors.items():
                if name in tensors:
                    _fail(header.path, f"{name}: also in {tensors[name].path.name}")
                tensors[name] = tensor
        _check_split(headers, len(tensors))
        return cls(first.path, first.metadata, tensors)

    def with_heads(self, num_heads: dict[str, int]) -> "GgufHeader":
        """Return these tensors, those of the names with rows in the order of llama.cpp."""
        reordered = {
            name: replace(self.tensors[name], num_heads=heads) for name, heads in num_heads.items()
        }
        return replace(self, tensors={**self.tensors, **reordered})


def _parts(path: Path) -> list[Path]:
    """Return all files of a model, given one of them."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    stem, number, count = match.groups()
    if not 1 <= int(count) <= _MAX_FILES:
        _fail(path, f"expected a model in 1 to {_MAX_FILES} files, got {int(count)}")
    if not 1 <= int(number) <= int(count):
        _fail(path, f"expected part 1 to {int(count)} in its name, got {int(number)}")
    return [path.parent / f"{stem}-{n:05}-of-{count}.gguf" for n in range(1, int(count) + 1)]


def _check_split(headers: list["GgufHeader"], num_tensors: int) -> None:
    """Refuse files that are not the parts of one model, in their order."""
    for number, header in enumerate(headers):
        expected = {"split.no": number, "split.count": len(headers)}
        if len(headers) > 1:
            expected["split.tensors.count"] = num_tensors
        elif header.metadata.get("split.count") in {None, 0}:
            continue
        for key, value in expected.items():
            got = header.metadata.get(key, value)
            if got != value:
                _fail(
                    header.path, f"{key}: expected {value} as in the names of the files, got {got}"
                )


def _read_header(path: Path, files: ExitStack) -> GgufHeader:
    file, num_bytes = open_regular(path, files)
    cursor = _Cursor(path, file, num_bytes)
    if cursor.take(4) != _MAGIC:
        _fail(path, "it does not begin with GGUF")
    version = cursor.integer("<I")
    if version not in _VERSIONS:
        _fail(path, f"expected version 2 or 3, got {version}")
    num_tensors = cursor.count("tensors", _MAX_TENSORS)
    num_values = cursor.count("metadata values", _MAX_VALUES)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.string(_MAX_KEY_BYTES)
        if key in metadata:
            _fail(path, f"{key}: twice")
        metadata[key] = _value(cursor, key)
    alignment = metadata.get("general.alignment", 32)
    is_integer = isinstance(alignment, int) and not isinstance(alignment, bool)
    if not is_integer or not 1 <= alignment <= _MAX_ALIGNMENT:
        _fail(path, f"general.alignment: expected 1 to {_MAX_ALIGNMENT}, got {alignment}")
    tensors: dict[str, StoredTensor] = {}
    for _ in range(num_tensors):
        tensor = _tensor(cursor, file, alignment)
        if tensor.name in tensors:
            _fail(path, f"{tensor.name}: twice")
        tensors[tensor.name] = tensor
    data = cursor.position + -cursor.position % alignment
    placed = {name: replace(t, begin=data + t.begin) for name, t in tensors.items()}
    _check_places(path, placed, num_bytes)
    return GgufHeader(path, metadata, placed)


def _check_places(path: Path, tensors: dict[str, StoredTensor], num_bytes: int) -> None:
    """Refuse tensors that overlap one another, or the end of the file."""
    end = 0
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.num_bytes)):
        if tensor.begin < end:
            _fail(path, f"{tensor.name} begins inside another tensor")
        end = tensor.begin + tensor.num_bytes
        if end > num_bytes:
            _fail(path, f"{tensor.name} ends at byte {end} of {num_bytes}")


def _value(cursor: "_Cursor", key: str) -> object:
    kind = cursor.integer("<I")
    if kind in _NUMBERS:
        return cursor.numbers(_NUMBERS[kind], 1)[0].item()
    if kind == _STRING:
        return cursor.string()
    if kind != _ARRAY:
        cursor.fail(f"{key}: a value of unknown type {kind}")
    kind = cursor.integer("<I")
    length = cursor.count(f"values of {one_line(key, 40)}", _MAX_ITEMS)
    if kind in _NUMBERS:
        return cursor.numbers(_NUMBERS[kind], length)
    if kind != _STRING:
        cursor.fail(f"{key}: an array of unknown type {kind}")
    return cursor.strings(length)


def _tensor(cursor: "_Cursor", file: FileIO, alignment: int) -> StoredTensor:
    """Read the description of a tensor, whose place counts from the start of the data."""
    name = cursor.string(_MAX_KEY_BYTES)
    num_axes = cursor.integer("<I")
    if not 1 <= num_axes <= _MAX_AXES:
        cursor.fail(f"{name}: expected 1 to {_MAX_AXES} axes, got {num_axes}")
    sizes = cursor.numbers("<u8", num_axes).tolist()
    kind, begin = cursor.integer("<I"), cursor.integer("<Q")
    if prod(sizes) > _MAX_SIZE or 0 in sizes:
        cursor.fail(f"{name}: sizes {sizes}")
    dtype = _TENSOR_TYPES.get(kind, f"type {kind}")
    if dtype in DTYPES:
        weights, num_bytes = 1, DTYPES[dtype].itemsize
    elif dtype in _BLOCKS:
        weights, num_bytes = _core.BLOCK_TYPES[dtype]
    else:
        known = ", ".join((*DTYPES, *_BLOCKS))
        cursor.fail(f"{name}: {dtype} is not supported, expected one of {known}", whole=True)
    if sizes[0] % weights:
        cursor.fail(f"{name}: rows of {sizes[0]}, expected a multiple of {weights} for {dtype}")
    if begin % alignment:
        cursor.fail(f"{name}: offset {begin}, expected a multiple of {alignment}")
    total = prod(sizes) // weights * num_bytes
    return StoredTensor(cursor.path, file, name, tuple(reversed(sizes)), dtype, begin, total)


class _Cursor:
    """A position in a header that is read in large pieces."""

    def __init__(self, path: Path, file: FileIO, num_bytes: int) -> None:
        self.path = path
        self._file = file
        self._left = min(num_bytes, _MAX_HEADER_BYTES)
        self._buffer = b""
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._before + self._at

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes."""
        end = self._at + num_bytes
        if end > len(self._buffer):
            self._fill(num_bytes)
            end = num_bytes
        taken = self._buffer[self._at : end]
        self._at = end
        return taken

    def integer(self, kind: str) -> int:
        """Return an integer, by its name in `struct`."""
        (value,) = struct.unpack(kind, self.take(struct.calcsize(kind)))
        return int(value)

    def count(self, things: str, max_count: int) -> int:
        """Return a number of things that follow; each takes a byte at least."""
        count, left = self.integer("<Q"), self._left + len(self._buffer) - self._at
        if count > min(max_count, left):
            self.fail(f"expected at most {min(max_count, left)} {things}, got {count}")
        return count

    def numbers(self, dtype: str, length: int) -> NDArray[Any]:
        """Return an array of numbers, by the name of their type in NumPy."""
        kind = np.dtype(dtype)
        return np.frombuffer(self.take(kind.itemsize * length), dtype=kind)

    def string(self, max_bytes: int = _MAX_HEADER_BYTES) -> str:
        """Return a string."""
        length = self.count("bytes of a string", max_bytes)
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            self.fail("a string that is not UTF-8")

    def strings(self, length: int) -> list[str]:
        """Return so many strings; a vocabulary and its merges are some hundred thousand."""
        texts: list[str] = []
        while len(texts) < length:
            # The first of a piece may need more of the file; those after it lie in the buffer.
            texts.append(self.string())
            buffer, at = self._buffer, self._at
            last = len(buffer) - _LENGTH.size
            try:
                while at <= last and len(texts) < length:
                    begin = at + _LENGTH.size
                    end = begin + _LENGTH.unpack_from(buffer, at)[0]
                    if end > len(buffer):
                        break
                    texts.append(buffer[begin:end].decode())
                    at = end
            except UnicodeDecodeError:
                self.fail("a string that is not UTF-8")
            self._at = at
        return texts

    def fail(self, problem: str, *, whole: bool = False) -> NoReturn:
        """Raise ModelError; a whole file may hold what is not supported."""
        if whole:
            message = f"{self.path}: {one_line(problem, 300)}"
            raise ModelError(message)
        _fail(self.path, problem)

    def _fill(self, num_bytes: int) -> None:
        """Read on, until so many bytes lie after the position."""
        rest = self._buffer[self._at :]
        self._before += self._at
        wanted = min(max(_READ_BYTES, num_bytes) - len(rest), self._left)
        pieces = [rest]
        try:
            while wanted > 0 and (piece := self._file.read(wanted)):
                pieces.append(piece)
                wanted -= len(piece)
                self._left -= len(piece)
        except OSError as error:
            self.fail((error.strerror or "cannot be read").lower())
        self._buffer, self._at = b"".join(pieces), 0
        if len(self._buffer) < num_bytes:
            self.fail(f"it ends within its header, after {self._before + len(self._buffer)} bytes")


def _fail(path: Path, problem: str) -> NoReturn:
    message = f"{path}: not a whole GGUF file: {one_line(problem)}"
    raise ModelError(message)
