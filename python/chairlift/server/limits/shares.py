"""Shares of a common resource: no tenant, and no connection without one, takes all of it.

Dynamic thresholds (Choudhury and Hahne, 1998): a holder may grow while it holds at most `SHARE`
times what is free. A single holder reaches three quarters, a second one three quarters of the
rest, and so on: a later holder always finds something free.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from chairlift.api.errors import Reason, RequestError

SHARE: Final = 3
"""Times what is free that one holder may hold."""
_RETRY_S: Final = 1.0

Holder = tuple[str, str]
"""The kind of a holder, as in messages, and its name."""


def holder_of(connection: str, tenant: str) -> Holder:
    """Return the holder that a call counts for: its tenant where there is one.

    Behind a gateway many tenants have one connection, and behind a proxy one host: only callers
    without a tenant are told apart by their connections.
    """
    return ("tenant", tenant) if tenant else ("connection", connection)


def holders_of(connection: str, tenant: str) -> tuple[Holder, ...]:
    """Return `holder_of` for `Shares.take`."""
    return (holder_of(connection, tenant),)


class Share:
    """The part that one call or request holds; `release` may be called again."""

    def __init__(self, shares: "Shares", holders: tuple[Holder, ...], num: int) -> None:
        self._shares = shares
        self.holders = holders
        self._num = num

    def shrink(self, num: int) -> None:
        """Return what exceeds a number to the shares."""
        if num < self._num:
            self._shares.give_back(self.holders, self._num - num)
            self._num = num

    def release(self) -> None:
        """Return the part to the shares."""
        self._shares.give_back(self.holders, self._num)
        self._num = 0


class Capacity(NamedTuple):
    """How much of a resource there is."""

    total: int
    free: int
    max_running: int = 0
    """How many of the held parts may run, and are not in the queue; each holder is assumed to have
    its proportion of these."""


class Shares:
    """How much of one resource each holder has; for one event loop."""

    def __init__(
        self, name: str, total: int, capacity: Callable[[int], Capacity] | None = None
    ) -> None:
        """Start with nothing held.

        Args:
            name: Name of the resource, for messages.
            total: Its size.
            capacity: Returns its size and how much of it is free, for a resource that keeps these
                numbers itself; such a resource also refuses by itself when it is full.
        """
        self._name = name
        self._total = total
        self._capacity = capacity
        self._held: Counter[Holder] = Counter()
        self._num_held = 0

    def held(self, holder: Holder) -> int:
        """Return how much a holder has."""
        return self._held[holder]

    def take(self, holders: tuple[Holder, ...], num: int = 1) -> Share:
        """Take a part for all these holders.

        Raises:
            RequestError: Nothing is free, or a holder would exceed its share.
        """
        held = self._num_held
        capacity = (
            self._capacity(held) if self._capacity else Capacity(self._total, self._total - held)
        )
        if capacity.free < num and self._capacity is None:
            message = f"all {capacity.total} {self._name} of this server are taken"
            raise RequestError(Reason.QUOTA_EXCEEDED, message, retry_after_s=_RETRY_S)
        part = 1 - min(1.0, capacity.max_running / (self._num_held + num))
        for holder in holders:
            held = self._held[holder]
            if capacity.free >= num and (held + num) * part > SHARE * capacity.free:
                message = (
                    f"quota {holder[0]}_share: this {holder[0]} has {held} {self._name},"
                    f" and {capacity.free} of {capacity.total} are free"
                )
                raise RequestError(Reason.QUOTA_EXCEEDED, message, retry_after_s=_RETRY_S)
        self._num_held += num
        self._held.update(dict.fromkeys(holders, num))
        return Share(self, holders, num)

    def give_back(self, holders: tuple[Holder, ...], num: int) -> None:
        """Free what a share holds."""
        self._num_held -= num
        for holder in holders:
            self._held[holder] -= num
            if not self._held[holder]:
                del self._held[holder]
