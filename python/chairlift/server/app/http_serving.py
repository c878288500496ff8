"""Composes the HTTP port, the application and the protocols."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from chairlift.api.errors import ConfigError, Reason
from chairlift.server.calls.context import ServerContext
from chairlift.server.config import ServerConfig
from chairlift.server.http.address import page_is_on
from chairlift.server.limits.receiving import Receiving
from chairlift.server.rpc.listen import TcpAddress
from chairlift.server.security.tls import server_context
from chairlift.server.services.overview import Overview

if TYPE_CHECKING:
    from chairlift.server.http.listener import HttpListener


def http_listener(
    address: TcpAddress,
    config: ServerConfig,
    server: ServerContext,
    receiving: Receiving,
    overview: Overview,
    *,
    is_serving: Callable[[], bool],
    on_failure: Callable[[str, Reason], None],
) -> "HttpListener":
    """Return the listener of the OpenAI API and the live page, which does not listen yet.

    Args:
        address: Where to listen.
        config: The server's settings.
        server: The state that all calls share.
        receiving: Bounds on unfinished messages.
        overview: What the server tells of itself.
        is_serving: Returns whether the engine answers requests.
        on_failure: Called with the path and the reason of each exchange that fails.

    Raises:
        ConfigError: The packages of the extra are missing, or a certificate cannot be used.
    """
    try:
        from chairlift.server.http.app import HttpApp
        from chairlift.server.http.connections import Connections
        from chairlift.server.http.listener import HttpListener
        from chairlift.server.page.routes import routes as page_routes
        from chairlift.server.page.static_files import routes_of, static_files
        from chairlift.server.protocols.openai import routes
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("chairlift"):
            raise
        message = f"http_listen: {error.name} is missing: pip install 'chairlift[http]'"
        raise ConfigError(message) from None
    endpoints, open_paths = routes(server, config, is_serving), {"/health"}
    if page_is_on(config, address):
        files = static_files()
        endpoints += [*routes_of(files), *page_routes(server, overview)]
        open_paths |= files.keys()
    connections = Connections(config.max_connections)
    app = HttpApp(server, receiving, config, address, endpoints, frozenset(open_paths), on_failure)
    return HttpListener(app, address, server_context(config), connections)
