"""One request of HTTP and its response."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

from chairlift.api.errors import Reason, RequestError
from chairlift.server.http.errors import Disconnected, HttpError, refused
from chairlift.server.http.json_body import decode
from chairlift.server.limits.receiving import Messages, MessageTimeoutError, Receiving
from chairlift.server.limits.shares import Share, holder_of

_DRAIN_S: Final = 0.5
"""Time in which a client that is refused may end its body: it reads the response only then."""

_TURN_BYTES: Final = 1 << 16
"""Bytes of pieces that are joined and written at a time: some 0.1 ms, with TLS."""
_JSON: Final = (("content-type", "application/json"),)


T = TypeVar("T")


def _nothing() -> None:
    """Do nothing."""


def _same(value: Any) -> Any:
    return value


class Exchange:
    """A request whose headers have come.

    Attributes:
        headers: Names in lower case, in the order in which they came.
        tenant: Set by the application once it is known.
        arrived_at: Monotonic seconds.
        has_begun: Whether the response has.
        disconnected: Whether the client is gone.
        on_disconnect: Called when it goes, after the body has been read.
    """

    def __init__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Any],
        send: Callable[[dict[str, Any]], Any],
        *,
        receiving: Receiving,
        max_body_bytes: int,
        write_timeout_s: float,
    ) -> None:
        """Start before the body.

        Args:
            scope: ASGI's; `state` has the names in the client's certificate.
            receive: ASGI's.
            send: ASGI's.
            receiving: Bounds on unfinished bodies.
            max_body_bytes: A longer body is refused.
            write_timeout_s: A client that takes nothing for this long loses its exchange.
        """
        self.scope = scope
        self.headers: tuple[tuple[str, str], ...] = tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        )
        self.tenant = ""
        self.arrived_at = time.monotonic()
        self.has_begun = self.disconnected = False
        self.on_disconnect: Callable[[], None] = _nothing
        self._receive = receive
        self._send = send
        self._receiving = receiving
        self._max_body_bytes = max_body_bytes
        self._write_timeout_s = write_timeout_s
        self._has_body = False
        """Whether the body has been read to its end."""
        self._watcher: asyncio.Task[None] | None = None
        self._place: Share | None = None

    # --- the request --------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Return the client's host, for what a request holds until it ends.

        Of HTTP/1.1 a client has a connection for each request: by connections, one client without
        a tenant could fill the queue.
        """
        client = self.scope["client"]
        return f"http:{client[0]}" if client else "http"

    @property
    def connection(self) -> str:
        """Return the client's connection, for what it holds until its body has come.

        All clients of a proxy have its host, and all of an open server that of loopback. A caller
        with many connections gains nothing: each new body ends the one that has waited longest.
        """
        host, port = self.scope["client"] or ("", 0)
        return f"http:{host}:{port}"

    @property
    def certificate(self) -> Mapping[str, Sequence[bytes]]:
        """Return the names in the client's verified certificate."""
        names: Mapping[str, Sequence[bytes]] = self.scope["state"]["certificate"]
        return names

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if it is absent.

        Raises:
            HttpError: It is there several times.
        """
        values = [value for key, value in self.headers if key == name]
        if len(values) > 1:
            message = f"{name}: expected one header of this name, got {len(values)}"
            raise refused(HTTPStatus.BAD_REQUEST, message, "bad_header", name)
        return values[0].strip() if values else None

    async def json(self, convert: Callable[[Any], T] = _same) -> T:
        """Read the body, within bounds of size, time and depth.

        Args:
            convert: Makes something of its value; that of a long body on another thread.

        Raises:
            HttpError: It is no JSON, or beyond a bound.
            RequestError: Too many bodies are unfinished; or from `convert`.
            Disconnected: The client went before its end.
        """
        self._check_content()
        holder = holder_of(self.connection, self.tenant)
        body = Messages(
            self._receiving, self, lambda data: convert(decode(data)), holder, is_stream=False
        )
        try:
            value: T = await body.only()
        except MessageTimeoutError as error:
            message = error.message.replace("the call's message", "the body")
            raise refused(HTTPStatus.REQUEST_TIMEOUT, message, "request_timeout") from None
        self.watch()
        return value

    def admit(self) -> None:
        """Keep the connection from giving way to that of a caller that is not admitted.

        Raises:
            RequestError: The tenant has its share of the port's connections.
        """
        self._place = self.scope["state"]["connection"].admit(self.tenant)

    def watch(self) -> None:
        """Notice from now on when the client goes; `json` has read a body before, if any."""
        self.scope["state"]["connection"].is_received()
        self._watcher = asyncio.create_task(self._watch())

    def _check_content(self) -> None:
        kind = (self.header("content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Also what keeps pages of other sites out: a browser asks before it sends this type.
            message = "content-type: expected application/json"
            raise refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, "unsupported_media_type", "content-type"
            )
        if self.header("content-encoding") not in (None, "identity"):
            message = "content-encoding: expected a body without compression"
            raise refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, "bad_encoding", "content-encoding"
            )
        length = self.header("content-length") or "0"
        if len(length) > 18 or int(length) > self._max_body_bytes:
            raise self._too_large()

    def _too_large(self) -> HttpError:
        message = f"the body has more than {self._max_body_bytes} bytes (--max-receive-bytes)"
        return refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "body_too_large")

    def __aiter__(self) -> "Exchange":
        return self

    async def __anext__(self) -> bytes:
        """Return the whole body, for `Messages`, which bounds time and number."""
        if self._has_body:
            raise StopAsyncIteration
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.disconnected = True
                raise Disconnected
            body += message["body"]
            if len(body) > self._max_body_bytes:
                raise self._too_large()
            if not message["more_body"]:
                self._has_body = True
                return bytes(body)

    async def _watch(self) -> None:
        """Wait for the end of the client, or of the response."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True
        self.on_disconnect()

    # --- the response -------------------------------------------------------------------------

    async def respond(
        self, body: bytes, *, status: int = HTTPStatus.OK, headers: Any = _JSON
    ) -> None:
        """Send a whole response."""
        length = ("content-length", str(len(body)))
        await self.begin((*headers, length), status=status)
        await self.write(body, more=False)

    async def respond_in_turns(self, pieces: Sequence[bytes], headers: Any = _JSON) -> None:
        """Send a whole response of many pieces, as `write_in_turns` does."""
        length = ("content-length", str(sum(map(len, pieces))))
        await self.begin((*headers, length))
        await self.write_in_turns(pieces, more=False)

    async def begin(self, headers: Any, *, status: int = HTTPStatus.OK) -> None:
        """Send status and headers; `write` follows."""
        self.has_begun = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": int(status), "headers": encoded})

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Send a part of the body, within the time limit of a write.

        Raises:
            RequestError: The client has not read for too long.
        """
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            message = f"nothing was read from this stream for {self._write_timeout_s:g} s"
            raise RequestError(Reason.SLOW_READER, message) from None

    async def write_in_turns(self, pieces: Iterable[bytes], *, more: bool) -> None:
        """Send a part of the body that may be long, in turns with other work of the event loop.

        Raises:
            RequestError: See `write`.
        """
        turn: list[bytes] = []
        size = 0
        for piece in pieces:
            turn.append(piece)
            size += len(piece)
            if size >= _TURN_BYTES:
                await self.write(b"".join(turn))
                await asyncio.sleep(0)
                turn, size = [], 0
        if turn or not more:
            await self.write(b"".join(turn), more=more)

    async def fail(self, error: HttpError) -> None:
        """Respond with an error, after what the client still sends of its body."""
        headers = {"content-type": "application/json", **error.all_headers()}
        if not self._has_body and self._expects_body():
            headers["connection"] = "close"
            await self._drain()
        await self.respond(error.body(), status=error.status, headers=tuple(headers.items()))

    def _expects_body(self) -> bool:
        names = {name for name, _ in self.headers}
        return bool(names & {"content-length", "transfer-encoding"}) and "expect" not in names

    async def _drain(self) -> None:
        """Drop what the client sends, for a bounded time."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message["more_body"]:
                        return
        except TimeoutError:
            return

    async def cut(self) -> None:
        """End the connection at once, whatever of the response is unsent."""
        self.scope["state"]["abort"]()
        # uvicorn reports an exchange that ends before its connection does.
        for _ in range(4):
            await asyncio.sleep(0)

    def close(self) -> None:
        """End the watch of the client; the exchange is over."""
        if self._place is not None:
            self._place.release()
        if self._watcher is not None:
            self._watcher.cancel()
