"""Restarts a lost engine in place, a bounded number of times."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from chairlift.api.errors import EngineDownError, ModelError
from chairlift.server.app.loading import probe

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

MOST_RESTARTS: Final = 3
WITHIN_S: Final = 300.0

_log = logging.getLogger(__name__)


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
        if len(self._taken) == MOST_RESTARTS:
            return False
        self._taken.append(now)
        return True


async def restart(engine: "AsyncEngine") -> bool:
    """Restart a dead engine and let it answer a request; return whether it did."""
    _log.error("the engine is lost; it restarts with the loaded weights")
    try:
        await engine.restart()
        await probe(engine)
    except (EngineDownError, ModelError) as error:
        engine.fail_all()
        _log.error("the restart failed: %s", error)
        return False
    _log.warning("the engine serves again")
    return True
