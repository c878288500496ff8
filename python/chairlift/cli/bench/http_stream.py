"""HTTP/1.1 as a load needs it: one request per connection, the body line by line."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from chairlift.api.errors import ChairliftError, ConfigError

_MAX_LINE: Final = 1 << 20
_MAX_HEADERS: Final = 200
SILENCE_S: Final = 600.0
"""Longest wait for a connection, or for the next line of a response."""


class HttpError(ChairliftError):
    """No response, or one that is no HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Url:
    """The base of an API."""

    host: str
    port: int
    path: str
    """Without a slash at its end."""
    is_https: bool
    token: str | None = None
    """Sent as a bearer token."""

    def __str__(self) -> str:
        """Return it as it is written, without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_https else 'http'}://{host}:{self.port}{self.path}"


def url_of(text: str, token: str | None = None) -> Url:
    """Return the parts of a URL such as `http://127.0.0.1:8000/v1`.

    Raises:
        ConfigError: It is no such URL.
    """
    message = f"url: expected one such as http://127.0.0.1:8000/v1, got {text!r}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ConfigError(message) from None
    # What follows goes into the head of a request as it is.
    is_plain = text.isascii() and text.isprintable() and " " not in text
    if not (is_plain and parts.scheme in {"http", "https"} and parts.hostname):
        raise ConfigError(message)
    if parts.username is not None or parts.query or parts.fragment:
        message = "url: expected no user, query or fragment; a token is read from CHAIRLIFT_TOKEN"
        raise ConfigError(message)
    is_https = parts.scheme == "https"
    default = 443 if is_https else 80
    return Url(parts.hostname, port or default, parts.path.rstrip("/"), is_https, token)


class Response(NamedTuple):
    """The head of a response, and the lines of its body."""

    status: int
    lines: AsyncIterator[bytes]


@asynccontextmanager
async def request(url: Url, path: str, body: bytes | None = None) -> AsyncIterator[Response]:
    """Send a POST with a body of JSON, or a GET, and yield the response.

    Args:
        url: Base of the API.
        path: Behind it, with a slash at its begin.
        body: JSON.

    Raises:
        HttpError: There is no server, the connection broke, or what came is no HTTP.
    """
    try:
        async with asyncio.timeout(SILENCE_S):
            tls = ssl.create_default_context() if url.is_https else None
            reader, writer = await asyncio.open_connection(
                url.host, url.port, ssl=tls, limit=_MAX_LINE
            )
    except (OSError, UnicodeError, TimeoutError) as error:
        message = f"no server at {url}: {getattr(error, 'strerror', None) or error}"
        raise HttpError(message) from None
    try:
        writer.write(_head(url, path, body) + (body or b""))
        status, headers = await _read_head(reader)
        yield Response(status, _lines(_body(reader, headers)))
    except OSError as error:
        message = f"the connection broke: {error.strerror or error}"
        raise HttpError(message) from None
    finally:
        writer.close()


def _head(url: Url, path: str, body: bytes | None) -> bytes:
    host = f"[{url.host}]" if ":" in url.host else url.host
    lines = [
        f"{'GET' if body is None else 'POST'} {url.path}{path} HTTP/1.1",
        f"Host: {host}:{url.port}",
        "Connection: close",
        "Accept: application/json, text/event-stream",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if url.token is not None:
        lines.append(f"Authorization: Bearer {url.token}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(SILENCE_S):
            return await reader.readline()
    except TimeoutError:
        message = f"the server was silent for {SILENCE_S:.0f} s"
        raise HttpError(message) from None
    except ValueError:
        message = f"expected lines of at most {_MAX_LINE} bytes"
        raise HttpError(message) from None


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await _line(reader)).split(b" ")
    is_http = len(first) > 1 and first[0].startswith(b"HTTP/1.")
    if not is_http or not (first[1].strip().isdigit() and len(first[1].strip()) == 3):
        message = "expected a response of HTTP/1.1"
        raise HttpError(message)
    headers: dict[str, str] = {}
    for _ in range(_MAX_HEADERS):
        name, colon, value = (await _line(reader)).decode("latin-1").partition(":")
        if not colon:
            return int(first[1]), headers
        headers[name.strip().lower()] = value.strip()
    message = f"expected at most {_MAX_HEADERS} headers"
    raise HttpError(message)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """Yield the pieces of a body: its chunks, or lines until the connection ends."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        while line := await _line(reader):
            yield line
        return
    while True:
        size = (await _line(reader)).partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            message = "the response was cut off" if not size else "expected the size of a chunk"
            raise HttpError(message) from None
        if length <= 0:
            return
        if length > _MAX_LINE:
            message = f"expected chunks of at most {_MAX_LINE} bytes"
            raise HttpError(message)
        try:
            async with asyncio.timeout(SILENCE_S):
                yield (await reader.readexactly(length + 2))[:-2]
        except (asyncio.IncompleteReadError, TimeoutError):
            message = "the response was cut off"
            raise HttpError(message) from None


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield lines of pieces that end anywhere, without their ends."""
    # The pieces of a line are joined once: a line in pieces of a byte takes no longer.
    parts: list[bytes] = []
    size = 0
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        parts.append(first)
        size += len(first)
        for other in others:
            yield b"".join(parts).rstrip(b"\r")
            parts, size = [other], len(other)
        if size > _MAX_LINE:
            message = f"expected lines of at most {_MAX_LINE} bytes"
            raise HttpError(message)
    if size:
        yield b"".join(parts).rstrip(b"\r")
