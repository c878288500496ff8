"""Bytes that are no message, messages and headers that are too large, bombs, and plain noise."""

import asyncio
import random
from contextlib import suppress

import grpc

from tests.chaos.connections import PREFACE, SETTINGS
from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.chaos.history import STATUSES
from tests.chaos.traffic import ENDED, status_of
from tests.server.connection import start

INPUTS = {Scale.QUICK: 200, Scale.MEDIUM: 5_000, Scale.LONG: 1_000_000}
CALLERS = {Scale.QUICK: 8, Scale.MEDIUM: 8, Scale.LONG: 64}
GENERATE = "/chairlift.v1.GenerationService/Generate"
GENERATE_ONE = "/chairlift.v1.GenerationService/GenerateOne"
WHOLE = start("a", prompt="a lift", max_tokens=3).SerializeToString()

TOO_LARGE = {("RESOURCE_EXHAUSTED", "")}
WRONG = {("INVALID_ARGUMENT", "BAD_PARAMETER"), ("OK", "")}


async def run(scale, lab):
    server = await lab.server(**PACED)
    before = await server.inside("figures")
    num = CALLERS[scale]

    async def fuzz():
        async with server.channel() as channel:
            await asyncio.gather(
                *(fuzzer(lab, server, channel, i, INPUTS[scale] // num) for i in range(num))
            )

    good = await beside_one(lab, server, fuzz())
    await server.until_idle()
    after = await server.inside("figures")
    return Figures(
        "malformed input",
        f"{INPUTS[scale]:,} inputs",
        [
            "0 UNKNOWN",
            good,
            f"memory {(after['memory'] - before['memory']) / 2**20:+.1f} MiB",
        ],
    )


async def fuzzer(lab, server, channel, seed, num):
    draw = random.Random(seed)
    kinds, weights = (mutated, noise, headers, bomb), (800, 160, 40, 1)
    for i in range(num):
        (kind,) = draw.choices(kinds, weights)
        if i == 0 and seed < 8:
            # Every kind comes in the quick form too; a hundred megabytes take a while to send.
            kind = (huge, headers, bomb, noise)[seed % 4]
        await kind(server, channel, draw)
        if seed == 0:
            lab.progress(f"malformed: {i:,} of {num:,} inputs of each caller")


async def end_of(call):
    """Read a call to its end; return its status."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return status_of(error)
    return "OK", ""


async def mutated(_server, channel, draw):
    """A message with a few bytes changed, cut somewhere."""
    data = bytearray(WHOLE)
    for _ in range(draw.randrange(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    data = bytes(data[: draw.randrange(len(data) + 1)])
    if draw.random() < 0.5:
        status = await end_of(channel.stream_stream(GENERATE)(iter([data])))
    else:
        status = await end_of(channel.unary_stream(GENERATE_ONE)(data))
    # A change may also name a model that is not served, say.
    assert status in STATUSES or status[1], status
    assert status[0] != "UNKNOWN"


async def huge(_server, channel, _draw):
    """A hundred megabytes in one message."""
    status = await end_of(channel.unary_stream(GENERATE_ONE)(bytes(100 * 2**20)))
    assert status in TOO_LARGE, status


async def bomb(_server, channel, _draw):
    """The same, compressed to a hundred kilobytes."""
    call = channel.unary_stream(GENERATE_ONE)(bytes(100 * 2**20), compression=grpc.Compression.Gzip)
    status = await end_of(call)
    assert status in TOO_LARGE, status


async def headers(_server, channel, draw):
    """Metadata of 64 KiB, in one entry or in many."""
    num = draw.choice([1, 64])
    metadata = tuple((f"key-{i}", "x" * (65_536 // num)) for i in range(num))
    status = await end_of(channel.unary_stream(GENERATE_ONE)(WHOLE, metadata=metadata))
    assert status in TOO_LARGE, status


async def noise(server, _channel, draw):
    """Bytes that are not even HTTP/2, or frames that are wrong."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = draw.randbytes(draw.randrange(1, 4096))
    if draw.random() < 0.7:
        frame = (
            len(data).to_bytes(3, "big") + draw.randbytes(2) + bytes([0, 0, 0, draw.randrange(4)])
        )
        data = PREFACE + SETTINGS + frame + data
    with suppress(OSError, *ENDED):
        writer.write(data)
        writer.write_eof()
        await reader.read()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
