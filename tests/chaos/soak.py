"""Half load for as long as you like, a tenth of it cancelled: what grows is a leak."""

import asyncio
import random
import time

from tests.chaos.figures import Figures, Scale, slope
from tests.chaos.history import History
from tests.chaos.traffic import Spec, cancel_all

SECONDS = {Scale.QUICK: 5, Scale.MEDIUM: 60, Scale.LONG: 3_600}
MOST_BYTES = {Scale.QUICK: 8_192, Scale.MEDIUM: 256, Scale.LONG: 10}
"""Growth per request that is no leak: pages that settle weigh more in a short run."""
PLANTED_BYTES = {Scale.QUICK: 65_536, Scale.MEDIUM: 1_024, Scale.LONG: 100}
ROWS = 8
REMEMBERED = 4_200
LEAST = 500
"""Requests of the shortest run, however slow the machine: pages that settle hide no leak then."""


async def run(scale, lab):
    found = []
    for planted in (0, PLANTED_BYTES[scale]):
        # The control is long enough to show that a leak would have been seen.
        seconds = SECONDS[scale] / (3 if planted and scale is not Scale.QUICK else 1)
        num, grown, tasks = await soak(scale, lab, seconds, planted)
        if planted:
            assert grown["memory"] > planted / 2
            found.append(f"a planted leak of {planted:,} bytes shows as {grown['memory']:,.0f}")
        else:
            assert grown["memory"] < MOST_BYTES[scale], grown
            amount = f"{seconds:.0f} s, {num:,} requests"
            found += [
                f"{grown['memory']:+.1f} bytes a request",
                f"{grown['objects'] * 1000:+.1f} objects and {grown['files'] * 1000:+.2f} files"
                " a thousand",
                f"{tasks} tasks at the end",
            ]
    return Figures("soak at half load, a tenth cancelled", amount, found)


async def soak(scale, lab, seconds, planted):
    """Growth of each figure per request, over the second half."""
    await lab.server()
    # The prefix cache fills the pool first, and its books grow while it does: a small pool.
    server = await lab.server(
        engine={"max_num_seqs": ROWS, "kv_cache_memory": 2 * 2**20}, leak_bytes=planted
    )
    history = History(lab.scratch / f"soak-{planted}.jsonl")
    is_over = asyncio.Event()
    async with server.stub() as stub:
        callers = [
            asyncio.create_task(caller(lab, stub, history, random.Random(i), is_over))
            for i in range(ROWS // 2)
        ]
        # The server remembers the names of so many that have ended.
        while scale is not Scale.QUICK and history.num_requests < REMEMBERED:
            await asyncio.sleep(1.0)
            lab.progress(f"soak: {history.num_requests:,} requests to warm up")
        points = []
        until = time.monotonic() + seconds
        while time.monotonic() < until or history.num_requests < LEAST:
            await asyncio.sleep(min(1.0, seconds / 40))
            points.append((history.num_requests, await server.inside("figures")))
            lab.progress(f"soak: {history.num_requests:,} requests")
        is_over.set()
        await asyncio.gather(*callers)
    await server.until_idle()
    history.check(lab.traffic.answers)
    names = ("memory", "objects", "files")
    grown = {name: slope([(num, figures[name]) for num, figures in points]) for name in names}
    return history.num_requests, grown, points[-1][1]["tasks"]


async def caller(lab, stub, history, draw, is_over):
    """One request after the other, some cancelled, each on a call of its own."""

    async def disturb(call, records):
        await cancel_all(call, records, ["r"])

    while not is_over.is_set():
        spec = Spec("r", draw.randrange(16), draw.randrange(1, 17))
        is_cancelled = draw.random() < 0.1
        history.note(
            *await lab.traffic.converse(stub, [spec], disturb=disturb if is_cancelled else None)
        )
