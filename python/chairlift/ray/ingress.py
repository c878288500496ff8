"""The deployment of the ingress: one address for all engines, which chooses one for each request.

gRPC has a port of its own: Serve's proxy routes a stream once, has no TLS for gRPC, and takes ten
times the processor time for a message. The OpenAI API comes through Serve's HTTP proxy.
"""

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from chairlift.api.errors import ChairliftError, ConfigError
from chairlift.ray import published
from chairlift.ray.forward.http import HttpForwarding
from chairlift.ray.forward.replicas import ReplicaInfo, Replicas
from chairlift.ray.forward.server import ForwardingServer
from chairlift.ray.settings import RaySettings
from chairlift.v1 import generation_pb2 as pb

_BIND_S: Final = 60.0
"""Time for the port to be free: in a rolling update the earlier ingress drains on it."""
_BIND_PERIOD_S: Final = 0.5


class Ingress:
    """One ingress, with a router of its own."""

    async def __init__(  # type: ignore[misc]  # of Serve
        self, engines: Any, settings: dict[str, Any]
    ) -> None:
        """Listen.

        Args:
            engines: Serve's handle of the engines.
            settings: Values of `RaySettings`.
        """
        self._settings = RaySettings(**settings)
        _, config = self._settings.configs()
        security = self._settings.security
        self._replicas = Replicas(
            security,
            routing=self._settings.routing,
            load_adapters=config.adapters_on_demand,
        )
        self._server = ForwardingServer(config, self._replicas)
        loop = asyncio.get_running_loop()
        # The thread of Serve's router calls it.
        published.listen(lambda found: loop.call_soon_threadsafe(self._on_replicas, found))
        # Serve follows the replicas of a handle from here on.
        self._engines = engines.options(stream=False)
        self.address = await self._bind()
        self._http = HttpForwarding(
            self._server.context, config.max_receive_bytes, self._settings.tls_ca
        )

    def _on_replicas(self, found: published.Metadata) -> None:
        self._found = found
        self._replicas.update(infos_of(found))

    async def _bind(self) -> str:
        loop = asyncio.get_running_loop()
        until = loop.time() + _BIND_S
        while True:
            try:
                return await self._server.start()
            except ConfigError:
                if loop.time() > until:
                    raise
                await asyncio.sleep(_BIND_PERIOD_S)

    async def __call__(self, request: Request) -> Response:
        """Answer a request of the OpenAI API."""
        return await self._http.answer(request)

    async def choose(self, prompt: str, tenant: str = "") -> str:
        """Return the address of the engine that should get a prompt, for a client of its own.

        Args:
            prompt: The text of the prompt.
            tenant: The tenant that the client's token names.

        Raises:
            RequestError: No engine is up.
        """
        names = self._server.context.naming.of_start(pb.Start(text=prompt), tenant)
        ticket = self._replicas.choose(names)
        ticket.end()
        return ticket.replica.info.address

    async def engines(self) -> dict[str, dict[str, Any]]:
        """Return what each engine that is up publishes, by its tag."""
        return {replica.tag: dict(self._found[replica.tag]) for replica in self._replicas.up}

    async def check_health(self) -> None:
        """Check the port; Serve replaces the ingress after a few failures.

        Raises:
            ChairliftError: The port is lost.
        """
        if self._server.has_lost_port:
            message = "the port is lost"
            raise ChairliftError(message)

    async def __del__(self) -> None:
        """Refuse new requests, and let streams end with their last request."""
        await self._server.stop(self._settings.drain_grace_s)
        await self._http.close()
        await self._replicas.close()


def infos_of(found: published.Metadata) -> dict[str, ReplicaInfo]:
    """Return where the engines that have published an address are, by their tags."""
    return {
        tag: ReplicaInfo(
            str(metadata["address"]),
            str(metadata.get("http_url", "")),
            int(metadata.get("num_tokens", 0)),
        )
        for tag, metadata in found.items()
        if "address" in metadata
    }
