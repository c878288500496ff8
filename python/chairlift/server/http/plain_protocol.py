"""One connection with a release of uvicorn that is not known: its own protocol, from outside.

`BoundedProtocol` builds on parts of uvicorn that are not public. This needs the constructor of a
protocol and the methods of asyncio. uvicorn bounds the size of a head, and not its time.
"""

import asyncio
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from chairlift.server.http.connections import Connection
from chairlift.server.security.tls import peer_names


class PlainProtocol(asyncio.Protocol):
    """A connection with uvicorn's own bounds."""

    def __init__(self, config: Config, state: ServerState, connection: Connection) -> None:
        """Start without a transport.

        Args:
            config: uvicorn's, with an application that `ending_requests` made.
            state: All connections of the listener.
            connection: Its place among the connections of the port.
        """
        self._connection = connection
        self._state: dict[str, Any] = {"connection": connection}
        """What each request of the connection has as its state."""
        self._protocol: Any = config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=state, app_state=self._state
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; from now on the connection gives way by the end of its transport."""
        self._connection.close = transport.abort
        self._state["abort"] = transport.abort
        self._protocol.connection_made(transport)
        try:
            self._state["certificate"] = peer_names(transport)
        except ValueError:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, whatever was going on."""
        self._connection.leave()
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Note that the client sends no more."""
        is_kept: bool | None = self._protocol.eof_received()
        return is_kept

    def pause_writing(self) -> None:
        """Wait: the client does not read."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        self._protocol.resume_writing()


def ending_requests(app: Any) -> Any:
    """Return an application of ASGI that tells a connection when a request of it has ended."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        finally:
            scope["state"]["connection"].end_request()

    return run
