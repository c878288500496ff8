"""One connection: uvicorn's protocol with bounds on what a client may send, and for how long.

uvicorn bounds neither the bytes nor the time of a request's head, and keeps every pipelined request
of a segment. Here the size and the time of a head are bounded. An exchange takes no further request
until it is over, so that the end of its client is noticed. A response that does not read its body
ends the connection. Another protocol that a request offers (`Upgrade`) is never taken, so the
request is one of HTTP/1.1 with its body.

This builds on parts of uvicorn that are not public: `is_known` tells whether a release has them.
"""

import asyncio
import email.utils
import functools
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NoReturn

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from chairlift.server.http.connections import Connection
from chairlift.server.http.errors import HttpError, refused
from chairlift.server.security.tls import peer_names

HEAD_S: Final = 10.0
"""Time for a request's line and headers, and for the first of them to begin."""
MAX_HEAD_BYTES: Final = 16_384
MAX_HEADERS: Final = 128

_SEGMENT_BYTES: Final = 65_536
"""A head that is not complete after this many bytes, body included, is too long."""

_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that tell where a body ends."""


_CALLBACKS: Final = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_message_begin",
    "on_url",
    "on_header",
    "on_headers_complete",
    "on_message_complete",
    "on_response_complete",
    "_unset_keepalive_if_required",
)
"""Methods of uvicorn's protocol that are overridden or called."""
_STATE: Final = frozenset({"parser", "cycle", "loop", "scope", "headers", "server_state"})
_CYCLE_STATE: Final = frozenset(
    {
        "response_started",
        "response_complete",
        "more_body",
        "keep_alive",
        "disconnected",
        "message_event",
    }
)
"""Attributes of its exchange that are read or set."""


def is_known() -> bool:
    """Return whether this release of uvicorn has the parts that `BoundedProtocol` uses."""
    return (
        all(hasattr(HttpToolsProtocol, name) for name in _CALLBACKS)
        and _attributes_of(HttpToolsProtocol) >= _STATE
        and _attributes_of(RequestResponseCycle) >= _CYCLE_STATE
    )


def _attributes_of(kind: type) -> set[str]:
    """Return the names that the constructor of a class mentions, its attributes among them."""
    return set(kind.__init__.__code__.co_names)  # type: ignore[misc]


class _Stopped(Exception):
    """A callback of the parser refuses the request."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose requests are bounded."""

    cycle: Any
    """The exchange of uvicorn, which has no public type; None before the first."""

    def __init__(self, config: Config, state: ServerState, connection: Connection) -> None:
        """Start without a transport.

        Args:
            config: uvicorn's, with the application.
            state: All connections of the listener.
            connection: Its place among the connections of the port.
        """
        super().__init__(config, state, {})
        self._connection = connection
        self._refusal: HttpError | None = None
        self._head_bytes = 0
        self._segment_bytes = 0
        self._in_head = False
        self._is_closing = False
        self._repeats_head = False
        """Whether the parser reads again the part of a head that tells the length of the body."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._names: Mapping[str, Sequence[bytes]] = {}

    # --- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; from now on the connection gives way by the end of its transport."""
        self.transport = transport
        self._connection.close = transport.abort
        super().connection_made(transport)
        try:
            self._names = peer_names(transport)
        except ValueError:
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, whatever was going on."""
        self._stop_head_timer()
        self._connection.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; after a refusal it is dropped."""
        if self._is_closing:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or _MALFORMED)
            return
        if self._in_head:
            self._segment_bytes += len(data)
            if self._segment_bytes > _SEGMENT_BYTES:
                self._refuse(_LONG_HEAD)

    def _feed(self, data: bytes) -> None:
        """Parse what came; a request that offers another protocol goes on as one of HTTP/1.1."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    # What follows belongs to a tunnel, which there is not.
                    self._is_closing = True
                    super().on_message_complete()
                    return
                data = data[upgrade.args[0] :]
            else:
                return
            self._begin_body()

    def _begin_body(self) -> None:
        """Let a new parser read a body: one that has seen an upgrade takes what follows for it."""
        version = self.scope["http_version"].encode()
        lines = [b"POST / HTTP/%b\r\n" % version]
        lines += [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] in _FRAMING]
        self.parser = httptools.HttpRequestParser(self)
        # As uvicorn does: what follows the last request of a connection is dropped.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._repeats_head = True
        self.parser.feed_data(b"".join([*lines, b"\r\n"]))

    def on_response_complete(self) -> None:
        """Wait for the next request, or close if this one left something unread."""
        if self._is_closing or self.cycle.more_body:
            self.transport.close()
        super().on_response_complete()
        self._connection.end_request()
        if not self.transport.is_closing():
            self._stop_head_timer()

    # --- callbacks of the parser --------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request, unless one is being answered."""
        if self._repeats_head:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop(_PIPELINED)
        self._in_head = True
        self._head_bytes = self._segment_bytes = 0
        if self._head_timer is None:
            self._expect_head()
        super().on_message_begin()
        self.scope["state"] |= {"certificate": self._names, "abort": self.transport.abort}
        self.scope["state"]["connection"] = self._connection

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        if self._repeats_head:
            return
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; values that are no ASCII are kept, and mean nothing here."""
        if self._repeats_head:
            return
        self._count(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            self._stop(_LONG_HEAD)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the exchange."""
        if self._repeats_head:
            self._repeats_head = False
            return
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if any(coding.strip().lower() != b"chunked" for coding in codings):
            self._stop(_CODED)
        self._in_head = False
        self._stop_head_timer()
        self.server_state.default_headers = _default_headers(int(time.time()))
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the body, unless it follows an offer of another protocol."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    # --- bounds -------------------------------------------------------------------------------

    def _count(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self._stop(_LONG_HEAD)

    def _stop(self, refusal: HttpError) -> NoReturn:
        """Stop the parser amid its data."""
        self._refusal = refusal
        raise _Stopped

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._on_slow_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_slow_head(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._refuse(_SLOW_HEAD)
        else:
            self.transport.close()

    def _refuse(self, error: HttpError) -> None:
        """Answer with an error, unless an exchange is being answered, and close."""
        self._is_closing = True
        self._in_head = False
        self._stop_head_timer()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            # The exchange goes on, and ends the connection. A body that is malformed never ends.
            cycle.keep_alive = False
            if cycle.more_body:
                cycle.disconnected = True
                cycle.message_event.set()
                if not cycle.response_started:
                    self.transport.write(_response(error))
                self.transport.close()
            return
        self.transport.write(_response(error))
        self.transport.close()


_MALFORMED: Final = refused(HTTPStatus.BAD_REQUEST, "the request is not HTTP/1.1", "malformed_http")
_CODED: Final = refused(
    HTTPStatus.NOT_IMPLEMENTED,
    "transfer-encoding: expected chunked alone, or a body with content-length",
    "unsupported_transfer_encoding",
    "transfer-encoding",
)
_PIPELINED: Final = refused(
    HTTPStatus.BAD_REQUEST, "a request before the response to the one before it", "pipelining"
)
_SLOW_HEAD: Final = refused(
    HTTPStatus.REQUEST_TIMEOUT,
    f"the headers were not complete within {HEAD_S:g} s",
    "request_timeout",
)
_LONG_HEAD: Final = refused(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"expected at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes of them, got more",
    "headers_too_large",
)


def _response(error: HttpError) -> bytes:
    body = error.body()
    head = (
        f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body


@functools.lru_cache(maxsize=1)
def _default_headers(now: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", email.utils.formatdate(now, usegmt=True).encode())]
