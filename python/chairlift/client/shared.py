"""What both clients share: every call, command and event is described once.

A method that needs one answer is a function with `@unary` (see `calls.py`); `@command` does the
same for generations.
"""

import functools
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Self,
    Unpack,
    overload,
)

from grpc_health.v1 import health_pb2, health_pb2_grpc

from chairlift.api import checks
from chairlift.api.addresses import checked_address
from chairlift.api.errors import ChairliftError, Reason, RequestError, ServerError
from chairlift.client.answer import Answer
from chairlift.client.calls import Awaiting, Blocking, Call, unary
from chairlift.client.embed import embed_request
from chairlift.client.failures import from_call, from_event
from chairlift.client.options import UpdateOptions
from chairlift.client.proxies import is_behind_none, proxy_of
from chairlift.client.recovery import Recovery
from chairlift.client.retries import SERVICE_CONFIG
from chairlift.client.security import Metadata, Security
from chairlift.client.start import checked_credit, duration_of, new_update
from chairlift.v1 import (
    embedding_pb2,
    embedding_pb2_grpc,
    generation_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from chairlift.v1 import generation_pb2 as pb

P = ParamSpec("P")

MAX_ANSWERS: Final = 1024
"""Answers that memory is allocated for; a server refuses a request for more."""


class BaseClient:
    """The stubs of a connection, and the methods that need one answer."""

    def __init__(self, address: str, security: Security | None, channels: Any) -> None:
        """Prepare a connection.

        Args:
            address: HOST:PORT or unix:PATH.
            security: None is plain text without a token.
            channels: The module that makes channels: `grpc` or `grpc.aio`.

        Raises:
            ConfigError: From `security`, or the address is malformed.
        """
        address = checked_address(address)
        security = security or Security()
        self._metadata: Metadata = security.metadata(address)
        credentials = security.credentials()
        options = (
            ("grpc.service_config", SERVICE_CONFIG),
            # Otherwise a new channel waits for the retries of an older one to the same address.
            ("grpc.use_local_subchannel_pool", 1),
            # Variables such as http_proxy are for other machines: a proxy cannot reach this one.
            ("grpc.enable_http_proxy", int(not is_behind_none(address))),
        )
        self._channel: Any = (
            channels.insecure_channel(address, options=options)
            if credentials is None
            else channels.secure_channel(address, credentials, options=options)
        )
        self._proxy = proxy_of(address)
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._embedding = embedding_pb2_grpc.EmbeddingServiceStub(self._channel)
        self._server = server_pb2_grpc.ServerServiceStub(self._channel)
        self._tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._numbers = itertools.count(1)

    def _failure(self, call: Any) -> ChairliftError:
        """Return the exception of a call that failed."""
        return from_call(call, self._proxy)

    def _labelled(self, start: pb.Start) -> pb.Start:
        """Fill an empty request_id."""
        start.request_id = start.request_id or f"r{next(self._numbers)}"
        return start

    @unary
    def abort(self, handle: str) -> Call[bool]:
        """End a request of any connection by its handle; return whether it was live."""
        checks.utf8_len(handle, "handle")
        request = pb.AbortRequest(handle=handle)
        return Call(self._generation.Abort, request, lambda response: bool(response.num_aborted))

    @unary
    def tokenize(self, text: str) -> Call[list[int]]:
        """Return the token ids of a text."""
        checks.utf8_len(text, "text")
        request = tokenizer_pb2.TokenizeRequest(text=text)
        return Call(self._tokenizer.Tokenize, request, lambda response: list(response.token_ids))

    @unary
    def embed(
        self,
        inputs: Sequence[str | Sequence[int]],
        *,
        dimensions: int | None = None,
        truncate_end: bool = False,
        prompt_name: str | None = None,
    ) -> Call[list[embedding_pb2.Embedding]]:
        """Return a vector for each text or list of token ids, in their order.

        Args:
            inputs: At most 2,048.
            dimensions: Numbers at the start of each vector; None is all.
            truncate_end: Leave out the end of an input that is too long; else it is refused.
            prompt_name: Name of the model's text before each input; None is its default.
        """
        request = embed_request(inputs, dimensions, prompt_name, truncate_end=truncate_end)
        return Call(self._embedding.Embed, request, lambda response: list(response.embeddings))

    @unary
    def server_info(self) -> Call[server_pb2.GetServerInfoResponse]:
        """Return what the server is and its settings."""
        request = server_pb2.GetServerInfoRequest()
        return Call(self._server.GetServerInfo, request, lambda response: response)

    @unary
    def model_info(self) -> Call[server_pb2.GetModelInfoResponse]:
        """Return the served model."""
        request = server_pb2.GetModelInfoRequest()
        return Call(self._server.GetModelInfo, request, lambda response: response)

    @unary
    def load(self, *, block_map: bool = False) -> Call[server_pb2.Load]:
        """Return how busy the server is.

        Args:
            block_map: Whether it has the map of the KV blocks.
        """
        request = server_pb2.GetLoadRequest(block_map=block_map)
        return Call(self._server.GetLoad, request, lambda response: response.load)

    @unary
    def is_serving(self) -> Call[bool]:
        """Return whether a request would be answered."""
        serving = health_pb2.HealthCheckResponse.SERVING
        request = health_pb2.HealthCheckRequest()
        return Call(self._health.Check, request, lambda response: response.status == serving)

    def _step_watch(self) -> Call[Iterable[server_pb2.Step]]:
        request = server_pb2.WatchStepsRequest()
        return Call(self._server.WatchSteps, request, lambda response: response.steps)

    def _load_watch(self, interval_s: float, *, block_map: bool) -> Call[Iterable[server_pb2.Load]]:
        interval = duration_of(interval_s, "interval")
        request = server_pb2.WatchLoadRequest(interval=interval, block_map=block_map)
        return Call(self._server.WatchLoad, request, lambda response: (response.load,))


# --- generations ------------------------------------------------------------------------------


class command(Generic[P]):
    """Make a function that builds a command a method of both kinds of generation."""

    def __init__(self, build: Callable[Concatenate[Any, P], pb.GenerateRequest]) -> None:
        self._build = build
        functools.update_wrapper(self, build)  # type: ignore[arg-type]

    @overload
    def __get__(self, generation: Blocking, owner: type | None = None) -> Callable[P, None]: ...
    @overload
    def __get__(
        self, generation: Awaiting, owner: type | None = None
    ) -> Callable[P, Awaitable[None]]: ...
    @overload
    def __get__(self, generation: None, owner: type) -> Self: ...

    def __get__(self, generation: Any, owner: type | None = None) -> Any:
        if generation is None:
            return self

        @functools.wraps(self._build)
        def method(*args: P.args, **options: P.kwargs) -> Any:
            return generation._send(self._build(generation, *args, **options))

        return method


class BaseGeneration:
    """One request, and its answers as far as they have come.

    Attributes:
        request_id: Label of the request on its stream.
        accepted: Set once the request is queued.
        prompt: The prompt as far as it has come, if the request asks for it.
        answers: The answers that the request asks for.
        finished: End of the answer that ended last.
        rejected: Why the last `update` or `credit` that was refused changed nothing.
        last_number: Number of the last event that was taken, for `resume` by another client.
    """

    def __init__(self, start: pb.Start, recovery: Recovery | None = None) -> None:
        self.request_id = start.request_id
        num_answers = min(max(1, start.sampling.n), MAX_ANSWERS)
        self.answers = [Answer(index) for index in range(num_answers)]
        self.accepted: pb.Accepted | None = None
        self.prompt = pb.Prompt()
        self.finished: pb.Finished | None = None
        self.rejected: RequestError | None = None
        self.last_number = 0
        self._start = start
        self._recovery = recovery or Recovery(start.resume_window.ToNanoseconds() * 1e-9)
        self._is_over = False

    @property
    def handle(self) -> str:
        """Return the server's name of the request; empty until it is accepted."""
        return self._recovery.handle

    @command
    def cancel(self) -> pb.GenerateRequest:
        """End the request early; its last event says so."""
        return pb.GenerateRequest(cancel=pb.Cancel(request_id=self.request_id))

    @command
    def update(self, **options: Unpack[UpdateOptions]) -> pb.GenerateRequest:
        """Change the stopping or the schedule of the request from its next step on.

        A value that the server refuses changes nothing: `rejected` has the error when its event is
        read.

        Args:
            options: See `UpdateOptions`.

        Raises:
            RequestError: `BAD_PARAMETER`: a value has the wrong type, or there is none.
            TypeError: There is no option of that name.
        """
        return pb.GenerateRequest(update=new_update(self.request_id, **options))

    @command
    def credit(self, tokens: int) -> pb.GenerateRequest:
        """Allow more tokens; for a request that was started with a credit."""
        credit = pb.Credit(request_id=self.request_id, tokens=checked_credit(tokens))
        return pb.GenerateRequest(credit=credit)

    def _put(self, item: pb.Event | ChairliftError) -> None:
        """Queue an event, or the error that ends the generation."""
        raise NotImplementedError

    def _take(self, item: pb.Event | ChairliftError) -> pb.Event:
        """Note an event and return it.

        Raises:
            ChairliftError: The item is an error, or an event that ends the request by one.
        """
        if isinstance(item, ChairliftError):
            self._is_over = True
            raise item
        error = from_event(item)
        if error is not None and not item.last:
            self.rejected = error
            return item
        if error is not None:
            self._is_over = True
            raise error
        self._is_over = item.last
        self.last_number = max(self.last_number, item.number)
        if item.HasField("accepted"):
            self.accepted = item.accepted
        elif item.HasField("prompt"):
            piece = item.prompt
            self.prompt.text += piece.text
            self.prompt.token_ids.extend(piece.token_ids)
            self.prompt.logprobs.MergeFrom(piece.logprobs)
        elif item.HasField("tokens"):
            self._answer(item.index).add(item.tokens)
        elif item.HasField("finished"):
            self._answer(item.index).finished = self.finished = item.finished
        return item

    def _answer(self, index: int) -> Answer:
        # How many answers a request of another client has is seen as they come.
        while len(self.answers) <= index < MAX_ANSWERS:
            self.answers.append(Answer(len(self.answers)))
        return self.answers[index]


class BaseStream:
    """The generations of one `Generate` call, by label.

    Attributes:
        is_over: Whether the call has ended.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._live: dict[str, BaseGeneration] = {}
        self._lock = threading.Lock()

    def _add(self, generation: BaseGeneration) -> bool:
        """Register a generation; return False if the stream has ended.

        Raises:
            RequestError: A live request has the same label.
        """
        with self._lock:
            if self.is_over:
                return False
            if generation.request_id in self._live:
                message = "request_id: a live request of this client has the same"
                raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field="request_id")
            self._live[generation.request_id] = generation
        return True

    def _dispatch(self, response: pb.GenerateResponse) -> None:
        """Hand events to their generations."""
        for event in response.events:
            generation = self._live.get(event.request_id)
            if generation is not None:
                generation._recovery.note(event)
                if event.last:
                    with self._lock:
                        self._live.pop(event.request_id, None)
                generation._put(event)

    def _end(self, error: ChairliftError | None = None) -> tuple[list[Any], float]:
        """End the stream, and with an error the generations that cannot be resumed.

        Returns:
            The others, and the seconds until they may be resumed.
        """
        with self._lock:
            self.is_over = True
            lost, self._live = list(self._live.values()), {}
        delays = [(generation, generation._recovery.delay_s(error)) for generation in lost]
        for generation, delay_s in delays:
            if delay_s is None:
                generation._put(error or stream_ended())
        resumed = [(generation, delay_s) for generation, delay_s in delays if delay_s is not None]
        return [generation for generation, _ in resumed], max((d for _, d in resumed), default=0.0)

    def _outliving(self) -> list[pb.AbortRequest]:
        """Return what ends the live requests that the end of the stream does not end."""
        with self._lock:
            recoveries = [generation._recovery for generation in self._live.values()]
        return [pb.AbortRequest(handle=r.handle) for r in recoveries if r.may_outlive]


def stream_ended() -> ServerError:
    """Return the error of a request whose stream has ended without one."""
    return ServerError("the stream has ended")
