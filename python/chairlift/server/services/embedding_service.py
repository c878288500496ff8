"""`EmbeddingService`: vectors and scores of texts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import grpc
import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from chairlift.api.errors import RequestError
from chairlift.api.pooled import Pooled, PoolingAbilities
from chairlift.api.types import Pooling, PoolingTask, Request
from chairlift.engine.pooling.ranking import ranking, rerank_requests
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.outbox import Outbox
from chairlift.server.calls.pooling_requests import (
    MAX_LIVE_INPUTS,
    PoolingRequests,
    Result,
    of_tenant,
    pool,
)
from chairlift.server.convert.fields import bad, optional
from chairlift.server.convert.messages import check_model, check_request_id
from chairlift.server.limits.receiving import Messages
from chairlift.server.protocols.names import Names
from chairlift.server.rpc.status import to_error
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.v1 import embedding_pb2 as pb
from chairlift.v1 import embedding_pb2_grpc

MAX_INPUTS: Final = 2048
"""Inputs of a unary call; a stream has no such limit."""
_POOLINGS: Final = {
    pb.POOLING_UNSPECIFIED: None,
    pb.POOLING_LAST: "last",
    pb.POOLING_MEAN: "mean",
    pb.POOLING_FIRST: "cls",
    pb.POOLING_MAX: "max",
}
_INT8: Final = 127
_FLOAT16: Final = 65_504.0
_NAMES: Final = Names(
    {name: f"options.{name}" for name in pb.EmbedOptions.DESCRIPTOR.fields_by_name}
)
"""The client's names of the fields that errors of the engine name."""


class EmbeddingServicer(embedding_pb2_grpc.EmbeddingServiceServicer):
    """Each input is a request of its own; a call waits for all of its inputs."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service; `Embed` and `Classify` return encoded messages."""
        name = pb.DESCRIPTOR.services_by_name["EmbeddingService"].full_name
        encoded = {
            "Embed": grpc.unary_unary_rpc_method_handler(self.Embed, pb.EmbedRequest.FromString),
            "Classify": grpc.unary_unary_rpc_method_handler(
                self.Classify, pb.ClassifyRequest.FromString
            ),
        }
        embedding_pb2_grpc.add_EmbeddingServiceServicer_to_server(self, server)
        # The last handler of a name is the one that counts.
        server.add_registered_method_handlers(name, encoded)

    async def Embed(self, request: pb.EmbedRequest, context: ServicerContext) -> bytes:
        """Return a vector for each input, as an encoded `EmbedResponse`."""
        self._admit(request.model)
        options = EmbedOptions(request.options)
        _check_number(request.inputs, "inputs")
        inputs = []
        for number, value in enumerate(request.inputs):
            inputs.append(options.request(value, f"inputs[{number}]"))
            # A million token ids must not hold the event loop together.
            await asyncio.sleep(0)
        try:
            results = await self._pool(inputs, context)
        except RequestError as error:
            raise _NAMES.translate(error) from None
        return await _encoded(
            results, lambda pooled: pb.EmbedResponse(embeddings=[options.embedding(pooled)])
        )

    async def Classify(self, request: pb.ClassifyRequest, context: ServicerContext) -> bytes:
        """Return the scores of the labels for each input, as an encoded `ClassifyResponse`."""
        self._admit(request.model)
        _check_number(request.inputs, "inputs")
        truncate_end = optional(request, "truncate_end", False)
        special = optional(request, "add_special_tokens", True)
        inputs = []
        for number, value in enumerate(request.inputs):
            pair = value.text_pair if value.HasField("text_pair") else None
            pooling = Pooling(PoolingTask.CLASSIFY, text_pair=pair, truncate_end=truncate_end)
            prompt = _prompt(value, f"inputs[{number}]")
            inputs.append(Request(prompt, pooling=pooling, add_special_tokens=special))
            await asyncio.sleep(0)
        results = await self._pool(inputs, context)
        abilities = self._abilities()
        return await _encoded(
            results,
            lambda pooled: pb.ClassifyResponse(results=[_classification(pooled, abilities)]),
        )

    async def Rerank(
        self, request: pb.RerankRequest, context: ServicerContext
    ) -> pb.RerankResponse:
        """Return the documents, the best first."""
        self._admit(request.model)
        _check_number(request.documents, "documents")
        top = optional(request, "top_n", len(request.documents))
        inputs = rerank_requests(
            request.query,
            request.documents,
            self._abilities(),
            truncate_end=optional(request, "truncate_end", False),
        )
        pooled = await self._pool(inputs, context, "documents")
        ranked = ranking(pooled, self._abilities())
        return pb.RerankResponse(
            results=[
                pb.RankedDocument(index=index, score=score, num_prompt_tokens=num_tokens)
                for index, score, num_tokens in ranked[:top]
            ]
        )

    async def EmbedStream(
        self, requests: "Messages", context: ServicerContext
    ) -> AsyncIterator[pb.EmbedStreamResponse]:
        """Return vectors as they are ready."""
        self._server.gate.admit()
        draining, has_written = self._server.gate.draining, False
        with self._server.outboxes.open() as outbox:
            call = _StreamCall(self._server, outbox, context)
            reader = asyncio.create_task(call.read(requests))
            reader.add_done_callback(lambda _: call.wake())
            drain = asyncio.create_task(draining.wait())
            drain.add_done_callback(lambda _: call.wake())
            try:
                while not (call.is_idle and (reader.done() or draining.is_set())):
                    async for response in call.results():
                        has_written = True
                        yield response
                    if reader.done():
                        # Raises the error of the call, such as wrong options.
                        reader.result()
            finally:
                # Only synchronous work here: this also runs when the call is being cancelled.
                drain.cancel()
                reader.cancel()
                call.requests.close()
            if not (reader.done() or has_written):
                raise self._server.gate.refusal()

    def _admit(self, model: str) -> None:
        self._server.gate.admit()
        check_model(model, self._server.model_names)

    def _abilities(self) -> PoolingAbilities:
        return self._server.gate.engine().engine.pooling

    async def _pool(
        self, inputs: Sequence[Request], context: ServicerContext, field: str = "inputs"
    ) -> list[Pooled]:
        tenant = self._server.authenticator.tenant(context)
        return await pool(
            self._server,
            [of_tenant(request, tenant) for request in inputs],
            tenant=tenant,
            connection=context.peer(),
            time_remaining=context.time_remaining,
            field=field,
        )


async def _encoded(results: Sequence[Pooled], encode: Callable[[Pooled], Message]) -> bytes:
    """Return the response that has all results, encoded in turns with other work.

    Thousands of vectors must not hold the event loop together.

    Args:
        results: In their order.
        encode: Returns the response that has one result alone: concatenated encoded messages are
            one message with the fields of all.
    """
    encoded = []
    for pooled in results:
        encoded.append(encode(pooled).SerializeToString())
        await asyncio.sleep(0)
    return b"".join(encoded)


class EmbedOptions:
    """The options of a call, checked once."""

    def __init__(self, message: pb.EmbedOptions) -> None:
        """Read the options.

        Raises:
            RequestError: One is no value of its enum.
        """
        if message.pooling not in _POOLINGS:
            raise bad("options.pooling", "expected a value of Pooling, got another number")
        if message.format not in pb.VectorFormat.values():
            raise bad("options.format", "expected a value of VectorFormat, got another number")
        self._format = message.format
        self._special = optional(message, "add_special_tokens", True)
        self._keep = optional(message, "truncate_prompt", None)
        self._pooling = Pooling(
            pooling=_POOLINGS[message.pooling],
            normalize=optional(message, "normalize", True),
            dimensions=optional(message, "dimensions", None),
            truncate_end=optional(message, "truncate_end", False),
            prompt_name=optional(message, "prompt_name", None),
        )

    def request(self, value: pb.EmbedInput, path: str) -> Request:
        """Return an input as a request.

        Raises:
            RequestError: It holds nothing, or a pair.
        """
        if value.HasField("text_pair"):
            raise bad(f"{path}.text_pair", "expected none: a vector is of one text")
        return Request(
            _prompt(value, path),
            pooling=self._pooling,
            add_special_tokens=self._special,
            truncate_prompt=self._keep,
        )

    def embedding(self, pooled: Pooled) -> pb.Embedding:
        """Return a result in the format that was asked for."""
        vector, num_tokens = pooled.vector(), pooled.num_tokens
        if self._format == pb.VECTOR_FORMAT_UNSPECIFIED:
            return pb.Embedding(values=vector.tolist(), num_prompt_tokens=num_tokens)
        return pb.Embedding(packed=packed(vector, self._format), num_prompt_tokens=num_tokens)


def packed(vector: NDArray[np.float32], form: int) -> bytes:
    """Return the numbers of a vector in a packed format, little-endian.

    Numbers beyond the range of a format become its largest.
    """
    if form == pb.VECTOR_FORMAT_FLOAT16:
        return np.clip(vector, -_FLOAT16, _FLOAT16).astype("<f2").tobytes()
    if form == pb.VECTOR_FORMAT_INT8:
        return np.clip(np.rint(vector * _INT8), -_INT8, _INT8).astype(np.int8).tobytes()
    if form == pb.VECTOR_FORMAT_BINARY:
        return np.packbits(vector > 0).tobytes()
    return vector.astype("<f4").tobytes()


class _StreamCall:
    """The live inputs of a stream, and the results that are not written yet."""

    def __init__(self, server: ServerContext, outbox: Outbox, context: ServicerContext) -> None:
        self._server = server
        self._tenant = server.authenticator.tenant(context)
        self._options = EmbedOptions(pb.EmbedOptions())
        self._has_begun = self._is_beginning = False
        self._results: list[pb.EmbedStreamResponse] = []
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self.requests = PoolingRequests(
            server,
            outbox,
            tenant=self._tenant,
            connection=context.peer(),
            time_remaining=context.time_remaining,
            on_result=self._on_result,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no input is live or read, and no result is left to be written."""
        return not (self.requests or self._results or self._is_beginning)

    def wake(self) -> None:
        """Wake the writer."""
        self._arrived.set()

    async def read(self, messages: "Messages") -> None:
        """Submit inputs as there is room for them.

        Raises:
            RequestError: The options are wrong: the call fails.
        """
        async for message in messages:
            if message.model or message.HasField("options"):
                self._begin_with(message)
            self._has_begun = True
            if not message.HasField("input"):
                continue
            self._is_beginning = True
            try:
                await self._wait_for_room()
                await self._begin(message)
            finally:
                self._is_beginning = False
                self.wake()
        self.requests.half_close()

    def _begin_with(self, message: pb.EmbedStreamRequest) -> None:
        if self._has_begun:
            field = "options" if message.HasField("options") else "model"
            raise bad(field, "expected in the first message alone")
        check_model(message.model, self._server.model_names)
        self._options = EmbedOptions(message.options)

    async def _wait_for_room(self) -> None:
        # Results that the client has not read count, too.
        while len(self.requests) + len(self._results) >= MAX_LIVE_INPUTS:
            self._room.clear()
            await self._room.wait()

    async def _begin(self, message: pb.EmbedStreamRequest) -> None:
        """Submit an input; an error of it reaches no other input."""
        try:
            check_request_id(message.request_id)
            if not message.request_id:
                raise bad("request_id", "expected a text, got none")
            request = self._options.request(message.input, "input")
            await self.requests.begin(of_tenant(request, self._tenant), message.request_id)
        except RequestError as error:
            self._on_result(message.request_id, error)

    def _on_result(self, label: str, result: Result) -> None:
        response = pb.EmbedStreamResponse(request_id=label)
        if isinstance(result, Pooled):
            response.embedding.CopyFrom(self._options.embedding(result))
        else:
            response.error.CopyFrom(to_error(_NAMES.translate(result)))
        self._results.append(response)
        self._arrived.set()

    async def results(self) -> AsyncIterator[pb.EmbedStreamResponse]:
        """Wait for results and return all there are."""
        await self._arrived.wait()
        self._arrived.clear()
        while self._results:
            yield self._results.pop(0)
            self._room.set()


def _classification(pooled: Pooled, abilities: PoolingAbilities) -> pb.Classification:
    scores = pooled.scores(is_multi_label=abilities.is_multi_label).tolist()
    labels = zip(abilities.labels, scores, strict=True)
    return pb.Classification(
        scores=[pb.LabelScore(label=label, score=score) for label, score in labels],
        num_prompt_tokens=pooled.num_tokens,
    )


def _prompt(value: pb.EmbedInput, path: str) -> "str | list[int]":
    kind = value.WhichOneof("input")
    if kind is None:
        raise bad(path, "expected text or token_ids, got none")
    return value.text if kind == "text" else list(value.token_ids.ids)


def _check_number(inputs: "Sequence[object]", field: str) -> None:
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise bad(field, f"expected 1 to {MAX_INPUTS}, got {len(inputs)} (EmbedStream takes more)")
