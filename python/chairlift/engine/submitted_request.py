"""The record of a request from its submission to its last event."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

from chairlift.api.types import Event, Failed, Finished
from chairlift.engine.prepare.prepared import Prepared


@dataclass(slots=True, eq=False)
class SubmittedRequest(ABC):
    """One submitted request; a kind of it receives the events and keeps what its owner needs."""

    prepared: Prepared = field(repr=False)
    handle: str = field(init=False, default_factory=lambda: secrets.token_urlsafe(16))
    """Unguessable, for logs and for aborts from elsewhere."""
    engine_id: int | None = field(init=False, default=None)
    """Its id in the engine, once it is queued."""
    aborted: bool = field(init=False, default=False)
    """Its end was asked for."""
    ended: bool = field(init=False, default=False)
    """Its last event was delivered."""

    @abstractmethod
    def deliver(self, event: Event) -> None:
        """Receive an event; called on the event loop, must not block."""

    def on_first_token(self) -> None:  # noqa: B027 - without a router there is nothing to do
        """Note that a router has delivered the first token; called on the event loop."""


@dataclass(slots=True, eq=False)
class Mailbox(SubmittedRequest):
    """A request whose events wait here until they are taken."""

    _events: deque[Event] = field(init=False, default_factory=deque, repr=False)
    _arrived: asyncio.Event = field(init=False, default_factory=asyncio.Event, repr=False)

    def deliver(self, event: Event) -> None:
        """Keep the event; a sequence has as many as its max_tokens at most."""
        self._events.append(event)
        self._arrived.set()

    @property
    def is_read(self) -> bool:
        """Whether the last event was taken."""
        return self.ended and not self._events

    async def take(self) -> list[Event]:
        """Wait for events and return all there are."""
        await self._arrived.wait()
        self._arrived.clear()
        events = list(self._events)
        self._events.clear()
        return events


def is_last(event: Event) -> bool:
    """Return whether no event of the request follows."""
    return isinstance(event, Failed) or (isinstance(event, Finished) and event.last)
