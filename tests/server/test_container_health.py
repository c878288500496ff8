"""The probe of the image: 0 while the server serves, else 1."""

import asyncio
import sys
from pathlib import Path

PROBE = Path(__file__).parents[2] / "deploy" / "docker" / "health.py"


async def probe(target):
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROBE, target, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def test_the_probe_goes_around_a_proxy(serve, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    async with serve(listen="127.0.0.1:0") as server:
        assert await probe(server.address) == 0


async def test_the_probe_follows_the_state_of_the_server(serve, tmp_path):
    async def while_it_loads(server):
        assert await probe(server.address) == 1

    async with serve(before_load=while_it_loads) as server:
        assert await probe(server.address) == 0
    assert await probe(f"unix:{tmp_path}/lift.sock") == 1
