"""Bytes of GGUF files put together by hand, for files that no writer makes."""

import struct
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from chairlift.api.errors import ModelError
from chairlift.checkpoints.gguf.reader import GgufHeader

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<?",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}


class Value(NamedTuple):
    """A value of the metadata, encoded."""

    key: str | bytes
    kind: int
    content: bytes


class Tensor(NamedTuple):
    """The description of a tensor."""

    name: str | bytes
    sizes: Sequence[int] = (4,)
    kind: int = 0
    offset: int = 0


def string(text: str | bytes) -> bytes:
    content = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(content)) + content


def value(key: str | bytes, kind: int, content: object) -> Value:
    """Return a number or a string."""
    encoded = string(content) if kind == STRING else struct.pack(FORMATS[kind], content)
    return Value(key, kind, encoded)


def array(key: str, kind: int, items: Sequence[object], length: int | None = None) -> Value:
    """Return an array, which may state a wrong length."""
    content = b"".join(value("", kind, item).content for item in items)
    return Value(
        key, ARRAY, struct.pack("<IQ", kind, len(items) if length is None else length) + content
    )


def file(
    values: Sequence[Value] = (),
    tensors: Sequence[Tensor] = (),
    data: bytes = bytes(64),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_values: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a file; the counts may be wrong."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(values) if num_values is None else num_values,
    )
    head += b"".join(string(v.key) + struct.pack("<I", v.kind) + v.content for v in values)
    for tensor in tensors:
        head += string(tensor.name) + struct.pack("<I", len(tensor.sizes))
        head += struct.pack(f"<{len(tensor.sizes)}Q", *tensor.sizes)
        head += struct.pack("<IQ", tensor.kind, tensor.offset)
    return head + bytes(-len(head) % alignment) + data


def read(path: Path) -> GgufHeader:
    """Return the header of a file that is closed again."""
    with ExitStack() as files:
        return GgufHeader.open(path, files)


def failure(path: Path, content: bytes | None = None) -> str:
    """Read a broken file and return its one line, without the path."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as error:
        read(path)
    message = str(error.value)
    assert message.isprintable()
    assert len(message) < len(str(path)) + 400
    assert message.startswith(f"{path.parent}/")
    return message.removeprefix(f"{path}: ")
