"""The fields of a JSON object: each is taken once, and what is left is refused by name."""

from collections.abc import Iterator, Mapping
from typing import Any

from chairlift.api.checks import bad, check_count, flag
from chairlift.api.errors import Reason, RequestError, echo


def unsupported(path: str, why: str = "not supported by this server") -> RequestError:
    """Return the error for a field, or a value of it, that this server does not implement."""
    return RequestError(Reason.UNSUPPORTED, f"{path}: {why}", field=path)


class Fields:
    """An object of a request; null is as good as absent, as in the OpenAI API.

    Values that go on to the engine as they are need no check here: the engine checks them.
    """

    def __init__(self, value: object, path: str = "") -> None:
        """Take the object apart.

        Args:
            value: From JSON.
            path: Where it is in the body, for errors; empty is the body itself.

        Raises:
            RequestError: It is no object.
        """
        if not isinstance(value, dict):
            raise bad(path or "body", "an object", value)
        self.path = path
        self._values: dict[str, Any] = {
            name: given for name, given in value.items() if given is not None
        }

    def path_of(self, name: str) -> str:
        """Return the path of a field, for errors."""
        return f"{self.path}.{name}" if self.path else name

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def take(self, name: str, default: Any = None) -> Any:
        """Return a value as it is."""
        return self._values.pop(name, default)

    def peek(self, name: str, default: object) -> object:
        """Return a value and leave it to be taken."""
        return self._values.get(name, default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean."""
        return flag(self.take(name, default), self.path_of(name))

    def text(self, name: str, default: str = "") -> str:
        """Return a text.

        Raises:
            RequestError: The value is no text.
        """
        value = self.take(name, default)
        if not isinstance(value, str):
            raise bad(self.path_of(name), "text", value)
        return value

    def one_of(self, name: str, *values: str) -> str:
        """Return one of several words; the first is the default.

        Raises:
            RequestError: The value is none of the words.
        """
        value = self.take(name, values[0])
        if value not in values:
            got = repr(echo(value)) if isinstance(value, str) else f"a {type(value).__name__}"
            message = f"{self.path_of(name)}: expected {' or '.join(map(repr, values))}, got {got}"
            raise RequestError(Reason.BAD_PARAMETER, message, field=self.path_of(name))
        return str(value)

    def part(self, name: str) -> "Fields | None":
        """Return an object, or None without one."""
        value = self.take(name)
        return None if value is None else Fields(value, self.path_of(name))

    def items(self, name: str) -> list[Any]:
        """Return a list; without one, an empty list.

        Raises:
            RequestError: The value is no list.
        """
        value = self.take(name, [])
        if not isinstance(value, list):
            raise bad(self.path_of(name), "a list", value)
        return value

    def objects(self, name: str, limit: int) -> "Iterator[Fields]":
        """Yield the objects of a list of at most `limit`.

        Raises:
            RequestError: The value is no list of objects, or longer than `limit`.
        """
        values = self.items(name)
        check_count(values, self.path_of(name), limit)
        for i, value in enumerate(values):
            yield Fields(value, f"{self.path_of(name)}[{i}]")

    def refuse(self, *names: str) -> None:
        """Refuse fields that this server does not implement; an empty list asks for nothing.

        Raises:
            RequestError: One of the fields is there.
        """
        for name in names:
            if self._values.get(name) == []:
                del self._values[name]
            if name in self._values:
                raise unsupported(self.path_of(name))

    def refuse_unless_neutral(self, neutral: Mapping[str, object]) -> None:
        """Refuse fields that are not implemented, except for their values that change nothing.

        Raises:
            RequestError: One of the fields has another value.
        """
        for name, value in neutral.items():
            self.refuse_unless(name, value)

    def refuse_unless(self, name: str, neutral: object) -> None:
        """Refuse a field that is not implemented, except for the value that changes nothing.

        Raises:
            RequestError: The field has another value.
        """
        value = self.take(name, neutral)
        is_flag = isinstance(value, bool) and not isinstance(neutral, bool)
        if is_flag or value != neutral:
            raise unsupported(self.path_of(name), f"only {neutral!r} is supported by this server")

    def drop(self, *names: str) -> None:
        """Drop fields that change nothing about the answer."""
        for name in names:
            self._values.pop(name, None)

    def rest(self) -> dict[str, Any]:
        """Take all that is left."""
        rest, self._values = self._values, {}
        return rest

    def end(self) -> None:
        """Refuse what is left.

        Raises:
            RequestError: With the path of the first field that is unknown.
        """
        for name in self._values:
            path = self.path_of(echo(name))
            message = f"{path}: unknown field"
            raise RequestError(Reason.BAD_PARAMETER, message, field=path)
