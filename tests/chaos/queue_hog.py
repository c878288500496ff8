"""Clients that fill the queue with requests that have no credit."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.chaos.traffic import ENDED
from tests.server.connection import start

SECONDS = {Scale.QUICK: 2, Scale.MEDIUM: 20, Scale.LONG: 300}
CONNECTIONS = 2
REQUESTS = 1_200
"""On each connection; the queue holds 1,024."""


async def run(scale, lab):
    server = await lab.server(**PACED)
    kinds = Counter()

    async def storm():
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                call = (await stack.enter_async_context(server.stub())).Generate()
                kinds.update(await filled(call))
                lab.progress(f"queue hog: {dict(kinds)}")
            # The good client is served all the while, or fails.
            await asyncio.sleep(SECONDS[scale])

    good = await beside_one(lab, server, storm())
    await server.until_idle()
    assert kinds["QUOTA_EXCEEDED"]
    return Figures(
        "suspended requests",
        f"{CONNECTIONS * REQUESTS:,} requests without credit over {CONNECTIONS} connections,"
        f" {SECONDS[scale]} s",
        [good, f"{kinds['accepted']:,} accepted, {kinds['QUOTA_EXCEEDED']:,} refused"],
    )


async def filled(call):
    """Start requests; counts those that are accepted, and the reasons of the others."""
    kinds = Counter()

    async def write():
        with suppress(*ENDED):
            for i in range(REQUESTS):
                await call.write(start(f"r{i}", credit=0))

    writing = asyncio.create_task(write())
    while kinds.total() < REQUESTS:
        for event in (await call.read()).events:
            is_refused = event.HasField("rejected")
            kinds[event.rejected.error.reason if is_refused else "accepted"] += 1
    await writing
    return kinds
