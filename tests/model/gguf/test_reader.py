"""Headers of GGUF files: those that are right, and what a broken one says."""

import os
import tracemalloc
from contextlib import ExitStack
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from chairlift.api.errors import ModelError
from chairlift.checkpoints.gguf.reader import GgufHeader

from tests.model.gguf import headers
from tests.model.gguf.headers import Tensor, Value, array, failure, read, value

MOST_BYTES = 32 << 20
"""Of memory that any small file may take."""
A_FILE_THAT_CANNOT_BE_READ = Path("/sys/class/net/lo/speed")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.gguf"


def read_bytes(path, content):
    path.write_bytes(content)
    return read(path)


def test_values_of_every_type_are_read(path):
    writer = gguf.GGUFWriter(path, "llama")
    expected = {"u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1}
    expected |= {"i32": -(2**31), "u64": 2**64 - 1, "i64": -(2**63), "f32": 0.1, "f64": 0.1}
    expected |= {"no": False, "yes": True, "text": "für \N{GRINNING FACE}", "empty": ""}
    kinds = {"u": "uint", "i": "int", "f": "float"}
    for key, number in expected.items():
        if isinstance(number, bool):
            writer.add_bool(key, number)
        elif isinstance(number, str):
            writer.add_key_value(key, number, gguf.GGUFValueType.STRING)
        else:
            getattr(writer, f"add_{kinds[key[0]]}{key[1:]}")(key, number)
    finish(writer)
    metadata = read(path).metadata
    expected |= {"general.architecture": "llama", "f32": float(np.float32(0.1))}
    assert metadata == expected
    assert {key: type(metadata[key]) for key in expected} == {
        key: type(number) for key, number in expected.items()
    }


@pytest.mark.parametrize("kind", sorted(headers.FORMATS))
def test_arrays_of_numbers_keep_their_type(path, kind):
    numbers = [1, 0, 1] if kind == headers.BOOL else [100, 0, 27]
    content = headers.file([array("numbers", kind, numbers), value("next", headers.U8, 7)])
    metadata = read_bytes(path, content).metadata
    assert metadata["numbers"].tolist() == numbers
    assert metadata["numbers"].dtype.itemsize == len(value("", kind, 1).content)
    assert metadata["next"] == 7


def test_arrays_may_be_empty(path):
    values = [array("texts", headers.STRING, []), array("numbers", headers.I32, [])]
    metadata = read_bytes(path, headers.file(values)).metadata
    assert metadata["texts"] == []
    assert metadata["numbers"].tolist() == []


def read_tensor(path, name):
    with ExitStack() as files:
        stored = GgufHeader.open(path, files).tensors[name]
        out = torch.empty(stored.shape)
        stored.read(out)
    return out.tolist()


def test_a_long_header_is_read_whole_wherever_a_read_ends(path):
    random = np.random.default_rng(0)
    lengths = random.integers(0, 40, 400_000).tolist()
    texts = [("é\N{GRINNING FACE}ab" * 10)[:length] for length in lengths]
    values = [array("texts", headers.STRING, texts), value("long", headers.STRING, "x" * (9 << 20))]
    numbers = np.arange(16, dtype=np.float32)
    content = headers.file(values, [Tensor("a", (16,))], numbers.tobytes())
    assert len(content) > 20 << 20
    metadata = read_bytes(path, content).metadata
    assert metadata["texts"] == texts
    assert metadata["long"] == "x" * (9 << 20)
    assert read_tensor(path, "a") == numbers.tolist()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 128, 4096])
def test_data_begins_at_a_multiple_of_the_alignment(path, version, alignment):
    offset = max(16, alignment)
    content = headers.file(
        [value("general.alignment", headers.U32, alignment)],
        [Tensor("a", (4,)), Tensor("b", (2, 3), offset=offset)],
        np.arange(2_000, dtype=np.float32).tobytes(),
        version=version,
        alignment=alignment,
    )
    path.write_bytes(content)
    assert read_tensor(path, "a") == [0, 1, 2, 3]
    first = offset // 4
    assert read_tensor(path, "b") == [[first + 2 * row, first + 2 * row + 1] for row in range(3)]


def test_the_writer_may_choose_the_alignment(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    tensors = {name: np.random.rand(3, 5).astype(np.float32) for name in "abc"}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    finish(writer)
    with ExitStack() as files:
        for name, stored in GgufHeader.open(path, files).tensors.items():
            out = torch.empty(stored.shape)
            stored.read(out)
            assert np.array_equal(out.numpy(), tensors[name])


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


UNSUPPORTED = [
    kind
    for kind in gguf.GGMLQuantizationType
    if kind.name not in {"F32", "F16", "BF16", "Q8_0"}
    and kind.name not in {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4"}
    and kind <= 41
]


@pytest.mark.parametrize("kind", UNSUPPORTED, ids=lambda kind: kind.name)
def test_a_type_of_tensor_that_is_not_supported_is_named(path, kind):
    message = failure(path, headers.file(tensors=[Tensor("blk.0.attn_q.weight", (256,), kind)]))
    assert message.startswith(f"blk.0.attn_q.weight: {kind.name} is not supported, expected one of")
    assert message.endswith("Q8_0")
    assert "not a whole" not in message


BROKEN = {
    "another magic": (headers.file(magic=b"GGML"), "it does not begin with GGUF"),
    "big endian": (headers.file(version=3 << 24), "expected version 2 or 3, got 50331648"),
    "version 1": (headers.file(version=1), "expected version 2 or 3, got 1"),
    "unknown type of tensor": (
        headers.file(tensors=[Tensor("a", (256,), 4)]),
        "a: type 4 is not supported",
    ),
    "unknown type of value": (
        headers.file([Value("key", 13, b"")]),
        "key: a value of unknown type",
    ),
    "unknown type of array": (
        headers.file([array("key", headers.U8, [1])._replace(content=b"\x0d" + bytes(11))]),
        "key: an array of unknown type 13",
    ),
    "arrays of arrays": (
        headers.file([Value("key", headers.ARRAY, b"\x09" + bytes(11))]),
        "key: an array of unknown type 9",
    ),
    "a key twice": (headers.file([value("key", headers.U8, 1)] * 2), "key: twice"),
    "a tensor twice": (
        headers.file(tensors=[Tensor("a"), Tensor("a", offset=32)]),
        "a: twice",
    ),
    "a key that is not UTF-8": (headers.file([value(b"\xff", headers.U8, 1)]), "not UTF-8"),
    "a value that is not UTF-8": (
        headers.file([value("key", headers.STRING, b"half \xf0\x9f")]),
        "not UTF-8",
    ),
    "an item that is not UTF-8": (
        headers.file([array("key", headers.STRING, [b"a", b"b", b"\xed\xa0\x80", b"c"])]),
        "not UTF-8",
    ),
    "a name that is not UTF-8": (headers.file(tensors=[Tensor(b"\x80")]), "not UTF-8"),
    "a name of two lines": (
        headers.file(tensors=[Tensor("a\nb\x1b[31m", kind=4)]),
        "is not supported",
    ),
    "huge number of tensors": (headers.file(num_tensors=2**64 - 1), f"tensors, got {2**64 - 1}"),
    "many tensors": (headers.file(num_tensors=2**20 + 1), f"tensors, got {2**20 + 1}"),
    "too many tensors": (
        headers.file(data=b"", alignment=1, num_tensors=3),
        "it ends within its header",
    ),
    "huge number of values": (headers.file(num_values=2**63), f"metadata values, got {2**63}"),
    "too many values": (
        headers.file([value("key", headers.U8, 1)], data=b"", alignment=1, num_values=5),
        "it ends within its header",
    ),
    "huge number of strings": (
        headers.file([array("key", headers.STRING, [], 2**60)]),
        f"values of key, got {2**60}",
    ),
    "more strings than there are": (
        headers.file([array("key", headers.STRING, ["a"], 50)]),
        "it ends within its header",
    ),
    "more numbers than there are": (
        headers.file([array("key", headers.F64, [], 60)]),
        "it ends within its header",
    ),
    "huge number of numbers": (
        headers.file([array("key", headers.F64, [], 2**61)]),
        f"values of key, got {2**61}",
    ),
    "a huge string": (
        headers.file([Value("key", headers.STRING, b"\xff" * 8)]),
        f"bytes of a string, got {2**64 - 1}",
    ),
    "a huge string of many": (
        headers.file([Value("key", headers.ARRAY, b"\x08\0\0\0\x02" + bytes(15) + b"\xff" * 8)]),
        f"bytes of a string, got {2**64 - 1}",
    ),
    "no axes": (headers.file(tensors=[Tensor("a", ())]), "a: expected 1 to 4 axes, got 0"),
    "five axes": (headers.file(tensors=[Tensor("a", (1,) * 5)]), "expected 1 to 4 axes, got 5"),
    "an empty axis": (headers.file(tensors=[Tensor("a", (4, 0))]), "a: sizes [4, 0]"),
    "a product of zero in 64 bits": (
        headers.file(tensors=[Tensor("a", (2**32, 2**32))]),
        f"a: sizes [{2**32}, {2**32}]",
    ),
    "a product of one in 64 bits": (
        headers.file(tensors=[Tensor("a", (3, 12297829382473034411))]),
        "a: sizes [3, 12297829382473034411]",
    ),
    "a small part of a block": (
        headers.file(tensors=[Tensor("a", (48,), 2)]),
        "a: rows of 48, expected a multiple of 32 for Q4_0",
    ),
    "an offset between multiples": (
        headers.file(tensors=[Tensor("a", offset=8)]),
        "a: offset 8, expected a multiple of 32",
    ),
    "an offset beyond the end": (headers.file(tensors=[Tensor("a", offset=64)]), "a ends at byte"),
    "a huge offset": (headers.file(tensors=[Tensor("a", offset=2**64 - 32)]), "a ends at byte"),
    "a tensor beyond the end": (headers.file(tensors=[Tensor("a", (17,))]), "a ends at byte"),
    "overlapping tensors": (
        headers.file(tensors=[Tensor("a", (9,)), Tensor("b", offset=32)]),
        "b begins inside another tensor",
    ),
    "tensors in one place": (
        headers.file(tensors=[Tensor("a", (4,)), Tensor("b", (4,))]),
        "b begins inside another tensor",
    ),
    **{
        f"an alignment of {alignment}": (
            headers.file([value("general.alignment", kind, alignment)]),
            "general.alignment: expected 1 to 65536, got",
        )
        for kind, alignment in (
            (headers.U32, 0),
            (headers.I32, -32),
            (headers.U32, 2**17),
            (headers.F32, 32.0),
            (headers.STRING, "32"),
            (headers.BOOL, True),
        )
    },
    "an array of alignments": (
        headers.file([array("general.alignment", headers.U32, [32])]),
        "general.alignment: expected 1 to 65536, got",
    ),
    "an empty file": (b"", "it ends within its header, after 0 bytes"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_header_is_named_in_little_memory(path, case):
    content, expected = BROKEN[case]
    path.write_bytes(content)
    tracemalloc.start()
    try:
        message = failure(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert expected in message
    assert peak < 1 << 20


def test_a_large_file_with_a_huge_count_is_refused_in_little_memory(path):
    path.write_bytes(headers.file([array("key", headers.STRING, [], 2**29)]))
    os.truncate(path, 2**40)
    tracemalloc.start()
    try:
        assert "expected at most" in failure(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES


def test_a_sparse_file_of_empty_strings_is_read_in_bounded_memory(path):
    path.write_bytes(headers.file([array("key", headers.STRING, [], 2**22)]))
    os.truncate(path, 2**40)
    assert read(path).metadata["key"] == [""] * 2**22


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device", "a loop", "nothing"])
def test_what_is_no_file_is_named_and_not_waited_for(path, kind):
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a folder":
            path.mkdir()
        case "a device":
            path.symlink_to("/dev/zero")
        case "a loop":
            path.symlink_to(path)
    reasons = {"a loop": "too many levels of symbolic links", "nothing": "no such file"}
    assert failure(path) == reasons.get(kind, "not a regular file")


@pytest.mark.skipif(not A_FILE_THAT_CANNOT_BE_READ.exists(), reason="needs sysfs")
def test_an_error_of_the_system_is_named(path):
    path.symlink_to(A_FILE_THAT_CANNOT_BE_READ)
    assert failure(path) == "not a whole GGUF file: invalid argument"


def test_a_file_that_was_truncated_since_it_was_opened_is_named(path):
    path.write_bytes(
        headers.file(tensors=[Tensor("a", (4, 3)), Tensor("b", (32, 1), 2, 64)], data=bytes(96))
    )
    with ExitStack() as files:
        tensors = GgufHeader.open(path, files).tensors
        os.truncate(path, path.stat().st_size - 70)
        for read_on in (
            lambda: tensors["a"].read(torch.empty(3, 4)),
            lambda: tensors["a"].read(torch.empty(3, 4, dtype=torch.bfloat16)),
            lambda: tensors["b"].read(torch.empty(1, 32)),
            tensors["b"].blocks,
        ):
            with pytest.raises(ModelError, match=r"m\.gguf: it became shorter while [ab] was read"):
                read_on()
