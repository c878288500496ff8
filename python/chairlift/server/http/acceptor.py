"""The accept loop of the HTTP port: it survives the lack of files, and counts what it accepts.

asyncio's own loop writes a traceback for each connection of its backlog that gets no file, a
thousand at once, and does not tell a connection in its TLS handshake from none.
"""

import asyncio
import errno
import functools
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from chairlift.api.logs import fields
from chairlift.server.http.connections import Connection, Connections

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""Connections that are accepted before anything else has its turn."""
_PAUSE_S: Final = 0.25
"""Without a file: until the next attempt. Connections wait in the kernel's backlog meanwhile."""
_SHARE_ENDED: Final = 16
"""Without a file, one in so many connections gives way, of those without a request."""
_LOG_PERIOD_S: Final = 60.0
_NO_RESOURCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts the connections of one listening socket; for one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        protocol: Callable[[Connection], asyncio.BaseProtocol],
        tls: dict[str, Any],
    ) -> None:
        """Begin to accept.

        Args:
            listener: It listens, and does not block.
            connections: All connections of the port.
            protocol: Returns the protocol of a new connection.
            tls: Arguments of `connect_accepted_socket` for TLS, or none.
        """
        self._listener = listener
        self._connections = connections
        self._protocol = protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._logged_at = -_LOG_PERIOD_S
        self._handshakes: set[asyncio.Task[None]] = set()
        self._resume()

    def close(self) -> None:
        """Accept no further connection, and end those in a handshake."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        self._listener.close()
        for task in tuple(self._handshakes):
            task.cancel()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._on_error(error)
                return
            connection = self._connections.add(str(address[0]))
            if connection is None:
                accepted.close()
                continue
            task = self._loop.create_task(self._begin(accepted, connection))
            connection.close = task.cancel
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            task.add_done_callback(functools.partial(_close_unused, accepted))

    def _on_error(self, error: OSError) -> None:
        """Pause: the kernel reports the listener as ready until the connection is accepted."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(_PAUSE_S, self._resume)
        if error.errno in _NO_RESOURCE:
            # A few files would go to the next connections of the backlog, and none to a new one.
            for _ in range(1 + len(self._connections) // _SHARE_ENDED):
                self._connections.end_one()
        now = self._loop.time()
        if now - self._logged_at >= _LOG_PERIOD_S:
            self._logged_at = now
            reason = (error.strerror or "unknown error").lower()
            _log.warning(
                "the HTTP port accepts no connection for a moment",
                extra=fields(reason=reason, connections=len(self._connections)),
            )

    async def _begin(self, accepted: socket.socket, connection: Connection) -> None:
        """Make the transport, handshake included; the protocol gives the place back at its end."""
        protocol = self._protocol(connection)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted, **self._tls)
        except (OSError, asyncio.CancelledError):
            # A handshake that failed, or gave way; asyncio has closed the socket.
            connection.leave()


def _close_unused(accepted: socket.socket, task: asyncio.Task[None]) -> None:
    """Close the socket of a connection that gave way before its transport was made."""
    if task.cancelled():
        accepted.close()
