"""The address of a server: HOST:PORT, or unix:PATH for a socket on this machine."""

import ipaddress
import re
from typing import Final

from chairlift.api.errors import ConfigError

RANK_PORT: Final = 50070
"""Where rank 0 of a model on several hosts listens, unless a port is given."""

_OF_GRPC: Final = re.compile(r"(unix|unix-abstract|dns|ipv4|ipv6|vsock|xds):.", re.DOTALL)
"""Names that gRPC itself resolves, such as dns:///HOST:PORT."""

_SCHEME: Final = re.compile(r"dns:///|dns:(?!/)|ipv[46]:(?!.*,)")
"""Names of gRPC that leave the rest as it is; a list of addresses is none of one machine."""

_HOST: Final = r"(?:[^\s:/\[\]]+|\[[0-9a-fA-F:.%\w]+\])"
_HOST_AND_PORT: Final = re.compile(rf"{_HOST}:([0-9]{{1,5}})")

_HINTS: Final = (
    (r"\w+://.*", "leave out the scheme"),
    (r"[0-9a-fA-F.]*(:[0-9a-fA-F.]*){2,}", "an IPv6 address needs brackets, such as [::1]:50051"),
    (_HOST, "the port is missing, which is 50051 by default"),
    (rf"(?!unix:){_HOST}:\S*", "a port is a number from 1 to 65535"),
)


def checked_address(address: object, option: str = "address") -> str:
    """Check an address: gRPC would silently complete a malformed one.

    Args:
        address: What a caller or a setting gives.
        option: Its name, for the error.

    Raises:
        ConfigError: The address is malformed; the message says how.
    """
    if not isinstance(address, str):
        kind = f"a value of type {type(address).__name__}"
        raise _bad(kind, option)
    if _OF_GRPC.match(address):
        return address
    match = _HOST_AND_PORT.fullmatch(address)
    if match is not None and 1 <= int(match[1]) <= 65_535:
        return address
    shown = repr(address if len(address) <= 100 else address[:99] + "…")
    hints = [hint for pattern, hint in _HINTS if re.fullmatch(pattern, address)]
    raise _bad(": ".join([shown, *hints[:1]]), option)


def rank_address(address: str, option: str) -> str:
    """Return the address of rank 0, with a port where it has none.

    Raises:
        ConfigError: The address is malformed, or not of TCP.
    """
    if re.fullmatch(_HOST, address):
        address = f"{address}:{RANK_PORT}"
    if _OF_GRPC.match(address):
        message = f"{option}: expected HOST or HOST:PORT, got {address!r}"
        raise ConfigError(message)
    return checked_address(address, option)


def _bad(got: str, option: str) -> ConfigError:
    return ConfigError(f"{option}: expected HOST:PORT or unix:PATH, got {got}")


def is_local(address: str) -> bool:
    """Return whether a server there is on this machine: a Unix socket, or loopback."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = host_of(address)
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    if isinstance(number, ipaddress.IPv6Address) and number.ipv4_mapped is not None:
        number = number.ipv4_mapped
    return number.is_loopback


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return the host, as `host_of`, and the port of an address; None of one that has none."""
    _, colon, port = _SCHEME.sub("", address, count=1).rpartition(":")
    is_tcp = colon and port.isdecimal() and not address.startswith(("unix:", "unix-abstract:"))
    return (host_of(address), int(port)) if is_tcp else None


def host_of(address: str) -> str:
    """Return the host of an address, in small letters and without brackets."""
    named = _SCHEME.sub("", address, count=1)
    host, colon, _ = named.rpartition(":")
    host = host if colon and not named.endswith("]") else named
    return host.removeprefix("[").removesuffix("]").lower().rstrip(".")
