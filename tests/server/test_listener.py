"""The port stays open whatever comes in, and a server that loses its port says so and ends."""

import asyncio
import gc
from types import SimpleNamespace

import grpc
import pytest
from chairlift.api.config import engine_config
from chairlift.server.app.run import run_server
from chairlift.server.config import ServerConfig
from chairlift.server.rpc import listener
from chairlift.server.rpc.listen import TcpAddress, UnixAddress
from chairlift.server.rpc.listener import until_lost
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc
from grpc._cython import cygrpc

from tests.server import raw_http2
from tests.server.connection import next_event, receive, start

GENERATE = b"/chairlift.v1.GenerationService/Generate"
NO_TEXT = {
    "not UTF-8": b"/\xff",
    "a cut character": GENERATE + b"\xc3",
    "a valid path before it": GENERATE + b"\xff\xfe",
    "empty": b"",
    "no slash": b"x",
    "text of no service": b"/nothing/here",
    "control characters": b"/\x01\x02",
}


async def answer_to(path, address):
    """Everything that the server answers to one call of this path, up to its end."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw_http2.preface() + raw_http2.call(path))
    answer = b""
    # UNIMPLEMENTED, or the end of a connection whose headers are no HTTP/2.
    while b"grpc-status" not in answer and (read := await reader.read(4096)):
        answer += read
    writer.close()
    return answer


@pytest.mark.parametrize("path", NO_TEXT.values(), ids=NO_TEXT.keys())
async def test_after_a_call_of_any_path_streams_go_on_and_new_ones_begin(serve, path):
    async with serve() as server:
        running = server.generation.Generate()
        await running.write(start("a", max_tokens=200))
        events = await next_event(running, "tokens")
        await answer_to(path, server.address)
        async with grpc.aio.insecure_channel(server.address) as other:
            stub = generation_pb2_grpc.GenerationServiceStub(other)
            received = await receive(stub.Generate(iter([start("b")])))
        assert received.end("b").finished.reason == pb.FINISH_REASON_LENGTH
        await running.done_writing()
        received = await receive(running)
        received.events[:0] = events
        assert received.end("a").finished.reason == pb.FINISH_REASON_LENGTH
        assert len(received.tokens("a")) == 200


async def test_a_path_that_is_not_utf_8_is_an_unknown_method(serve):
    async with serve() as server:
        assert b"grpc-status" in await answer_to(b"/\xff", server.address)


async def test_many_such_calls_on_one_connection_are_all_answered(serve):
    async with serve() as server:
        path = server.address.removeprefix("unix:")
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(raw_http2.preface())
        streams = range(1, 201, 2)
        writer.writelines(raw_http2.call(b"/\xff%d" % i, stream=i) for i in streams)
        ended = set()
        while len(ended) < len(streams):
            head = await reader.readexactly(9)
            size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            await reader.readexactly(size)
            if kind == raw_http2.HEADERS and flags & raw_http2.END_STREAM:
                ended.add(int.from_bytes(head[5:9], "big"))
        assert ended == set(streams)
        writer.close()


async def test_a_listener_that_answers_is_not_lost_and_one_that_is_closed_is(tmp_path):
    async def answer(_reader, writer):
        writer.write(b"!")
        writer.close()

    for server, address in (
        (await asyncio.start_server(answer, "127.0.0.1", 0), None),
        (await asyncio.start_unix_server(answer, tmp_path / "s"), UnixAddress(tmp_path / "s")),
    ):
        if address is None:
            address = TcpAddress(*server.sockets[0].getsockname()[:2])
        answered = asyncio.Event()
        watching = asyncio.create_task(until_lost(address, period_s=0.01, on_answer=answered.set))
        await answered.wait()
        assert not watching.done()
        server.close()
        await watching


async def test_a_port_that_never_answered_is_not_lost(free_port):
    watching = asyncio.create_task(until_lost(TcpAddress("127.0.0.1", free_port), period_s=0.001))
    done, _ = await asyncio.wait([watching], timeout=0.2)
    assert not done
    watching.cancel()


def fail_to_accept(loop, work, **options):
    if getattr(work, "__name__", "") == "_request_registered_call":
        work.close()
        message = "out of calls"
        raise RuntimeError(message)
    return asyncio.Task(work, loop=loop, **options)


async def test_a_server_that_loses_its_accept_loop_ends_with_70(tiny_folder, tmp_path, caplog):
    ready = asyncio.Event()
    config = ServerConfig(model=str(tiny_folder), listen=f"unix:{tmp_path}/lift.sock")
    running = asyncio.create_task(run_server(engine_config(), config, lambda _: ready.set()))
    await ready.wait()
    async with grpc.aio.insecure_channel(config.listen) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        await call.write(start("a", max_tokens=1))
        await next_event(call, "finished")
        # A fault that gRPC does not expect: where it accepts the next call of a method.
        asyncio.get_running_loop().set_task_factory(fail_to_accept)
        await channel.unary_unary("/chairlift.v1.ServerService/GetServerInfo")(b"")
        assert await running == 70
        assert (await receive(call)).status.code is grpc.StatusCode.UNAVAILABLE
    assert "the port is lost" in caplog.text
    # The accept loop gave up the requests that were pending; they failed at the shutdown.
    gc.collect()
    assert "never retrieved" not in caplog.text


PLAIN = cygrpc.AioServer
OTHER_PARTS = {
    "no accept loop": {},
    "no way to refuse": {"AioServer": PLAIN, "_MethodResolver": 1, "_schedule_rpc_coro": 1},
    "no report of a fault": {"AioServer": object},
}


@pytest.mark.parametrize("parts", OTHER_PARTS.values(), ids=OTHER_PARTS)
async def test_with_a_grpc_of_other_parts_the_server_serves_on_its_own_loop(
    serve, monkeypatch, caplog, parts
):
    monkeypatch.setattr(listener, "cygrpc", SimpleNamespace(**parts))
    async with serve() as server:
        assert (await server.say(start("a"))).end("a").HasField("finished")
        assert type(server.server._ports.grpc._server) is PLAIN
    assert caplog.text.count("has another accept loop") == 1
