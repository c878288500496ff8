"""JSON files of a model folder, read with their types checked; every error is one line."""

import json
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Final, NoReturn, TypeGuard

from chairlift.api.errors import ModelError

Opener = Callable[[str, int], int]
"""Opens a path with flags, and returns the descriptor."""

MAX_INT: Final = 2**31 - 1
"""The largest integer of any field: the kernels and the scheduler count in 32 bits."""
MAX_OF: Final = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "intermediate_size": 2**22,
    "num_hidden_layers": 2**12,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "linear_num_key_heads": 2**14,
    "linear_num_value_heads": 2**14,
    "linear_key_head_dim": 2**12,
    "linear_value_head_dim": 2**12,
}
"""The largest integers of fields whose products are sizes of memory, or bounds of loops: several
times the largest value of any model."""
MAX_JSON_BYTES: Final = 64 << 20
"""Largest file of settings; real ones, indices of many shards, take a few megabytes."""

_FLOAT32_MAX: Final = 3.4e38
_FLOAT32_MIN: Final = 1.2e-38
"""The least positive number with all its bits, which a CPU may not flush to 0."""
_MAX_IDS: Final = 128
_MAX_SHOWN: Final = 80


class Fields:
    """The values of a JSON object. Every read checks the type; null counts as absent.

    Attributes:
        path: File of the object, for messages.
        values: The parsed JSON object.
        prefix: Path of the object inside the file, for messages.
        keys: What the file calls those values that it has under another name, for messages.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, Any],
        prefix: str = "",
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.values = values
        self.prefix = prefix
        self.keys = keys or {}

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Fields":
        """Return these values, with defaults for those that are absent; null is not absent here."""
        return Fields(self.path, {**defaults, **self.values}, self.prefix, self.keys)

    def integer(self, name: str, *, default: int | None = None, minimum: int = 1) -> int:
        """Read an integer as `optional_integer`; without a default it must be there."""
        value = self.optional_integer(name, minimum=minimum)
        if value is None:
            value = default
        return self.fail(name, "an integer") if value is None else value

    def optional_integer(self, name: str, *, minimum: int = 1) -> int | None:
        """Read an integer from `minimum` to what `MAX_OF` or `MAX_INT` says, or None."""
        value, maximum = self.values.get(name), MAX_OF.get(name, MAX_INT)
        if value is None:
            return None
        if not _is_integer(value) or not minimum <= value <= maximum:
            self.fail(name, f"an integer from {minimum} to {maximum}")
        return int(value)

    def number(self, name: str, *, default: float | None = None, positive: bool = False) -> float:
        """Read a number as `optional_number`; without a default it must be there."""
        value = self.optional_number(name, positive=positive)
        if value is None:
            value = default
        return self.fail(name, "a number") if value is None else value

    def optional_number(
        self, name: str, *, positive: bool = False, maximum: float = _FLOAT32_MAX
    ) -> float | None:
        """Read a number from 0 to `maximum`, or None; a positive one is more than 0 in float32."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(name, "a number")
        # Both comparisons are false for NaN.
        if not 0 <= value <= maximum:
            limit = "3.4e38" if maximum == _FLOAT32_MAX else f"{maximum:g}"
            self.fail(name, f"a number from 0 to {limit}")
        if positive and value < _FLOAT32_MIN:
            self.fail(name, "a number above 0")
        return float(value)

    def flag(self, name: str) -> bool:
        """Read true or false; absent is false."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            self.fail(name, "true or false")
        return bool(value)

    def choice(self, name: str, options: Mapping[str, object], *, default: str) -> str:
        """Read one of the options' names."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in options:
            self.fail(name, either(options))
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Read a token id or a list of them; absent is none, and so is -1."""
        value = self.values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if len(ids) > _MAX_IDS or any(not _is_integer(i) or not -1 <= i <= MAX_INT for i in ids):
            self.fail(name, f"a token id or a list of at most {_MAX_IDS}")
        return tuple(i for i in ids if i >= 0)

    def fail(self, name: str, expected: str) -> NoReturn:
        """Refuse a field.

        Raises:
            ModelError: Always; it names the file, the field, what was expected and what was got.
        """
        got = _shown(self.values[name]) if name in self.values else "nothing"
        key = self.keys.get(name, name)
        message = f"{self.path}: {self.prefix}{key}: expected {expected}, got {got}"
        raise ModelError(message)


def read_json(
    path: Path, max_bytes: int = MAX_JSON_BYTES, opener: Opener = os.open
) -> dict[str, Any]:
    """Read a JSON object from a file of at most so many bytes.

    Raises:
        ModelError: There is no such file, or it holds something else.
    """
    return parse_json(path, read_file(path, max_bytes, opener))


def optional_json(path: Path) -> dict[str, Any]:
    """Read a JSON object as `read_json`; one that is absent has no fields."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError:
        pass  # read_json raises the error
    return read_json(path)


def parse_json(path: Path, data: bytes, what: str = "JSON") -> dict[str, Any]:
    """Read a JSON object whose strings are valid Unicode.

    Args:
        path: Its file, for messages.
        data: Its text in UTF-8.
        what: What it should be, for messages.

    Raises:
        ModelError: It is something else.
    """
    try:
        text = data.decode("utf-8-sig")
        values = json.loads(text)
        if "\\u" in text:
            # An escape may be half of a character.
            json.dumps(values, ensure_ascii=False).encode()
    except RecursionError:
        message = f"{path}: not {what}: nested too deeply"
        raise ModelError(message) from None
    except UnicodeEncodeError:
        message = f"{path}: not {what}: a string with half of a surrogate pair"
        raise ModelError(message) from None
    except ValueError as error:
        message = f"{path}: not {what}: {one_line(str(error))}"
        raise ModelError(message) from error
    if not isinstance(values, dict):
        message = f"{path}: expected a JSON object, got a {type(values).__name__}"
        raise ModelError(message)
    return values


def open_regular(path: Path, opener: Opener = os.open) -> FileIO:
    """Open a regular file.

    Args:
        path: Path of the file.
        opener: Opens the file, as `open` does with an `opener`.

    Raises:
        ModelError: It is something else.
        OSError: There is no such file, or it cannot be opened.
    """
    # A device may have no end, or do something when it is opened. An opener may have a file open
    # that is gone from its folder.
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            _fail_as_special(path)
    # It may be another one by now, such as a pipe: opening that waits for its writer otherwise.
    descriptor = opener(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            _fail_as_special(path)
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _fail_as_special(path: Path) -> NoReturn:
    message = f"{path}: not a regular file"
    raise ModelError(message)


def read_file(path: Path, max_bytes: int, opener: Opener = os.open) -> bytes:
    """Read a regular file of at most so many bytes.

    Raises:
        ModelError: There is no such file, or it is something else.
    """
    try:
        with BufferedReader(open_regular(path, opener)) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        message = f"{path}: {(error.strerror or 'cannot be read').lower()}"
        raise ModelError(message) from error
    if len(data) > max_bytes:
        message = f"{path}: expected at most {max_bytes} bytes, got more"
        raise ModelError(message)
    return data


def one_line(text: str, max_length: int = _MAX_SHOWN) -> str:
    """Return the first characters of a text that comes from outside, for use in a message."""
    line = " ".join(text[: 2 * max_length].split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= max_length else f"{line[: max_length - 3]}..."


def _shown(value: Any) -> str:  # noqa: ANN401
    # Arrays of NumPy are in the metadata of GGUF files; nothing else here needs that library.
    return one_line(json.dumps(value[:_MAX_SHOWN].tolist() if hasattr(value, "tolist") else value))


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def either(names: Mapping[str, object]) -> str:
    """Return `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
