import time
from contextlib import asynccontextmanager

import grpc
import pytest
from chairlift.api.config import engine_config
from chairlift.attention.cpu import CpuBackend
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import kv_bytes_per_block
from chairlift.server.app.server import Server, ServerConfig

from tests.server.connection import Serving

STEP_S = 0.001
"""Of a step at least, as of a small real model: an answer of 250 tokens still runs when its client,
on the same two cores, has received of it and says something."""


@pytest.fixture
def kv_blocks(tiny_folder):
    """Return the setting for a pool of so many blocks."""
    config = ModelConfig.load(tiny_folder)
    return lambda num: (num + 1) * kv_bytes_per_block(config, CpuBackend(), 16)


@pytest.fixture
def serve(tiny_folder, tmp_path):
    """Serve the tiny model in this process, on a Unix socket by default."""

    @asynccontextmanager
    async def run(*, server=None, before_load=None, listen=None, model=tiny_folder, **settings):
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **settings}
        listen = listen or f"unix:{tmp_path}/lift.sock"
        config = ServerConfig(model=str(model), listen=listen, **(server or {}))
        served = Server(engine_config(**settings), config)
        address = await served.bind()
        channel = grpc.aio.insecure_channel(address)
        serving = Serving(served, channel, address)
        try:
            if before_load is not None:
                await before_load(serving)
            engine = Engine(model, **settings)
            pace(engine.runner.model)
            await served.serve(AsyncEngine.of(engine))
            yield serving
        finally:
            await channel.close()
            await served.stop(0)

    return run


def pace(model):
    """Let each step of a model take its time."""
    forward = model.forward

    def paced(*inputs):
        time.sleep(STEP_S)
        return forward(*inputs)

    model.forward = paced
