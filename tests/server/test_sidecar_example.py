"""The example of a sidecar, over HTTP and a Unix socket."""

import asyncio
import importlib.util
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from tests.server.connection import until
from tests.server.openai.raw_http import Raw

APP = Path(__file__).parents[2] / "examples" / "sidecar" / "app.py"


@pytest.fixture
def module(monkeypatch):
    spec = importlib.util.spec_from_file_location("sidecar_app", APP)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@asynccontextmanager
async def running(module, target, port):
    module.TARGET = target
    config = uvicorn.Config(module.app, port=port, log_level="critical", lifespan="on")
    web = uvicorn.Server(config)
    serving = asyncio.create_task(web.serve())
    try:
        await until(lambda: web.started)
        yield
    finally:
        web.should_exit = True
        await serving


async def post(port, body):
    async with Raw(port) as raw:
        await raw.post("/story", body)
        return await raw.response()


async def test_a_story_comes_through_the_socket(serve, module, free_port):
    async with serve() as server, running(module, server.address, free_port):
        response = await post(free_port, {"about": "one", "max_tokens": 40})
        assert response.status == 200
        assert response.body
        await server.until_idle()


async def test_readers_that_leave_end_their_requests(serve, module, free_port):
    async with serve() as server, running(module, server.address, free_port):
        for _ in range(4):
            async with Raw(free_port) as raw:
                await raw.post("/story", {"max_tokens": 1000})
                assert (await raw.head()).status == 200
                assert await raw.chunk()
        # An answer of random weights may stop by itself; none is computed to its length.
        await until(lambda: server.num_ended("cancelled") + server.num_ended("stop") == 4)
        await server.until_idle()


@pytest.mark.parametrize(
    "body", [{"max_tokens": 0}, {"max_tokens": "many"}, {"about": 1}, [1], {"about": "x" * 20_000}]
)
async def test_what_is_wrong_is_a_400(serve, module, free_port, body):
    async with serve() as server, running(module, server.address, free_port):
        assert (await post(free_port, body)).status == 400


async def test_without_a_model_the_status_says_so(module, free_port, tmp_path):
    async with running(module, f"unix:{tmp_path}/none.sock", free_port):
        assert (await post(free_port, {})).status == 503
