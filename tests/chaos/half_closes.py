"""Clients that give credit in parts and half-close: no request may wait for more."""

import asyncio
import random
import time

from tests.chaos.figures import Figures, Scale, milliseconds
from tests.chaos.good_client import PACED, beside_one
from tests.server.connection import receive
from tests.server.credits import Draw

REQUESTS = {Scale.QUICK: 200, Scale.MEDIUM: 2_000, Scale.LONG: 20_000}
CALLERS = 4
MAX_DELAY_S = 30.0
"""A request that waits for more would wait for its time limit, a minute."""


async def run(scale, lab):
    server = await lab.server(**PACED)
    ends_s, draws = [], []

    async def storm():
        async with server.stub() as stub:
            await asyncio.gather(
                *(caller(lab, stub, ends_s, draws, random.Random(i), scale) for i in range(CALLERS))
            )

    beside = await beside_one(lab, server, storm())
    await server.until_idle()
    return Figures(
        "credit in parts, then half-close",
        f"{len(draws):,} requests, {sum(draw.num_answers for draw in draws):,} answers",
        [
            "each ended with the tokens that were paid for",
            f"the last end came at most {milliseconds(max(ends_s))} after the half-close",
            beside,
        ],
    )


async def caller(lab, stub, ends_s, draws, dice, scale):
    """Make calls until its share of the requests is done."""
    while len(draws) < REQUESTS[scale]:
        drawn = [Draw(dice, f"r{i}") for i in range(dice.randrange(1, 6))]
        draws += drawn
        call = stub.Generate()
        waiting = [list(draw.commands) for draw in drawn]
        while any(waiting):
            await call.write(dice.choice([commands for commands in waiting if commands]).pop(0))
            # Some commands come before a request has begun, some amid its tokens.
            await asyncio.sleep(dice.choice([0, 0, 0.01, 0.05]))
        await call.done_writing()
        began = time.monotonic()
        async with asyncio.timeout(MAX_DELAY_S):
            received = await receive(call)
        ends_s.append(time.monotonic() - began)
        for draw in drawn:
            draw.check(received)
        lab.progress(f"half_closes: {len(draws):,} requests")
