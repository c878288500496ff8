"""Where HTTP is served; importable without the packages that serve it."""

from chairlift.api.errors import ConfigError
from chairlift.server.config import ServerConfig, Switch
from chairlift.server.rpc.listen import TcpAddress, UnixAddress, check_private, parse_address


def http_address(config: ServerConfig, *, remedy: str) -> TcpAddress | None:
    """Parse the address of the HTTP port; None disables it.

    Args:
        config: The server's settings.
        remedy: Advice at the end of the error for an address without protection.

    Raises:
        ConfigError: The address is malformed, or other machines can reach it without TLS and
            authentication.
    """
    if config.http_listen is None:
        if config.page is Switch.ON:
            message = "page: it is served on the HTTP port, which needs --http-listen"
            raise ConfigError(message)
        return None
    address = parse_address(config.http_listen, "http_listen")
    if isinstance(address, UnixAddress):
        message = f"http_listen: expected HOST:PORT, got {config.http_listen!r}"
        raise ConfigError(message)
    is_closed = config.auth_tokens is not None or config.tls_client_ca is not None
    if config.tls_cert is None or not is_closed:
        check_private(address, "http_listen", remedy.removesuffix(" or unix:PATH"))
    return address


def page_is_on(config: ServerConfig, address: TcpAddress) -> bool:
    """Return whether the HTTP port has the live page: beyond loopback only if it is asked for."""
    return address.is_loopback if config.page is None else config.page is Switch.ON
