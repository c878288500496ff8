"""The Prometheus endpoint: what it shows, and the port that shows it."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.server.config import ServerConfig
from chairlift.server.metrics import AdapterRequests, Deliveries, Metrics, ServedModel, TenantLabels
from chairlift.server.ops.files import MAX_SCRAPES
from chairlift.server.rpc.listen import TcpAddress, UnixAddress, check_private, parse_address

_SCRAPE_S: Final = 10.0
"""Time for a scraper to send its request, and to take the response."""
_PAUSE_S: Final = 0.25
"""Without a file for a connection: until the next attempt."""


class _Handler(WSGIRequestHandler):
    """One scrape, within a time, without a line in the log."""

    timeout = _SCRAPE_S

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class _Endpoint(ThreadingWSGIServer):
    """A thread for each scrape; there are few at once, each for a bounded time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._places = threading.BoundedSemaphore(MAX_SCRAPES)
        super().__init__(*args, **kwargs)

    def get_request(self) -> Any:
        """Accept a connection; without a file, pause: the kernel reports it again at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take a place for the connection; without one it is closed."""
        return self._places.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a scrape."""
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a scrape, and give back its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went, or was too slow."""


def new_metrics(
    engine_config: EngineConfig,
    config: ServerConfig,
    load: Callable[[], _core.Load | None],
    deliveries: Deliveries,
    live_adapters: Callable[[], tuple[set[str], set[str]]],
) -> Metrics:
    """Create the instruments of a server.

    Args:
        engine_config: Settings of the engine.
        config: Settings of the server.
        load: Returns the load, from any thread; None while the model loads.
        deliveries: The tokens delivered, and their times.
        live_adapters: Returns the adapters of requests with a token and without, from any thread.
    """
    model = ServedModel(
        name=config.model_names[0],
        version=_core.__version__,
        batching=engine_config.batching.value,
        block_size=engine_config.block_size,
    )
    # Metadata and certificates bring tenants that no file of the operator lists.
    is_closed = config.auth_tokens is not None and not config.trust_tenant_metadata

    def adapters() -> AdapterRequests:
        running, waiting = (tuple(sorted(names)) for names in live_adapters())
        return AdapterRequests(engine_config.num_adapter_slots, running, waiting)

    return Metrics(load, model, TenantLabels(is_closed=is_closed), deliveries, adapters)


def metrics_address(text: str | None) -> TcpAddress | None:
    """Parse the address of the endpoint.

    Raises:
        ConfigError: The address is malformed, or other machines can reach it.
    """
    if text is None:
        return None
    address = parse_address(text, "metrics_listen")
    if isinstance(address, UnixAddress):
        message = f"metrics_listen: expected HOST:PORT, got {text!r}"
        raise ConfigError(message)
    check_private(address, "metrics_listen", "metrics are plain text: use 127.0.0.1 or ::1")
    return address


def serve_metrics(address: TcpAddress | None, registry: CollectorRegistry) -> Callable[[], None]:
    """Start the endpoint on a thread of its own, if it has an address; return what ends it.

    Raises:
        ConfigError: The address cannot be used.
    """
    if address is None:
        return lambda: None
    try:
        endpoint: _Endpoint = make_server(
            address.host,
            address.port,
            make_wsgi_app(registry),
            type("_Endpoint", (_Endpoint,), {"address_family": address.family}),
            handler_class=_Handler,
        )
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        message = f"metrics_listen: cannot listen on {address}: {reason}"
        raise ConfigError(message) from None
    thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
    thread.start()

    def end() -> None:
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()

    return end
