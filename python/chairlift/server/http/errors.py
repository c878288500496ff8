"""Errors of HTTP: a status and a JSON object in the shape of the OpenAI API.

{"error": {"message": "...", "type": "invalid_request_error", "param": "top_p", "code": "..."}}
"""

import json
import math
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from chairlift.api.errors import Reason, RequestError
from chairlift.server.rpc.status import INTERNAL_MESSAGE

_CODES: Final = {
    Reason.ABORTED: "cancelled",
    # The codes by which clients of the OpenAI API know these errors.
    Reason.PROMPT_TOO_LONG: "context_length_exceeded",
    Reason.KV_CAPACITY: "context_length_exceeded",
    Reason.UNKNOWN_ADAPTER: "model_not_found",
    Reason.UNKNOWN_MODEL: "model_not_found",
    Reason.UNAUTHENTICATED: "invalid_api_key",
    Reason.QUOTA_EXCEEDED: "rate_limit_exceeded",
}

_TYPES: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
}


@dataclass(eq=False)
class HttpError(Exception):
    """An exchange is refused, or fails.

    Attributes:
        reason: The reason of the catalogue; None for a refusal of HTTP itself.
        param: Path of the field, as the client wrote it.
        headers: Added to the response.
    """

    status: HTTPStatus
    message: str
    code: str
    param: str | None = None
    reason: Reason | None = None
    retry_after_s: float | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: RequestError) -> "HttpError":
        """Return the error of HTTP for one of the catalogue."""
        headers = {}
        if error.reason is Reason.UNAUTHENTICATED:
            headers["www-authenticate"] = "Bearer"
        return cls(
            error.reason.http_status,
            error.message,
            _CODES.get(error.reason, error.reason.value.lower()),
            error.field or None,
            error.reason,
            error.retry_after_s,
            headers,
        )

    @classmethod
    def internal(cls) -> "HttpError":
        """Return the error of a fault of the server: its own text may hold secrets."""
        return cls.of(RequestError(Reason.INTERNAL, INTERNAL_MESSAGE))

    def object(self) -> dict[str, Any]:
        """Return the JSON object of the error, without the `error` around it."""
        is_fault = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = _TYPES.get(self.status, "server_error" if is_fault else "invalid_request_error")
        return {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }

    def body(self) -> bytes:
        """Return the body of the response."""
        return json.dumps({"error": self.object()}).encode()

    def all_headers(self) -> dict[str, str]:
        """Return the headers of the response; `Retry-After` is in whole seconds."""
        if self.retry_after_s is None:
            return self.headers
        return {**self.headers, "retry-after": str(max(1, math.ceil(self.retry_after_s)))}


class Disconnected(Exception):
    """The client is gone."""


def refused(status: HTTPStatus, message: str, code: str, param: str | None = None) -> HttpError:
    """Return an error of HTTP itself."""
    return HttpError(status, message, code, param)
