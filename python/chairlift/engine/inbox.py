"""The sink of a request whose events are read one after another."""

import asyncio
from collections import deque

from chairlift.engine.handle import Handle
from chairlift.types import Event, Failed, Finished


class Inbox:
    """Events of one request wait here until they are taken."""

    def __init__(self) -> None:
        self.ended = False
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()

    def deliver(self, events: list[tuple[Handle, Event]]) -> None:
        """Keeps the events; an answer has as many as its max_tokens at most."""
        self._events.extend(event for _, event in events)
        self._arrived.set()

    async def take(self) -> list[Event]:
        """Waits for events and gives all there are."""
        await self._arrived.wait()
        self._arrived.clear()
        events = list(self._events)
        self._events.clear()
        self.ended = any(
            isinstance(event, Failed) or (isinstance(event, Finished) and event.last)
            for event in events
        )
        return events
