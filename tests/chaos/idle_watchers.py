"""Watchers of steps that never read."""

import asyncio
from contextlib import AsyncExitStack

from chairlift.v1 import server_pb2

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import USUAL, beside_one
from tests.server.raw_http2 import WATCH_STEPS, message, raw_client

SECONDS = {Scale.QUICK: 2, Scale.MEDIUM: 20, Scale.LONG: 300}
CONNECTIONS, STREAMS = 4, 100
REQUEST = message(server_pb2.WatchStepsRequest().SerializeToString())


async def run(scale, lab):
    # As many steps as the model can make, since it is these that are encoded.
    server = await lab.server(engine=USUAL)
    before = (await server.inside("figures"))["memory"]

    async def storm():
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(raw_client(server.address))
                for _ in range(CONNECTIONS)
            ]
            for client in clients:
                for _ in range(STREAMS):
                    stream = client.begin(WATCH_STEPS)
                    await client.send(stream, REQUEST)
                    client.half_close(stream)
            lab.progress(f"idle watchers: {CONNECTIONS * STREAMS} streams")
            await asyncio.sleep(SECONDS[scale])

    good = await beside_one(lab, server, storm())
    await server.until_idle()
    memory = (await server.inside("figures"))["memory"] - before
    return Figures(
        "watchers that never read",
        f"{CONNECTIONS * STREAMS} calls of `WatchSteps` over {CONNECTIONS} connections,"
        f" {SECONDS[scale]} s",
        [good, f"memory {memory / 2**20:+.1f} MiB"],
    )
