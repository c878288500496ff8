"""The exceptions of Chairlift, and the reasons of refusals."""

from enum import StrEnum
from http import HTTPStatus
from typing import Final, Self

MAX_ECHO_CHARACTERS: Final = 100
"""Most characters of a request that an error quotes."""


class Reason(StrEnum):
    """Why a request or command was refused or failed; a closed list that clients can switch on.

    `Error.reason` in the proto has the same list.

    Attributes:
        code: Name of the gRPC code.
        http_status: Status of an HTTP response.
        message: The text where no field of the request is at fault; else empty.
        retry_after_s: When a retry may succeed, in seconds; None is never, or said elsewhere.
    """

    code: str
    http_status: HTTPStatus
    message: str
    retry_after_s: float | None

    def __new__(
        cls,
        value: str,
        code: str,
        http_status: int,
        message: str = "",
        retry_after_s: float | None = None,
    ) -> Self:
        """Make a member of the table below, whose value is its name."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.code = code
        member.http_status = HTTPStatus(http_status)
        member.message = message
        member.retry_after_s = retry_after_s
        return member

    BAD_PARAMETER = "BAD_PARAMETER", "INVALID_ARGUMENT", 400
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG", "INVALID_ARGUMENT", 400
    # Not RESOURCE_EXHAUSTED: clients would retry forever what can never fit.
    KV_CAPACITY = "KV_CAPACITY", "FAILED_PRECONDITION", 400
    UNKNOWN_MODEL = "UNKNOWN_MODEL", "NOT_FOUND", 404
    UNKNOWN_ADAPTER = "UNKNOWN_ADAPTER", "NOT_FOUND", 404, "the adapter was unloaded"
    DUPLICATE_REQUEST_ID = "DUPLICATE_REQUEST_ID", "ALREADY_EXISTS", 409
    UNKNOWN_REQUEST = "UNKNOWN_REQUEST", "NOT_FOUND", 404
    EVENTS_DROPPED = "EVENTS_DROPPED", "OUT_OF_RANGE", 410
    RESUMED_ELSEWHERE = (
        "RESUMED_ELSEWHERE",
        "ABORTED",
        409,
        "another stream has resumed the request",
    )
    ABORTED = "ABORTED", "ABORTED", 409, "another call aborted the request"
    UNAUTHENTICATED = "UNAUTHENTICATED", "UNAUTHENTICATED", 401
    # The statuses 503 are those that clients of HTTP retry: the request itself is right.
    QUEUE_FULL = "QUEUE_FULL", "RESOURCE_EXHAUSTED", 503, "the queue is full", 1.0
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED", "RESOURCE_EXHAUSTED", 429
    QUEUE_TIMEOUT = (
        "QUEUE_TIMEOUT",
        "DEADLINE_EXCEEDED",
        503,
        "the request did not start within its queue timeout",
        1.0,
    )
    DEADLINE_UNREACHABLE = "DEADLINE_UNREACHABLE", "DEADLINE_EXCEEDED", 503
    SLOW_READER = "SLOW_READER", "RESOURCE_EXHAUSTED", 408
    UNSUPPORTED = "UNSUPPORTED", "UNIMPLEMENTED", 400
    STARTING = "STARTING", "UNAVAILABLE", 503, "the model is still loading", 1.0
    DRAINING = (
        "DRAINING",
        "UNAVAILABLE",
        503,
        "the server is shutting down and takes no new requests",
        1.0,
    )
    ENGINE_DOWN = (
        "ENGINE_DOWN",
        "UNAVAILABLE",
        503,
        "the engine stopped after an internal fault",
        1.0,
    )
    ENGINE_BUSY = (
        "ENGINE_BUSY",
        "UNAVAILABLE",
        503,
        "the engine is in a step that takes long",
        1.0,
    )
    PREFILL_UNAVAILABLE = (
        "PREFILL_UNAVAILABLE",
        "UNAVAILABLE",
        503,
        "no prefill server sent the KV blocks of the prompt, and --strict-roles forbids computing",
        1.0,
    )
    FOREIGN_LAYOUT = "FOREIGN_LAYOUT", "FAILED_PRECONDITION", 400
    TRANSFER_MEMORY = (
        "TRANSFER_MEMORY",
        "RESOURCE_EXHAUSTED",
        503,
        "blocks that were not read yet take all the memory for transfers",
        1.0,
    )
    NUMERIC_FAULT = (
        "NUMERIC_FAULT",
        "INTERNAL",
        500,
        "the model's output for this request was not finite",
    )
    # What the request asks for together allows nothing, or too much work.
    NO_TOKEN_LEFT = (
        "NO_TOKEN_LEFT",
        "INVALID_ARGUMENT",
        400,
        "no token is left to draw: the constraint, allowed and banned ids together allow none",
    )
    CONSTRAINT_TOO_COMPLEX = (
        "CONSTRAINT_TOO_COMPLEX",
        "INVALID_ARGUMENT",
        400,
        "the constraint takes more work or memory for a token than the server allows",
    )
    STEP_FAILED = (
        "STEP_FAILED",
        "INTERNAL",
        500,
        "the model fails for this request, also when it runs alone",
    )
    INTERNAL = "INTERNAL", "INTERNAL", 500


def echo(text: str) -> str:
    """Return text of a request as an error quotes it: one line, at most 100 characters of it.

    Characters that UTF-8 cannot encode (lone surrogates) become `?`.
    """
    # Whitespace is joined in a longer piece alone: the text may be megabytes long.
    line = " ".join(text[: 4 * MAX_ECHO_CHARACTERS].split())
    short = line.encode(errors="replace").decode()
    is_cut = len(short) > MAX_ECHO_CHARACTERS or len(text) > 4 * MAX_ECHO_CHARACTERS
    return f"{short[:MAX_ECHO_CHARACTERS]}..." if is_cut else short


class ChairliftError(Exception):
    """Base of all errors below."""


class ConfigError(ChairliftError):
    """A setting is wrong; the message names it, what was expected and what was got."""


class ModelError(ChairliftError):
    """A model cannot be loaded; the message is one clear line."""


class RequestError(ChairliftError):
    """A request or command is refused.

    Attributes:
        reason: From the catalogue.
        message: Without prompt text and token ids.
        field: Path of the offending field in `Start`, or empty.
        retry_after_s: Set if a retry may succeed.
    """

    def __init__(
        self, reason: Reason, message: str, *, field: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


def refusal(reason: Reason) -> RequestError:
    """Return the error of a request that is refused for a reason with a message of its own."""
    assert reason.message, reason
    return RequestError(reason, reason.message, retry_after_s=reason.retry_after_s)


class EngineState(StrEnum):
    """What a server and its engine do with requests."""

    STARTING = "starting"
    """Requests are refused: the model is being read."""
    SERVING = "serving"
    RESTARTING = "restarting"
    """New requests are refused: a fault ended the live ones, and the engine restarts."""
    DRAINING = "draining"
    """Live requests end and new ones are refused; also after `stop`."""
    DEAD = "dead"
    """A fault ended the live requests, and new ones are refused until a restart, if any."""

    @property
    def refusal(self) -> Reason | None:
        """Why a request cannot be submitted now; None where it can."""
        return _REFUSALS.get(self)


_REFUSALS = {
    EngineState.STARTING: Reason.STARTING,
    EngineState.RESTARTING: Reason.ENGINE_DOWN,
    EngineState.DRAINING: Reason.DRAINING,
    EngineState.DEAD: Reason.ENGINE_DOWN,
}


class EngineDownError(ChairliftError):
    """The engine stopped after an internal fault; every request has ended and none is accepted."""


class ServerError(ChairliftError):
    """A server cannot be reached, or ended a call without a reason of the catalogue."""


class NoServerError(ServerError):
    """Nothing listens at the address."""
