"""More idle connections than there are files, beside a client of each port."""

import asyncio
import resource
import time
from contextlib import AsyncExitStack, suppress

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside, in_words
from tests.server.openai.raw_http import Raw

ROUNDS = {Scale.QUICK: 1, Scale.MEDIUM: 10, Scale.LONG: 100}
IDLE, MAX_FILES = 1_100, 1_024
OWN_FILES = IDLE + 200
"""Of this process."""
WORST_GAP_S = 0.25
ANSWERED_WITHIN_S = 1.0
MAX_LINES = 5
"""Of the log, in each minute."""
SETUP = {**PACED, "server": {"http_listen": "127.0.0.1:0"}}
LIMITS = ("max_files_at_start", "max_files")
"""The server knows that it has few files, or believes to have enough."""
BODY = {"prompt": "one", "max_tokens": 1}


async def run(scale, lab):
    with_files()
    found = [await beside_idle(scale, lab, limit) for limit in LIMITS]
    return Figures(
        "out of files",
        f"{ROUNDS[scale]} rounds of {IDLE:,} idle connections, at most {MAX_FILES:,} files",
        found,
    )


async def beside_idle(scale, lab, limit):
    """The figures of a server with a limit of its files."""
    server = await lab.server(**SETUP, **{limit: MAX_FILES})
    port = int((await server.inside("http_url")).rpartition(":")[2])
    waits_s = []

    async def storm():
        for i in range(ROUNDS[scale]):
            lab.progress(f"out of files, {limit}: {i} rounds")
            async with AsyncExitStack() as stack:
                for _ in range(IDLE):
                    with suppress(OSError):
                        await stack.enter_async_context(Raw(port))
                waits_s.extend([await answered(port) for _ in range(3)])

    began, before = time.monotonic(), log_of(server)
    (alone,), (during,) = await beside(lab, server, storm())
    minutes = 1 + int((time.monotonic() - began) / 60)
    await server.until_idle()
    said = log_of(server)[len(before) :]
    assert "Traceback" not in "\n".join(said)
    assert len(said) <= MAX_LINES * minutes, said[:20]
    assert during.worst_gap_s < WORST_GAP_S
    assert max(waits_s) < ANSWERED_WITHIN_S
    return (
        f"{limit}: {in_words(alone, during, 'alone')};"
        f" another connection's request {max(waits_s) * 1e3:.0f} ms at most;"
        f" {len(said)} lines of the log"
    )


def with_files():
    """Let this process open as many connections as the scenario has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OWN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(OWN_FILES, hard), hard))


def log_of(server):
    """The warnings and errors so far."""
    lines = server.log.read_text().splitlines()
    return [line for line in lines if not line.startswith("INFO:")]


async def answered(port):
    """Seconds until a request of a new connection is answered."""
    began = time.monotonic()
    async with asyncio.timeout(30), Raw(port) as raw:
        await raw.post("/v1/completions", BODY)
        response = await raw.response()
        assert response.status == 200, response
    return time.monotonic() - began
