"""The names by which a protocol calls the fields that errors of the engine name."""

from collections.abc import Mapping

from chairlift.errors import RequestError


class Names:
    """The client's names of fields, by the paths in errors of the engine."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """Keep the names.

        Args:
            names: Beginnings of the engine's paths, and what replaces them. The longest counts.
        """
        self._names = sorted(names.items(), key=lambda pair: -len(pair[0]))

    def translate(self, error: RequestError) -> RequestError:
        """Return the error with the field as the client wrote it."""
        path = error.field
        for ours, theirs in self._names:
            if path.startswith(ours):
                named = theirs + path.removeprefix(ours)
                message = error.message
                if message.startswith(path):
                    message = named + message.removeprefix(path)
                return RequestError(
                    error.reason, message, field=named, retry_after_s=error.retry_after_s
                )
        return error
