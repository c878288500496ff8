"""By which proxy gRPC goes to a server, from the variables that it reads."""

import ipaddress
import os
from typing import Final
from urllib.parse import urlsplit

from chairlift.api.addresses import host_of, is_local

_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""The first that is set counts; an empty one is no proxy."""
_EXCEPTIONS: Final = ("no_grpc_proxy", "no_proxy")


def proxy_of(address: str) -> str:
    """Return the proxy for an address, as errors name it, without its password; empty without one.

    Servers of this machine have none: a proxy could not reach them.
    """
    name = next((name for name in _VARIABLES if name in os.environ), None)
    if name is None or is_behind_none(address) or _is_excepted(host_of(address)):
        return ""
    try:
        proxy = urlsplit(os.environ[name])
    except ValueError:
        return ""
    place = proxy.netloc.rpartition("@")[2]
    if proxy.scheme != "http" or not place:
        return ""  # gRPC knows no other proxies, and goes without
    return f"by the proxy {place} of {name}"


def is_behind_none(address: str) -> bool:
    """Return whether no proxy can reach a server: one of this machine.

    The unspecified address reaches this machine, too. It is none that a token may be sent to in
    plain text, since another system may read it in another way.
    """
    return is_local(address) or host_of(address) in {"0.0.0.0", "::"}


def _is_excepted(host: str) -> bool:
    name = next((name for name in _EXCEPTIONS if name in os.environ), None)
    entries = [] if name is None else os.environ[name].split(",")
    return any(_matches(host, entry.strip().lower()) for entry in entries if entry)


def _matches(host: str, entry: str) -> bool:
    if host.endswith(entry):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
