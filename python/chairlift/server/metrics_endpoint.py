"""The Prometheus endpoint: what it shows, and the port that shows it."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, start_http_server

from chairlift import _core
from chairlift.config import EngineConfig
from chairlift.errors import ConfigError
from chairlift.metrics import Deliveries, Metrics, ServedModel, TenantLabels
from chairlift.server.config import ServerConfig
from chairlift.server.listen import TcpAddress, UnixAddress, check_private, parse_address


def new_metrics(
    engine_config: EngineConfig,
    config: ServerConfig,
    load: Callable[[], _core.Load | None],
    deliveries: Deliveries,
) -> Metrics:
    """Create the instruments of a server."""
    model = ServedModel(
        name=config.model_names[0],
        version=_core.__version__,
        batching=engine_config.batching.value,
        block_size=engine_config.block_size,
    )
    # Metadata and certificates bring tenants that no file of the operator lists.
    is_closed = config.auth_tokens is not None and not config.trust_tenant_metadata
    return Metrics(load, model, TenantLabels(is_closed=is_closed), deliveries)


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
        endpoint, thread = start_http_server(address.port, address.host, registry)
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        message = f"metrics_listen: cannot listen on {address}: {reason}"
        raise ConfigError(message) from None

    def end() -> None:
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()

    return end
