"""A static batch waits for company only as long as some may come."""

import asyncio
from types import SimpleNamespace

import pytest
from chairlift.server.calls.registry import Registry, StaticBatchFlush

from tests.server.connection import next_event, receive, start

# Nothing here takes so long unless it waits for the timeout; the test would time out then.
STATIC = {"batching": "static", "batch_timeout_s": 3600, "max_num_seqs": 4}


async def test_a_partial_batch_runs_when_its_stream_half_closes(serve):
    async with serve(**STATIC) as server:
        received = await server.say(start("a"), start("b"))
        assert received.end("a").HasField("finished")
        assert received.end("b").HasField("finished")


async def test_a_call_of_one_request_does_not_wait(serve):
    async with serve(**STATIC) as server:
        assert (await server.one(start("a"))).end("a").HasField("finished")


async def test_a_full_batch_runs_on_an_open_stream_and_the_rest_after_half_close(serve):
    async with serve(**STATIC) as server:
        call = server.generation.Generate()
        for i in range(6):
            await call.write(start(f"r{i}"))
        ended = set()
        while len(ended) < 4:
            ended |= {e.request_id for e in (await next_event(call, "finished")) if e.last}
        await call.done_writing()
        received = await receive(call)
        assert ended | {e.request_id for e in received.events if e.last} == {
            f"r{i}" for i in range(6)
        }


async def test_more_than_a_batch_of_a_half_closed_stream_runs_to_the_last(serve):
    async with serve(**STATIC) as server:
        received = await server.say(*(start(f"r{i}") for i in range(11)))
        assert all(received.end(f"r{i}").HasField("finished") for i in range(11))


async def test_an_open_stream_with_waiting_requests_holds_the_batch_until_it_breaks(serve):
    async with serve(**STATIC) as server:
        open_call = server.generation.Generate()
        await open_call.write(start("mine"))
        await next_event(open_call, "accepted")
        other = asyncio.create_task(server.say(start("other")))
        await server.until_load(lambda load: load.num_waiting == 2)
        assert not other.done()
        open_call.cancel()
        assert (await other).end("other").HasField("finished")


@pytest.fixture
def flushes():
    return []


@pytest.fixture
def static_batch_flush(flushes):
    return StaticBatchFlush(lambda: flushes.append(1))


def test_flush_comes_when_the_last_open_stream_half_closes(static_batch_flush, flushes):
    static_batch_flush.add(half_closed=False)
    static_batch_flush.add(half_closed=False)
    static_batch_flush.half_closed(1)
    assert not flushes
    static_batch_flush.half_closed(1)
    assert flushes


def test_flush_comes_when_the_request_of_an_open_stream_ends(static_batch_flush, flushes):
    static_batch_flush.add(half_closed=False)
    static_batch_flush.add(half_closed=True)
    assert not flushes
    static_batch_flush.remove(half_closed=False)
    assert flushes


def test_nothing_is_flushed_without_a_waiting_request(static_batch_flush, flushes):
    static_batch_flush.half_closed(0)
    static_batch_flush.add(half_closed=False)
    static_batch_flush.remove(half_closed=False)
    assert not flushes


def test_a_request_that_moves_does_not_flush_the_batch_on_its_way():
    """A half-closed stream's request waits beside one that a client takes to another stream."""
    flushed = []
    registry = Registry(lambda: flushed.append(1))
    calls = [
        SimpleNamespace(half_closed=half_closed, live={}, detach=lambda _request: None)
        for half_closed in (True, False, False)
    ]
    waiting, moving = (
        SimpleNamespace(handle=name, label=name, call=call, stage=0, engine_id=None)
        for name, call in zip(("waiting", "moving"), calls, strict=False)
    )
    registry.add(moving)
    registry.add(waiting)
    assert flushed == []
    registry.move(moving, calls[2], "moved")
    assert flushed == []
    # Now no stream that has requests in the queue can send another.
    registry.move(moving, calls[0], "moved again")
    assert flushed == [1]
