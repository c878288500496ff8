import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from chairlift.api.config import engine_config
from chairlift.client import AsyncClient, connect_async
from chairlift.client.security import Security
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.ray.forward.replicas import ReplicaInfo, Replicas
from chairlift.ray.forward.server import ForwardingServer
from chairlift.server.app.server import Server
from chairlift.server.config import ServerConfig

from tests.server.conftest import pace


@dataclass
class Forwarded:
    """An ingress in front of servers in this process."""

    client: AsyncClient
    address: str
    replicas: Replicas
    server: ForwardingServer
    engines: dict[str, Server] = field(default_factory=dict)

    async def until_up(self, num):
        async with asyncio.timeout(20):
            while len(self.replicas.up) < num:
                await asyncio.sleep(0.01)

    def num_blocks_cached(self):
        """Blocks in the prefix cache of each engine."""
        return [e.gate.engine().load().num_cached_blocks for e in self.engines.values()]


@pytest.fixture
def forward(tiny_folder, tmp_path):
    """Serve the tiny model by several engines behind an ingress, on Unix sockets."""

    @asynccontextmanager
    async def run(
        num=2,
        *,
        server=None,
        engine_server=None,
        others=(),
        token=None,
        each=lambda _number: {},
        **shared,
    ):
        async with AsyncExitStack() as stack:
            engines, found = {}, dict(others)
            for number in range(num):
                settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **shared}
                settings |= each(number)
                listen = f"unix:{tmp_path}/e{number}.sock"
                config = ServerConfig(
                    model=str(tiny_folder), listen=listen, **(engine_server or {})
                )
                served = Server(engine_config(**settings), config)
                address = await served.bind()
                stack.push_async_callback(served.stop, 0)
                engine = Engine(tiny_folder, **settings)
                pace(engine.runner.model)
                await served.serve(AsyncEngine.of(engine))
                engines[f"e{number}"] = served
                found[f"e{number}"] = ReplicaInfo(address, served.http_url or "", num_tokens=4096)
            replicas = Replicas(
                Security(token=token),
                report_interval_s=0.1,
                load_adapters=(engine_server or {}).get("adapters_on_demand", False),
            )
            stack.push_async_callback(replicas.close)
            config = ServerConfig(listen=f"unix:{tmp_path}/ingress.sock", **(server or {}))
            forwarding = ForwardingServer(config, replicas)
            address = await forwarding.start()
            stack.push_async_callback(forwarding.stop, 0)
            replicas.update(found)
            client = await stack.enter_async_context(connect_async(address))
            forwarded = Forwarded(client, address, replicas, forwarding, engines)
            await forwarded.until_up(num)
            yield forwarded

    return run
