"""Several answers to one request: events by index, one end each, one last."""

import grpc
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import next_event, start

N = 3


def asking(request_id, n=N, *, max_tokens=12, **fields):
    sampling = pb.Sampling(temperature=1.0, seed=5, n=n)
    return start(request_id, sampling=sampling, max_tokens=max_tokens, **fields)


def by_index(received, request_id):
    tokens = {}
    for event in received.of(request_id):
        tokens.setdefault(event.index, []).extend(event.tokens.token_ids)
    return tokens


def assert_whole(received, request_id, num_tokens=12):
    """Each answer has its tokens, then its end; the numbers rise, and one event is the last."""
    events = received.of(request_id)
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))
    received.end(request_id)
    for index in range(N):
        kinds = [e.WhichOneof("event") for e in events if e.index == index]
        assert kinds.count("finished") == 1
        assert kinds[-1] == "finished"
    assert [len(tokens) for _, tokens in sorted(by_index(received, request_id).items())] == [
        num_tokens
    ] * N


async def test_each_answer_has_events_of_its_own_and_the_request_one_last(serve):
    async with serve() as server:
        received = await server.say(asking("a"), start("b"), asking("c"))
        for request_id in "ac":
            assert_whole(received, request_id)
        assert len({tuple(tokens) for tokens in by_index(received, "a").values()}) == N
        assert by_index(received, "a") == by_index(received, "c")
        usages = [e.finished.usage for e in received.of("a") if e.HasField("finished")]
        assert sum(usage.prompt_tokens for usage in usages) == 3
        await server.until_idle()


async def test_an_answer_at_once_is_one_event_each(serve):
    async with serve() as server:
        output = pb.Output(token_ids=True, interval=0)
        received = await server.say(asking("a", output=output))
        assert_whole(received, "a")
        assert received.kinds("a").count("tokens") == N


async def test_generate_one_returns_all_answers(serve):
    async with serve() as server:
        one, many = await server.one(asking("a")), await server.say(asking("a"))
        assert one.status.code is grpc.StatusCode.OK
        assert_whole(one, "a")
        assert by_index(one, "a") == by_index(many, "a")


async def test_a_cancel_ends_all_answers(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(asking("a", max_tokens=200))
        await next_event(call, "tokens")
        await call.write(pb.GenerateRequest(cancel=pb.Cancel(request_id="a")))
        await call.done_writing()
        events = []
        while (response := await call.read()) is not grpc.aio.EOF:
            events += response.events
        ends = [event for event in events if event.HasField("finished")]
        assert [e.finished.reason for e in ends] == [pb.FINISH_REASON_CANCELLED] * N
        assert [e.last for e in ends] == [False] * (N - 1) + [True]
        await server.until_idle()


async def test_the_log_has_one_line_for_all_answers(serve, caplog):
    caplog.set_level("INFO")
    async with serve() as server:
        await server.say(asking("a"))
    lines = [r.fields for r in caplog.records if r.getMessage() == "request ended"]
    assert [(line["prompt_tokens"], line["output_tokens"]) for line in lines] == [(3, 12 * N)]


async def test_a_client_that_reads_late_gets_all_answers_complete(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(asking("a", max_tokens=200))
        await call.done_writing()
        await server.until_idle()
        events = [event async for response in call for event in response.events]
        numbers = [event.number for event in events]
        assert numbers == sorted(set(numbers))
        for index in range(N):
            mine = [event for event in events if event.index == index]
            assert sum(event.tokens.num_tokens for event in mine) == 200
        assert [event.last for event in events].count(True) == 1
        assert events[-1].last
