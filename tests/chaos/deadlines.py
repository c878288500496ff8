"""Calls whose deadline is 1 to 50 ms away."""

import asyncio
import random

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside, in_words
from tests.chaos.history import History

REQUESTS = {Scale.QUICK: 500, Scale.MEDIUM: 5_000, Scale.LONG: 100_000}
CALLERS = 16
COMPARED = 500
"""Requests without deadlines, which take a second or two each."""
MAY_FAIL = {"DEADLINE_UNREACHABLE"}
MAY_END = {
    ("DEADLINE_EXCEEDED", ""),
    ("DEADLINE_EXCEEDED", "DEADLINE_UNREACHABLE"),
    ("client race", ""),
}


async def run(scale, lab):
    server = await lab.server(**PACED)
    history = History(lab.scratch / "deadlines.jsonl")
    patient = History(lab.scratch / "no_deadlines.jsonl")

    async def storm(history, num_requests, *, second_signal):
        async with server.stub() as stub:
            draws = [random.Random(i) for i in range(CALLERS)]
            await asyncio.gather(
                *(caller(lab, stub, history, num_requests, draw, second_signal) for draw in draws)
            )

    # The same callers without deadlines share the steps, too.
    work = storm(patient, min(COMPARED, REQUESTS[scale] // 10), second_signal=False)
    _, (before,) = await beside(lab, server, work)
    _, (during,) = await beside(lab, server, storm(history, REQUESTS[scale], second_signal=True))
    await server.until_idle()
    patient.check(lab.traffic.answers)
    records = history.check(lab.traffic.answers, may_fail=MAY_FAIL, may_end=MAY_END)
    missed = sum(record.status != "OK" for record in records)
    assert missed > 0
    return Figures(
        "deadlines of 1 to 50 ms",
        f"{len(records):,} requests",
        [
            f"{missed:,} missed; 0 blocks leaked, 0 late tokens",
            in_words(before, during, "beside as many callers without"),
        ],
    )


async def caller(lab, stub, history, num_requests, draw, second_signal):
    while history.num_requests < num_requests:
        spec = lab.traffic.draw(draw, "r")
        timeout = draw.uniform(0.001, 0.05) if second_signal else None
        if draw.random() < 0.5:
            history.note(await lab.traffic.one(stub, spec, timeout=timeout))
        else:
            history.note(*await lab.traffic.converse(stub, [spec], timeout=timeout))
        lab.progress(f"deadlines: {history.num_requests:,} requests")
