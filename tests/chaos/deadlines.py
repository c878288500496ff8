"""Calls whose deadline is 1 to 50 ms away."""

import asyncio
import random

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import beside_one
from tests.chaos.history import History

REQUESTS = {Scale.QUICK: 500, Scale.MEDIUM: 5_000, Scale.LONG: 100_000}
CALLERS = 16
MAY_END = {("DEADLINE_EXCEEDED", ""), ("client race", "")}


async def run(scale, lab):
    server = await lab.server()
    history = History(lab.scratch / "deadlines.jsonl")

    async def storm():
        async with server.stub() as stub:
            await asyncio.gather(
                *(caller(lab, stub, history, random.Random(i), scale) for i in range(CALLERS))
            )

    good = await beside_one(lab, server, storm())
    await server.until_idle()
    records = history.check(lab.traffic.answers, may_end=MAY_END)
    missed = sum(record.status != "OK" for record in records)
    assert missed > 0
    return Figures(
        "deadlines of 1 to 50 ms",
        f"{len(records):,} requests",
        [f"{missed:,} missed; 0 blocks leaked, 0 late tokens", good],
    )


async def caller(lab, stub, history, draw, scale):
    while history.num_requests < REQUESTS[scale]:
        ask = lab.traffic.draw(draw, "r")
        timeout = draw.uniform(0.001, 0.05)
        if draw.random() < 0.5:
            history.note(await lab.traffic.one(stub, ask, timeout=timeout))
        else:
            history.note(*await lab.traffic.converse(stub, [ask], timeout=timeout))
        lab.tell(f"deadlines: {history.num_requests:,} requests")
