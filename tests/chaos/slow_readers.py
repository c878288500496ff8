"""Clients that do not read, among clients that do."""

import asyncio
import statistics
import time

from tests.chaos.figures import COMPARED_S, Figures, Scale
from tests.chaos.good_client import USUAL, beside
from tests.chaos.traffic import Spec

READERS = {Scale.QUICK: 20, Scale.MEDIUM: 50, Scale.LONG: 200}
SECONDS = {Scale.QUICK: 2, Scale.MEDIUM: 20, Scale.LONG: 600}
FAST = 4
PERIOD_S = 60.0
"""Two hundred with a stream a minute are half of what two cores can do, and a server gives one up
that was not read for half a minute: some clients that do not read are always connected."""
# The receiver owns the window: with the smallest, a server is held up after about 64 KiB.
SMALL_WINDOW = {"http2.bdp_probe": 0, "http2.lookahead_bytes": 65_535}


async def run(scale, lab):
    server = await lab.server(engine=USUAL)
    num, seconds = READERS[scale], SECONDS[scale]
    p99_s, memory = [], []
    for is_reading in (True, False):
        lab.progress(f"slow readers: {num} others, reading: {is_reading}")
        for_s = min(COMPARED_S, seconds) if is_reading else seconds
        work = others(lab, server, num, for_s, is_reading)
        _, fast = await beside(lab, server, work, num=FAST)
        assert all(waits.num_answers for waits in fast)
        p99_s.append(statistics.fmean(waits.next_token_s for waits in fast))
        await server.until_idle()
        memory.append((await server.inside("figures"))["memory"])
    growth = (memory[1] - memory[0]) / num
    return Figures(
        "slow readers",
        f"{num} that never read beside {FAST} that do, {seconds} s",
        [
            f"fast p99 to the next token {p99_s[1] * 1e3:.1f} ms,"
            f" {p99_s[1] / p99_s[0]:.2f} x that beside {num} that read",
            f"memory {growth / 1024:+.0f} KiB for each",
        ],
    )


async def others(lab, server, num, seconds, is_reading):
    """So many clients for so long; they come one after another, and each again and again."""
    began = time.monotonic()
    period = min(PERIOD_S, seconds)
    await asyncio.gather(
        *(
            other(lab, server, began + period * i / num, began + seconds, is_reading)
            for i in range(num)
        )
    )


async def other(lab, server, due, until, is_reading):
    """A stream of many requests in each period, read to its end or never read at all."""
    while due < until:
        await asyncio.sleep(due - time.monotonic())
        due += PERIOD_S
        async with server.stub(**SMALL_WINDOW) as stub:
            call = stub.Generate()
            # More than the window holds, were all of it sent.
            for i in range(16):
                await call.write(lab.traffic.command(Spec(f"r{i}", i, 120)))
            await call.done_writing()
            if is_reading:
                async for _ in call:
                    pass
            else:
                await asyncio.sleep(min(due, until) - time.monotonic())
                call.cancel()
