"""The connections of the HTTP port: their number, and which one is closed for a new one.

A connection holds a file as soon as it is accepted, before its handshake and its first byte. So
connections are counted from then on. If there are too many, the first of these is closed: one whose
caller no token has admitted, one that is still sending its body, one that waits between two
requests. A connection that is being answered stays.
"""

from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from chairlift.server.limits.shares import Share, Shares

_SHARED: Final = "connections with a request"


class Stage(IntEnum):
    """What a connection does, from the first that gives way to the last."""

    UNKNOWN = 0
    """No request of it was admitted: a handshake, a head, silence, a refusal."""
    SENDING = 1
    """An admitted request, whose body has not come."""
    WAITING = 2
    """Between two requests."""
    ANSWERED = 3
    """The body has come: it does not give way."""


def _nothing() -> None:
    """Do nothing."""


class Connection:
    """One connection, from its acceptance to its end.

    Attributes:
        holder: The tenant once it is known, the host before.
        stage: What it does.
        close: Ends the connection at once; set by what has it.
    """

    def __init__(self, connections: "Connections", host: str) -> None:
        self._connections = connections
        self.holder = f"host:{host}"
        self.stage = Stage.UNKNOWN
        self.close: Callable[[], object] = _nothing

    def enter(self, stage: Stage) -> None:
        """Note what it does from now on."""
        self._connections.change(self, self.holder, stage)

    def admit(self, tenant: str) -> Share | None:
        """Note that a request of it is admitted.

        Returns:
            The place of a tenant with a name, to be released with the end of the request.

        Raises:
            RequestError: The tenant has its share of all connections.
        """
        place = self._connections.shares.take((("tenant", tenant),)) if tenant else None
        holder = f"tenant:{tenant}" if tenant else self.holder
        self._connections.change(self, holder, Stage.SENDING)
        return place

    def is_received(self) -> None:
        """Note that the body of its request has come."""
        if self.stage is Stage.SENDING:
            self.enter(Stage.ANSWERED)

    def end_request(self) -> None:
        """Note that its request was answered; one without an admitted request stays as it is."""
        if self.stage is not Stage.UNKNOWN:
            self.enter(Stage.WAITING)

    def leave(self) -> None:
        """Give back its place; may be called again."""
        self._connections.remove(self)


class Connections:
    """All connections of one port; for one event loop.

    Attributes:
        shares: Those with a request of each tenant, so that a tenant leaves places for others.
    """

    def __init__(self, max_connections: int) -> None:
        """Start without connections.

        Args:
            max_connections: The most of them.
        """
        self.shares = Shares(_SHARED, max_connections)
        self._limit = max_connections
        self._open: set[Connection] = set()
        self._num: Counter[str] = Counter()
        """Connections of each holder."""
        self._waiting: dict[Stage, dict[str, dict[Connection, None]]] = {
            stage: {} for stage in Stage if stage is not Stage.ANSWERED
        }
        """Those that give way, of each stage and holder, the one that is in it for longest first:
        choosing one costs little while a client opens thousands."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, host: str) -> Connection | None:
        """Take a place for a new connection; None if each of the others is being answered.

        Args:
            host: The client's.
        """
        if len(self._open) >= self._limit and not self.end_one():
            return None
        connection = Connection(self, host)
        self._open.add(connection)
        self._count(connection)
        return connection

    def end_one(self) -> bool:
        """Close the connection that gives way to others; return whether there is one."""
        for holders in self._waiting.values():
            if holders:
                largest = max(holders, key=self._num.__getitem__)
                ended = next(iter(holders[largest]))
                self.remove(ended)
                ended.close()
                return True
        return False

    def change(self, connection: Connection, holder: str, stage: Stage) -> None:
        """Note the holder of a connection, and what it does from now on."""
        if connection in self._open:
            self._discount(connection)
        connection.holder, connection.stage = holder, stage
        if connection in self._open:
            self._count(connection)

    def remove(self, connection: Connection) -> None:
        """Free the place of a connection, if it has one."""
        if connection in self._open:
            self._open.remove(connection)
            self._discount(connection)

    def _count(self, connection: Connection) -> None:
        self._num[connection.holder] += 1
        if connection.stage is not Stage.ANSWERED:
            self._waiting[connection.stage].setdefault(connection.holder, {})[connection] = None

    def _discount(self, connection: Connection) -> None:
        holder = connection.holder
        self._num[holder] -= 1
        if not self._num[holder]:
            del self._num[holder]
        if connection.stage is not Stage.ANSWERED:
            holders = self._waiting[connection.stage]
            del holders[holder][connection]
            if not holders[holder]:
                del holders[holder]
