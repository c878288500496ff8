"""Where HTTP is served; importable without the packages that serve it."""

from chairlift.api.errors import ConfigError
from chairlift.server.config import ServerConfig
from chairlift.server.rpc.listen import TcpAddress, UnixAddress, check_private, parse_address


def http_address(config: ServerConfig, *, remedy: str) -> TcpAddress | None:
    """Parse the address of the HTTP port; None disables it.

    Args:
        config: Of the server.
        remedy: Advice at the end of the error for an address without protection.

    Raises:
        ConfigError: The address is malformed, or other machines can reach it without TLS and
            authentication.
    """
    if config.http_listen is None:
        return None
    address = parse_address(config.http_listen, "http_listen")
    if isinstance(address, UnixAddress):
        message = f"http_listen: expected HOST:PORT, got {config.http_listen!r}"
        raise ConfigError(message)
    is_closed = config.auth_tokens is not None or config.tls_client_ca is not None
    if config.tls_cert is None or not is_closed:
        check_private(address, "http_listen", remedy.removesuffix(" or unix:PATH"))
    return address
