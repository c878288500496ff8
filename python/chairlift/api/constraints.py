"""Constraints as clients write them: their form, checked.

The engine and the clients share this module, so that a constraint means the same with and without a
server. What a constraint says is compiled later, off the event loop (`engine/prepare/grammars.py`).
"""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from chairlift.api import checks
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Constraint

MAX_SOURCE_BYTES: Final = 256 * 1024
"""Bytes of a schema, an expression, a grammar, or all choices together."""
MAX_CHOICES: Final = 1024

_FIELDS: Final = ("json_schema", "json_object", "regex", "lark", "choices")


class Source(NamedTuple):
    """A constraint that was checked, as the core compiles it."""

    kind: str
    text: str = ""
    choices: tuple[str, ...] = ()
    path: str = ""
    """Path of the field that it comes from, if that is no constraint."""

    @property
    def field(self) -> str:
        """The path of the field that it comes from."""
        return self.path or f"constraint.{self.kind}"

    @property
    def num_bytes(self) -> int:
        """Bytes that its texts take in memory."""
        return sys.getsizeof(self.text) + sum(map(sys.getsizeof, self.choices))


def source(constraint: Constraint) -> Source:
    """Check the form of a constraint; what it says is the compiler's business.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    checks.kind(constraint, Constraint, "constraint")
    kinds = [name for name in _FIELDS if _is_set(getattr(constraint, name))]
    if len(kinds) != 1:
        got = "none" if not kinds else " and ".join(kinds)
        message = f"constraint: expected one of {', '.join(_FIELDS)}, got {got}"
        raise RequestError(Reason.BAD_PARAMETER, message, field="constraint")
    (kind,) = kinds
    path, value = f"constraint.{kind}", getattr(constraint, kind)
    if kind == "json_object":
        checks.flag(value, path)
        return Source(kind)
    if kind == "choices":
        choices = checks.strings(value, path, limit=MAX_CHOICES, max_bytes=MAX_SOURCE_BYTES)
        found = Source(kind, choices=choices)
        size = sum(checks.utf8_len(choice, path) for choice in choices)
    else:
        found = Source(kind, schema_text(value, path) if kind == "json_schema" else value)
        size = checks.utf8_len(found.text, path)
    check_size(size, path)
    return found


def check_size(size: int, path: str) -> None:
    """Refuse a constraint of more bytes than there may be.

    Raises:
        RequestError: With this path.
    """
    if size > MAX_SOURCE_BYTES:
        message = f"{path}: expected at most {MAX_SOURCE_BYTES} bytes, got {size}"
        raise RequestError(Reason.BAD_PARAMETER, message, field=path)


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value not in ((), [])


def schema_text(value: object, path: str) -> str:
    """Return a JSON schema as text; one that is a text stays as it is.

    Raises:
        RequestError: With this path: it is none.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping | bool):
        raise checks.bad(path, "a JSON schema as a mapping or a text", value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_dict)
    except (TypeError, ValueError, RecursionError):
        message = f"{path}: expected a mapping that JSON can write"
        raise RequestError(Reason.BAD_PARAMETER, message, field=path) from None


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError
