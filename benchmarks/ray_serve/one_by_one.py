"""`GenerateOne` as a deployment of Serve: the router of the ingress, without its port."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from chairlift.ray import published
from chairlift.ray.forward.names import Naming
from chairlift.ray.forward.replicas import Replicas
from chairlift.ray.ingress import infos_of
from chairlift.v1 import generation_pb2 as pb
from ray import serve

_METHOD = "/chairlift.v1.GenerationService/GenerateOne"


class OneByOne:
    """Forwards calls that come through Serve's gRPC proxy, or through HAProxy."""

    async def __init__(self, application: str) -> None:  # type: ignore[misc]  # of Serve
        """Follow the engines of an application."""
        self._replicas = Replicas()
        self._naming = Naming()
        loop = asyncio.get_running_loop()
        published.listen(
            lambda found: loop.call_soon_threadsafe(self._replicas.update, infos_of(found))
        )
        handle = serve.get_deployment_handle("Engine", application)
        self._engines = handle.options(stream=False)
        # Serve follows the replicas of a handle from the first call on.
        await self._engines.check_health.remote()

    async def GenerateOne(
        self, request: pb.GenerateOneRequest
    ) -> AsyncIterator[pb.GenerateOneResponse]:
        """Let an engine answer."""
        ticket = self._replicas.choose(self._naming.of_start(request.start, ""))
        call: Any = ticket.replica.client.channel.unary_stream(
            _METHOD, response_deserializer=pb.GenerateOneResponse.FromString
        )(request.SerializeToString())
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()
            ticket.end()
