"""Translates the fields that errors of the engine name to the names of a protocol."""

from collections.abc import Callable, Mapping

from chairlift.api.errors import RequestError


class Names:
    """The client's names of fields, by the paths in errors of the engine."""

    def __init__(
        self, names: Mapping[str, str], rename: Callable[[str], str | None] | None = None
    ) -> None:
        """Keep the names.

        Args:
            names: Beginnings of the engine's paths, and what replaces them. The longest counts.
            rename: Returns the client's path for one of the engine; None leaves it to `names`.
        """
        self._names = sorted(names.items(), key=lambda pair: -len(pair[0]))
        self._rename = rename

    def _named(self, path: str) -> str | None:
        named = None if self._rename is None else self._rename(path)
        if named is not None:
            return named
        found = next((pair for pair in self._names if path.startswith(pair[0])), None)
        return None if found is None else found[1] + path.removeprefix(found[0])

    def translate(self, error: RequestError) -> RequestError:
        """Return the error with the field as the client wrote it."""
        path, message = error.field, error.message
        named = self._named(path)
        if named is None:
            return error
        if message.startswith(path):
            message = named + message.removeprefix(path)
        return RequestError(error.reason, message, field=named, retry_after_s=error.retry_after_s)
