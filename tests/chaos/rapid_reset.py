"""Streams that are opened and reset at once (CVE-2023-44487)."""

import asyncio
import time
from contextlib import suppress

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.chaos.traffic import ENDED
from tests.server.connection import start

STREAMS = {Scale.QUICK: 500, Scale.MEDIUM: 10_000, Scale.LONG: 100_000}
AT_ONCE = 50
PER_S = 1_000
"""A good client notices more than a core can do: some 4,000 here."""


async def run(scale, lab):
    server = await lab.server(**PACED)
    before = await server.inside("figures")
    assert before["frozen"] > before["objects"], "collections of garbage walk all that was loaded"

    async def storm():
        async with server.stub() as stub:
            due = time.monotonic()
            for done in range(0, STREAMS[scale], AT_ONCE):
                await asyncio.gather(*(reset(stub, i) for i in range(AT_ONCE)))
                due += AT_ONCE / PER_S
                await asyncio.sleep(due - time.monotonic())
                lab.progress(f"rapid reset: {done:,} streams")

    good = await beside_one(lab, server, storm())
    await server.until_idle()
    after = await server.inside("figures")
    assert after["tasks"] <= before["tasks"] + 5
    return Figures(
        "rapid reset",
        f"{STREAMS[scale]:,} streams, {PER_S:,} a second",
        [good, f"memory {(after['memory'] - before['memory']) / 2**20:+.1f} MiB"],
    )


async def reset(stub, i):
    """Open a stream, with a request on it or not, and resets it."""
    call = stub.Generate()
    # The library refuses streams that come too fast.
    with suppress(*ENDED):
        if i % 2:
            await call.write(start("a"))
        else:
            await call.wait_for_connection()
    call.cancel()
