"""Who calls: one interceptor over every method of every service, and the tenant of a call."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import grpc

from chairlift.errors import Reason, RequestError
from chairlift.server.bearer_tokens import BearerTokens
from chairlift.server.certificate_names import certificate_tenant
from chairlift.server.status_interceptor import Handler, ServicerContext

OPEN_METHODS: Final = frozenset({"/grpc.health.v1.Health/Check"})
"""What needs no token: the probes of Kubernetes cannot send one, and learn one word."""

TENANT_KEY: Final = "chairlift-tenant"
"""Metadata in which a trusted gateway names the tenant."""

ANONYMOUS: Final = ""
"""The tenant of all callers where nobody has to prove who they are."""

_TENANT: Final = re.compile(r"[!-~]{1,128}")

Metadata = Iterable[tuple[str, str | bytes]]


class Authenticator:
    """Knows callers by their token, their certificate or, where it is trusted, their word."""

    def __init__(self, tokens: BearerTokens | None, *, trust_metadata: bool) -> None:
        """Takes the rules.

        Args:
            tokens: None asks for none.
            trust_metadata: Whether a caller may name the tenant it calls for.
        """
        self._tokens = tokens
        self._trust_metadata = trust_metadata

    def check(self, metadata: Metadata) -> str | None:
        """The tenant of the token; None where none is asked for.

        Raises:
            RequestError: There is no token, or it is not known.
        """
        if self._tokens is None:
            return None
        given = _values(metadata, "authorization")
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer":
            message = "authorization: expected a bearer token in the metadata of the call"
            raise RequestError(Reason.UNAUTHENTICATED, message)
        tenant = self._tokens.tenant_of(token.strip())
        if tenant is None:
            message = "authorization: the token is not known"
            raise RequestError(Reason.UNAUTHENTICATED, message)
        return tenant

    def tenant(self, context: ServicerContext) -> str:
        """Whose call this is.

        Named by metadata where that is trusted, else by the token, else by the client's certificate
        (`certificate_tenant`).

        Raises:
            RequestError: The token was withdrawn meanwhile, or the name is none.
        """
        metadata = tuple(context.invocation_metadata() or ())
        tenant = self.check(metadata)
        named = _values(metadata, TENANT_KEY) if self._trust_metadata else []
        if named:
            name = named[0].decode("ascii", "replace")
            if len(named) > 1 or not _TENANT.fullmatch(name):
                message = f"{TENANT_KEY}: expected one name of 1 to 128 visible ASCII characters"
                raise RequestError(Reason.BAD_PARAMETER, message, field=TENANT_KEY)
            return name
        if tenant is None:
            tenant = certificate_tenant(context.auth_context() or {}) or ANONYMOUS
        return tenant


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Turns away callers that are not known, before anything of their message is decoded."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Handler | None]],
        handler_call_details: Any,
    ) -> Handler | None:
        """Gives the handler, or one that refuses; a stranger does not learn which methods exist."""
        if handler_call_details.method not in OPEN_METHODS:
            try:
                self._authenticator.check(handler_call_details.invocation_metadata or ())
            except RequestError as error:
                return _refusing(error)
        return await continuation(handler_call_details)


def _refusing(error: RequestError) -> Handler:
    """A handler for methods of every kind: it ends the call and looks into no message."""

    async def refuse(_messages: AsyncIterator[bytes], _context: ServicerContext) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(refuse)


def _values(metadata: Metadata, key: str) -> list[bytes]:
    return [v.encode() if isinstance(v, str) else v for k, v in metadata if k == key]
