"""The Python clients resume by themselves what a cut connection has lost."""

import asyncio

import grpc
import pytest
from chairlift.api.errors import Reason, RequestError, ServerError
from chairlift.client import connect, connect_async
from chairlift.client.recovery import FIRST_DELAY_S, MAX_DELAY_S, Recovery
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2, server_pb2_grpc

from tests.chaos.cutter import Cutter
from tests.server.connection import until

LONG = {"max_tokens": 200, "temperature": 0, "ignore_eos": True, "token_ids": True}
PROMPT = [1, 2, 3]


async def test_an_async_client_gets_every_token_over_connections_that_are_cut(serve):
    async with serve() as server, Cutter.before(server.address) as cutter:
        async with connect_async(server.address) as client:
            (whole,) = await client.generate(PROMPT, **LONG).all()
        async with connect_async(cutter.address) as client:
            generation = client.generate(PROMPT, resume_window_s=60, **LONG)
            numbers = []
            async for event in generation.events():
                numbers.append(event.number)
                if len(numbers) in (2, 5, 10):
                    cutter.cut()
            assert generation.answers[0].token_ids == whole.token_ids
            assert numbers == sorted(set(numbers))
            assert cutter.num_cuts >= 1
        await server.until_idle()


async def test_a_blocking_client_does_too(serve):
    async with serve() as server, Cutter.before(server.address) as cutter:
        loop = asyncio.get_running_loop()

        def work():
            with connect(cutter.address) as client:
                generation = client.generate(PROMPT, resume_window_s=60, **LONG)
                for i, _ in enumerate(generation.events()):
                    if i in (2, 5):
                        asyncio.run_coroutine_threadsafe(cut(), loop).result()
                return generation.answers[0]

        async def cut():
            cutter.cut()

        answer = await asyncio.to_thread(work)
        async with connect_async(server.address) as client:
            (whole,) = await client.generate(PROMPT, **LONG).all()
        assert answer.token_ids == whole.token_ids
        assert cutter.num_cuts == 2
        await server.until_idle()


async def test_without_a_window_a_cut_is_an_error(serve):
    async with serve() as server, Cutter.before(server.address) as cutter:
        async with connect_async(cutter.address) as client:
            generation = client.generate(PROMPT, **LONG)
            events = generation.events()
            await anext(events)
            cutter.cut()
            with pytest.raises(ServerError):
                await generation.text()
            await events.aclose()
        await server.until_idle()


async def test_another_client_resumes_what_the_first_has_left(serve):
    async with serve() as server:
        async with connect_async(server.address) as client:
            (whole,) = await client.generate(PROMPT, **LONG).all()
        async with Cutter.before(server.address) as cutter, connect_async(cutter.address) as first:
            generation = first.generate(PROMPT, resume_window_s=60, **LONG)
            events = generation.events()
            async for event in events:
                if event.HasField("tokens"):
                    break
            handle, number = generation.handle, generation.last_number
            got = list(generation.answers[0].token_ids)
            async with connect_async(server.address) as second:
                rest = second.resume(handle, after_number=number)
                (answer,) = await rest.all()
            assert got + answer.token_ids == whole.token_ids
            with pytest.raises(RequestError) as taken:
                async for _ in generation.events():
                    pass
            assert taken.value.reason is Reason.RESUMED_ELSEWHERE
            await events.aclose()


async def test_a_client_that_closes_ends_its_requests_with_a_window_too(serve):
    async with serve() as server:
        async with connect_async(server.address) as client:
            generation = client.generate(PROMPT, resume_window_s=60, **LONG)
            await generation.send()
            await until(lambda: generation.handle)
        await server.until_idle()

        def work():
            with connect(server.address) as client:
                generation = client.generate(PROMPT, resume_window_s=60, **LONG)
                next(generation.events())

        await asyncio.to_thread(work)
        await server.until_idle()


async def test_a_server_that_does_not_come_back_is_an_error_after_the_window(serve):
    async with serve() as server, connect_async(server.address) as client:
        generation = client.generate(PROMPT, resume_window_s=0.3, **LONG)
        events = generation.events()
        await anext(events)
        await server.server.stop(0)
        with pytest.raises((ServerError, RequestError)):
            await generation.text()
        await events.aclose()


async def test_a_call_that_finds_no_server_for_a_moment_is_sent_again():
    attempts = []

    class Server(server_pb2_grpc.ServerServiceServicer):
        async def GetLoad(self, request, context):
            attempts.append(request)
            if len(attempts) < 3:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
            return server_pb2.GetLoadResponse(load=server_pb2.Load(num_waiting=7))

    server = grpc.aio.server()
    server_pb2_grpc.add_ServerServiceServicer_to_server(Server(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect_async(f"127.0.0.1:{port}") as client:
        assert (await client.load()).num_waiting == 7
    assert len(attempts) == 3
    await server.stop(None)


def test_attempts_wait_longer_each_time_and_end_with_the_window():
    now = [0.0]
    recovery = Recovery(10.0, "handle", clock=lambda: now[0])
    delays = []
    while (delay_s := recovery.delay_s(ServerError("cut"))) is not None:
        delays.append(delay_s)
        now[0] += delay_s
    assert delays[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert max(delays) == MAX_DELAY_S
    assert sum(delays) == pytest.approx(10.0)
    recovery.note(pb.Event(number=7))
    assert recovery.delay_s(None) == FIRST_DELAY_S
    assert recovery.command("a").resume.after_number == 7
    assert recovery.delay_s(RequestError(Reason.BAD_PARAMETER, "no")) is None
    assert Recovery(10.0).delay_s(None) is None
