"""How often an engine or a server may restart; a supervisor loads nothing else of a server."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_RESTARTS: Final = 3
WITHIN_S: Final = 300.0


class RestartBudget:
    """Three restarts within five minutes; a fault that comes back sooner needs a new process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with all restarts left.

        Args:
            clock: Returns seconds.
        """
        self._clock = clock
        self._taken: deque[float] = deque()

    @property
    def num_taken(self) -> int:
        """Return the number of restarts within the window."""
        return len(self._taken)

    def take(self) -> bool:
        """Take a restart; return False if none is left."""
        now = self._clock()
        while self._taken and now - self._taken[0] > WITHIN_S:
            self._taken.popleft()
        if len(self._taken) == MAX_RESTARTS:
            return False
        self._taken.append(now)
        return True
