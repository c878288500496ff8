"""The live requests of one exchange, whatever the form of its response.

The exchange waits in one place, for its outbox; the client's end, its deadline and the tick of the
keep-alive wake it there.
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import ExitStack
from http import HTTPStatus
from typing import Final, Self

from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.outbox import Outbox
from chairlift.server.calls.requests import Requests
from chairlift.server.http.errors import Disconnected, HttpError, refused
from chairlift.server.http.exchange import Exchange
from chairlift.v1 import generation_pb2 as pb

TIMEOUT_HEADER: Final = "x-request-timeout"
"""Seconds until the deadline of an exchange, as a client of gRPC has one for a call."""

KEEP_ALIVE_S: Final = 5.0
"""After this long without a byte a stream gets its headers, or a comment."""

EVENT_STREAM: Final = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-store"),
    # Nginx would hold events back.
    ("x-accel-buffering", "no"),
)
"""Headers of a response that is a stream of server-sent events."""

_YEAR_S: Final = 31_536_000.0


class HttpCall:
    """The live requests of one exchange; a context, which ends them."""

    def __init__(self, server: ServerContext, exchange: Exchange) -> None:
        """Start nothing yet.

        Raises:
            HttpError: The deadline is malformed.
        """
        self._server = server
        self._exchange = exchange
        self._deadline = deadline_of(exchange)
        self._undo = ExitStack()
        self._timers: list[asyncio.TimerHandle] = []
        self._last_write = time.monotonic()

    def __enter__(self) -> Self:
        self._outbox: Outbox = self._undo.enter_context(self._server.outboxes.open())
        self._requests = Requests(
            self._server,
            self._outbox,
            tenant=self._exchange.tenant,
            connection=self._exchange.peer,
            time_remaining=self._remaining_s,
        )
        self._undo.callback(self._close)
        return self

    def __exit__(self, *_error: object) -> None:
        # Only synchronous work here: this also runs when the exchange is cut.
        for timer in self._timers:
            timer.cancel()
        self._exchange.on_disconnect = _nothing
        self._undo.close()

    def _close(self) -> None:
        # The handle is in the headers.
        self._requests.close(is_known=self._exchange.has_begun)

    def _remaining_s(self) -> float | None:
        return None if self._deadline is None else self._deadline - time.monotonic()

    def _end_requests(self) -> None:
        """Note that all requests are submitted, and begin to tick."""
        self._requests.half_close()
        self._tick()

    def _tick(self) -> None:
        """Wake the exchange for its keep-alive, and for its deadline."""
        remaining_s = self._remaining_s()
        within_s = KEEP_ALIVE_S if remaining_s is None else max(min(KEEP_ALIVE_S, remaining_s), 0)
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(within_s, self._on_tick)]

    def _on_tick(self) -> None:
        self._outbox.wake()
        if (self._remaining_s() or 1.0) > 0:
            self._tick()

    def is_over(self) -> bool:
        """Whether nothing follows."""
        return not self._requests and not self._outbox

    async def events(self) -> list[pb.Event]:
        """Wait, and return what has happened: nothing after a tick.

        Raises:
            HttpError: The deadline is over.
            Disconnected: The client is gone.
        """
        await self._outbox.wait()
        events = self._take()
        remaining_s = self._remaining_s()
        if remaining_s is not None and remaining_s <= 0 and not self.is_over():
            raise _timed_out()
        return events

    def _take(self) -> list[pb.Event]:
        """Return what has happened.

        Raises:
            Disconnected: The client is gone.
        """
        if self._exchange.disconnected:
            raise Disconnected
        events: list[pb.Event] = []
        for message in self._outbox.take():
            events.extend(pb.GenerateResponse.FromString(message).events)
        return events

    def is_silent(self) -> bool:
        """Whether the client has received nothing for as long as it may."""
        return time.monotonic() - self._last_write >= KEEP_ALIVE_S

    async def write(
        self, pieces: Iterable[bytes], headers: tuple[tuple[str, str], ...], *, more: bool
    ) -> None:
        """Write a part of a stream in turns with others, after its headers."""
        self._last_write = time.monotonic()
        if not self._exchange.has_begun:
            await self._exchange.begin(headers)
        await self._exchange.write_in_turns(pieces, more=more)


def _nothing() -> None:
    """Do nothing."""


def deadline_of(exchange: Exchange) -> float | None:
    """Return the deadline in monotonic seconds; None without one.

    Raises:
        HttpError: The header is malformed.
    """
    text = exchange.header(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        within_s = float(text)
    except ValueError:
        within_s = 0.0
    if not 0 < within_s <= _YEAR_S:
        message = f"{TIMEOUT_HEADER}: expected a positive number of seconds, at most a year"
        raise refused(HTTPStatus.BAD_REQUEST, message, "bad_parameter", TIMEOUT_HEADER)
    return exchange.arrived_at + within_s


def _timed_out() -> HttpError:
    message = f"{TIMEOUT_HEADER}: the answer was not complete in time"
    return refused(HTTPStatus.REQUEST_TIMEOUT, message, "request_timeout", TIMEOUT_HEADER)
