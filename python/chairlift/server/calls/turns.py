"""Turns between calls: one that sends many requests does not hold up another that sends few.

Tenants have fair shares in the scheduler. Within a tenant, and among callers without one, a request
stands where it has to start (`docs/batching.md`), and a call that sends hundreds at once would be
served before all that come later. So each request of a call stands a little later than the one
before it:

    call a, 0 s   a0  a1  a2 ...                       a99
    call b, 1 s                      b0
    queue         a0 ... a9  b0  a10 ...               a99
"""

from dataclasses import replace
from typing import Final

from chairlift.api import types
from chairlift.engine.prepare.preparer import MAX_PRIORITY

TURN_S: Final = 0.1
"""How much later each request of a call stands than the one before."""
MAX_DELAY_S: Final = 10.0
"""How much later than its arrival a request stands at most: no call starves."""


class Turns:
    """The places of the requests of one call; each priority has its own."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    def take(self, schedule: types.Schedule, now: float, *, is_first: bool) -> types.Schedule:
        """Return a request's schedule with its place among the requests of its call.

        Args:
            schedule: The request's; a priority that is none is refused later.
            now: Monotonic seconds.
            is_first: Whether no request of the call is live.
        """
        priority: object = schedule.priority
        if not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
            return schedule
        if is_first:
            self._last.clear()
        place = now
        if priority in self._last:
            place = min(max(now, self._last[priority] + TURN_S), now + MAX_DELAY_S)
        self._last[priority] = place
        return replace(schedule, turn_delay_s=place - now)
