"""Events that wait for one reader of a feed; bounded, however slowly it reads."""

import asyncio
from collections import deque
from typing import Final

from chairlift.server.page.frame import Frame

MAX_FRAMES: Final = 2
"""Unsent frames; of more, the oldest are dropped."""


class Subscriber:
    """The unsent events of one reader; for one event loop."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._panels: dict[str, bytes] = {}
        self._num_dropped = 0
        self._follows = False
        """Whether the reader has all frames before the first unsent one."""
        self._wake = asyncio.Event()

    def add_frame(self, frame: Frame) -> None:
        """Add a frame."""
        if len(self._frames) == MAX_FRAMES:
            self.miss(self._frames.popleft().num_steps)
        self._frames.append(frame)
        self._wake.set()

    def miss(self, num_steps: int) -> None:
        """Note steps that the reader does not get."""
        self._num_dropped += num_steps
        self._follows = False

    def add_panel(self, name: str, event: bytes) -> None:
        """Add an event that replaces an unsent one of its name."""
        self._panels[name] = event
        self._wake.set()

    def wake(self) -> None:
        """Wake the writer, although there may be no event."""
        self._wake.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait for an event, or for `wake`, at most for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def take(self) -> bytes:
        """Return everything that is unsent."""
        parts = []
        while self._frames:
            frame = self._frames.popleft()
            parts.append(frame.encoded(follows=self._follows, num_dropped=self._num_dropped))
            self._follows, self._num_dropped = True, 0
        parts.extend(self._panels.values())
        self._panels.clear()
        return b"".join(parts)
