"""A tenant with as many sequences a request as there are rows, beside tenants that ask for one."""

import asyncio
import time

from chairlift.v1 import generation_pb2 as pb

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, USUAL
from tests.server.connection import start

REQUESTS = {Scale.QUICK: 4, Scale.MEDIUM: 40, Scale.LONG: 400}
"""Of each of the quiet tenants."""
TENANTS = 4
BAR_S = 1.0
"""A request of a quiet tenant is answered within this time."""
NUM_GREEDY = 3


async def run(scale, lab):
    server = await lab.server(server={"trust_tenant_metadata": True}, **PACED)
    async with server.stub() as greedy, server.stub() as quiet:
        floods = [
            asyncio.create_task(_flood(greedy, USUAL["max_num_seqs"])) for _ in range(NUM_GREEDY)
        ]
        # The flood has the rows by then; a wait that is too short only makes the scenario milder.
        await asyncio.sleep(0.5)
        waits = await asyncio.gather(
            *(_ask(quiet, f"quiet-{number}", REQUESTS[scale]) for number in range(TENANTS))
        )
        for flood in floods:
            flood.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
    worst_s = max(wait for tenant in waits for wait in tenant)
    assert worst_s < BAR_S, f"a tenant below its share waited for {worst_s:.2f} s"
    await server.until_idle()
    return Figures(
        "greedy tenants",
        f"{NUM_GREEDY} requests with {USUAL['max_num_seqs']} sequences at a time,"
        f" {TENANTS} x {REQUESTS[scale]} of other tenants",
        [f"longest answer of one token {1000 * worst_s:.0f} ms"],
    )


async def _flood(stub, num_sequences):
    command = start("greedy", max_tokens=200, sampling=pb.Sampling(n=num_sequences))
    while True:
        await _one(stub, command, "greedy")


async def _one(stub, command, tenant):
    metadata = (("chairlift-tenant", tenant),)
    call = stub.GenerateOne(pb.GenerateOneRequest(start=command.start), metadata=metadata)
    async for _ in call:
        pass


async def _ask(stub, tenant, num):
    """Return the seconds to each answer, one after another."""
    waits = []
    for _ in range(num):
        began = time.monotonic()
        await _one(stub, start("quiet", max_tokens=1), tenant)
        waits.append(time.monotonic() - began)
    return waits
