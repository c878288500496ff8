"""Where the blocks of one prompt are: a server has computed it already, for the same client."""

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BlockSource:
    """The prefill server of one prompt, and what it gave for the prompt."""

    address: str
    """One of `prefill_peers`, as it stands there."""
    instance: str
    """The start of that server."""
    ticket: str = field(repr=False)
    """Opens the blocks of the prompt there, to a request of the same tenant and salt."""
    scope: str = field(repr=False)
    """`scope_of` the tenant and salt of the request, with the ticket as the key."""


def scope_of(tenant: str, salt: str, key: bytes) -> str:
    """Return what a server calls a tenant and a salt before another one, which learns neither.

    Args:
        tenant: Owner of a request.
        salt: Its salt of the prefix cache.
        key: A secret of at most 64 bytes.
    """
    text = f"{len(tenant)} {tenant}{salt}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, key=key, digest_size=16).hexdigest()
