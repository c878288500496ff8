"""Long messages that come at once are decoded one by one."""

import asyncio
import itertools
import time

import pytest
from chairlift.server.limits.receiving import PAUSE, SHORT_BYTES, DecodingQueue


async def test_other_work_of_the_event_loop_comes_between_long_messages():
    queue, done = DecodingQueue(), []

    def decode(data):
        done.append("decode")
        return len(data)

    async def turns():
        while len(done) < 12:
            done.append("turn")
            await asyncio.sleep(0)

    work = asyncio.create_task(turns())
    long = bytes(SHORT_BYTES + 1)
    assert (
        await asyncio.gather(*(queue.decode(decode, long, "a") for _ in range(4)))
        == [len(long)] * 4
    )
    await work
    assert done.count("decode") == 4
    assert ("decode", "decode") not in list(itertools.pairwise(done))


async def test_three_quarters_of_the_time_are_left_for_other_work():
    queue, spans = DecodingQueue(), []

    def decode(data):
        began = time.monotonic()
        while time.monotonic() < began + 0.002:
            pass
        spans.append((began, time.monotonic()))

    await asyncio.gather(*(queue.decode(decode, bytes(SHORT_BYTES + 1), "a") for _ in range(3)))
    for (began, ended), (following, _) in itertools.pairwise(spans):
        # The clock of the event loop may be coarser.
        assert following - ended > 0.95 * PAUSE * (ended - began)


async def test_a_connection_with_many_long_messages_delays_another_by_one_of_them():
    queue, done = DecodingQueue(), []

    async def decode(connection):
        await queue.decode(lambda _: done.append(connection), bytes(SHORT_BYTES + 1), connection)

    await asyncio.gather(*(decode(connection) for connection in ("a", "a", "a", "a", "b")))
    assert done.index("b") <= 1
    assert len(done) == 5


async def test_a_short_message_waits_for_no_other():
    queue = DecodingQueue()
    long = asyncio.create_task(queue.decode(len, bytes(SHORT_BYTES + 1), "a"))
    assert await queue.decode(len, b"abc", "a") == 3
    assert not long.done()
    assert await long == SHORT_BYTES + 1


async def test_a_message_that_cannot_be_decoded_keeps_nothing_else_waiting():
    queue = DecodingQueue()

    def fail(data):
        raise LookupError

    with pytest.raises(LookupError):
        await queue.decode(fail, bytes(SHORT_BYTES + 1), "a")
    assert await queue.decode(len, bytes(SHORT_BYTES + 1), "a") == SHORT_BYTES + 1
