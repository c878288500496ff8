"""The port: bound with the server, closed after the last exchange of a drain."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn import Config
from uvicorn.server import ServerState

from chairlift.api.errors import ConfigError
from chairlift.server.http.acceptor import Acceptor
from chairlift.server.http.connections import Connection, Connections
from chairlift.server.http.plain_protocol import PlainProtocol, ending_requests
from chairlift.server.rpc.listen import TcpAddress

if TYPE_CHECKING:
    from chairlift.server.http.protocol import BoundedProtocol

_log = logging.getLogger(__name__)

IDLE_S: Final = 75.0
"""A connection without an exchange is closed after this time: later than clients close theirs."""

_HANDSHAKE_S: Final = 10.0
_SEND_BUFFER_BYTES: Final = 131_072
"""The kernel's buffer of a connection: a client that does not read is noticed after so much."""
_BACKLOG: Final = 1024
_STOP_S: Final = 0.5

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""The times of gRPC's pings: a client that vanished is noticed within a minute."""


class HttpListener:
    """One port of HTTP/1.1, with TLS or without, on the server's event loop."""

    def __init__(
        self,
        app: Any,
        address: TcpAddress,
        context: ssl.SSLContext | None,
        connections: Connections,
    ) -> None:
        """Set what is served; `start` listens.

        Args:
            app: An application of ASGI.
            address: Where to listen.
            context: For TLS; None is plain text.
            connections: Bound on the number of connections.
        """
        self._address = address
        self._context = context
        self._state = ServerState()
        self._connections = connections
        bounded = _bounded_protocol()
        self._new_protocol: Callable[..., asyncio.Protocol] = bounded or PlainProtocol
        self._config = Config(
            app if bounded else ending_requests(app),
            interface="asgi3",
            # The parser in Python is the one that bounds the size of a head.
            http=bounded or "h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=int(IDLE_S),
        )
        self._acceptor: Acceptor | None = None

    @property
    def url(self) -> str:
        """Return the address as a URL."""
        return f"{'http' if self._context is None else 'https'}://{self._address}"

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: The address cannot be used.
        """
        self._config.load()
        tls: dict[str, Any] = {}
        if self._context is not None:
            tls = {"ssl": self._context, "ssl_handshake_timeout": _HANDSHAKE_S}
        try:
            listener = _listen(self._address)
        except OSError as error:
            reason = (error.strerror or "unknown error").lower()
            message = f"http_listen: cannot listen on {self._address}: {reason}"
            raise ConfigError(message) from None
        self._acceptor = Acceptor(listener, self._connections, self._protocol, tls)
        port: int = listener.getsockname()[1]
        self._address = TcpAddress(self._address.host, port)

    def _protocol(self, connection: Connection) -> asyncio.Protocol:
        return self._new_protocol(self._config, self._state, connection)

    async def stop(self) -> None:
        """Close the port, and each connection after its response, within half a second."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=_STOP_S)
        for task in tuple(self._state.tasks):
            task.cancel()
        for connection in tuple(self._state.connections):
            connection.transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                while self._state.connections:
                    await asyncio.sleep(0.01)
        for connection in tuple(self._state.connections):
            connection.transport.abort()


def _bounded_protocol() -> "type[BoundedProtocol] | None":
    """Return the protocol with bounds; None, and a warning, if this uvicorn has other parts."""
    try:
        from chairlift.server.http.protocol import BoundedProtocol, is_known
    except ImportError as error:
        if error.name == "httptools":
            raise
    else:
        if is_known():
            return BoundedProtocol
    text = "uvicorn %s has other parts: the time for the headers of a request has no bound"
    _log.warning(text, uvicorn.__version__)
    return None


def _listen(address: TcpAddress) -> socket.socket:
    """Return a socket that listens and does not block."""
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _set_options(listener)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _set_options(listener: socket.socket) -> None:
    """Set options of the listening socket, which connections inherit."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The body of an answer would wait for the acknowledgement of its head, which the client delays.
    # asyncio sets it for sockets that name their protocol, which accepted ones do not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
