"""Models that are split over several GGUF files."""

import pytest

from tests.model.gguf import headers
from tests.model.gguf.headers import Tensor, failure, read, value


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.gguf"


def split(path, *parts):
    """Write the parts of a model; return their paths."""
    names = [f"{path.stem}-{n:05}-of-{len(parts):05}.gguf" for n in range(1, len(parts) + 1)]
    paths = [path.with_name(name) for name in names]
    for part, (numbers, tensors) in zip(paths, parts, strict=True):
        keys = ("split.no", "split.count", "split.tensors.count")
        values = [
            value(k, headers.U16, n) for k, n in zip(keys, numbers, strict=True) if n is not None
        ]
        part.write_bytes(headers.file(values, tensors))
    return paths


def test_a_model_may_be_split(path):
    parts = [
        ((n, 3, 2), [Tensor(name) for name in names]) for n, names in enumerate(("", "a", "b"))
    ]
    paths = split(path, *parts)
    for part in paths:
        header = read(part)
        assert header.path == paths[0]
        assert header.metadata["split.no"] == 0
        assert {name: t.path for name, t in header.tensors.items()} == {
            "a": paths[1],
            "b": paths[2],
        }


def test_parts_need_not_say_that_they_are_parts(path):
    nothing = (None, None, None)
    paths = split(path, (nothing, [Tensor("a")]), (nothing, [Tensor("b")]))
    assert set(read(paths[1]).tensors) == {"a", "b"}


def test_a_missing_part_is_named(path):
    paths = split(path, *(((n, 3, 0), []) for n in range(3)))
    paths[1].unlink()
    for part in (paths[0], paths[2]):
        assert failure(part) == f"{paths[1]}: no such file"


@pytest.mark.parametrize(
    ("parts", "number", "expected"),
    [
        ([(0, 2, 2), (1, 2, 2)], 1, "a: also in m-00001-of-00002.gguf"),
        ([(0, 2, 3), (1, 2, 3)], 0, "split.tensors.count: expected 2"),
        ([(0, 2, 2), (0, 2, 2)], 1, "split.no: expected 1"),
        ([(0, 2, 2), (1, 3, 2)], 1, "split.count: expected 2"),
    ],
)
def test_parts_of_different_models_are_refused(path, parts, number, expected):
    same = expected.startswith("a:")
    paths = split(
        path, *((p, [Tensor("a" if same else name)]) for p, name in zip(parts, "ab", strict=True))
    )
    message = failure(paths[0])
    assert expected in message
    assert message.startswith(f"{paths[1]}: not a whole" if number else "not a whole")


def test_a_part_with_the_name_of_a_whole_model_is_refused(path):
    (part, _) = split(path, ((0, 2, 2), [Tensor("a")]), ((1, 2, 2), [Tensor("b")]))
    part.rename(path)
    assert "split.count: expected 1 as in the names of the files, got 2" in failure(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m-00001-of-00000.gguf", "expected a model in 1 to 1000 files, got 0"),
        ("m-00001-of-99999.gguf", "expected a model in 1 to 1000 files, got 99999"),
        ("m-00000-of-00002.gguf", "expected part 1 to 2 in its name, got 0"),
        ("m-00003-of-00002.gguf", "expected part 1 to 2 in its name, got 3"),
    ],
)
def test_a_name_that_no_part_has_is_refused(path, name, expected):
    assert expected in failure(path.with_name(name), headers.file())
