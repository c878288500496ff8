"""Authentication: one interceptor for every method of every service, and the tenant of a call."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from chairlift.api.errors import Reason, RequestError
from chairlift.server.config import ServerConfig
from chairlift.server.rpc.status_interceptor import Handler, ServicerContext
from chairlift.server.security.bearer_tokens import BearerTokens

OPEN_METHODS: Final = frozenset({"/grpc.health.v1.Health/Check"})
"""Methods without a token: the probes of Kubernetes cannot send one, and read one word."""

ADMIN_METHODS: Final = "/chairlift.v1.AdminService/"
"""How the methods begin that take an administrator's token, and no other."""

TENANT_KEY: Final = "chairlift-tenant"
"""Metadata in which a trusted gateway names the tenant."""

ANONYMOUS: Final = ""
"""The tenant of all callers where no authentication is configured."""

_TENANT: Final = re.compile(r"[!-~]{1,128}")

_NAME_KINDS: Final = (
    ("uri", "peer_uri"),
    ("dns", "peer_dns"),
    ("email", "peer_email"),
    ("ip", "peer_ip"),
    ("cn", "x509_common_name"),
)
"""Kinds of names in a certificate in the order of preference, and gRPC's properties for them."""

Metadata = Iterable[tuple[str, str | bytes]]


class Authenticator:
    """Finds the tenant of a call: by token, by certificate or by metadata that is trusted."""

    def __init__(
        self,
        tokens: BearerTokens | None,
        *,
        trust_metadata: bool,
        administrators: BearerTokens | None = None,
    ) -> None:
        """Set the rules.

        Args:
            tokens: None accepts calls without a token.
            trust_metadata: Whether a caller may name the tenant of its call.
            administrators: Tokens for `ADMIN_METHODS`; None accepts no call of them.
        """
        self._tokens = tokens
        self._administrators = administrators
        self._trust_metadata = trust_metadata

    def check(self, metadata: Metadata) -> str | None:
        """Return the tenant of the token; None if no token is required.

        Raises:
            RequestError: The token is missing or unknown.
        """
        return None if self._tokens is None else _owner(self._tokens, metadata)

    def check_administrator(self, metadata: Metadata) -> str:
        """Return the name of an administrator's token.

        Raises:
            RequestError: The token is missing or not an administrator's, or there is none.
        """
        if self._administrators is None:
            message = "authorization: this server has no administrators (admin_tokens)"
            raise RequestError(Reason.UNAUTHENTICATED, message)
        return _owner(self._administrators, metadata)

    def administrator(self, context: ServicerContext) -> str:
        """Return the name of the administrator of a call, as `check_administrator`."""
        return self.check_administrator(tuple(context.invocation_metadata() or ()))

    def tenant(self, context: ServicerContext) -> str:
        """Return the tenant of a call.

        The metadata names it if it is trusted, else the token, else the client's certificate
        (`certificate_tenant`).

        Raises:
            RequestError: The token was withdrawn meanwhile, or the name is malformed.
        """
        metadata = tuple(context.invocation_metadata() or ())
        return self.tenant_of(metadata, context.auth_context() or {})

    def tenant_of(self, metadata: Metadata, auth_context: Mapping[str, Sequence[bytes]]) -> str:
        """Return the tenant of a call of any protocol, as `tenant` does.

        Args:
            metadata: The call's, or the headers of an HTTP request; names are in lower case.
            auth_context: The names in the client's verified certificate, by gRPC's properties.

        Raises:
            RequestError: The token is unknown, or the name of the tenant is malformed.
        """
        metadata = tuple(metadata)
        tenant = self.check(metadata)
        named = _values(metadata, TENANT_KEY) if self._trust_metadata else []
        if named:
            name = named[0].decode("ascii", "replace")
            if len(named) > 1 or not _TENANT.fullmatch(name):
                message = f"{TENANT_KEY}: expected one name of 1 to 128 visible ASCII characters"
                raise RequestError(Reason.BAD_PARAMETER, message, field=TENANT_KEY)
            return name
        if tenant is None:
            tenant = certificate_tenant(auth_context) or ANONYMOUS
        return tenant


def new_authenticator(config: ServerConfig) -> Authenticator:
    """Return the authenticator that the settings of a server describe.

    Raises:
        ConfigError: A file of tokens is malformed.
    """
    tokens, admins = (
        None if path is None else BearerTokens(Path(path))
        for path in (config.auth_tokens, config.admin_tokens)
    )
    return Authenticator(tokens, trust_metadata=config.trust_tenant_metadata, administrators=admins)


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses unauthenticated calls before anything of their messages is decoded."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Handler | None]],
        handler_call_details: Any,
    ) -> Handler | None:
        """Return the handler, or one that refuses: an unknown caller cannot list the methods."""
        if handler_call_details.method not in OPEN_METHODS:
            authenticator = self._authenticator
            is_admin = handler_call_details.method.startswith(ADMIN_METHODS)
            check = authenticator.check_administrator if is_admin else authenticator.check
            try:
                check(handler_call_details.invocation_metadata or ())
            except RequestError as error:
                return _refusing(error)
        return await continuation(handler_call_details)


def _refusing(error: RequestError) -> Handler:
    """Return a handler for methods of every kind that ends the call and reads no message."""

    async def refuse(_messages: AsyncIterator[bytes], _context: ServicerContext) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(refuse)


def _owner(tokens: BearerTokens, metadata: Metadata) -> str:
    """Return the name in the file of the token of a call."""
    given = _values(metadata, "authorization")
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        message = "authorization: expected a bearer token in the metadata of the call"
        raise RequestError(Reason.UNAUTHENTICATED, message)
    owner = tokens.tenant_of(token.strip())
    if owner is None:
        message = "authorization: the token is not known"
        raise RequestError(Reason.UNAUTHENTICATED, message)
    return owner


def _values(metadata: Metadata, key: str) -> list[bytes]:
    return [v.encode() if isinstance(v, str) else v for k, v in metadata if k == key]


def certificate_tenant(auth_context: Mapping[str, Sequence[bytes]]) -> str | None:
    """Return `KIND:NAME` of the first name in a certificate that gRPC has verified.

    A certificate authority issues names of several kinds, and verifies each by other rules: `a`
    as a host name and `a` as a common name may be two clients. The kind is part of the tenant, so
    that they stay two; and no tenant of a token has a colon, so that a certificate is never a
    token's tenant.

    Args:
        auth_context: The `auth_context` of the call.

    Returns:
        None if there is no certificate, or no name in it.

    Raises:
        RequestError: The name is not printable UTF-8: two such names could look the same.
    """
    for kind, key in _NAME_KINDS:
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
