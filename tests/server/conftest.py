import time
from contextlib import asynccontextmanager

import grpc
import pytest
from chairlift.api.config import engine_config
from chairlift.attention.cpu import CpuBackend
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.engine.transfer import imports
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import kv_bytes_per_block
from chairlift.server.app.server import Server, ServerConfig
from chairlift.v1 import transfer_pb2_grpc

from tests.server.connection import Serving

STEP_S = 0.001
"""Of a step at least, as of a small real model: an answer of 250 tokens still runs when its client,
on the same two cores, has received of it and says something."""

LONG = [(7 * place) % 380 + 1 for place in range(170)]
NUM_BLOCKS = (len(LONG) - 1) // 16
"""A prompt of the tiny model that a prefill server may compute, and its full blocks."""


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


@pytest.fixture
def long_is_worth_it(monkeypatch):
    """Small models have short prompts, and compute each in less time than a call takes."""
    monkeypatch.setattr(imports, "MIN_TOKENS", 112)
    monkeypatch.setattr(imports, "MIN_SAVED_NS", 0)


@pytest.fixture
def prefill(serve, tmp_path):
    """Serve with the role prefill, on a socket of its own."""

    @asynccontextmanager
    async def run(**server):
        listen = f"unix:{tmp_path}/prefill.sock"
        async with serve(server={"role": "prefill", **server}, listen=listen) as serving:
            serving.transfer = transfer_pb2_grpc.TransferServiceStub(serving.channel)
            serving.exporting = serving.server._transfers.exporting
            yield serving

    return run


@pytest.fixture
def decode_of(serve):
    """Serve with the role decode, before the prefill servers at these addresses."""

    def run(*addresses, **server):
        server = {"role": "decode", "prefill_peers": addresses, **server}
        return serve(server=server)

    return run


def pace(model):
    """Let each step of a model take its time."""
    forward = model.forward

    def paced(*inputs):
        time.sleep(STEP_S)
        return forward(*inputs)

    model.forward = paced
