"""Small numbers by which a feed names requests; each feed has its own."""

from typing import NamedTuple

from chairlift.server.calls.registry import Registry

ANONYMOUS = 0
"""Every request of another tenant."""


class _Named(NamedTuple):
    handle: str
    entry: list[int | str]
    """Number, handle, the client's name."""


class Numbers:
    """The requests of one tenant that a feed has shown and that have not ended."""

    def __init__(self, live: Registry, tenant: str) -> None:
        """Start with none.

        Args:
            live: Which has the names of requests, and how they ended.
            tenant: Whose requests have numbers.
        """
        self._live = live
        self._tenant = tenant
        self._by_id: dict[int, _Named] = {}
        self._num_given = 0
        self._new: list[list[int | str]] = []

    def of(self, engine_ids: list[int]) -> list[int]:
        """Return the number of each request; one that is shown for the first time gets the next."""
        return [self._of(engine_id) for engine_id in engine_ids]

    def _of(self, engine_id: int) -> int:
        names = self._live.names(engine_id)
        if names is None or names.tenant != self._tenant:
            return ANONYMOUS
        known = self._by_id.get(engine_id)
        # An engine that was restarted counts its ids from the start.
        if known is None or known.handle != names.handle:
            self._num_given += 1
            entry: list[int | str] = [self._num_given, names.handle, names.request_id]
            known = self._by_id[engine_id] = _Named(names.handle, entry)
            self._new.append(entry)
        return int(known.entry[0])

    def take_new(self) -> list[list[int | str]]:
        """Return the requests that got a number since the last call."""
        new, self._new = self._new, []
        return new

    def known(self) -> list[list[int | str]]:
        """Return all requests that have a number."""
        return [named.entry for named in self._by_id.values()]

    def take_ended(self) -> list[list[int | str]]:
        """Return the requests that have ended, which lose their numbers: why, and their tokens."""
        ended: list[list[int | str]] = []
        for engine_id, named in list(self._by_id.items()):
            names = self._live.names(engine_id)
            if names is None or names.handle != named.handle:
                ended.append([named.entry[0], "engine_down", 0])
            elif names.reason:
                ended.append([named.entry[0], names.reason, names.num_output_tokens])
            else:
                continue
            del self._by_id[engine_id]
        return ended
