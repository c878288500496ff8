"""Connections that are cut at random moments: what the clients of requests with a window get."""

import asyncio
import random
import time

from chairlift.api.errors import ServerError
from chairlift.client import connect_async

from tests.chaos.cutter import Cutter
from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import USUAL

REQUESTS = {Scale.QUICK: 64, Scale.MEDIUM: 1_000, Scale.LONG: 10_000}
AT_ONCE = 16
CLIENTS = 4
TOKENS = 100
WITHIN_S = 300.0

# A request takes a second, so that its connection is cut several times.
SETUP = {"engine": USUAL, "step_s": 0.01}


async def run(scale, lab):
    server = await lab.server(**SETUP)
    before = await server.inside("figures")
    async with Cutter.before(server.address) as cutter:
        cutting = asyncio.create_task(cut_at_random(cutter))
        begun, num_events = time.monotonic(), 0
        async with asyncio.timeout(WITHIN_S * (1 + REQUESTS[scale] / 1_000)):
            left = iter(range(REQUESTS[scale]))
            runs = [client(lab, cutter.address, left, i) for i in range(CLIENTS)]
            num_events = sum(await asyncio.gather(*runs))
        cutting.cancel()
        seconds = time.monotonic() - begun
        num_cuts = cutter.num_cuts
    await server.until_idle()
    after = await server.inside("figures")
    assert num_cuts
    assert after["files"] <= before["files"] + 2 * CLIENTS
    return Figures(
        "streams that are cut and resumed",
        f"{REQUESTS[scale]:,} requests, {num_cuts:,} connections cut in {seconds:.0f} s",
        [
            f"0 tokens lost, 0 doubled of {REQUESTS[scale] * TOKENS:,} in {num_events:,} events",
            f"memory {(after['memory'] - before['memory']) / 2**20:+.1f} MiB",
        ],
    )


async def cut_at_random(cutter):
    draw = random.Random(5)
    while True:
        await asyncio.sleep(draw.uniform(0.02, 0.4))
        cutter.cut()


async def client(lab, address, left, seed):
    """Requests over one connection, until there are none left; return the number of events."""
    draw, num_events = random.Random(seed), 0
    async with connect_async(address) as connection:

        async def requests():
            nonlocal num_events
            for _ in left:
                prompt = draw.randrange(len(lab.traffic.prompts))
                num = await request(lab, connection, prompt)
                num_events += num
                lab.progress(f"resume: {num_events:,} events")

        await asyncio.gather(*(requests() for _ in range(AT_ONCE)))
    return num_events


async def request(lab, connection, prompt):
    """A request whose tokens must be those of a run without cuts, with numbers that rise."""
    while True:
        generation = connection.generate(
            lab.traffic.prompts[prompt],
            max_tokens=TOKENS,
            temperature=0,
            ignore_eos=True,
            token_ids=True,
            resume_window_s=60,
        )
        numbers = []
        try:
            numbers.extend([event.number async for event in generation.events()])
        except ServerError:
            # Cut before the handle came: the request is lost, and nothing of it was seen.
            if generation.handle:
                raise
            continue
        (answer,) = generation.answers
        assert answer.token_ids == lab.traffic.answers[prompt][:TOKENS]
        assert numbers == sorted(set(numbers))
        return len(numbers)
