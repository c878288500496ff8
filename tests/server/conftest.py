from contextlib import asynccontextmanager

import grpc
import pytest
from chairlift.attention.cpu import CpuBackend
from chairlift.config import engine_config
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.model.config import ModelConfig
from chairlift.model.kv_cache import kv_bytes_per_block
from chairlift.server.server import Server, ServerConfig

from tests.server.talk import Serving


@pytest.fixture
def kv_blocks(tiny_folder):
    """Gives the setting for a pool of so many blocks."""
    config = ModelConfig.load(tiny_folder)
    return lambda num: (num + 1) * kv_bytes_per_block(config, CpuBackend(), 16)


@pytest.fixture
def serve(tiny_folder, tmp_path):
    """Serves the tiny model in this process, on a Unix socket unless told otherwise."""

    @asynccontextmanager
    async def run(*, server=None, before_load=None, listen=None, **settings):
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **settings}
        listen = listen or f"unix:{tmp_path}/lift.sock"
        config = ServerConfig(model=str(tiny_folder), listen=listen, **(server or {}))
        served = Server(engine_config(**settings), config)
        address = await served.bind()
        channel = grpc.aio.insecure_channel(address)
        serving = Serving(served, channel, address)
        try:
            if before_load is not None:
                await before_load(serving)
            engine = AsyncEngine.of(Engine(tiny_folder, **settings))
            await served.serve(engine)
            yield serving
        finally:
            await channel.close()
            await served.stop(0)

    return run
