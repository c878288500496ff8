"""The OpenAI API of an ingress: each request goes to the HTTP port of a replica."""

import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from chairlift.api.errors import Reason, RequestError, refusal
from chairlift.ray.forward.context import FORWARDED, ForwardContext
from chairlift.ray.forward.names import NO_PROMPT, PromptNames
from chairlift.ray.forward.replicas import Ticket
from chairlift.server.http.errors import HttpError
from chairlift.server.http.json_pieces import to_json

_HEADERS: Final = (*FORWARDED, "accept", "content-type", "x-request-id")
"""Headers of a request that its replica gets."""
_BACK: Final = ("content-type", "retry-after", "www-authenticate", "x-request-id")
"""Headers of a response that its client gets."""
_TIMES: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=3600.0)
_EVENTS: Final = "text/event-stream"


class HttpForwarding:
    """Passes requests on; for one event loop."""

    def __init__(
        self, server: ForwardContext, max_body_bytes: int, tls_ca: str | None = None
    ) -> None:
        """Connect with the first request.

        Args:
            server: What all calls share.
            max_body_bytes: A longer body is refused.
            tls_ca: PEM file of the authority of the replicas' certificates.
        """
        self._server = server
        self._max_body_bytes = max_body_bytes
        self._tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else True
        self._session: aiohttp.ClientSession | None = None

    async def answer(self, request: Request) -> Response:
        """Return the response of a replica; of another one, once, if nothing of it has come."""
        try:
            tenant = self._server.authenticator.tenant_of(request.headers.items(), {})
            body = await self._body(request)
            prompt = self._server.naming.of_body(body, tenant) if body else NO_PROMPT
            return await self._pass_on(request, body, prompt)
        except RequestError as error:
            return _refused(HttpError.of(error))

    async def _pass_on(self, request: Request, body: bytes, prompt: PromptNames) -> Response:
        for is_again in (False, True):
            if self._server.draining.is_set():
                raise refusal(Reason.DRAINING)
            ticket = self._server.replicas.choose(prompt)
            try:
                response = await self._open(request, body, ticket)
            except aiohttp.ClientError as error:
                # Other errors may be of the request, or of a connection that was idle too long: a
                # client must not make the others lose a replica.
                if isinstance(error, aiohttp.ClientConnectorError):
                    self._server.replicas.lost(ticket.replica)
                ticket.end()
                continue
            except BaseException:
                ticket.end()
                raise
            if isinstance(response, aiohttp.ClientResponse):
                return _streaming(response, ticket)
            ticket.end()
            if response.status_code != Reason.DRAINING.http_status or is_again:
                return response
        raise refusal(Reason.ENGINE_DOWN)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._max_body_bytes:
                message = f"the body has more than {self._max_body_bytes} bytes"
                raise RequestError(Reason.PROMPT_TOO_LONG, message)
        return bytes(body)

    async def _open(
        self, request: Request, body: bytes, ticket: Ticket
    ) -> "aiohttp.ClientResponse | Response":
        """Return a response whose events come one by one, or a whole one."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMES, auto_decompress=False)
        url = f"{ticket.replica.info.http_url}{request.url.path}"
        headers = _picked(request.headers, _HEADERS)
        found = await self._session.request(
            request.method, url, data=body or None, headers=headers, ssl=self._tls
        )
        try:
            if found.content_type == _EVENTS:
                return found
            content = await found.read()
        except BaseException:
            found.close()
            raise
        return Response(content, found.status, _picked(found.headers, _BACK))

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()


def _streaming(found: "aiohttp.ClientResponse", ticket: Ticket) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in found.content.iter_any():
                yield piece
        except aiohttp.ClientError:
            error = HttpError.of(refusal(Reason.ENGINE_DOWN))
            yield b"data: " + to_json({"error": error.object()}) + b"\n\n"
        finally:
            found.close()
            ticket.end()

    return StreamingResponse(pieces(), found.status, _picked(found.headers, _BACK))


def _picked(headers: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def _refused(error: HttpError) -> Response:
    return JSONResponse({"error": error.object()}, int(error.status), error.all_headers())
