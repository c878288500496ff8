"""The job that an endpoint makes of a body: engine requests, and the form of their answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from chairlift.api import types
from chairlift.server.convert.messages import DeliveryOptions
from chairlift.server.handoff.handoffs import Handoff
from chairlift.server.http.errors import HttpError
from chairlift.server.protocols.names import Names
from chairlift.v1 import generation_pb2 as pb


class Answer(Protocol):
    """A response that is sent whole; what comes is encoded at once."""

    def prompt(self, numbers: range, prompt: pb.Prompt) -> None:
        """Add a piece of the prompt of some answers; only where it is asked for."""

    def tokens(self, number: int, tokens: pb.Tokens) -> None:
        """Add tokens of an answer."""

    def finished(self, number: int, finished: pb.Finished) -> None:
        """End an answer."""

    def body(self) -> list[bytes]:
        """Return the pieces of the body."""


class Stream(Protocol):
    """A response that is sent as events.

    Each method returns pieces of encoded events: an event begins with a piece of its own, and may
    have many.
    """

    def accepted(self, number: int, num_prompt_tokens: int) -> None:
        """Note the length of the prompt of an answer."""

    def prompt(self, numbers: range, prompt: pb.Prompt) -> list[bytes]:
        """Encode a piece of the prompt of some answers; only where it is asked for."""

    def tokens(self, number: int, tokens: pb.Tokens) -> list[bytes]:
        """Encode tokens of an answer; called once per step and answer."""

    def finished(self, number: int, finished: pb.Finished) -> list[bytes]:
        """Encode the end of an answer."""

    def failed(self, error: HttpError) -> list[bytes]:
        """Encode the end of a response that has begun."""

    def end(self) -> list[bytes]:
        """Encode the end of the response, after all answers."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What every object of a response repeats."""

    handle: str
    """Handle of the first request; the id of the response has it."""
    created: int
    """Seconds since 1970."""
    model: str


@dataclass(frozen=True, slots=True)
class Job:
    """The requests of one exchange.

    Answer i of request r has the number `r * n + i`.
    """

    requests: list[types.Request]
    output: DeliveryOptions
    num_answers: int
    """Answers of each request, `n`."""
    model: str
    is_stream: bool
    answer: Callable[[Origin], Answer]
    stream: Callable[[Origin], Stream]
    names: Names
    num_kept_bytes: int = 0
    """What `answer` and `stream` keep of the body."""
    handoff: Handoff | None = None
    """What a gateway says that sends the request to two servers."""
