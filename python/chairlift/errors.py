"""The exceptions of Chairlift, and the reasons of refusals."""

from enum import StrEnum
from typing import Final

MAX_ECHO_CHARACTERS: Final = 100
"""Most characters of a request that an error quotes."""


class Reason(StrEnum):
    """Why a request or command was refused or failed; a closed list that clients can switch on."""

    BAD_PARAMETER = "BAD_PARAMETER"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    KV_CAPACITY = "KV_CAPACITY"
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    UNKNOWN_ADAPTER = "UNKNOWN_ADAPTER"
    DUPLICATE_REQUEST_ID = "DUPLICATE_REQUEST_ID"
    UNKNOWN_REQUEST = "UNKNOWN_REQUEST"
    EVENTS_DROPPED = "EVENTS_DROPPED"
    RESUMED_ELSEWHERE = "RESUMED_ELSEWHERE"
    ABORTED = "ABORTED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    QUEUE_FULL = "QUEUE_FULL"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    QUEUE_TIMEOUT = "QUEUE_TIMEOUT"
    DEADLINE_UNREACHABLE = "DEADLINE_UNREACHABLE"
    SLOW_READER = "SLOW_READER"
    UNSUPPORTED = "UNSUPPORTED"
    STARTING = "STARTING"
    DRAINING = "DRAINING"
    ENGINE_DOWN = "ENGINE_DOWN"
    ENGINE_BUSY = "ENGINE_BUSY"
    NUMERIC_FAULT = "NUMERIC_FAULT"
    NO_TOKEN_LEFT = "NO_TOKEN_LEFT"
    CONSTRAINT_TOO_COMPLEX = "CONSTRAINT_TOO_COMPLEX"
    STEP_FAILED = "STEP_FAILED"
    INTERNAL = "INTERNAL"


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


MESSAGES: Final = {
    Reason.QUEUE_TIMEOUT: "the request did not start within its queue timeout",
    Reason.NUMERIC_FAULT: "the model's output for this request was not finite",
    Reason.NO_TOKEN_LEFT: (
        "no token is left to draw: the constraint, allowed and banned ids together allow none"
    ),
    Reason.CONSTRAINT_TOO_COMPLEX: (
        "the constraint takes more work or memory for a token than the server allows"
    ),
    Reason.STEP_FAILED: "the model fails for this request, also when it runs alone",
    Reason.ENGINE_DOWN: "the engine stopped after an internal fault",
    Reason.ENGINE_BUSY: "the engine is in a step that takes long",
    Reason.UNKNOWN_ADAPTER: "the adapter was unloaded",
    Reason.RESUMED_ELSEWHERE: "another stream has resumed the request",
    Reason.ABORTED: "another call aborted the request",
    Reason.DRAINING: "the server is shutting down and takes no new requests",
    Reason.STARTING: "the model is still loading",
    Reason.QUEUE_FULL: "the queue is full",
}
"""The messages of reasons that no field of the request caused."""

RETRY_AFTER_S: Final = {
    Reason.QUEUE_FULL: 1.0,
    Reason.QUEUE_TIMEOUT: 1.0,
    Reason.STARTING: 1.0,
    Reason.DRAINING: 1.0,
    Reason.ENGINE_DOWN: 1.0,
    Reason.ENGINE_BUSY: 1.0,
}
"""When a retry may succeed."""


def refusal(reason: Reason) -> RequestError:
    """Return the error of a request that is refused for a reason in `MESSAGES`."""
    return RequestError(reason, MESSAGES[reason], retry_after_s=RETRY_AFTER_S.get(reason))


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
