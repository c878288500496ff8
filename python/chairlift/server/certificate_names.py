"""The tenant of a client's certificate: the kind of its name, and the name.

A certificate authority gives names of several kinds, and vouches for each by other rules: `a` as a
host name and `a` as a common name may be two clients. The kind is part of the tenant, so that they
stay two; and no tenant of a token has a colon, so that a certificate is never a token's tenant.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from chairlift.errors import Reason, RequestError

_KINDS: Final = (
    ("uri", "peer_uri"),
    ("dns", "peer_dns"),
    ("email", "peer_email"),
    ("ip", "peer_ip"),
    ("cn", "x509_common_name"),
)
"""Kinds of names in the order of preference, and gRPC's properties that hold them."""


def certificate_tenant(auth_context: Mapping[str, Sequence[bytes]]) -> str | None:
    """Return `KIND:NAME` of the first name in a certificate that gRPC has verified.

    Args:
        auth_context: The `auth_context` of the call.

    Returns:
        None if there is no certificate, or no name in it.

    Raises:
        RequestError: The name is not printable UTF-8: two such names could look the same.
    """
    for kind, key in _KINDS:
        name = next(iter(auth_context.get(key, ())), b"")
        if not name:
            continue
        try:
            text = name.decode()
        except UnicodeDecodeError:
            text = "\0"
        if not text.isprintable():
            message = f"certificate: expected a name ({kind}) of printable characters in UTF-8"
            raise RequestError(Reason.UNAUTHENTICATED, message)
        return f"{kind}:{text}"
    return None
