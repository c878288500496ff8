"""A call with hundreds of requests, beside other calls with one, where no caller has a tenant."""

import asyncio
import time

from chairlift.v1 import generation_pb2 as pb

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED
from tests.chaos.traffic import ENDED
from tests.server.connection import start

REQUESTS = {Scale.QUICK: 4, Scale.MEDIUM: 40, Scale.LONG: 400}
AT_ONCE = 600
"""Of the busy call: nearly ten times the rows."""
BAR_S = 1.0
"""A call with one request is answered within this time."""


async def run(scale, lab):
    server = await lab.server(**PACED)
    async with server.stub() as busy, server.stub() as other:
        call = busy.Generate()
        reading = asyncio.create_task(_keep_busy(call))
        for number in range(AT_ONCE):
            await call.write(start(f"r{number}", max_tokens=20))
        waits = []
        for _ in range(REQUESTS[scale]):
            began = time.monotonic()
            command = start("one", max_tokens=1)
            async for _ in other.GenerateOne(pb.GenerateOneRequest(start=command.start)):
                pass
            waits.append(time.monotonic() - began)
        reading.cancel()
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert max(waits) < BAR_S, f"a call with one request waited for {max(waits):.2f} s"
    await server.until_idle()
    return Figures(
        "busy callers",
        f"{AT_ONCE} requests of one call at a time, {REQUESTS[scale]} calls with one",
        [f"longest answer of one token {1000 * max(waits):.0f} ms"],
    )


async def _keep_busy(call):
    """Start a request for each that ends."""
    number = AT_ONCE
    try:
        while True:
            for event in (await call.read()).events:
                if event.HasField("finished"):
                    await call.write(start(f"r{number}", max_tokens=20))
                    number += 1
    except ENDED:
        return
