"""Streams that outlive their connection: `GET /v1/streams/{handle}` continues one.

A stream that was asked for with `x-chairlift-resume-window` numbers its events: `id: 12.3` is the
fourth event that the engine's event 12 makes. What the client has is left out when the events of
the log are written again: the same events make the same bytes.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from chairlift.server.calls.context import ServerContext
from chairlift.server.http.errors import HttpError, refused
from chairlift.server.http.exchange import Exchange
from chairlift.server.protocols.openai.job import Job, Origin

WINDOW_HEADER: Final = "x-chairlift-resume-window"
"""Seconds that a stream may outlive its connection."""
HANDLE_HEADER: Final = "x-chairlift-handle"
"""The name of a response's first request, for `Abort`, `Resume` and this endpoint."""

_EVENT_ID: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,6})")
_END: Final = b"\n\n"

EventId = tuple[int, int]
"""Number of the engine's event, and which of the events that it makes."""


@dataclass(frozen=True, slots=True)
class Written:
    """What writes the events of a request again in the form in which they were asked for."""

    job: Job
    origin: Origin

    @classmethod
    def of(cls, job: Job, origin: Origin) -> "Written":
        """Keep the form, and no prompt."""
        return cls(replace(job, requests=[]), origin)


def window_s(server: ServerContext, exchange: Exchange, job: Job) -> float | None:
    """Return the window that an exchange asks for; None without one.

    Raises:
        HttpError: It is malformed, or the response is no stream of one request.
        RequestError: It is too long.
    """
    text = exchange.header(WINDOW_HEADER)
    if text is None:
        return None
    try:
        within_s = float(text)
    except ValueError:
        within_s = 0.0
    if not 0 < within_s < float("inf"):
        raise _bad(f"{WINDOW_HEADER}: expected a positive number of seconds", WINDOW_HEADER)
    if not job.is_stream or len(job.requests) != 1:
        raise _bad(f"{WINDOW_HEADER}: expected a stream of one prompt", WINDOW_HEADER)
    return server.resumables.checked_window_s(within_s, WINDOW_HEADER)


def last_event_id(exchange: Exchange) -> EventId:
    """Return which event is the last that the client has; (0, 0) is none.

    Raises:
        HttpError: It is malformed.
    """
    query = parse_qs(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    name = "after" if "after" in query else "last-event-id"
    text = query["after"][-1] if "after" in query else exchange.header(name)
    if text is None:
        return (0, 0)
    found = _EVENT_ID.fullmatch(text)
    if found is None:
        raise _bad(f"{name}: expected the id of an event, such as 12.0", name)
    return (int(found[1]), int(found[2]))


def _bad(message: str, name: str) -> HttpError:
    return refused(HTTPStatus.BAD_REQUEST, message, "bad_parameter", name)


def numbered(pieces: Iterable[bytes], number: int, after: EventId) -> Iterator[bytes]:
    """Yield the pieces of the events that one event of the engine makes, each with its id.

    Args:
        pieces: Each event begins with a piece of its own.
        number: Number of the engine's event.
        after: Events up to this one are left out.
    """
    index, is_new = 0, True
    for piece in pieces:
        if (number, index) > after:
            if is_new:
                yield b"id: %d.%d\n" % (number, index)
            yield piece
        # JSON has no line breaks.
        is_new = piece.endswith(_END)
        index += is_new
