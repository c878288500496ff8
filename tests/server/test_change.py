"""What a client changes about its live requests: credit, limits, stops, priority, times."""

import asyncio
import threading

import pytest
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2
from google.protobuf import duration_pb2

from tests.server.connection import cancel, next_event, receive, start
from tests.server.credits import credit, stopping, update

SOON = duration_pb2.Duration(nanos=30_000_000)


def tokens_of(events, request_id):
    return [i for event in events if event.request_id == request_id for i in event.tokens.token_ids]


async def read_until(call, is_enough):
    """Read a stream until its events are enough; return all of them."""
    events = []
    while not is_enough(events):
        events += (await call.read()).events
    return events


def ended(events, request_id):
    return any(event.request_id == request_id and event.last for event in events)


async def test_a_request_gets_the_tokens_that_its_credit_pays_for_and_then_none(serve):
    async with serve() as server:
        alone = (await server.say(start("a", max_tokens=12))).tokens("a")
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=12, credit=5))
        await call.write(start("b", max_tokens=100))
        # The neighbour's whole answer is time enough for a sixth token.
        events = await read_until(call, lambda events: ended(events, "b"))
        assert tokens_of(events, "a") == alone[:5]
        await call.write(credit("a", 4))
        await call.write(start("c", max_tokens=100))
        events += await read_until(call, lambda events: ended(events, "c"))
        assert tokens_of(events, "a") == alone[:9]
        await call.write(credit("a", 2**32 - 1))
        await call.done_writing()
        events += (await receive(call)).events
        assert tokens_of(events, "a") == alone
        await server.until_idle()


async def test_without_credit_a_request_is_accepted_and_not_begun(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", credit=0))
        await call.write(start("b", max_tokens=20))
        events = await read_until(call, lambda events: ended(events, "b"))
        kinds = [event.WhichOneof("event") for event in events if event.request_id == "a"]
        assert kinds == ["accepted"]
        await call.write(credit("a", 8))
        await call.done_writing()
        assert len((await receive(call)).tokens("a")) == 8


async def test_after_half_close_an_answer_ends_with_the_last_token_that_is_paid_for(serve):
    async with serve() as server:
        alone = (await server.say(start("a", max_tokens=12))).tokens("a")
        received = await server.say(
            start("some", max_tokens=12, credit=3),
            credit("some", 2),
            start("enough", max_tokens=12, credit=99),
            start("none", max_tokens=12, credit=0),
            start("default", credit=4, stopping=pb.Stopping(ignore_eos=True)),
            start("shared", max_tokens=12, credit=7, sampling=pb.Sampling(temperature=0, n=2)),
        )
        ends = [
            received.end(name).finished.reason for name in ("some", "enough", "default", "shared")
        ]
        assert ends == [pb.FINISH_REASON_LENGTH] * 4
        assert received.tokens("some") == alone[:5]
        assert received.tokens("enough") == alone
        assert received.tokens("default") == alone[:4]
        assert sorted(received.tokens("shared")) == sorted(alone[:4] + alone[:3])
        assert received.end("none").finished.reason == pb.FINISH_REASON_CANCELLED
        assert received.tokens("none") == []
        await server.until_idle()


async def test_a_new_stop_ends_the_answer_where_it_comes(serve):
    async with serve() as server:
        alone = (await server.say(start("a", max_tokens=30))).tokens("a")
        stop = next(i for i in alone[5:] if i not in alone[:5])
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=30, credit=5))
        await read_until(call, lambda events: len(tokens_of(events, "a")) == 5)
        await call.write(stopping("a", max_tokens=30, stop_token_ids=[stop]))
        await call.write(credit("a", 25))
        await call.done_writing()
        received = await receive(call)
        assert received.end("a").finished.stop_token_id == stop
        assert received.tokens("a") == alone[5 : alone.index(stop) + 1]


async def test_a_limit_below_what_there_is_ends_the_answer_and_a_higher_one_prolongs_it(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("short", max_tokens=100, credit=5))
        await call.write(start("long", max_tokens=6, credit=5))
        await read_until(call, lambda events: sum(e.tokens.num_tokens for e in events) == 10)
        await call.write(stopping("short", max_tokens=2))
        await call.write(stopping("long", max_tokens=9))
        await call.write(credit("long", 100))
        await call.done_writing()
        received = await receive(call)
        for request_id, count in (("short", 5), ("long", 9)):
            finished = received.end(request_id).finished
            assert finished.reason == pb.FINISH_REASON_LENGTH
            assert finished.usage.output_tokens == count


async def test_priority_overtakes_waiting_requests(serve):
    async with serve(max_num_seqs=1) as server:
        call = server.generation.Generate()
        # The row is taken until this one is cancelled.
        await call.write(start("first", max_tokens=250))
        await next_event(call, "tokens")
        for name, priority in (("usual", 0), ("late", -1), ("urgent", 10)):
            await call.write(start(name, schedule=pb.Schedule(priority=priority)))
        await call.write(start("raised"))
        await call.write(update("raised", schedule=pb.Schedule(priority=5)))
        await call.write(cancel("first"))
        await call.done_writing()
        received = await receive(call)
        order = [event.request_id for event in received.events if event.last]
        assert order == ["first", "urgent", "raised", "usual", "late"]


async def test_a_suspended_request_ends_by_its_time_limit(serve):
    async with serve() as server:
        limit = pb.Schedule(time_limit=SOON)
        call = server.generation.Generate()
        await call.write(start("begun", credit=2, schedule=limit))
        await call.write(start("updated", credit=2))
        await call.write(update("updated", schedule=limit))
        both = ("begun", "updated")
        events = await read_until(call, lambda events: all(ended(events, name) for name in both))
        reasons = [event.finished.reason for event in events if event.last]
        assert reasons == [pb.FINISH_REASON_TIME_LIMIT] * 2
        await call.done_writing()
        await server.until_idle()


async def test_suspended_requests_are_preempted_and_a_cancel_frees_all_they_have(serve, kv_blocks):
    async with serve(max_num_seqs=2, kv_cache_memory=kv_blocks(16)) as server:
        call = server.generation.Generate()
        for i in range(4):
            await call.write(start(f"suspended{i}", prompt=[i + 1] * 60, max_tokens=9, credit=1))
        # All four have had their token, in two rows.
        await read_until(call, lambda events: sum(e.tokens.num_tokens for e in events) == 4)
        received = await server.say(start("all", prompt=[7] * 200, max_tokens=20))
        assert len(received.tokens("all")) == 20
        for i in range(4):
            await call.write(cancel(f"suspended{i}"))
        await call.done_writing()
        received = await receive(call)
        for i in range(4):
            assert received.end(f"suspended{i}").finished.reason == pb.FINISH_REASON_CANCELLED
        await server.until_idle()


WRONG = {
    "max_tokens 0": (stopping("a", max_tokens=0), "update.stopping.max_tokens"),
    "min above max": (stopping("a", max_tokens=2, min_tokens=3), "update.stopping.min_tokens"),
    "pattern": (
        stopping("a", max_tokens=2, stop_regex=["("]),
        "update.stopping.stop_regex",
    ),
    "empty stop": (stopping("a", stop=[""]), "update.stopping.stop"),
    "stop token outside": (
        stopping("a", stop_token_ids=[390]),
        "update.stopping.stop_token_ids",
    ),
    "priority": (update("a", schedule=pb.Schedule(priority=11)), "update.schedule.priority"),
    "time": (
        update("a", schedule=pb.Schedule(time_limit=duration_pb2.Duration())),
        "update.schedule.time_limit",
    ),
    "nothing": (update("a"), "update"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_update_leaves_the_request_as_it_was(serve, case):
    async with serve() as server:
        command, field = WRONG[case]
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=8, credit=1))
        await call.write(command)
        events = await next_event(call, "rejected")
        (event,) = (event for event in events if event.HasField("rejected"))
        assert not event.last
        rejected = event.rejected
        assert (rejected.error.reason, rejected.error.field) == ("BAD_PARAMETER", field)
        await call.write(credit("a", 99))
        await call.done_writing()
        assert (await receive(call)).end("a").finished.usage.output_tokens == 8


async def test_requests_that_are_not_live_cannot_be_changed(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("gone"))
        await read_until(call, lambda events: ended(events, "gone"))
        for name in ("gone", "never"):
            await call.write(credit(name, 1))
            await call.write(stopping(name, max_tokens=1))
        await call.done_writing()
        received = await receive(call)
        assert [e.rejected.error.reason for e in received.events] == ["UNKNOWN_REQUEST"] * 4
        assert not any(event.last for event in received.events)


async def test_a_call_for_one_request_refuses_a_credit_that_nothing_could_raise(serve):
    async with serve() as server:
        received = await server.one(start(credit=3))
        assert (received.status.reason, received.status.fields) == ("BAD_PARAMETER", ["credit"])
        received = await server.one(start(schedule=pb.Schedule(priority=3)))
        assert len(received.tokens("a")) == 8


async def test_patterns_of_a_change_are_compiled_off_the_event_loop(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=12, credit=1))
        await next_event(call, "tokens")
        # All threads for texts are busy.
        release, texts = threading.Event(), server.server._engine.texts
        jobs = [asyncio.create_task(texts.run(release.wait, tenant=n, size=1)) for n in range(16)]
        await asyncio.sleep(0)
        await call.write(stopping("a", max_tokens=12, stop_regex=["."]))
        await call.write(credit("a", 100))
        # The server answers others meanwhile; the commands behind wait for their turn.
        other = await server.say(start("b", max_tokens=100))
        assert other.end("b").HasField("finished")
        load = await server.info.GetLoad(server_pb2.GetLoadRequest())
        assert load.load.num_running == 1
        release.set()
        await asyncio.gather(*jobs)
        await call.done_writing()
        finished = (await receive(call)).end("a").finished
        assert finished.reason == pb.FINISH_REASON_STOP
        assert finished.usage.output_tokens < 12
