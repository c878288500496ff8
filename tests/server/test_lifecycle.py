"""From the first bind to the last answer: starting, draining, dying."""

import asyncio

import grpc
from chairlift.server.ops.restart_budget import RestartBudget
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2
from grpc_health.v1 import health_pb2

from tests.server.connection import next_event, receive, start, status_of

Code = grpc.StatusCode


async def test_while_the_model_loads_calls_are_unavailable_and_health_says_so(serve):
    seen = {}

    async def look(server):
        seen["health"] = [
            await server.health(),
            await server.health("chairlift.v1.GenerationService"),
        ]
        seen["stream"] = (await server.say(start("a"))).status
        seen["one"] = (await server.one(start("a"))).status
        seen["load"] = await status_of(server.info.GetLoad(server_pb2.GetLoadRequest()))
        info = await server.info.GetServerInfo(server_pb2.GetServerInfoRequest())
        seen["info"] = info.state

    async with serve(before_load=look) as server:
        assert seen["health"] == ["NOT_SERVING", "NOT_SERVING"]
        for name in ("stream", "one", "load"):
            assert (seen[name].code, seen[name].reason) == (Code.UNAVAILABLE, "STARTING")
            assert seen[name].retry_after_s == 1
        assert seen["info"] == server_pb2.SERVER_STATE_STARTING
        assert await server.health() == "SERVING"
        assert (await server.say(start("a"))).end("a").HasField("finished")


async def test_draining_finishes_what_runs_and_refuses_the_rest(serve):
    async with serve(max_num_seqs=2) as server:
        running = server.generation.Generate()
        idle = server.generation.Generate()
        await running.write(start("a", max_tokens=120))
        await running.write(start("b", max_tokens=120))
        await next_event(running, "tokens")
        await running.write(start("waiting", max_tokens=120))
        events = await next_event(running, "accepted")
        while not any(e.request_id == "waiting" for e in events):
            events += await next_event(running, "accepted")
        stopping = asyncio.create_task(server.server.stop(grace_s=60))
        await server.server.gate.draining.wait()
        await running.write(start("late"))
        received = await receive(running)
        assert received.status.code is Code.OK
        for request_id in ("a", "b"):
            assert received.end(request_id).finished.reason == pb.FINISH_REASON_LENGTH
        assert received.end("waiting").failed.error.reason == "DRAINING"
        (late,) = received.of("late")
        assert late.rejected.error.reason == "DRAINING"
        # A call on which nothing was ever sent fails, so that its client tries elsewhere.
        assert (await receive(idle)).status.reason == "DRAINING"
        await stopping


async def test_after_the_grace_running_requests_fail_as_draining(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=250))
        await next_event(call, "tokens")
        stopping = asyncio.create_task(server.server.stop(grace_s=0))
        received = await receive(call)
        failed = received.end("a").failed
        assert (failed.error.code, failed.error.reason) == (pb.STATUS_CODE_UNAVAILABLE, "DRAINING")
        assert failed.usage.output_tokens > 0
        assert received.status.code is Code.OK
        await stopping


async def test_hurry_cuts_the_grace_short(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=250))
        await next_event(call, "tokens")
        second_signal = asyncio.Event()
        second_signal.set()
        await server.server.stop(3600, second_signal)
        assert (await receive(call)).end("a").HasField("failed")


def break_down(engine, *, times):
    """The engine's thread dies so often."""
    advance, left = engine.advance, iter(range(times))

    def broken():
        if next(left, None) is None:
            return advance()
        message = "the scheduler's memory is gone"
        raise RuntimeError(message)

    engine.advance = broken


async def test_a_lost_engine_fails_its_requests_and_restarts_in_place(serve):
    async with serve() as server:
        engine = server.server.gate.engine()
        expected = (await server.say(start("alone", prompt=[5, 6, 7]))).tokens("alone")
        watch = server.health_stub.Watch(health_pb2.HealthCheckRequest())
        statuses = [(await watch.read()).status]
        call = server.generation.Generate()
        for request_id in ("a", "b"):
            await call.write(start(request_id, max_tokens=250))
        events = await next_event(call, "tokens")
        while not any(e.request_id == "b" and e.HasField("tokens") for e in events):
            events += await next_event(call, "tokens")
        num_steps = (await server.load()).num_steps
        restart, may_restart = engine.restart, asyncio.Event()

        async def restart_later():
            await may_restart.wait()
            await restart()

        engine.restart = restart_later
        break_down(engine.engine, times=1)
        while sum(event.last for event in events) < 2:
            events += (await call.read()).events
        for event in events:
            if event.last:
                error = event.failed.error
                assert (error.code, error.reason) == (pb.STATUS_CODE_UNAVAILABLE, "ENGINE_DOWN")
        statuses.append((await watch.read()).status)
        refused = (await server.one(start("early"))).status
        assert (refused.code, refused.reason) == (Code.UNAVAILABLE, "ENGINE_DOWN")
        assert refused.retry_after_s == 1
        # What needs no steps goes on.
        assert await server.health("chairlift.v1.GenerationService") == "NOT_SERVING"
        assert await server.health("chairlift.v1.TokenizerService") == "SERVING"
        may_restart.set()
        statuses.append((await watch.read()).status)
        kinds = health_pb2.HealthCheckResponse
        assert statuses == [kinds.SERVING, kinds.NOT_SERVING, kinds.SERVING]
        # The call is open still, and so is the server.
        await call.write(start("c", prompt=[5, 6, 7]))
        await call.done_writing()
        received = await receive(call)
        assert received.tokens("c") == expected
        assert received.status.code is Code.OK
        assert (await server.until_idle()).num_steps > num_steps


async def test_an_engine_that_keeps_dying_is_dead(serve):
    async with serve() as server:
        call, idle = server.generation.Generate(), server.generation.Generate()
        await call.write(start("a", max_tokens=250))
        await call.write(start("b", max_tokens=250))
        await call.done_writing()
        events = await next_event(call, "tokens")
        while not any(e.request_id == "b" and e.HasField("tokens") for e in events):
            events += await next_event(call, "tokens")
        break_down(server.server.gate.engine().engine, times=1_000)
        received = await receive(call)
        for request_id in ("a", "b"):
            assert received.end(request_id).failed.error.reason == "ENGINE_DOWN"
        assert (await receive(idle)).status.reason == "ENGINE_DOWN"
        status = (await server.one(start("c"))).status
        assert (status.code, status.reason) == (Code.UNAVAILABLE, "ENGINE_DOWN")
        assert await server.health() == "NOT_SERVING"
        info = await server.info.GetServerInfo(server_pb2.GetServerInfoRequest())
        assert info.state == server_pb2.SERVER_STATE_DEAD


def test_an_engine_restarts_three_times_in_five_minutes():
    now = [0.0]
    budget = RestartBudget(lambda: now[0])
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    now[0] = 301.0
    assert budget.take()


async def test_a_fault_of_a_handler_is_internal_without_its_text(serve, caplog):
    async with serve() as server:

        def leak(*_):
            message = "secret"
            raise LookupError(message)

        server.server.gate.engine().engine.tokenizer.encode = leak
        request = pb.GenerateOneRequest(start=start("a", prompt="text").start)
        status = (await receive(server.generation.GenerateOne(request))).status
        assert (status.code, status.reason) == (Code.INTERNAL, "INTERNAL")
        assert "secret" not in status.message
        caplog.clear()
