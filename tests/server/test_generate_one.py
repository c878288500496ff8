"""`GenerateOne`: a refusal or failure is the status of the call."""

import grpc
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import next_event, start, until


async def test_it_returns_the_answer_of_generate(serve):
    async with serve() as server:
        many, one = await server.say(start("a")), await server.one(start("a"))
        assert one.status.code is grpc.StatusCode.OK
        assert one.tokens("a") == many.tokens("a")
        assert one.kinds("a")[0] == "accepted"
        assert one.end("a").finished == many.end("a").finished


async def test_accepted_travels_with_the_first_tokens(serve):
    async with serve() as server:
        call = server.generation.GenerateOne(pb.GenerateOneRequest(start=start("a").start))
        first = await call.read()
        assert [event.WhichOneof("event") for event in first.events][:2] == ["accepted", "tokens"]
        call.cancel()


async def test_a_refusal_is_trailers_only_so_that_it_can_be_retried(serve):
    async with serve() as server:
        bad = start("a", sampling=pb.Sampling(temperature=-1))
        call = server.generation.GenerateOne(pb.GenerateOneRequest(start=bad.start))
        # Headers that came before the trailers would hold the server's own.
        assert list(await call.initial_metadata()) == []
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_breaking_the_call_cancels_the_request(serve):
    async with serve() as server:
        call = server.generation.GenerateOne(
            pb.GenerateOneRequest(start=start("a", max_tokens=250).start)
        )
        await call.read()
        call.cancel()
        await until(lambda: server.num_ended("cancelled") == 1)
        await server.until_idle()


async def test_abort_from_elsewhere_ends_the_call_ok(serve):
    async with serve() as server:
        call = server.generation.GenerateOne(
            pb.GenerateOneRequest(start=start("a", max_tokens=250).start)
        )
        handle = (await next_event(call, "accepted"))[0].accepted.handle
        response = await server.generation.Abort(pb.AbortRequest(handle=handle))
        assert response.num_aborted == 1
        events = await next_event(call, "finished")
        assert events[-1].finished.reason == pb.FINISH_REASON_CANCELLED
        assert await call.code() is grpc.StatusCode.OK


async def test_abort_by_request_id_and_of_all_count_what_was_live(serve):
    async with serve() as server:
        call = server.generation.Generate()
        for request_id in ("a", "b", "c"):
            await call.write(start(request_id, max_tokens=250))
        await next_event(call, "tokens")
        abort = server.generation.Abort
        assert (await abort(pb.AbortRequest(handle="unknown"))).num_aborted == 0
        assert (await abort(pb.AbortRequest(request_id="b"))).num_aborted == 1
        await next_event(call, "finished")
        assert (await abort(pb.AbortRequest(all=pb.AllRequests()))).num_aborted == 2
        await call.done_writing()
        await server.until_idle()
        assert (await abort(pb.AbortRequest(all=pb.AllRequests()))).num_aborted == 0


async def test_a_request_that_had_to_wait_for_a_row_streams_like_others(serve):
    async with serve(max_num_seqs=1) as server:
        running = server.generation.Generate()
        await running.write(start("running", max_tokens=60))
        await next_event(running, "tokens")
        waits = pb.GenerateOneRequest(start=start("waits", max_tokens=60).start)
        messages = [message async for message in server.generation.GenerateOne(waits)]
        assert len(messages) > 2
        running.cancel()
        await server.until_idle()
