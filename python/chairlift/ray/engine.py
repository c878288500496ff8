"""The deployment of engines: each replica runs Chairlift's ordinary server on ports of its own."""

from typing import Any

import ray

from chairlift.api.errors import ChairliftError
from chairlift.client import AsyncClient
from chairlift.ray.server_process import ServerProcess
from chairlift.ray.settings import RaySettings


class Engine:
    """One engine, and what Serve asks of it."""

    async def __init__(self, settings: dict[str, Any]) -> None:  # type: ignore[misc]  # of Serve
        """Start the server; Serve starts the replica again if this fails.

        Args:
            settings: Values of `RaySettings`.
        """
        self._settings = RaySettings(**settings)
        self._server: ServerProcess | None = None
        self._client: AsyncClient | None = None
        host = self._settings.engine_host
        if host == "node":
            host = ray.util.get_node_ip_address()
        security = self._settings.security
        self._server = await ServerProcess.start(
            self._settings.model, self._settings.server, host=host
        )
        self._client = AsyncClient(self._server.address, security)

    def _parts(self) -> tuple[AsyncClient, ServerProcess]:
        assert self._client is not None, "Serve calls nothing before the replica has started"
        assert self._server is not None, "Serve calls nothing before the replica has started"
        return self._client, self._server

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Return where the engine is and what it has; Serve asks once, when it is ready."""
        client, server = self._parts()
        info, model = await client.server_info(), await client.model_info()
        return {
            "address": server.address,
            "http_url": server.http_url,
            "num_tokens": info.num_blocks * info.block_size,
            "model": model.name,
            "adapters": list(model.adapters),
            "pid": server.pid,
        }

    async def record_autoscaling_stats(self) -> dict[str, int]:
        """Return the load by which the number of engines is set."""
        client, _ = self._parts()
        load = await client.load()
        return {
            "waiting_tokens": load.num_waiting_tokens,
            "running_tokens": load.num_kv_tokens,
            "waiting": load.num_waiting,
            "running": load.num_running,
        }

    async def check_health(self) -> None:
        """Check the engine; Serve replaces the replica after a few failures.

        Raises:
            ChairliftError: It does not serve.
        """
        client, server = self._parts()
        if not server.is_running or not await client.is_serving():
            message = "the engine does not serve"
            raise ChairliftError(message)

    async def __del__(self) -> None:
        """Let live requests end; Serve has told the ingresses that the replica goes."""
        if self._client is not None:
            await self._client.close()
        if self._server is not None:
            await self._server.stop(self._settings.shutdown_s)
