"""A request with a window outlives its stream: no token is lost, and none comes twice."""

import time

import grpc
from chairlift.server.calls.requests import Requests
from chairlift.v1 import generation_pb2 as pb
from google.protobuf.duration_pb2 import Duration

from tests.chaos import faults
from tests.server.connection import Received, cancel, next_event, receive, start, until

LONG = 240


def window(request_id="a", *, seconds=60, **fields):
    """A request that may be resumed."""
    return start(request_id, resume_window=Duration(seconds=seconds), **fields)


def resume(handle, after_number=0, request_id="b"):
    message = pb.Resume(handle=handle, after_number=after_number, request_id=request_id)
    return pb.GenerateRequest(resume=message)


async def begun(server, command):
    """A call whose request has had tokens: the call, what has come of it, the handle."""
    call = server.generation.Generate()
    await call.write(command)
    got = Received(await next_event(call, "tokens"))
    return call, got, got.events[0].accepted.handle


def last_number(received):
    return max(event.number for event in received.events)


async def lose(server, call):
    """Break a call, and wait until the server has noticed."""
    call.cancel()
    resumables = server.server._context.resumables
    await until(lambda: all(r.is_detached or r.has_ended for r in resumables.by_handle.values()))


def refusal(received):
    (event,) = received.events
    assert event.last
    return event.rejected.error


async def test_a_request_goes_on_where_its_lost_stream_ended(serve):
    async with serve() as server:
        whole = (await server.say(start(max_tokens=LONG))).tokens("a")
        call, got, handle = await begun(server, window(max_tokens=LONG))
        await lose(server, call)
        rest = await server.say(resume(handle, last_number(got)))
        assert got.tokens("a") + rest.tokens("b") == whole
        assert rest.end("b").finished.usage.output_tokens == LONG
        numbers = [event.number for event in got.events + rest.events]
        assert numbers == sorted(set(numbers))
        await server.until_idle()


async def test_every_event_after_the_number_comes_again_also_after_the_end(serve):
    async with serve() as server:
        first = await server.say(window(max_tokens=20))
        handle = first.events[0].accepted.handle
        for i, event in enumerate(first.events):
            again = await server.say(resume(handle, event.number, "a"))
            assert again.events == first.events[i + 1 :]
        assert (await server.say(resume(handle, 0, "a"))).events == first.events


async def test_a_stream_lost_many_times_loses_no_token_of_any_answer(serve):
    sampling = pb.Sampling(temperature=1.0, seed=3, n=3)
    async with serve() as server:
        whole = await server.say(start(max_tokens=60, sampling=sampling))
        call, got, handle = await begun(server, window(max_tokens=60, sampling=sampling))
        while not got.events[-1].last:
            await lose(server, call)
            call = server.generation.Generate()
            await call.write(resume(handle, last_number(got), "a"))
            response = await call.read()
            got.events += response.events
        for index in range(3):
            expected = [e.tokens.token_ids for e in whole.events if e.index == index]
            found = [e.tokens.token_ids for e in got.events if e.index == index]
            assert [i for ids in found for i in ids] == [i for ids in expected for i in ids]
        call.cancel()


async def test_a_stream_that_is_still_attached_ends_and_the_new_one_takes_over(serve):
    async with serve() as server:
        whole = (await server.say(start(max_tokens=LONG))).tokens("a")
        old, got, handle = await begun(server, window(max_tokens=LONG))
        rest = await server.say(resume(handle, last_number(got)))
        assert got.tokens("a") + rest.tokens("b") == whole
        await old.done_writing()
        left = await receive(old)
        assert left.end("a").failed.error.reason == "RESUMED_ELSEWHERE"
        assert left.status.code is grpc.StatusCode.OK


async def test_generate_one_is_resumed_through_generate(serve):
    async with serve() as server:
        whole = (await server.say(start(max_tokens=LONG))).tokens("a")
        one = pb.GenerateOneRequest(start=window(max_tokens=LONG).start)
        for is_lost in (True, False):
            call = server.generation.GenerateOne(one)
            got = Received(await next_event(call, "tokens"))
            if is_lost:
                await lose(server, call)
            rest = await server.say(resume(got.events[0].accepted.handle, last_number(got)))
            assert got.tokens("a") + rest.tokens("b") == whole
        status = (await receive(call)).status
        assert (status.code, status.reason) == (grpc.StatusCode.ABORTED, "RESUMED_ELSEWHERE")


async def test_a_window_that_is_over_ends_the_request_and_forgets_it(serve):
    async with serve() as server:
        call, _, handle = await begun(server, window(max_tokens=LONG))
        await lose(server, call)
        server.server._context.resumables.by_handle[handle].expire()
        error = refusal(await server.say(resume(handle)))
        assert (error.code, error.reason) == (pb.STATUS_CODE_NOT_FOUND, "UNKNOWN_REQUEST")
        await server.until_idle()
        assert server.num_ended("cancelled") == 1
        # The end of a window by the clock.
        short = Duration(nanos=1)
        await server.say(start(resume_window=short))
        await until(lambda: not server.server._context.resumables.by_handle)


async def test_handles_of_others_and_of_nothing_are_refused_alike(serve):
    settings = {"trust_tenant_metadata": True}
    async with serve(server=settings) as server:
        mine = (("chairlift-tenant", "mine"),)
        first = await receive(server.generation.Generate(iter([window()]), metadata=mine))
        handle = first.events[0].accepted.handle
        plain = (await server.say(start())).events[0].accepted.handle
        refused = [
            refusal(await server.say(resume(name))) for name in (handle, plain, "", "never" * 5)
        ]
        assert {error.reason for error in refused} == {"UNKNOWN_REQUEST"}
        assert len({error.SerializeToString() for error in refused}) == 1
        again = await receive(server.generation.Generate(iter([resume(handle)]), metadata=mine))
        assert again.end("b").HasField("finished")


async def test_wrong_numbers_and_labels_are_refused_by_name(serve):
    async with serve(server={"resume_request_bytes": 2**17}) as server:
        first = await server.say(window(max_tokens=5))
        handle = first.events[0].accepted.handle
        ahead = refusal(await server.say(resume(handle, 1000)))
        assert (ahead.reason, ahead.field) == ("BAD_PARAMETER", "after_number")
        assert refusal(await server.say(resume(handle, 0, "x" * 300))).field == "request_id"
        # The request has no credit to end before another command uses its label.
        call, _, handle = await begun(server, window(max_tokens=LONG, credit=5))
        await call.write(resume(handle, 0, "a"))
        (event,) = (await next_event(call, "rejected"))[-1:]
        assert (event.rejected.error.reason, event.last) == ("DUPLICATE_REQUEST_ID", False)
        call.cancel()
        for seconds in (-1, 301):
            (event,) = (await server.say(window(seconds=seconds))).events
            assert (event.rejected.error.field) == "resume_window"
        await server.say(pb.GenerateRequest(cancel=pb.Cancel(request_id="a")))


async def test_events_that_are_no_longer_kept_are_refused_and_later_ones_come(serve):
    all_output = pb.Output(token_ids=True, logprobs=20)
    async with serve(server={"resume_request_bytes": 2**17}) as server:
        sampling = pb.Sampling(temperature=0, n=4)
        command = window(max_tokens=LONG, output=all_output, sampling=sampling)
        first = await server.say(command)
        handle = first.events[0].accepted.handle
        error = refusal(await server.say(resume(handle, 1)))
        assert (error.code, error.reason) == (pb.STATUS_CODE_OUT_OF_RANGE, "EVENTS_DROPPED")
        late = first.events[-50:]
        rest = await server.say(resume(handle, late[0].number, "a"))
        assert rest.events == late[1:]


async def test_a_request_without_a_stream_is_suspended_once_its_buffer_is_full(serve, monkeypatch):
    monkeypatch.setattr("chairlift.server.calls.outbox.MAX_TOKEN_BYTES", 256)
    async with serve() as server:
        whole = (await server.say(start(max_tokens=LONG))).tokens("a")
        call, got, handle = await begun(server, window(max_tokens=LONG))
        await lose(server, call)
        await server.until_load(lambda load: load.num_running_suspended)
        rest = await server.say(resume(handle, last_number(got)))
        assert got.tokens("a") + rest.tokens("b") == whole


async def test_memory_for_resuming_is_bounded_and_a_share_of_it_a_tenants(serve):
    room = 3 * (2**17 + 2**16)
    settings = {"resume_request_bytes": 2**17, "resume_memory_bytes": room}
    async with serve(server=settings) as server:
        calls = [await begun(server, window(max_tokens=LONG)) for _ in range(2)]
        refused = (await server.say(window("c", max_tokens=LONG))).events
        if not refused[0].HasField("rejected"):
            refused = (await server.say(window("d"), window("e"), window("f"))).events
        reasons = {e.rejected.error.reason for e in refused if e.HasField("rejected")}
        assert reasons <= {"QUOTA_EXCEEDED"}
        for call, _, _ in calls:
            call.cancel()
        resumables = server.server._context.resumables
        for resumable in list(resumables.by_handle.values()):
            await until(lambda r=resumable: r.is_detached or r.has_ended)
            resumable.expire()
        # Logs of ended requests give way to new ones.
        for _ in range(20):
            assert (await server.say(window())).end("a").HasField("finished")
        assert resumables._shares._num_held <= room


async def test_cancel_and_abort_end_a_request_with_a_window(serve):
    async with serve() as server:
        call, got, handle = await begun(server, window(max_tokens=LONG))
        await call.write(cancel("a"))
        await call.done_writing()
        got.events += (await receive(call)).events
        assert got.end("a").finished.reason == pb.FINISH_REASON_CANCELLED
        call, got, handle = await begun(server, window(max_tokens=LONG))
        await lose(server, call)
        response = await server.generation.Abort(pb.AbortRequest(handle=handle))
        assert response.num_aborted == 1
        rest = await server.say(resume(handle, last_number(got)))
        assert rest.end("b").finished.reason == pb.FINISH_REASON_CANCELLED
        await server.until_idle()


async def test_credit_comes_by_the_stream_that_resumed_the_request(serve):
    async with serve() as server:
        call, got, handle = await begun(server, window(max_tokens=20, credit=5))
        await lose(server, call)
        call = server.generation.Generate()
        await call.write(resume(handle, last_number(got)))
        await call.write(pb.GenerateRequest(credit=pb.Credit(request_id="b", tokens=50)))
        await call.done_writing()
        rest = await receive(call)
        assert len(got.tokens("a") + rest.tokens("b")) == 20
        # A half-close ends the credit after the window, not at once.
        short = Duration(nanos=1_000_000)
        end = await server.say(start(max_tokens=20, credit=5, resume_window=short))
        assert len(end.tokens("a")) == 5
        assert end.end("a").finished.reason == pb.FINISH_REASON_LENGTH


async def test_a_request_whose_handle_no_client_has_is_cancelled(serve):
    async with serve(max_num_seqs=1) as server:
        first = server.generation.Generate()
        await first.write(start(max_tokens=LONG))
        await next_event(first, "tokens")
        one = pb.GenerateOneRequest(start=window(max_tokens=LONG).start)
        queued = server.generation.GenerateOne(one)
        await server.until_load(lambda load: load.num_waiting)
        queued.cancel()
        await server.until_load(lambda load: not load.num_waiting)
        await until(lambda: not server.server._context.resumables.by_handle)
        first.cancel()
        await server.until_idle()


async def test_across_a_restart_of_the_engine_a_resumed_request_ends_clearly(serve):
    async with serve() as server:
        call, got, handle = await begun(server, window(max_tokens=LONG))
        await lose(server, call)
        faults.install("thread ends", server.server)
        rest = await server.say(resume(handle, last_number(got)))
        while rest.status.reason:
            rest = await server.say(resume(handle, last_number(got)))
        assert rest.end("b").failed.error.reason == "ENGINE_DOWN"
        await until(lambda: server.server.gate.phase.value == "serving")
        # Ids of the new engine's requests are those of the old one's: the log is the old one's.
        assert (await server.say(start())).end("a").HasField("finished")
        again = await server.say(resume(handle, last_number(got)))
        assert again.end("b").failed.error.reason == "ENGINE_DOWN"


async def test_a_drain_waits_for_no_request_without_a_stream(serve):
    async with serve() as server:
        call, _, _ = await begun(server, window(max_tokens=LONG))
        await lose(server, call)
        await server.server.stop(60)
        assert not server.server._context.resumables.by_handle
        assert not server.server.has_leaked


async def test_a_call_that_ends_before_its_request_is_accepted_leaves_nothing(serve):
    async with serve() as server:
        context = server.server._context
        with context.outboxes.open() as outbox:
            requests = Requests(
                context, outbox, tenant="", connection="", time_remaining=lambda: None
            )
            await requests.start(window(max_tokens=LONG).start)
            (live,) = requests.live.values()
            # The engine has it now, and what it answers waits behind this coroutine.
            while live.engine_id is None:
                time.sleep(0)
            requests.close()
        with context.outboxes.open() as other:
            await server.until_idle()
            assert not other
            assert len(context.resumables) == 0
