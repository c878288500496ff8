"""After a half-close no credit can come: requests end with the tokens that are paid for."""

import random

import grpc
import pytest
from chairlift.server.calls import outbox
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

from tests.server.connection import next_event, receive, start
from tests.server.credits import FAR, Draw, answers, credit, ends_of, stopping
from tests.server.test_change import read_until, tokens_of
from tests.server.test_slow_reader import ALL, SMALL_WINDOW


@pytest.mark.parametrize(
    ("num_answers", "credits"),
    [(2, (1, 1)), (2, (3, 3)), (3, (1, 5)), (3, (0, 1, 1, 1)), (2, (1,)), (3, (2,)), (4, (0,))],
)
async def test_credit_that_came_in_parts_is_spent_to_the_last_token(serve, num_answers, credits):
    async with serve() as server:
        first, *more = credits
        received = await server.say(
            answers("a", num_answers, credit=first), *(credit("a", more) for more in more)
        )
        ends = ends_of(received, "a")
        assert len(ends) == num_answers
        assert sum(count for _, count in ends) == sum(credits)
        # An answer for which nothing is paid is not begun.
        assert {(reason, count > 0) for reason, count in ends} <= {
            ("LENGTH", True),
            ("CANCELLED", False),
        }
        await server.until_idle()


async def test_stops_without_a_limit_of_tokens_leave_the_credit_as_the_limit(serve):
    async with serve() as server:
        # Without credit it has no token yet when its stops change.
        request = start("a", max_tokens=2, credit=0, schedule=FAR)
        received = await server.say(request, stopping("a"), credit("a", 7))
        assert ends_of(received, "a") == [("LENGTH", 7)]
        await server.until_idle()


async def test_credit_that_was_spent_before_the_half_close_ends_the_request_there(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=30, credit=3, schedule=FAR))
        await call.write(answers("b", 3, credit=4))
        await read_until(call, lambda events: sum(e.tokens.num_tokens for e in events) == 7)
        await call.done_writing()
        received = await receive(call)
        assert received.tokens("a") == received.tokens("b") == []
        assert ends_of(received, "a") == [("LENGTH", 0)]
        assert [reason for reason, _ in ends_of(received, "b")] == ["LENGTH"] * 3
        await server.until_idle()


async def test_a_request_without_credit_behind_a_full_batch_ends_at_once(serve):
    async with serve(max_num_seqs=1) as server:
        call = server.generation.Generate()
        await call.write(start("first", max_tokens=60))
        await next_event(call, "tokens")
        for i in range(3):
            await call.write(start(f"none{i}", credit=0, schedule=FAR))
            await call.write(start(f"some{i}", credit=2, schedule=FAR))
        await call.done_writing()
        received = await receive(call)
        for i in range(3):
            assert ends_of(received, f"none{i}") == [("CANCELLED", 0)]
            assert ends_of(received, f"some{i}") == [("LENGTH", 2)]
        order = [event.request_id for event in received.events if event.last]
        assert order.index("none2") < order.index("first")
        await server.until_idle()


async def test_requests_that_are_paused_for_a_slow_reader_end_when_it_reads(serve, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_TOKEN_BYTES", 1024)
    async with serve(max_num_seqs=64, max_num_batched_tokens=256) as server:
        channel = grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW)
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        # Far more than the windows of gRPC hold.
        labels = [f"r{i}" for i in range(128)]
        for label in labels:
            await call.write(answers(label, 2, max_tokens=120, credit=141, output=ALL))
        await call.done_writing()
        await server.until_load(lambda load: load.num_running_suspended)
        received = await receive(call)
        for label in labels:
            assert ends_of(received, label) == [("LENGTH", 71), ("LENGTH", 70)]
        await server.until_idle()
        await channel.close()


async def test_a_cancel_before_the_half_close_ends_a_request_that_waits_for_credit(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(answers("a", 2, credit=2))
        await read_until(call, lambda events: len(tokens_of(events, "a")) == 2)
        await call.write(pb.GenerateRequest(cancel=pb.Cancel(request_id="a")))
        await call.done_writing()
        assert {reason for reason, _ in ends_of(await receive(call), "a")} == {"CANCELLED"}
        await server.until_idle()


async def test_an_abort_ends_a_request_whose_last_credit_is_not_spent(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=250, credit=200, schedule=FAR))
        await call.done_writing()
        accepted = (await next_event(call, "accepted"))[0].accepted
        response = await server.generation.Abort(pb.AbortRequest(handle=accepted.handle))
        assert response.num_aborted == 1
        assert (await receive(call)).end("a").finished.reason == pb.FINISH_REASON_CANCELLED
        await server.until_idle()


@pytest.mark.parametrize("seed", range(12))
async def test_each_request_ends_with_as_many_tokens_as_were_paid_for(serve, seed):
    dice = random.Random(seed)
    async with serve() as server:
        call = server.generation.Generate()
        drawn = [Draw(dice, f"r{i}") for i in range(8)]
        waiting = [list(draw.commands) for draw in drawn]
        while any(waiting):
            await call.write(dice.choice([w for w in waiting if w]).pop(0))
            if dice.random() < 0.5:
                # Some commands come before the request has begun, some amid its tokens.
                await server.load()
        await call.done_writing()
        received = await receive(call)
        for draw in drawn:
            draw.check(received)
        await server.until_idle()
