"""Submitted requests, where their events go, and which of them have not ended."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from chairlift.engine.events import CoreEvent, failed, refused, to_event
from chairlift.engine.prepare import Prepared
from chairlift.engine.step import StepOutput
from chairlift.errors import Reason, RequestError
from chairlift.types import Accepted, Event, Failed, Finished

logger = logging.getLogger(__name__)


class Handle:
    """One submitted request.

    Attributes:
        name: Unguessable, for logs and for aborts from elsewhere.
        prepared: The request.
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
        """Receive the events of one step; called on the event loop, must not block."""


class Router(Protocol):
    """Delivers tokens without an object for each."""

    def post(self, output: StepOutput) -> Iterable[CoreEvent]:
        """Deliver a step's tokens and return the other events; called on the event loop."""


class Mailbox:
    """The sink of one request, whose events wait here until they are taken."""

    def __init__(self) -> None:
        self.ended = False
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()

    def deliver(self, events: list[tuple[Handle, Event]]) -> None:
        """Keep the events; a sequence has as many as its max_tokens at most."""
        self._events.extend(event for _, event in events)
        self._arrived.set()

    async def take(self) -> list[Event]:
        """Wait for events and return all there are."""
        await self._arrived.wait()
        self._arrived.clear()
        events = list(self._events)
        self._events.clear()
        self.ended = any(map(is_last, events))
        return events


class OpenRequests:
    """The requests that have not ended; each ends once, whatever the engine does.

    A handle is submitted until the engine has answered, then live until its end.
    """

    def __init__(self, abort: Callable[[Handle], None]) -> None:
        """Start without requests.

        Args:
            abort: Called for each request whose sink raised.
        """
        self.router: Router | None = None
        """Delivers a part of each step's events; sinks receive the rest."""
        self._abort = abort
        self._submitted: set[Handle] = set()
        self._live: dict[int, Handle] = {}
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    def __len__(self) -> int:
        return len(self._submitted) + len(self._live)

    def all(self) -> list[Handle]:
        """Return all requests that have not ended."""
        return [*self._submitted, *self._live.values()]

    def add(self, handle: Handle) -> None:
        """Enter a request that is submitted."""
        self._submitted.add(handle)
        self._all_ended.clear()

    async def wait_until_ended(self) -> None:
        """Wait until there is no request."""
        await self._all_ended.wait()

    def receive(
        self, answers: Iterable[tuple[Handle, Accepted | RequestError]], output: StepOutput
    ) -> None:
        """Deliver the engine's answers to submitted requests, and the events of a step."""
        self._deliver([pair for answer in answers if (pair := self._answered(*answer))])
        # After the answers: a router knows a request from its `Accepted` on.
        rest = output.events if self.router is None else self.router.post(output)
        events: list[tuple[Handle, Event]] = []
        for core_event in rest:
            handle = self._live.get(core_event.request_id)
            if handle is None:
                # `stop` did not wait for a thread that was stuck in a step, which has now ended.
                continue
            event = to_event(core_event, handle.prepared.output, output.sampled)
            if is_last(event):
                handle.ended = True
                del self._live[core_event.request_id]
            events.append((handle, event))
        self._deliver(events)
        self._note_ends()

    def fail(self, handles: Iterable[Handle], reason: Reason) -> None:
        """End requests whatever the engine does with them."""
        for handle in handles:
            if handle.ended:
                continue
            handle.ended = True
            self._submitted.discard(handle)
            if handle.request_id is not None:
                self._live.pop(handle.request_id, None)
            self._give(handle.sink, [(handle, failed(handle.request_id, reason))])
        self._note_ends()

    def _answered(
        self, handle: Handle, answer: Accepted | RequestError
    ) -> tuple[Handle, Event] | None:
        if handle.ended:
            return None
        self._submitted.discard(handle)
        if isinstance(answer, RequestError):
            handle.ended = True
            return handle, refused(answer)
        self._live[answer.request_id] = handle
        return handle, answer

    def _deliver(self, events: Iterable[tuple[Handle, Event]]) -> None:
        """Deliver to each sink its events, in order, in one call."""
        by_sink: dict[int, tuple[Sink, list[tuple[Handle, Event]]]] = {}
        for handle, event in events:
            by_sink.setdefault(id(handle.sink), (handle.sink, []))[1].append((handle, event))
        for sink, its_events in by_sink.values():
            self._give(sink, its_events)

    def _give(self, sink: Sink, events: list[tuple[Handle, Event]]) -> None:
        try:
            sink.deliver(events)
        except Exception:
            logger.exception("a sink failed; its requests are aborted")
            for handle, _ in events:
                self._abort(handle)

    def _note_ends(self) -> None:
        if not len(self):
            self._all_ended.set()


def is_last(event: Event) -> bool:
    """Return whether no event of the request follows."""
    return isinstance(event, Failed) or (isinstance(event, Finished) and event.last)
