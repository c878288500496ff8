"""JSON files of a model folder, read with their types checked; every mistake is one clear line."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from chairlift.errors import ModelError


class Fields:
    """The values of a JSON object. Every read checks the type; null counts as absent.

    Attributes:
        path: File of the object, for messages.
        values: As parsed.
        prefix: Path of the object inside the file, for messages.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self.prefix = prefix

    def integer(self, name: str, *, default: int | None = None, least: int = 1) -> int:
        """Reads an integer of at least `least`; without a default it must be there."""
        value = self.optional_integer(name, least=least)
        if value is None:
            value = default
        return self.fail(name, "an integer") if value is None else value

    def optional_integer(self, name: str, *, least: int = 1) -> int | None:
        """Reads an integer of at least `least`, or None."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.fail(name, f"an integer of at least {least}")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """Reads a finite number of at least 0; without a default it must be there."""
        value = self.optional_number(name)
        if value is None:
            value = default
        return self.fail(name, "a number") if value is None else value

    def optional_number(self, name: str) -> float | None:
        """Reads a finite number of at least 0, or None."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(name, "a number")
        if not math.isfinite(value) or value < 0:
            self.fail(name, "a finite number of at least 0")
        return float(value)

    def flag(self, name: str) -> bool:
        """Reads true or false; absent is false."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            self.fail(name, "true or false")
        return bool(value)

    def choice(self, name: str, options: Mapping[str, object], *, default: str) -> str:
        """Reads one of the options' names."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in options:
            self.fail(name, either(options))
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Reads a token id or a list of them; absent is none."""
        value = self.values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(not isinstance(i, int) or isinstance(i, bool) for i in ids):
            self.fail(name, "a token id or a list of them")
        return tuple(ids)

    def fail(self, name: str, expected: str) -> NoReturn:
        """Raises the ModelError that names file, field, what was expected and what was got."""
        got = json.dumps(self.values[name]) if name in self.values else "nothing"
        got = got if len(got) <= 80 else f"{got[:77]}..."
        message = f"{self.path}: {self.prefix}{name}: expected {expected}, got {got}"
        raise ModelError(message)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
        ModelError: There is no such file, or it holds something else.
    """
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        message = f"{path}: {(error.strerror or 'cannot be read').lower()}"
        raise ModelError(message) from error
    except ValueError as error:
        message = f"{path}: not JSON: {error}"
        raise ModelError(message) from error
    if not isinstance(values, dict):
        message = f"{path}: expected a JSON object, got a {type(values).__name__}"
        raise ModelError(message)
    return values


def either(names: Mapping[str, object]) -> str:
    """Gives `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
