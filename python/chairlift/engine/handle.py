"""A submitted request, and where its events go."""

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from chairlift.engine.prepare import Prepared
from chairlift.types import Event

if TYPE_CHECKING:
    from chairlift.engine.events import CoreEvent
    from chairlift.engine.stepper import StepOutput


class Handle:
    """One submitted request.

    Attributes:
        name: Unguessable, for logs and for aborts from elsewhere.
        prepared: What was submitted.
        sink: Where its events go.
        request_id: Of the engine, once it is queued.
        aborted: Its end was asked for.
        ended: Its last event was delivered.
    """

    __slots__ = ("aborted", "ended", "name", "prepared", "request_id", "sink")

    def __init__(self, prepared: Prepared, sink: "Sink") -> None:
        self.name = secrets.token_urlsafe(16)
        self.prepared = prepared
        self.sink = sink
        self.request_id: int | None = None
        self.aborted = False
        self.ended = False

    def __repr__(self) -> str:
        return f"Handle({self.name})"


class Sink(Protocol):
    """Receives the events of one or many requests."""

    def deliver(self, events: list[tuple[Handle, Event]]) -> None:
        """Takes all that one step has for this sink; called on the event loop, must not block."""


class Router(Protocol):
    """Delivers tokens without an object for each."""

    def post(self, output: "StepOutput") -> "Iterable[CoreEvent]":
        """Takes a step's tokens and gives the events that are left; called on the event loop."""


def by_sink(
    events: Iterable[tuple[Handle, Event]],
) -> Iterable[tuple[Sink, list[tuple[Handle, Event]]]]:
    """Groups events by where they go, in order."""
    groups: dict[int, tuple[Sink, list[tuple[Handle, Event]]]] = {}
    for handle, event in events:
        groups.setdefault(id(handle.sink), (handle.sink, []))[1].append((handle, event))
    return groups.values()
