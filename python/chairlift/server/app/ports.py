"""The ports of a server: gRPC, and HTTP and metrics if they are configured."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import grpc
from prometheus_client import CollectorRegistry

from chairlift.api.errors import ConfigError
from chairlift.server.config import ServerConfig
from chairlift.server.http.address import http_address, page_is_on
from chairlift.server.ops.metrics_endpoint import metrics_address, serve_metrics
from chairlift.server.rpc.listen import (
    TcpAddress,
    UnixAddress,
    bind,
    check_private,
    parse_address,
    unbind,
)
from chairlift.server.security.tls import server_credentials

if TYPE_CHECKING:
    from chairlift.server.http.listener import HttpListener

_STOP_S: Final = 0.5
"""Time for calls that never end by themselves, such as a health watch."""
_REMEDY: Final = (
    "that needs --tls-cert and --tls-key, and --auth-tokens or --tls-client-ca; "
    "or use 127.0.0.1, ::1 or unix:PATH"
)


class Ports:
    """Where a server listens; other machines reach a port only with TLS and authentication.

    Attributes:
        address: The port of gRPC; after `open` with the number that the system chose.
        grpc: Answers on it, from `open` on.
        http: Listens for HTTP, from `open` on; None without that port.
    """

    grpc: grpc.aio.Server

    def __init__(self, config: ServerConfig) -> None:
        """Check the addresses, and read the certificates.

        Raises:
            ConfigError: An address or a certificate is malformed, or the server would be open to
                other machines without protection.
        """
        self.address: TcpAddress | UnixAddress = parse_address(config.listen, "listen")
        self.http: HttpListener | None = None
        self._credentials = server_credentials(config)
        is_closed = config.auth_tokens is not None or config.tls_client_ca is not None
        if self._credentials is None or not is_closed:
            check_private(self.address, "listen", _REMEDY)
        self._http_address = http_address(config, remedy=_REMEDY)
        address = self._http_address
        self._has_page = address is not None and page_is_on(config, address)
        self._metrics_address = metrics_address(config.metrics_listen)
        self._end_metrics: Callable[[], None] = lambda: None

    async def open(
        self,
        server: grpc.aio.Server,
        new_http: "Callable[[TcpAddress], HttpListener]",
        registry: CollectorRegistry,
    ) -> None:
        """Listen; gRPC answers once its server is started.

        Args:
            server: The gRPC server, with its services.
            new_http: Returns what listens for HTTP at an address.
            registry: The registry of the metrics.

        Raises:
            ConfigError: An address cannot be used; none is in use then.
        """
        self.grpc = server
        try:
            self.address = bind(server, self.address, "listen", self._credentials)
            if self._http_address is not None:
                http = new_http(self._http_address)
                await http.start()
                self.http = http
            self._end_metrics = serve_metrics(self._metrics_address, registry)
        except ConfigError:
            if self.http is not None:
                await self.http.stop()
            unbind(self.address)
            await server.stop(None)
            raise

    @property
    def http_url(self) -> str | None:
        """Return the URL of the HTTP port; None without one."""
        return None if self.http is None else self.http.url

    @property
    def page_url(self) -> str | None:
        """Return the URL of the live page; None without it."""
        return f"{self.http_url}/" if self._has_page else None

    async def close(self) -> None:
        """End what still runs, within a second, and listen no more."""
        unbind(self.address)
        if self.http is not None:
            await self.http.stop()
        await self.grpc.stop(_STOP_S)
        await asyncio.to_thread(self._end_metrics)
