"""How long a request would wait for a row, so that one that would miss its deadline is refused.

Little's law: a request with n requests before it waits n times the interval between two starts. The
interval is measured while requests wait, and is known on the event loop: a refusal need not wait
for the running step.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from chairlift.api.errors import Reason, RequestError

_MEMORY: Final = 0.95
"""Decay of the average at each start: its half-life is about 14 starts."""
_NUM_TRUSTED: Final = 8
"""Starts that must have been measured before a request is refused."""
_MARGIN: Final = 1.25
"""Under overload every admitted request is near its limit: half would miss it otherwise."""


class AdmissionSlot:
    """A request's place in the backlog; both methods may be called again."""

    def __init__(self, backlog: "Backlog", tenant: str) -> None:
        self._backlog = backlog
        self._tenant = tenant
        self._waits = self._has_ended = False

    def begin(self) -> None:
        """Count the request as waiting: it may start, so that others wait behind it."""
        if not (self._waits or self._has_ended):
            self._waits = True
            self._backlog.add(self._tenant)

    def end(self, *, started: bool) -> None:
        """Discount the request: it has its first token, or will never have one."""
        self._has_ended = True
        if self._waits:
            self._waits = False
            self._backlog.remove(self._tenant, started=started)


class Backlog:
    """The requests without a first token, and the rate at which requests get one."""

    def __init__(
        self, num_without_row: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start empty.

        Args:
            num_without_row: Returns how many requests wait for a row while none is free for them.
            clock: Returns seconds.
        """
        self._num_without_row = num_without_row
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        self._num_seen = 0
        self._num_starts = self._time_s = 0.0
        self._since: float | None = None
        """Time of the last start after which others still waited."""

    def __len__(self) -> int:
        """Return the number of requests without a first token."""
        return self._waiting.total()

    def admit(
        self, tenant: str, within_s: float | None, *, suspended: bool = False
    ) -> AdmissionSlot:
        """Admit a request.

        Args:
            tenant: Its tenant; tenants are served in rotation.
            within_s: How long it may wait, in seconds; None is unlimited.
            suspended: It has no credit, so that no request waits behind it until it has.

        Raises:
            RequestError: It would wait longer than `within_s`.
        """
        wait_s = self.wait_s(tenant)
        max_s = wait_s * _MARGIN
        if within_s is not None and max_s > within_s:
            message = f"it may wait for {max_s:.2g} s, and has to start within {within_s:.2g} s"
            raise RequestError(Reason.DEADLINE_UNREACHABLE, message, retry_after_s=wait_s)
        slot = AdmissionSlot(self, tenant)
        if not suspended:
            slot.begin()
        return slot

    def wait_s(self, tenant: str) -> float:
        """Return the seconds until a request of this tenant would start; 0 if a row is free."""
        num_waiting = self._num_without_row()
        interval_s = self._interval_s()
        if interval_s is None or not num_waiting:
            return 0.0
        num_of_tenant = self._waiting[tenant]
        others = (num for other, num in self._waiting.items() if other != tenant)
        num_before = num_of_tenant + sum(min(num, num_of_tenant + 1) for num in others)
        return (min(num_before, num_waiting) + 1) * interval_s

    def starts_in_s(self, num_before: int) -> float | None:
        """Return the seconds until a request starts behind `num_before`; None if unknown."""
        interval_s = self._interval_s()
        return None if interval_s is None else (num_before + 1) * interval_s

    def _interval_s(self) -> float | None:
        is_known = self._num_seen >= _NUM_TRUSTED
        return self._time_s / self._num_starts if is_known else None

    def add(self, tenant: str) -> None:
        """Count a waiting request."""
        self._waiting[tenant] += 1

    def remove(self, tenant: str, *, started: bool) -> None:
        """Discount a waiting request."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
        now = self._clock()
        if started and self._since is not None:
            self._num_seen += 1
            self._num_starts = _MEMORY * self._num_starts + 1
            self._time_s = _MEMORY * self._time_s + now - self._since
        if started or not self._waiting:
            self._since = now if self._waiting else None
