"""Bodies that do not come and silent connections, of one tenant, beside another tenant."""

import asyncio
import time
from contextlib import AsyncExitStack

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.server.openai.raw_http import Raw

ROUNDS = {Scale.QUICK: 3, Scale.MEDIUM: 30, Scale.LONG: 300}
BODIES, SILENT = 100, 60
ANSWERED_WITHIN_S = 1.0
"""Of the other tenant's request."""
SETUP = {
    **PACED,
    "server": {
        "http_listen": "127.0.0.1:0",
        "trust_tenant_metadata": True,
        "max_connections": 128,
    },
}
UNFINISHED = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"chairlift-tenant: ann\r\ncontent-length: 1000\r\n\r\n{"
)
BODY = {"prompt": "one", "max_tokens": 1}


async def run(scale, lab):
    server = await lab.server(**SETUP)
    port = int((await server.inside("http_url")).rpartition(":")[2])
    waits_s = []

    async def storm():
        for i in range(ROUNDS[scale]):
            lab.progress(f"slow bodies: {i} rounds")
            async with AsyncExitStack() as stack:
                for num, data in ((BODIES, UNFINISHED), (SILENT, b"")):
                    for _ in range(num):
                        raw = await stack.enter_async_context(Raw(port))
                        await raw.send(data)
                waits_s.append(await answered(port))

    good = await beside_one(lab, server, storm())
    await server.until_idle()
    assert max(waits_s) < ANSWERED_WITHIN_S
    return Figures(
        "slow bodies of one tenant",
        f"{ROUNDS[scale]} rounds of {BODIES} bodies and {SILENT} silent connections",
        [good, f"another tenant's request {max(waits_s) * 1e3:.0f} ms at most"],
    )


async def answered(port):
    """Seconds until a request of another tenant is answered."""
    began = time.monotonic()
    async with asyncio.timeout(30), Raw(port) as raw:
        await raw.post("/v1/completions", BODY, chairlift_tenant="bob")
        response = await raw.response()
        assert response.status == 200, response
    return time.monotonic() - began
