"""Refused constraints, kept for a while: sent again, they are refused without being compiled."""

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final, NamedTuple

from chairlift.api.constraints import Source
from chairlift.api.errors import Reason, RequestError

MAX_TENANT_REFUSALS: Final = 64
"""That are kept for one tenant. One takes 2 KiB at most: its text is kept as a digest."""
MAX_REFUSALS: Final = 1024
"""That are kept for all tenants."""
KEPT_S: Final = 60.0
"""Then a constraint is tried again: whether it takes too much time depends on the machine, too."""


class _Refused(NamedTuple):
    message: str
    until: float


class Refusals:
    """Refusals by tenant and constraint; any thread may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep none yet.

        Args:
            clock: Seconds.
        """
        self._clock = clock
        self._lock = Lock()
        self._tenants: OrderedDict[str, OrderedDict[bytes, _Refused]] = OrderedDict()
        """Tenants, the one refused least recently first; each with its refusals, oldest first."""
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def check(self, tenant: str, source: Source) -> None:
        """Refuse a constraint of the tenant that was refused a short time ago.

        Raises:
            RequestError: The same error.
        """
        with self._lock:
            kept = self._tenants.get(tenant)
            refused = kept.get(_digest(source)) if kept else None
        if refused is not None and self._clock() < refused.until:
            raise RequestError(Reason.BAD_PARAMETER, refused.message, field=source.field)

    def put(self, tenant: str, source: Source, error: RequestError) -> None:
        """Keep a refusal that is due to the constraint; no effect for another one."""
        if error.reason is not Reason.BAD_PARAMETER:
            return
        key = _digest(source)
        with self._lock:
            kept = self._tenants.setdefault(tenant, OrderedDict())
            self._tenants.move_to_end(tenant)
            self._num -= kept.pop(key, None) is not None
            kept[key] = _Refused(error.message, self._clock() + KEPT_S)
            self._num += 1
            if len(kept) > MAX_TENANT_REFUSALS:
                self._drop(kept)
            if self._num > MAX_REFUSALS:
                name, oldest = next(iter(self._tenants.items()))
                self._drop(oldest)
                if not oldest:
                    del self._tenants[name]

    def _drop(self, kept: OrderedDict[bytes, _Refused]) -> None:
        kept.popitem(last=False)
        self._num -= 1


def _digest(source: Source) -> bytes:
    return hashlib.sha256(json.dumps(source).encode("ascii")).digest()
