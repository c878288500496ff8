"""What all calls of an ingress share."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from chairlift.ray.forward.names import Naming
from chairlift.ray.forward.replicas import Replicas
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.security.auth import TENANT_KEY, Authenticator

FORWARDED: Final = ("authorization", TENANT_KEY, "traceparent")
"""Metadata, or headers, that replicas get: they find the tenant of a call by themselves."""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The replicas, and the rules of the ingress."""

    replicas: Replicas
    authenticator: Authenticator
    write_timeout_s: float
    naming: Naming = field(default_factory=Naming)
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    def forwarded(self, context: ServicerContext) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call that its replica gets."""
        metadata = context.invocation_metadata() or ()
        return tuple((key, value) for key, value in metadata if key in FORWARDED)
