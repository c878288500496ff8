"""The client for threads."""

import itertools
import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chairlift import checks
from chairlift.client.address import checked_address
from chairlift.client.failures import from_call, is_end
from chairlift.client.options import RequestOptions
from chairlift.client.progress import Answer, Progress
from chairlift.client.security import Metadata, Security
from chairlift.client.start import checked_credit, new_start
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

_HALF_CLOSE: Final = None


class Generation(Progress):
    """One request and its answer; iterate it for the text as it comes."""

    def __init__(self, stream: "_Stream", start: pb.Start) -> None:
        super().__init__(start)
        self._stream = stream
        self._events: queue.SimpleQueue[pb.Event | ChairliftError] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[str]:
        """Gives the text of the first answer, piece by piece; `events` has all answers.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        for event in self.events():
            if event.HasField("tokens") and event.index == 0:
                yield event.tokens.text

    def events(self) -> Iterator[pb.Event]:
        """Gives the events as they are; leaving the loop early cancels the request.

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
        """Waits for the end and gives the rest of the text."""
        return "".join(self)

    def all(self) -> list[Answer]:
        """Waits for the end and gives the answers, in order.

        Raises:
            RequestError: The request was refused or failed.
            ServerError: The connection was lost.
        """
        for _ in self.events():
            pass
        return self.answers

    def cancel(self) -> None:
        """Ends the request early; its last event tells so."""
        self._stream.send(pb.GenerateRequest(cancel=pb.Cancel(request_id=self.request_id)))

    def update(
        self, *, stopping: pb.Stopping | None = None, schedule: pb.Schedule | None = None
    ) -> None:
        """Changes the request from its next step on; what is set replaces the whole of the old.

        A value that is wrong changes nothing: `rejected` has the error when its event is read.
        """
        update = pb.Update(request_id=self.request_id, stopping=stopping, schedule=schedule)
        self._stream.send(pb.GenerateRequest(update=update))

    def credit(self, tokens: int) -> None:
        """Allows so many more tokens; for a request that was begun with a credit."""
        credit = pb.Credit(request_id=self.request_id, tokens=checked_credit(tokens))
        self._stream.send(pb.GenerateRequest(credit=credit))

    def _put(self, event: pb.Event | ChairliftError) -> None:
        self._events.put(event)


class _Stream:
    """One `Generate` call: a thread hands its events to the generations."""

    def __init__(self, stub: generation_pb2_grpc.GenerationServiceStub, metadata: Metadata) -> None:
        self._commands: queue.SimpleQueue[pb.GenerateRequest | None] = queue.SimpleQueue()
        self._live: dict[str, Generation] = {}
        self._lock = threading.Lock()
        self.is_over = False
        self._call: Any = stub.Generate(iter(self._commands.get, _HALF_CLOSE), metadata=metadata)
        threading.Thread(target=self._read, name="chairlift-client", daemon=True).start()

    def start(self, start: pb.Start) -> Generation | None:
        """Sends a request; None when the stream has ended meanwhile."""
        generation = Generation(self, start)
        with self._lock:
            if self.is_over:
                return None
            if start.request_id in self._live:
                message = "request_id: a live request of this client has the same"
                raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field="request_id")
            self._live[start.request_id] = generation
        self.send(pb.GenerateRequest(start=start))
        return generation

    def send(self, command: pb.GenerateRequest) -> None:
        """Sends a command."""
        self._commands.put(command)

    def half_close(self) -> None:
        """Tells the server that no command follows."""
        self._commands.put(_HALF_CLOSE)

    def cancel(self) -> None:
        """Breaks the call, which cancels its requests."""
        self._call.cancel()
        self.half_close()

    def _read(self) -> None:
        error: ChairliftError = ServerError("the stream has ended")
        try:
            for response in self._call:
                for event in response.events:
                    self._dispatch(event)
        except grpc.RpcError as failure:
            error = from_call(failure)
        with self._lock:
            self.is_over = True
            lost, self._live = list(self._live.values()), {}
        for generation in lost:
            generation._put(error)
        self.half_close()

    def _dispatch(self, event: pb.Event) -> None:
        generation = self._live.get(event.request_id)
        if generation is None:
            return
        if is_end(event):
            with self._lock:
                self._live.pop(event.request_id, None)
        generation._put(event)


class Client:
    """A connection whose requests share one stream; safe to use from many threads."""

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
            grpc.insecure_channel(address)
            if credentials is None
            else grpc.secure_channel(address, credentials)
        )
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._server = server_pb2_grpc.ServerServiceStub(self._channel)
        self._tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._stream: _Stream | None = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; live requests are cancelled."""
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
        self._channel.close()

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Generation:
        """Sends a request; see `RequestOptions`."""
        return self.submit(new_start(prompt, **options))

    def submit(self, start: pb.Start) -> Generation:
        """Sends a request that is built already; an empty request_id is filled.

        Raises:
            RequestError: A live request of this client has the same request_id.
        """
        if not start.request_id:
            start.request_id = f"r{next(self._numbers)}"
        while True:
            generation = self._open_stream().start(start)
            if generation is not None:
                return generation

    def generate_all(self, starts: list[pb.Start]) -> list[Generation]:
        """Sends requests on a stream of their own, half-closed: a static batch need not wait."""
        stream = _Stream(self._generation, self._metadata)
        generations = []
        for start in starts:
            start.request_id = start.request_id or f"r{next(self._numbers)}"
            generation = stream.start(start)
            if generation is None:
                message = "the stream has ended"
                raise ServerError(message)
            generations.append(generation)
        stream.half_close()
        return generations

    def _open_stream(self) -> _Stream:
        with self._lock:
            if self._stream is None or self._stream.is_over:
                self._stream = _Stream(self._generation, self._metadata)
            return self._stream

    def abort(self, handle: str) -> bool:
        """Ends a request of any connection by its handle; tells whether it was live."""
        checks.utf8_len(handle, "handle")
        response = self._call(self._generation.Abort, pb.AbortRequest(handle=handle))
        return bool(response.num_aborted)

    def tokenize(self, text: str) -> list[int]:
        """Asks for the tokens of a text."""
        checks.utf8_len(text, "text")
        request = tokenizer_pb2.TokenizeRequest(text=text)
        return list((self._call(self._tokenizer.Tokenize, request)).token_ids)

    def server_info(self) -> server_pb2.GetServerInfoResponse:
        """Asks for the process and its settings."""
        response: server_pb2.GetServerInfoResponse = self._call(
            self._server.GetServerInfo, server_pb2.GetServerInfoRequest()
        )
        return response

    def model_info(self) -> server_pb2.GetModelInfoResponse:
        """Asks for the served model."""
        response: server_pb2.GetModelInfoResponse = self._call(
            self._server.GetModelInfo, server_pb2.GetModelInfoRequest()
        )
        return response

    def load(self) -> server_pb2.Load:
        """Asks how busy the server is."""
        response: server_pb2.GetLoadResponse = self._call(
            self._server.GetLoad, server_pb2.GetLoadRequest()
        )
        return response.load

    def is_serving(self) -> bool:
        """Asks whether a request would be answered."""
        response = self._call(self._health.Check, health_pb2.HealthCheckRequest())
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def watch_steps(self) -> Iterator[server_pb2.Step]:
        """Gives every step from now on; the first is awaited after the watch has begun."""
        call: Any = self._server.WatchSteps(server_pb2.WatchStepsRequest(), metadata=self._metadata)
        call.initial_metadata()
        return self._steps(call)

    def _steps(self, call: Any) -> Iterator[server_pb2.Step]:
        try:
            for response in call:
                yield from response.steps
        except grpc.RpcError as failure:
            raise from_call(failure) from None
        finally:
            call.cancel()

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise from_call(failure) from None
