"""`Explain`: only the owner of a request can ask why it waits."""

import pytest
from chairlift.v1 import generation_pb2 as pb
from grpc import StatusCode as Code

from tests.server.connection import next_event, receive, start, status_of

HALF_A_BATCH = {"batching": "static", "batch_size": 2, "batch_timeout_s": 60}
ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"


async def explain(server, metadata=(), **target):
    request = pb.ExplainRequest(**target)
    response = await server.generation.Explain(request, metadata=metadata)
    return list(response.explanations)


async def test_a_request_learns_what_it_waits_for(serve):
    async with serve(**HALF_A_BATCH) as server:
        call = server.generation.Generate()
        await call.write(start("a", prompt=(1, 2, 3)))
        handle = (await next_event(call, "accepted"))[0].accepted.handle
        # The first answer may come before the first step was looked for.
        (explanation,) = await explain(server, handle=handle)
        (explanation,) = await explain(server, handle=handle)
        assert (explanation.handle, explanation.request_id) == (handle, "a")
        assert explanation.state == pb.REQUEST_STATE_WAITING
        assert explanation.cause == pb.WAIT_CAUSE_POLICY
        assert (
            explanation.num_before,
            explanation.num_computed_tokens,
            explanation.num_tokens,
        ) == (0, 0, 3)
        assert not explanation.HasField("estimated_wait"), "nothing has started yet"
        assert await explain(server, request_id="a") == [explanation]
        await call.done_writing()
        await receive(call)


async def test_one_without_credit_is_suspended_and_one_that_runs_waits_for_nothing(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("poor", credit=0))
        await call.write(start("runs", max_tokens=250))
        await next_event(call, "tokens")
        (poor,) = await explain(server, request_id="poor")
        (runs,) = await explain(server, request_id="runs")
        assert (poor.state, poor.cause) == (pb.REQUEST_STATE_SUSPENDED, pb.WAIT_CAUSE_SUSPENDED)
        assert (runs.state, runs.cause) == (pb.REQUEST_STATE_RUNNING, pb.WAIT_CAUSE_UNSPECIFIED)
        assert runs.num_computed_tokens >= 3
        call.cancel()
        await server.until_idle()


async def test_a_wait_is_estimated_once_the_pace_is_known(serve):
    async with serve(max_num_seqs=1) as server:
        call = server.generation.Generate()
        # The first one has the row until all others wait.
        for i in range(20):
            await call.write(start(f"{i}", max_tokens=20 if 0 < i < 12 else 250))
        received = []
        while not any(event.request_id == "12" and event.HasField("tokens") for event in received):
            received += (await call.read()).events
        next_one, after = [(await explain(server, request_id=i))[0] for i in ("13", "14")]
        assert (next_one.cause, next_one.num_before) == (pb.WAIT_CAUSE_ROW, 0)
        assert after.num_before == 1
        assert 0 < next_one.estimated_wait.ToNanoseconds() < after.estimated_wait.ToNanoseconds()
        call.cancel()
        await server.until_idle()


@pytest.mark.parametrize(
    ("target", "code", "field"),
    [
        ({}, Code.INVALID_ARGUMENT, ["target"]),
        ({"handle": "unknown"}, Code.NOT_FOUND, []),
        ({"request_id": "unknown"}, Code.NOT_FOUND, []),
    ],
)
async def test_what_is_not_live_has_no_explanation(serve, target, code, field):
    async with serve() as server:
        status = await status_of(server.generation.Explain(pb.ExplainRequest(**target)))
        assert (status.code, status.fields) == (code, field)


async def test_tenants_learn_nothing_of_each_other(serve, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann:{ANN}\nbob:{BOB}\n")
    tokens.chmod(0o600)
    ann, bob = ((("authorization", f"Bearer {token}"),) for token in (ANN, BOB))
    async with serve(server={"auth_tokens": str(tokens)}, **HALF_A_BATCH) as server:
        call = server.generation.Generate(metadata=ann)
        await call.write(start("a"))
        handle = (await next_event(call, "accepted"))[0].accepted.handle
        for target in ({"handle": handle}, {"request_id": "a"}):
            request = pb.ExplainRequest(**target)
            status = await status_of(server.generation.Explain(request, metadata=bob))
            assert status.code is Code.NOT_FOUND
            assert len(await explain(server, ann, **target)) == 1
        call.cancel()


async def test_a_timeline_has_the_queued_time_by_cause(serve):
    async with serve(max_num_seqs=1) as server:
        output = pb.Output(timeline=True)
        received = await server.say(start("a", max_tokens=50), start("b", output=output))
        timeline = received.end("b").finished.timeline
        times = {part.cause: part.time.ToNanoseconds() for part in timeline.queued_by_cause}
        assert times[pb.WAIT_CAUSE_ROW] > 0
        assert sum(times.values()) == pytest.approx(timeline.queued.ToNanoseconds(), abs=1000)
