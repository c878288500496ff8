"""Connections by the thousand: whole ones, half a handshake, and silence."""

import asyncio
import random
from contextlib import suppress

import grpc

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.server.connection import start

CONNECTIONS = {Scale.QUICK: 500, Scale.MEDIUM: 5_000, Scale.LONG: 100_000}
AT_ONCE = 50
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


async def run(scale, lab):
    server = await lab.server(**PACED)
    before = await server.inside("figures")
    draw = random.Random(5)

    async def storm():
        for done in range(0, CONNECTIONS[scale], AT_ONCE):
            await asyncio.gather(*(connect(server, draw) for _ in range(AT_ONCE)))
            lab.progress(f"connections: {done:,}")

    good = await beside_one(lab, server, storm())
    await server.until_idle()
    files = await back_to(server, before["files"])
    return Figures(
        "connection storm",
        f"{CONNECTIONS[scale]:,} connections",
        [good, f"{files - before['files']:+d} file descriptors"],
    )


async def connect(server, draw):
    """One connection of some kind."""
    if draw.random() < 0.1:
        async with server.stub() as stub:
            with suppress(grpc.aio.AioRpcError):
                async for _ in stub.Generate(iter([start("a", max_tokens=1)])):
                    pass
        return
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    whole = PREFACE + SETTINGS
    writer.write(whole[: draw.choice([0, 1, 10, len(PREFACE), len(whole)])])
    with suppress(OSError):
        await writer.drain()
        if draw.random() < 0.5:
            # A server sends its settings at once.
            await reader.read(1)
        if draw.random() < 0.3:
            writer.transport.abort()
        writer.close()
        await writer.wait_closed()


async def back_to(server, num_files):
    """Wait until the server has closed what its clients have closed."""
    for _ in range(600):
        files = (await server.inside("figures"))["files"]
        # The good client's connection may come or go.
        if files <= num_files + 2:
            break
        await asyncio.sleep(0.05)
    assert files <= num_files + 2
    return files
