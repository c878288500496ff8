"""The ASGI application: it authenticates a request, routes it, and always answers it."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from chairlift.api.errors import Reason, RequestError
from chairlift.api.logs import fields
from chairlift.server.calls.context import ServerContext
from chairlift.server.config import ServerConfig
from chairlift.server.http.errors import Disconnected, HttpError, refused
from chairlift.server.http.exchange import Exchange
from chairlift.server.limits.receiving import Receiving
from chairlift.server.rpc.listen import TcpAddress

_log = logging.getLogger(__name__)

_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(r"([^:\[\]]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?")

Handler = Callable[[Exchange], Awaitable[None]]


def route(path: str, method: str, handler: Handler) -> Route:
    """Return a route to a handler of exchanges."""

    class Endpoint:
        """An application of ASGI, as which the router passes all methods of `methods`."""

        async def __call__(self, scope: Any, _receive: Any, _send: Any) -> None:
            await handler(scope["state"]["exchange"])

    return Route(path, Endpoint(), methods=[method])


class HttpApp:
    """Checks host and caller of each exchange, and turns each error into a response."""

    def __init__(
        self,
        server: ServerContext,
        receiving: Receiving,
        config: ServerConfig,
        address: TcpAddress,
        routes: list[Route],
        open_paths: frozenset[str],
        on_failure: Callable[[str, Reason], None],
    ) -> None:
        """Set the routes and the rules.

        Args:
            server: The state that all calls share.
            receiving: Bounds on unfinished bodies.
            config: The server's settings.
            address: Where it listens.
            routes: The routes of all protocols.
            open_paths: Paths that need no token: they have no data.
            on_failure: Called with the path and the reason of each exchange that fails.
        """
        self._server = server
        self._receiving = receiving
        self._config = config
        self._hosts = _hosts(address, config)
        self._open_paths = open_paths
        self._router = Router(routes, redirect_slashes=False)
        self._on_failure = on_failure

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one exchange."""
        exchange = Exchange(
            scope,
            receive,
            send,
            receiving=self._receiving,
            max_body_bytes=self._config.max_receive_bytes,
            write_timeout_s=self._config.write_timeout_s,
        )
        scope["state"]["exchange"] = exchange
        scope["app"] = self
        try:
            await self._serve(scope, exchange, receive, send)
        except Disconnected:
            _log.debug("the client ended the exchange", extra=fields(path=scope["path"]))
        except asyncio.CancelledError:
            # Only the end of the listener cancels: uvicorn would log it as a fault.
            await exchange.cut()
        except BaseException as error:
            await self._fail(exchange, error)
        finally:
            exchange.close()

    async def _serve(self, scope: Any, exchange: Exchange, receive: Any, send: Any) -> None:
        self._check_host(exchange)
        if scope["path"] not in self._open_paths:
            metadata = exchange.headers
            exchange.tenant = self._server.authenticator.tenant_of(metadata, exchange.certificate)
            exchange.admit()
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            # Of the router: no such path, or another method.
            status = HTTPStatus(error.status_code)
            text = f"{scope['method']} {scope['path'][:100]}: {status.phrase.lower()}"
            refusal = refused(status, text, status.name.lower())
            refusal.headers.update(error.headers or {})
            raise refusal from None

    def _check_host(self, exchange: Exchange) -> None:
        """Refuse names of other hosts: a page's script may have made one of them this address."""
        name = exchange.header("host")
        if name is None and exchange.scope["http_version"] == "1.1":
            message = "host: expected this header, which HTTP/1.1 requires"
            raise refused(HTTPStatus.BAD_REQUEST, message, "missing_host", "host")
        if self._hosts is None:
            return
        host = _HOST.fullmatch(name or "")
        if host is None or host[1].lower() not in self._hosts:
            message = "host: this server does not answer by that name (--http-allowed-host)"
            raise refused(HTTPStatus.FORBIDDEN, message, "unknown_host", "host")

    async def _fail(self, exchange: Exchange, error: BaseException) -> None:
        """Respond with an error, or cut off a response that has begun."""
        path = exchange.scope["path"][:100]
        if isinstance(error, RequestError):
            error = HttpError.of(error)
        if not isinstance(error, HttpError):
            _log.error("a handler failed", exc_info=error, extra=fields(path=path))
            error = HttpError.internal()
        if error.reason is not None:
            self._on_failure(path, error.reason)
        if exchange.has_begun:
            # Not ended in order: the client must not take a part for the whole.
            await exchange.cut()
        elif not exchange.disconnected:
            await exchange.fail(error)


def _hosts(address: TcpAddress, config: ServerConfig) -> frozenset[str] | None:
    """Return the hosts by whose names clients may call; None is any.

    Beyond loopback there is TLS, and a page that calls by another name finds the wrong certificate.
    """
    if not address.is_loopback:
        return None
    listen_host = f"[{address.host}]" if ":" in address.host else address.host
    named = config.http_allowed_host or ()
    return _LOOPBACK_HOSTS | {listen_host} | {name.lower() for name in named}
