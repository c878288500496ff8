"""Fields of proto messages: those that are not set, and the errors for wrong ones."""

from typing import Any

from chairlift.api.errors import Reason, RequestError


def bad(field: str, message: str) -> RequestError:
    """Return the error for a value that is wrong."""
    return RequestError(Reason.BAD_PARAMETER, f"{field}: {message}", field=field)


def unsupported(field: str) -> RequestError:
    """Return the error for a field that this version does not implement."""
    message = f"{field}: not supported by this version of the server"
    return RequestError(Reason.UNSUPPORTED, message, field=field)


def optional(message: Any, name: str, default: Any) -> Any:
    """Return the value of an optional field, or the default where it is not set."""
    return getattr(message, name) if message.HasField(name) else default
