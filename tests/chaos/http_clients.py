"""Hostile clients of the HTTP port, of every kind at once, beside a good client of gRPC."""

import asyncio
import json
import random
from contextlib import suppress

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.server.openai.raw_http import Raw

CALLS = {Scale.QUICK: 64, Scale.MEDIUM: 5_000, Scale.LONG: 100_000}
CALLERS = {Scale.QUICK: 8, Scale.MEDIUM: 16, Scale.LONG: 32}
WITHIN_S = 60.0
"""No call may hang: each ends in this time."""
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
HELLO = [{"role": "user", "content": "one two"}]
SETUP = {**PACED, "server": {"http_listen": "127.0.0.1:0", "max_receive_bytes": 2**20}}


async def run(scale, lab):
    server = await lab.server(**SETUP)
    port = int((await server.inside("http_url")).rpartition(":")[2])
    before = await server.inside("figures")
    num = CALLERS[scale]
    statuses = {}
    callers = (caller(lab, port, i, CALLS[scale] // num, statuses) for i in range(num))
    good = await beside_one(lab, server, gathered(callers))
    await server.until_idle()
    after = await server.inside("figures")
    assert after["files"] <= before["files"] + num
    counted = ", ".join(f"{statuses[status]:,} of {status}" for status in sorted(statuses))
    return Figures(
        "hostile clients over HTTP",
        f"{CALLS[scale]:,} calls",
        [
            "0 hangs, 0 of 500",
            counted,
            good,
            f"memory {(after['memory'] - before['memory']) / 2**20:+.1f} MiB",
        ],
    )


async def gathered(callers):
    await asyncio.gather(*callers)


async def caller(lab, port, seed, num, statuses):
    draw = random.Random(seed)
    kinds = (mutated, deep, noise, leaves, pipelines, never_reads, odd_headers, whole)
    for i in range(num):
        kind = kinds[(seed + i) % len(kinds)] if i < len(kinds) else draw.choice(kinds)
        async with asyncio.timeout(WITHIN_S):
            with suppress(OSError, asyncio.IncompleteReadError, IndexError):
                async with Raw(port) as raw:
                    status = await kind(raw, draw)
                    assert status is None or status < 500 or status == 503, (kind, status)
                    name = str(status or "no status")
                    statuses[name] = statuses.get(name, 0) + 1
        if seed == 0:
            lab.progress(f"http: {i:,} of {num:,} calls of each caller")


def body(draw, **fields):
    shared = {"messages": HELLO, "prompt": "one", "input": "one"}
    path = draw.choice(PATHS)
    own = {"chat": "messages", "comp": "prompt", "resp": "input"}[path.split("/")[2][:4]]
    limit = "max_output_tokens" if own == "input" else "max_tokens"
    return path, {own: shared[own], limit: draw.randrange(1, 30), "ignore_eos": True, **fields}


async def mutated(raw, draw):
    """A body with a few bytes changed."""
    path, value = body(draw, temperature=0.5, stop=["x"], n=1)
    data = bytearray(json.dumps(value).encode())
    for _ in range(draw.randrange(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    await raw.post(path, bytes(data))
    return (await raw.response()).status


async def deep(raw, draw):
    """Half a megabyte of brackets, or of spaces, or too much."""
    data = draw.choice((b"[" * 500_000, b" " * 500_000 + b"{}", b"{" * 100, b" " * (2**20 + 9)))
    await raw.post(draw.choice(PATHS), data)
    return (await raw.response()).status


async def noise(raw, draw):
    """Bytes that are no HTTP."""
    await raw.send(draw.randbytes(draw.randrange(1, 4096)))
    raw.writer.write_eof()
    await raw.reader.read()


async def leaves(raw, draw):
    """A client that closes, before or amid the answer."""
    path, value = body(draw, stream=draw.random() < 0.7)
    await raw.post(path, value)
    if draw.random() < 0.5:
        await raw.head()
    raw.writer.transport.abort()


async def pipelines(raw, draw):
    """Several requests at once."""
    path, value = body(draw)
    for _ in range(draw.randrange(2, 6)):
        await raw.post(path, value)
    response = await raw.response()
    await raw.reader.read()
    return response.status


async def never_reads(raw, draw):
    """A stream of several answers that is not read, and then closed."""
    raw.writer.transport.pause_reading()
    await raw.post("/v1/completions", {"prompt": ["one"] * 4, "stream": True, "logprobs": 0})
    await asyncio.sleep(draw.random() * 0.2)
    raw.writer.transport.abort()


async def odd_headers(raw, draw):
    """A head that is too long, too large or wrong."""
    line = draw.choice((b"a: " + b"b" * 70_000, b"a: b\r\n" * 500, b"host: evil", b"\x00: 1"))
    await raw.send(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + line + b"\r\n\r\n")
    return (await raw.response()).status


async def whole(raw, draw):
    """A request that is right."""
    path, value = body(draw, stream=draw.random() < 0.5)
    await raw.post(path, value)
    response = await raw.response()
    assert response.status in (200, 429, 503), response
    return response.status
