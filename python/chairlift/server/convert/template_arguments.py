"""`google.protobuf.Struct` to Python values, with a bound on their number."""

import math
from typing import Any, Final

from google.protobuf import struct_pb2

from chairlift.api.chats import MAX_ARGUMENTS
from chairlift.api.errors import Reason, RequestError

_FIELD: Final = "chat.template_arguments"


class _Reader:
    def __init__(self) -> None:
        self._num_left = MAX_ARGUMENTS

    def object(self, struct: struct_pb2.Struct) -> dict[str, Any]:
        self._count(len(struct.fields))
        return {name: self._value(value) for name, value in struct.fields.items()}

    def _count(self, num: int) -> None:
        self._num_left -= num
        if self._num_left < 0:
            raise _bad(f"expected at most {MAX_ARGUMENTS} values, got more")

    def _value(self, value: struct_pb2.Value) -> Any:
        kind = value.WhichOneof("kind")
        if kind is None or kind == "null_value":
            return None
        if kind == "struct_value":
            return self.object(value.struct_value)
        if kind == "list_value":
            self._count(len(value.list_value.values))
            return [self._value(item) for item in value.list_value.values]
        plain = getattr(value, kind)
        if kind == "number_value" and not math.isfinite(plain):
            raise _bad("expected finite numbers")
        return plain


def template_arguments(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Return the arguments by name; numbers are floats.

    Raises:
        RequestError: `BAD_PARAMETER` in `chat.template_arguments`: there are more than
            `MAX_ARGUMENTS` values, or a number is not finite.
    """
    return _Reader().object(struct)


def _bad(message: str) -> RequestError:
    return RequestError(Reason.BAD_PARAMETER, f"{_FIELD}: {message}", field=_FIELD)
