"""Long messages that come at once are decoded one by one."""

import asyncio
import itertools
import threading
import time

import pytest
from chairlift.server.limits.receiving import PAUSE, SHORT_BYTES, DecodingQueue

LONG = bytes(SHORT_BYTES + 1)


async def test_the_event_loop_turns_while_a_long_message_is_decoded():
    queue, may_end = DecodingQueue(), threading.Event()
    decoding = asyncio.create_task(queue.decode(lambda _: may_end.wait(60), LONG, "a"))
    for _ in range(100):
        await asyncio.sleep(0)
    may_end.set()
    assert await decoding


async def test_long_messages_are_decoded_one_at_a_time():
    queue, running, most = DecodingQueue(), [], []

    def decode(data):
        running.append(1)
        most.append(len(running))
        time.sleep(0)
        running.pop()
        return len(data)

    found = await asyncio.gather(*(queue.decode(decode, LONG, str(i)) for i in range(8)))
    assert found == [len(LONG)] * 8
    assert most == [1] * 8


async def test_a_message_waits_for_the_decoding_of_a_caller_that_has_gone():
    queue, may_end, done = DecodingQueue(), threading.Event(), []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def decode(_data):
        loop.call_soon_threadsafe(begun.set)
        done.append(may_end.wait(60))

    first = asyncio.create_task(queue.decode(decode, LONG, "a"))
    await begun.wait()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(queue.decode(lambda _: done.append("second"), LONG, "b"))
    may_end.set()
    await second
    assert done == [True, "second"]


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
