"""Calls whose path is no text: one such frame once closed the port for good."""

import asyncio
import random

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.server import raw_http2

CALLS = {Scale.QUICK: 500, Scale.MEDIUM: 20_000, Scale.LONG: 1_000_000}
PER_CONNECTION = 100
SERVICE = b"/chairlift.v1.GenerationService/Generate"


async def run(scale, lab):
    server = await lab.server(**PACED)
    before = await server.inside("figures")
    draw = random.Random(6)

    async def storm():
        for done in range(0, CALLS[scale], PER_CONNECTION):
            await connection(server, draw)
            lab.progress(f"hostile paths: {done:,}")

    good = await beside_one(lab, server, storm())
    await server.until_idle()
    after = await server.inside("figures")
    assert after["tasks"] <= before["tasks"] + 5
    return Figures(
        "hostile paths",
        f"{CALLS[scale]:,} calls",
        [good, f"memory {(after['memory'] - before['memory']) / 2**20:+.1f} MiB"],
    )


async def connection(server, draw):
    """Send calls of random paths on one connection; each is answered or ends the connection."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw_http2.preface())
    streams = set(range(1, 2 * PER_CONNECTION, 2))
    writer.writelines(raw_http2.call(path(draw), stream=stream) for stream in sorted(streams))
    try:
        while streams:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == raw_http2.RST_STREAM or head[4] & raw_http2.END_STREAM:
                streams.discard(int.from_bytes(head[5:9], "big"))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        pass
    writer.close()


def path(draw):
    """A path that is no text, now and then with a method that exists before it."""
    noise = draw.randbytes(draw.randrange(1, 20)) + b"\xff"
    return draw.choice([b"/", SERVICE, SERVICE + b"\xc3", b""]) + noise
