"""The address of a server: HOST:PORT, or unix:PATH for a socket on this machine."""

import re
from typing import Final

from chairlift.api.errors import ConfigError

_OF_GRPC: Final = re.compile(r"(unix|unix-abstract|dns|ipv4|ipv6|vsock|xds):.", re.DOTALL)
"""Names that gRPC itself resolves, such as dns:///HOST:PORT."""

_HOST: Final = r"(?:[^\s:/\[\]]+|\[[0-9a-fA-F:.%\w]+\])"
_HOST_AND_PORT: Final = re.compile(rf"{_HOST}:([0-9]{{1,5}})")

_HINTS: Final = (
    (r"\w+://.*", "leave out the scheme"),
    (r"[0-9a-fA-F.]*(:[0-9a-fA-F.]*){2,}", "an IPv6 address needs brackets, such as [::1]:50051"),
    (_HOST, "the port is missing, which is 50051 by default"),
    (rf"(?!unix:){_HOST}:\S*", "a port is a number from 1 to 65535"),
)


def checked_address(address: object) -> str:
    """Check an address: gRPC would silently complete a malformed one.

    Raises:
        ConfigError: The address is malformed; the message says how.
    """
    if not isinstance(address, str):
        kind = f"a value of type {type(address).__name__}"
        raise _bad(kind)
    if _OF_GRPC.match(address):
        return address
    match = _HOST_AND_PORT.fullmatch(address)
    if match is not None and 1 <= int(match[1]) <= 65_535:
        return address
    shown = repr(address if len(address) <= 100 else address[:99] + "…")
    hints = [hint for pattern, hint in _HINTS if re.fullmatch(pattern, address)]
    raise _bad(": ".join([shown, *hints[:1]]))


def _bad(got: str) -> ConfigError:
    return ConfigError(f"address: expected HOST:PORT or unix:PATH, got {got}")
