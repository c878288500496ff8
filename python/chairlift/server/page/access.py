"""What the page's data routes share: the check of the calling page, and the form of events."""

from http import HTTPStatus
from typing import Final

from chairlift.server.http.errors import refused
from chairlift.server.http.exchange import Exchange
from chairlift.server.http.http_call import EVENT_STREAM
from chairlift.server.http.json_pieces import to_json
from chairlift.server.page.static_files import DATA_HEADERS

STREAM_HEADERS: Final = (*EVENT_STREAM, *DATA_HEADERS)
"""Headers of the responses that are streams."""

SIGN_OF_LIFE: Final = b": \n\n"
"""A comment, for a client that has received nothing for a while."""

_SAME_SITE: Final = (None, "same-origin", "none")
"""What a browser says of a call by this server's page; other programs say nothing."""


def check_page(exchange: Exchange) -> None:
    """Refuse calls by pages of other sites: they could read nothing, and cost something.

    Raises:
        HttpError: A browser says that another site calls.
    """
    if exchange.header("sec-fetch-site") not in _SAME_SITE:
        message = "sec-fetch-site: only this server's own page may call this path"
        raise refused(HTTPStatus.FORBIDDEN, message, "forbidden", "sec-fetch-site")


def event(name: str, value: object) -> bytes:
    """Encode a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(value))
