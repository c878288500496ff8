"""The client for asyncio."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chairlift import checks
from chairlift.client.address import checked_address
from chairlift.client.failures import from_call, is_end
from chairlift.client.options import RequestOptions
from chairlift.client.progress import Answer, Progress
from chairlift.client.security import Metadata, Security
from chairlift.client.start import checked_credit, duration_of, new_start
from chairlift.errors import ChairliftError, Reason, RequestError, ServerError
from chairlift.types import Prompt
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import (
    generation_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)


class AsyncGeneration(Progress):
    """One request and its answer; iterate it for the text as it comes.

    The request is sent when the iteration begins.
    """

    def __init__(self, client: "AsyncClient", start: pb.Start) -> None:
        super().__init__(start)
        self._client = client
        self._start = start
        self._stream: _Stream | None = None
        self._events: asyncio.Queue[pb.Event | ChairliftError] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Gives the text of the first answer, piece by piece; `events` has all answers.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        async for event in self.events():
            if event.HasField("tokens") and event.index == 0:
                yield event.tokens.text

    async def events(self) -> AsyncIterator[pb.Event]:
        """Gives the events as they are; leaving the loop early cancels the request.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        await self.send()
        try:
            while not self._is_over:
                yield self._take(await self._events.get())
        finally:
            if not self._is_over and self._stream is not None:
                self._stream.cancel_later(self.request_id)

    async def send(self) -> None:
        """Sends the request now, if it has not been sent."""
        while self._stream is None:
            stream = self._client._open_stream()
            if await stream.start(self._start, self):
                self._stream = stream

    async def text(self) -> str:
        """Waits for the end and gives the rest of the text."""
        return "".join([piece async for piece in self])

    async def all(self) -> list[Answer]:
        """Waits for the end and gives the answers, in order.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        async for _ in self.events():
            pass
        return self.answers

    async def cancel(self) -> None:
        """Ends the request early; its last event tells so."""
        if self._stream is not None and not self._is_over:
            await self._stream.cancel(self.request_id)

    async def update(
        self, *, stopping: pb.Stopping | None = None, schedule: pb.Schedule | None = None
    ) -> None:
        """Changes the request from its next step on; what is set replaces the whole of the old.

        A value that is wrong changes nothing: `rejected` has the error when its event is read.
        """
        if self._stream is not None and not self._is_over:
            update = pb.Update(request_id=self.request_id, stopping=stopping, schedule=schedule)
            await self._stream.send(pb.GenerateRequest(update=update))

    async def credit(self, tokens: int) -> None:
        """Allows so many more tokens; for a request that was begun with a credit."""
        if self._stream is not None and not self._is_over:
            credit = pb.Credit(request_id=self.request_id, tokens=checked_credit(tokens))
            await self._stream.send(pb.GenerateRequest(credit=credit))

    def _put(self, event: pb.Event | ChairliftError) -> None:
        self._events.put_nowait(event)


class _Stream:
    """One `Generate` call: a task hands its events to the generations."""

    def __init__(self, stub: generation_pb2_grpc.GenerationServiceStub, metadata: Metadata) -> None:
        self._call: Any = stub.Generate(metadata=metadata)
        self._live: dict[str, AsyncGeneration] = {}
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_over = False
        self._in_background(self._read())

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def start(self, start: pb.Start, generation: AsyncGeneration) -> bool:
        """Sends a request; False when the stream has ended meanwhile."""
        if self.is_over:
            return False
        if start.request_id in self._live:
            message = "request_id: a live request of this client has the same"
            raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field="request_id")
        self._live[start.request_id] = generation
        await self._write(pb.GenerateRequest(start=start))
        return True

    async def send(self, command: pb.GenerateRequest) -> None:
        """Sends a command."""
        await self._write(command)

    async def cancel(self, request_id: str) -> None:
        """Asks for the end of a request."""
        await self._write(pb.GenerateRequest(cancel=pb.Cancel(request_id=request_id)))

    def cancel_later(self, request_id: str) -> None:
        """The same for callers that must not wait."""
        if not self.is_over:
            self._in_background(self.cancel(request_id))

    async def half_close(self) -> None:
        """Tells the server that no command follows."""
        async with self._writing:
            if not self._call.done():
                await self._call.done_writing()

    async def close(self) -> None:
        """Breaks the call, which cancels its requests."""
        self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, command: pb.GenerateRequest) -> None:
        async with self._writing:
            try:
                await self._call.write(command)
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # The reader learns why and tells every generation.

    async def _read(self) -> None:
        error: ChairliftError = ServerError("the stream has ended")
        try:
            async for response in self._call:
                for event in response.events:
                    self._dispatch(event)
        except grpc.RpcError as failure:
            error = from_call(failure)
        finally:
            self.is_over = True
            lost, self._live = list(self._live.values()), {}
            for generation in lost:
                generation._put(error)

    def _dispatch(self, event: pb.Event) -> None:
        generation = self._live.get(event.request_id)
        if generation is None:
            return
        if is_end(event):
            del self._live[event.request_id]
        generation._put(event)


class AsyncClient:
    """A connection whose requests share one stream; for one event loop."""

    def __init__(self, address: str, security: Security | None = None) -> None:
        """Prepares a connection.

        Args:
            address: HOST:PORT or unix:PATH.
            security: None is plain text without a token.

        Raises:
            ConfigError: From `security`, or the address is none.
        """
        address = checked_address(address)
        security = security or Security()
        self._metadata = security.metadata(address)
        credentials = security.credentials()
        self._channel: Any = (
            grpc.aio.insecure_channel(address)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials)
        )
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._server = server_pb2_grpc.ServerServiceStub(self._channel)
        self._tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._numbers = itertools.count(1)
        self._stream: _Stream | None = None

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection; live requests are cancelled."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()
        await self._channel.close()

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncGeneration:
        """Gives a request that is sent when it is iterated; see `RequestOptions`."""
        return self.submit(new_start(prompt, **options))

    def submit(self, start: pb.Start) -> AsyncGeneration:
        """The same for a request that is built already; an empty request_id is filled."""
        if not start.request_id:
            start.request_id = f"r{next(self._numbers)}"
        return AsyncGeneration(self, start)

    async def generate_all(self, starts: list[pb.Start]) -> list[AsyncGeneration]:
        """Sends requests on a stream of their own, half-closed: a static batch need not wait."""
        stream = _Stream(self._generation, self._metadata)
        generations = [self.submit(start) for start in starts]
        for start, generation in zip(starts, generations, strict=True):
            generation._stream = stream
            if not await stream.start(start, generation):
                generation._put(ServerError("the stream has ended"))
        await stream.half_close()
        return generations

    def _open_stream(self) -> _Stream:
        if self._stream is None or self._stream.is_over:
            self._stream = _Stream(self._generation, self._metadata)
        return self._stream

    def stream(
        self, commands: AsyncIterator[pb.GenerateRequest]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """A `Generate` call of its own, message by message; it raises what gRPC raises."""
        call: AsyncIterator[pb.GenerateResponse] = self._generation.Generate(
            commands, metadata=self._metadata
        )
        return call

    async def abort(self, handle: str) -> bool:
        """Ends a request of any connection by its handle; tells whether it was live."""
        checks.utf8_len(handle, "handle")
        response = await self._call(self._generation.Abort, pb.AbortRequest(handle=handle))
        return bool(response.num_aborted)

    async def tokenize(self, text: str) -> list[int]:
        """Asks for the tokens of a text."""
        checks.utf8_len(text, "text")
        request = tokenizer_pb2.TokenizeRequest(text=text)
        return list((await self._call(self._tokenizer.Tokenize, request)).token_ids)

    async def server_info(self) -> server_pb2.GetServerInfoResponse:
        """Asks for the process and its settings."""
        response: server_pb2.GetServerInfoResponse = await self._call(
            self._server.GetServerInfo, server_pb2.GetServerInfoRequest()
        )
        return response

    async def model_info(self) -> server_pb2.GetModelInfoResponse:
        """Asks for the served model."""
        response: server_pb2.GetModelInfoResponse = await self._call(
            self._server.GetModelInfo, server_pb2.GetModelInfoRequest()
        )
        return response

    async def load(self) -> server_pb2.Load:
        """Asks how busy the server is."""
        response: server_pb2.GetLoadResponse = await self._call(
            self._server.GetLoad, server_pb2.GetLoadRequest()
        )
        return response.load

    async def is_serving(self) -> bool:
        """Asks whether a request would be answered."""
        response = await self._call(self._health.Check, health_pb2.HealthCheckRequest())
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    async def watch_steps(self) -> AsyncIterator[server_pb2.Step]:
        """Gives every step from now on; the watch has begun when this returns."""
        call: Any = self._server.WatchSteps(server_pb2.WatchStepsRequest(), metadata=self._metadata)
        await call.initial_metadata()
        return self._steps(call)

    async def watch_load(self, interval_s: float = 1.0) -> AsyncIterator[server_pb2.Load]:
        """Gives the load now and then once per interval.

        Raises:
            RequestError: The model is still loading.
            ServerError: The connection was lost.
        """
        request = server_pb2.WatchLoadRequest(interval=duration_of(interval_s, "interval"))
        call: Any = self._server.WatchLoad(request, metadata=self._metadata)
        try:
            async for response in call:
                yield response.load
        except grpc.RpcError as failure:
            raise from_call(failure) from None
        finally:
            call.cancel()

    async def _steps(self, call: Any) -> AsyncIterator[server_pb2.Step]:
        try:
            async for response in call:
                for step in response.steps:
                    yield step
        except grpc.RpcError as failure:
            raise from_call(failure) from None
        finally:
            call.cancel()

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise from_call(failure) from None
