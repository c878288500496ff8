"""The client for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from chairlift.api import checks
from chairlift.api.errors import ChairliftError, RequestError
from chairlift.api.types import Prompt
from chairlift.client.answer import Answer
from chairlift.client.calls import Awaiting, Call
from chairlift.client.options import RequestOptions
from chairlift.client.recovery import ABORT_S, Recovery
from chairlift.client.security import Security
from chairlift.client.shared import (
    BaseClient,
    BaseGeneration,
    BaseStream,
    stream_ended,
)
from chairlift.client.start import new_start
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2

R = TypeVar("R")


class AsyncGeneration(Awaiting, BaseGeneration):
    """One request and its answers; iterate it for the text as it comes.

    The request is sent when the iteration begins.
    """

    def __init__(
        self, client: "AsyncClient", start: pb.Start, recovery: Recovery | None = None
    ) -> None:
        super().__init__(start, recovery)
        self._is_resumed = recovery is not None
        self._client = client
        self._stream: _Stream | None = None
        self._events: asyncio.Queue[pb.Event | ChairliftError] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the text of the first answer, piece by piece; `events` has all answers.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        async for event in self.events():
            if event.HasField("tokens") and event.index == 0:
                yield event.tokens.text

    async def events(self) -> AsyncIterator[pb.Event]:
        """Yield the events as they are; leaving the loop early cancels the request.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        try:
            await self.send()
            while not self._is_over:
                yield self._take(await self._events.get())
        finally:
            if not self._is_over and self._stream is not None:
                # The loop may be left by an exception, where nothing can be awaited.
                self._stream.in_background(self.cancel())

    async def send(self) -> None:
        """Send the request now, if it has not been sent."""
        while self._stream is None:
            stream = self._client._open_stream()
            await (stream.resume(self) if self._is_resumed else stream.start(self))

    async def text(self) -> str:
        """Wait for the end and return the rest of the text."""
        return "".join([piece async for piece in self])

    async def all(self) -> list[Answer]:
        """Wait for the end and return the answers, in order.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        async for _ in self.events():
            pass
        return self.answers

    def _put(self, item: pb.Event | ChairliftError) -> None:
        self._events.put_nowait(item)

    async def _send(self, command: pb.GenerateRequest) -> None:
        if self._stream is not None and not self._is_over:
            await self._stream.send(command)


class _Stream(BaseStream):
    """One `Generate` call: a task hands its events to the generations."""

    def __init__(self, client: "AsyncClient") -> None:
        super().__init__()
        self._client = client
        self._call: Any = client._generation.Generate(metadata=client._metadata)
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Future[None]] = set()
        self.in_background(self._read())

    def in_background(self, work: Awaitable[None]) -> asyncio.Future[None]:
        """Run work that goes on where the caller does not wait for it, or no longer."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def start(self, generation: AsyncGeneration) -> bool:
        """Send a request; return False if the stream has ended."""
        if not self._add(generation):
            return False
        # Known before it is sent: a caller that is cancelled meanwhile cancels the request.
        generation._stream = self
        await self.send(pb.GenerateRequest(start=generation._start))
        return True

    async def resume(self, generation: AsyncGeneration) -> bool:
        """Send the command that resumes a request; return False if the stream has ended."""
        if not self._add(generation):
            return False
        generation._stream = self
        await self.send(generation._recovery.command(generation.request_id))
        return True

    async def send(self, command: pb.GenerateRequest) -> None:
        """Send a command.

        It is sent even if the caller is cancelled: gRPC cancels the call of a write that is, and
        with it the requests of others.
        """
        await asyncio.shield(self.in_background(self._write(command)))

    async def half_close(self) -> None:
        """Tell the server that no command follows."""
        await asyncio.shield(self.in_background(self._done_writing()))

    async def _write(self, command: pb.GenerateRequest) -> None:
        async with self._writing:
            # The reader learns why it fails and ends every generation.
            with suppress(grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                await self._call.write(command)

    async def _done_writing(self) -> None:
        async with self._writing:
            if not self._call.done():
                await self._call.done_writing()

    async def close(self) -> None:
        """Break the call, which cancels its requests."""
        self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        error = None
        try:
            async for response in self._call:
                self._dispatch(response)
        except grpc.RpcError as failure:
            error = self._client._failure(failure)
        finally:
            lost, delay_s = self._end(error)
            if lost:
                self._client._resume_later(lost, delay_s, error)


class AsyncClient(Awaiting, BaseClient):
    """A connection whose requests share one stream; for one event loop."""

    def __init__(self, address: str, security: Security | None = None) -> None:
        """Prepare a connection.

        Args:
            address: HOST:PORT or unix:PATH.
            security: None is plain text without a token.

        Raises:
            ConfigError: From `security`, or the address is malformed.
        """
        super().__init__(address, security, grpc.aio)
        self._stream: _Stream | None = None
        self._resuming: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; live requests are cancelled."""
        self._is_closed = True
        for task in tuple(self._resuming):
            task.cancel()
        await asyncio.gather(*self._resuming, return_exceptions=True)
        stream, self._stream = self._stream, None
        if stream is not None:
            await self._abort(stream._outliving())
            await stream.close()
        await self._channel.close()

    @property
    def channel(self) -> Any:
        """Return the `grpc.aio.Channel`, for calls that have no method here."""
        return self._channel

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncGeneration:
        """Return a request that is sent when it is iterated; see `RequestOptions`."""
        return self.submit(new_start(prompt, **options))

    def submit(self, start: pb.Start) -> AsyncGeneration:
        """Return a generation of a request that is built already; an empty request_id is filled."""
        return AsyncGeneration(self, self._labelled(start))

    def resume(
        self, handle: str, *, after_number: int = 0, resume_window_s: float | None = None
    ) -> AsyncGeneration:
        """Return the rest of a request of another client or stream, which must have a window.

        Args:
            handle: From `AsyncGeneration.handle`.
            after_number: The events after this one come again.
            resume_window_s: How long this client tries to resume it in turn; None is not at all.
        """
        recovery = Recovery(resume_window_s or 0.0, handle)
        recovery.after_number = checks.integer(after_number, "after_number", 0, 2**32 - 1)
        return AsyncGeneration(self, self._labelled(pb.Start()), recovery)

    def _resume_later(
        self, lost: list[AsyncGeneration], delay_s: float, error: ChairliftError | None
    ) -> None:
        """Resume requests of a stream that was lost."""
        if self._is_closed:
            for generation in lost:
                generation._put(error or stream_ended())
            return
        task = asyncio.ensure_future(self._resume(lost, delay_s, error))
        self._resuming.add(task)
        task.add_done_callback(self._resuming.discard)

    async def _resume(
        self, lost: list[AsyncGeneration], delay_s: float, error: ChairliftError | None
    ) -> None:
        left = list(lost)
        try:
            await asyncio.sleep(delay_s)
            while left and not self._is_closed:
                try:
                    if await self._open_stream().resume(left[-1]):
                        left.pop()
                except RequestError as refusal:
                    left.pop()._put(refusal)
        finally:
            for generation in left:
                generation._put(error or stream_ended())

    async def _abort(self, requests: list[pb.AbortRequest]) -> None:
        # Its window ends a request that is not reached.
        calls = [
            self._generation.Abort(request, timeout=ABORT_S, metadata=self._metadata)
            for request in requests
        ]
        await asyncio.gather(*calls, return_exceptions=True)

    async def generate_all(self, starts: list[pb.Start]) -> list[AsyncGeneration]:
        """Send requests on a stream of their own, half-closed: a static batch need not wait."""
        stream = _Stream(self)
        generations = [self.submit(start) for start in starts]
        for generation in generations:
            generation._stream = stream
            if not await stream.start(generation):
                generation._put(stream_ended())
        await stream.half_close()
        return generations

    def _open_stream(self) -> _Stream:
        if self._stream is None or self._stream.is_over:
            self._stream = _Stream(self)
        return self._stream

    def stream(
        self, commands: AsyncIterator[pb.GenerateRequest]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Open a `Generate` call of its own, message by message; it raises what gRPC raises."""
        call: AsyncIterator[pb.GenerateResponse] = self._generation.Generate(
            commands, metadata=self._metadata
        )
        return call

    async def watch_steps(self) -> AsyncIterator[server_pb2.Step]:
        """Return an iterator over every step from now on; the watch has begun then."""
        call, watch = self._open(self._step_watch())
        await call.initial_metadata()
        return _results(call, watch, self._failure)

    def watch_load(
        self, interval_s: float = 1.0, *, block_map: bool = False
    ) -> AsyncIterator[server_pb2.Load]:
        """Yield the load now and then once per interval.

        Args:
            interval_s: Seconds.
            block_map: Whether each load has the map of the KV blocks.

        Raises:
            RequestError: The model is still loading.
            ServerError: The connection was lost.
        """
        call, watch = self._open(self._load_watch(interval_s, block_map=block_map))
        return _results(call, watch, self._failure)

    def _open(self, watch: Call[Iterable[R]]) -> tuple[Any, Call[Iterable[R]]]:
        return watch.method(watch.request, metadata=self._metadata), watch

    async def _call(self, call: Call[R]) -> R:
        try:
            return call.result(await call.method(call.request, metadata=self._metadata))
        except grpc.RpcError as failure:
            raise self._failure(failure) from None


async def _results(
    call: Any, watch: Call[Iterable[R]], failure_of: Callable[[Any], ChairliftError]
) -> AsyncIterator[R]:
    try:
        async for response in call:
            for result in watch.result(response):
                yield result
    except grpc.RpcError as failure:
        raise failure_of(failure) from None
    finally:
        call.cancel()
