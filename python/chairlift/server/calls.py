"""Open generation calls: who is woken when the server drains, and when the last has ended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.server.outbox import Outbox


class Calls:
    """The outboxes of the calls that are open."""

    def __init__(self) -> None:
        self._open: set[Outbox] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    @contextmanager
    def open(self, outbox: Outbox) -> Iterator[None]:
        """Counts a call while it runs."""
        self._open.add(outbox)
        self._all_closed.clear()
        try:
            yield
        finally:
            self._open.discard(outbox)
            if not self._open:
                self._all_closed.set()

    def wake(self) -> None:
        """Lets every call look at the gate."""
        for outbox in self._open:
            outbox.wake()

    async def wait_closed(self) -> None:
        """Until no call is open."""
        await self._all_closed.wait()
