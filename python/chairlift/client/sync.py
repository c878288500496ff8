"""The client for threads."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

import grpc

from chairlift.api import checks
from chairlift.api.errors import ChairliftError, RequestError
from chairlift.api.types import Prompt
from chairlift.client.answer import Answer
from chairlift.client.calls import Blocking, Call
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

_HALF_CLOSE: Final = None


class Generation(Blocking, BaseGeneration):
    """One request and its answers; iterate it for the text as it comes."""

    def __init__(
        self, stream: "_Stream", start: pb.Start, recovery: Recovery | None = None
    ) -> None:
        super().__init__(start, recovery)
        self._stream = stream
        self._events: queue.SimpleQueue[pb.Event | ChairliftError] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[str]:
        """Yield the text of the first answer, piece by piece; `events` has all answers.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        for event in self.events():
            if event.HasField("tokens") and event.index == 0:
                yield event.tokens.text

    def events(self) -> Iterator[pb.Event]:
        """Yield the events as they are; leaving the loop early cancels the request.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        try:
            while not self._is_over:
                yield self._take(self._events.get())
        finally:
            if not self._is_over:
                self.cancel()

    def text(self) -> str:
        """Wait for the end and return the rest of the text."""
        return "".join(self)

    def all(self) -> list[Answer]:
        """Wait for the end and return the answers, in order.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        for _ in self.events():
            pass
        return self.answers

    def _put(self, item: pb.Event | ChairliftError) -> None:
        self._events.put(item)

    def _send(self, command: pb.GenerateRequest) -> None:
        self._stream.send(command)


class _Stream(BaseStream):
    """One `Generate` call: a thread hands its events to the generations."""

    def __init__(self, client: "Client") -> None:
        super().__init__()
        self._client = client
        self._commands: queue.SimpleQueue[pb.GenerateRequest | None] = queue.SimpleQueue()
        commands = iter(self._commands.get, _HALF_CLOSE)
        self._call: Any = client._generation.Generate(commands, metadata=client._metadata)
        threading.Thread(target=self._read, name="chairlift-client", daemon=True).start()

    def start(self, start: pb.Start) -> Generation | None:
        """Send a request; return None if the stream has ended."""
        generation = Generation(self, start)
        if not self._add(generation):
            return None
        self.send(pb.GenerateRequest(start=start))
        return generation

    def resume(self, generation: Generation) -> bool:
        """Send the command that resumes a request; return False if the stream has ended."""
        if not self._add(generation):
            return False
        generation._stream = self
        self.send(generation._recovery.command(generation.request_id))
        return True

    def send(self, command: pb.GenerateRequest) -> None:
        """Send a command."""
        self._commands.put(command)

    def half_close(self) -> None:
        """Tell the server that no command follows."""
        self._commands.put(_HALF_CLOSE)

    def cancel(self) -> None:
        """Break the call, which cancels its requests."""
        self._call.cancel()
        self.half_close()

    def _read(self) -> None:
        error = None
        try:
            for response in self._call:
                self._dispatch(response)
        except grpc.RpcError as failure:
            error = self._client._failure(failure)
        lost, delay_s = self._end(error)
        self.half_close()
        if lost:
            self._client._resume_later(lost, delay_s, error)


class Client(Blocking, BaseClient):
    """A connection whose requests share one stream; safe to use from many threads."""

    def __init__(self, address: str, security: Security | None = None) -> None:
        """Prepare a connection.

        Args:
            address: HOST:PORT or unix:PATH.
            security: None is plain text without a token.

        Raises:
            ConfigError: From `security`, or the address is malformed.
        """
        super().__init__(address, security, grpc)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._stream: _Stream | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; live requests are cancelled."""
        self._closed.set()
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            self._abort(stream._outliving())
            stream.cancel()
        self._channel.close()

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Generation:
        """Send a request; see `RequestOptions`."""
        return self.submit(new_start(prompt, **options))

    def submit(self, start: pb.Start) -> Generation:
        """Send a request that is built already; an empty request_id is filled.

        Raises:
            RequestError: A live request of this client has the same request_id.
        """
        self._labelled(start)
        while True:
            generation = self._open_stream().start(start)
            if generation is not None:
                return generation

    def resume(
        self, handle: str, *, after_number: int = 0, resume_window_s: float | None = None
    ) -> Generation:
        """Continue a request of another client or stream, which must have a window for it.

        Args:
            handle: From `Generation.handle`.
            after_number: The events after this one come again.
            resume_window_s: How long this client tries to resume it in turn; None is not at all.
        """
        recovery = Recovery(resume_window_s or 0.0, handle)
        recovery.after_number = checks.integer(after_number, "after_number", 0, 2**32 - 1)
        start = self._labelled(pb.Start())
        while True:
            stream = self._open_stream()
            generation = Generation(stream, start, recovery)
            if stream.resume(generation):
                return generation

    def _resume_later(
        self, lost: list[Generation], delay_s: float, error: ChairliftError | None
    ) -> None:
        """Resume requests of a stream that was lost; called on the thread of that stream."""
        is_closed = self._closed.wait(delay_s)
        for generation in lost:
            try:
                while not is_closed and not self._open_stream().resume(generation):
                    is_closed = self._closed.is_set()
            except RequestError as refusal:
                generation._put(refusal)
            else:
                if is_closed:
                    generation._put(error or stream_ended())

    def _abort(self, requests: list[pb.AbortRequest]) -> None:
        calls = [
            self._generation.Abort.future(request, timeout=ABORT_S, metadata=self._metadata)
            for request in requests
        ]
        for call in calls:
            # Its window ends a request that is not reached.
            call.exception()

    def generate_all(self, starts: list[pb.Start]) -> list[Generation]:
        """Send requests on a stream of their own, half-closed: a static batch need not wait.

        Raises:
            ServerError: The stream has ended meanwhile.
        """
        stream = _Stream(self)
        generations = []
        for start in starts:
            generation = stream.start(self._labelled(start))
            if generation is None:
                raise stream_ended()
            generations.append(generation)
        stream.half_close()
        return generations

    def _open_stream(self) -> _Stream:
        with self._lock:
            if self._stream is None or self._stream.is_over:
                self._stream = _Stream(self)
            return self._stream

    def watch_steps(self) -> Iterator[server_pb2.Step]:
        """Yield every step from now on; the watch has begun when this returns."""
        return self._watch(self._step_watch())

    def watch_load(
        self, interval_s: float = 1.0, *, block_map: bool = False
    ) -> Iterator[server_pb2.Load]:
        """Yield the load now and then once per interval; the watch has begun when this returns.

        Args:
            interval_s: Seconds.
            block_map: Whether each load has the map of the KV blocks.
        """
        return self._watch(self._load_watch(interval_s, block_map=block_map))

    def _watch(self, watch: Call[Iterable[R]]) -> Iterator[R]:
        call: Any = watch.method(watch.request, metadata=self._metadata)
        call.initial_metadata()
        return _results(call, watch, self._failure)

    def _call(self, call: Call[R]) -> R:
        try:
            return call.result(call.method(call.request, metadata=self._metadata))
        except grpc.RpcError as failure:
            raise self._failure(failure) from None


def _results(
    call: Any, watch: Call[Iterable[R]], failure_of: Callable[[Any], ChairliftError]
) -> Iterator[R]:
    try:
        for response in call:
            yield from watch.result(response)
    except grpc.RpcError as failure:
        raise failure_of(failure) from None
    finally:
        call.cancel()
