"""Whatever a handler does, its call ends with a status that shows nothing secret."""

import asyncio
import gc
import logging
import weakref
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.server.rpc.status_interceptor import StatusInterceptor
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import Status, start
from tests.server.raw_http2 import (
    GENERATE,
    GENERATE_ONE,
    message,
    raw_client,
)

SECRET = "the pointer is 0xdeadbeef"


class Panic(BaseException):
    """A panic in Rust is no Exception."""


async def cancelled_future():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def raised(error):
    raise error


FAULTS = {
    "exception": lambda: raised(ValueError(SECRET)),
    "panic": lambda: raised(Panic(SECRET)),
    "cancelled error": lambda: raised(asyncio.CancelledError(SECRET)),
    "cancelled future": cancelled_future,
    "exit": lambda: raised(SystemExit(SECRET)),
}


@asynccontextmanager
async def guarded(tmp_path, fault, on_end=lambda: None):
    """A server whose four kinds of methods all end in the fault; streams say when they end."""

    async def unary(request, context):
        await fault()

    async def stream(request, context):
        try:
            await context.write(b"one")
            await fault()
        finally:
            on_end()

    async def generator(request, context):
        yield b"one"
        await fault()

    handlers = {
        "UnaryUnary": grpc.unary_unary_rpc_method_handler(unary),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(unary),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(stream),
        "StreamStream": grpc.stream_stream_rpc_method_handler(generator),
    }
    server = grpc.aio.server(interceptors=(StatusInterceptor(),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    address = f"unix:{tmp_path}/guard.sock"
    server.add_insecure_port(address)
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel
    await server.stop(None)


class Request:
    """What a handler holds."""


@pytest.mark.parametrize("kind", ["UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream"])
async def test_what_a_refused_call_held_is_freed_without_a_collection_of_garbage(tmp_path, kind):
    held = []

    async def fault():
        request = Request()
        held.append(weakref.ref(request))
        raise RequestError(Reason.BAD_PARAMETER, "wrong")

    async with guarded(tmp_path, fault) as channel:
        gc.collect()
        gc.disable()
        try:
            call = channel.stream_stream(f"/test/{kind}")(iter([b"a"]))
            with pytest.raises(grpc.aio.AioRpcError, match="wrong"):
                async for _ in call:
                    pass
            # The server's side of the call ends by itself, a moment later.
            async with asyncio.timeout(10):
                while held[0]() is not None:
                    await asyncio.sleep(0)
        finally:
            gc.enable()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_every_fault_of_every_kind_of_method_is_internal(tmp_path, fault):
    async with guarded(tmp_path, fault) as channel:
        calls = (
            channel.unary_unary("/test/UnaryUnary")(b""),
            channel.stream_unary("/test/StreamUnary")(iter([b""])),
            channel.unary_stream("/test/UnaryStream")(b""),
            channel.stream_stream("/test/StreamStream")(iter([b""])),
        )
        for call in calls:
            status = await end(call)
            assert status.code is grpc.StatusCode.INTERNAL
            assert status.reason == "INTERNAL"
            assert "0x" not in status.message


async def test_a_client_that_cancels_ends_the_handler(tmp_path):
    ended = asyncio.Event()
    # The client may have the message before the handler's write returns, and cancel it there.
    async with guarded(tmp_path, asyncio.Event().wait, ended.set) as channel:
        call = channel.unary_stream("/test/UnaryStream")(b"")
        assert await call.read() == b"one"
        call.cancel()
        await ended.wait()


async def end(call):
    try:
        if hasattr(call, "read"):
            while await call.read() is not grpc.aio.EOF:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return Status.of(error)
    return Status()


@pytest.mark.parametrize("path", [GENERATE, GENERATE_ONE])
async def test_a_reset_amid_a_write_is_no_error_of_the_server(serve, caplog, path):
    caplog.set_level(logging.DEBUG, "chairlift")

    def amid_a_write():
        return "the client ended the call amid a write" in caplog.messages

    def complaints():
        return [record for record in caplog.records if record.levelno >= logging.WARNING]

    commands = {
        GENERATE: start("a", max_tokens=250),
        GENERATE_ONE: pb.GenerateOneRequest(start=start("a", max_tokens=250).start),
    }
    async with serve(listen="127.0.0.1:0") as server:
        async with raw_client(server.address) as client:
            # Some resets meet a write, and some do not.
            while not amid_a_write() and not complaints():
                streams = [client.begin(path) for _ in range(8)]
                for stream in streams:
                    await client.send(stream, message(commands[path].SerializeToString()))
                while (await server.load()).num_running < 8:
                    pass
                for stream in streams:
                    client.reset(stream)
                await server.until_idle()
        await server.until_idle()
    assert not complaints()


async def test_a_client_that_is_gone_before_the_status_is_no_failure(caplog):
    """The call's reset makes gRPC raise an error of its own as the status is sent."""

    class Reset:
        """The context of a call whose client is gone."""

        def peer(self):
            return "unix:"

        async def write(self, data):
            raise AssertionError

        async def abort_with_status(self, status):
            raise grpc.aio.InternalError

    async def refuse(request, context):
        raise RequestError(Reason.BAD_PARAMETER, "input: expected a text")

    async def messages():
        yield b""

    handler = grpc.unary_unary_rpc_method_handler(refuse)
    continuation = asyncio.Future()
    continuation.set_result(handler)
    reasons = []
    interceptor = StatusInterceptor(on_failure=lambda _, reason: reasons.append(reason))
    details = SimpleNamespace(method="/test/UnaryUnary")
    wrapped = await interceptor.intercept_service(lambda _: continuation, details)
    with caplog.at_level(logging.WARNING):
        await wrapped.stream_stream(messages(), Reset())
    assert reasons == [Reason.BAD_PARAMETER]
    assert not caplog.records
