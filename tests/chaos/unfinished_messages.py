"""Calls whose messages never end: nearly all of the longest one, and then silence."""

import asyncio
import time
from contextlib import AsyncExitStack, suppress

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.server.raw_http2 import GENERATE, GENERATE_ONE, message, raw_client

CONNECTIONS = {Scale.QUICK: 2, Scale.MEDIUM: 20, Scale.LONG: 20}
ROUNDS = {Scale.QUICK: 1, Scale.MEDIUM: 5, Scale.LONG: 50}
STREAMS = 200
"""On each connection, each of two kinds of calls in turn."""
LENGTH = 2**20
UNFINISHED = message(b"\0" * (LENGTH - 1_000), length=LENGTH)
SEND_S = 3.0
"""A stream that is not read takes no more than its window."""
MOST_BYTES = 512 * 2**20


async def run(scale, lab):
    server = await lab.server(**PACED)
    before = (await server.inside("figures"))["memory"]
    most = 0

    async def storm():
        nonlocal most
        for i in range(ROUNDS[scale]):
            lab.progress(f"unfinished messages: {i} rounds")
            most = max(most, await round_of(server, CONNECTIONS[scale]))

    good = await beside_one(lab, server, storm())
    await server.until_idle()
    kept = await back_to(server, before + MOST_BYTES / 4)
    assert most - before < MOST_BYTES
    num = ROUNDS[scale] * CONNECTIONS[scale] * STREAMS
    return Figures(
        "unfinished messages",
        f"{CONNECTIONS[scale]} connections, {num:,} streams with 1 MiB each but its end",
        [
            good,
            f"memory at most {(most - before) / 2**20:+.0f} MiB,"
            f" afterwards {(kept - before) / 2**20:+.0f} MiB",
        ],
    )


async def round_of(server, num_connections):
    """All streams at once; return the most memory that the server had."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(raw_client(server.address))
            for _ in range(num_connections)
        ]
        sending = asyncio.gather(
            *(
                send(client, GENERATE if i % 2 else GENERATE_ONE)
                for i in range(STREAMS)
                for client in clients
            )
        )
        most = 0
        while not sending.done():
            most = max(most, (await server.inside("resident")))
            await asyncio.wait({sending}, timeout=0.05)
        await sending
        return max(most, (await server.inside("resident")))


async def send(client, path):
    """One call, given up after a time or when the server ends it."""
    stream = client.begin(path)
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(SEND_S):
            await client.send(stream, UNFINISHED)


async def back_to(server, num_bytes):
    """Wait until the server has given back what it took; return what it has then."""
    until = time.monotonic() + 30
    while (now := (await server.inside("figures"))["memory"]) > num_bytes:
        assert time.monotonic() < until, f"{now / 2**20:.0f} MiB are kept"
        await asyncio.sleep(0.1)
    return now
