"""Calls with one message: passed on as they are, to one replica or, for a tenant, to all."""

import asyncio
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from chairlift.api.errors import Reason, RequestError
from chairlift.client.failures import from_call
from chairlift.ray.forward import handles
from chairlift.ray.forward.context import ForwardContext
from chairlift.ray.forward.names import NO_PROMPT, PromptNames
from chairlift.ray.forward.replicas import Replica
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer
from chairlift.v1 import embedding_pb2, server_pb2, tokenizer_pb2
from chairlift.v1 import generation_pb2 as pb

_SERVICE: Final = "chairlift.v1.GenerationService"
_FILES: Final = (embedding_pb2, tokenizer_pb2, server_pb2)
_CALL_S: Final = 10.0
"""Time for a call to all replicas; each answers at once."""

SERVICES: Final = (
    _SERVICE,
    *(
        service.full_name
        for file in _FILES
        for service in file.DESCRIPTOR.services_by_name.values()
    ),
)
"""Full names of the services of an ingress."""


class UnaryCalls:
    """The methods that take one message."""

    def __init__(self, server: ForwardContext) -> None:
        self._server = server

    def of_generation(self) -> dict[str, Any]:
        """Return the handlers of the methods of `GenerationService` but `Generate`."""
        return {
            "GenerateOne": grpc.unary_stream_rpc_method_handler(
                self._generate_one, pb.GenerateOneRequest.FromString
            ),
            "Abort": grpc.unary_stream_rpc_method_handler(self._abort, pb.AbortRequest.FromString),
            "Explain": grpc.unary_stream_rpc_method_handler(
                self._explain, pb.ExplainRequest.FromString
            ),
        }

    def of_others(self) -> dict[str, dict[str, Any]]:
        """Return the handlers of the other services, which any replica answers, by service."""
        return {
            service.full_name: {
                method.name: grpc.unary_stream_rpc_method_handler(
                    self._passing(f"/{service.full_name}/{method.name}")
                )
                for method in service.methods
            }
            for file in _FILES
            for service in file.DESCRIPTOR.services_by_name.values()
        }

    def _passing(self, path: str) -> Any:
        async def run(data: bytes, context: ServicerContext) -> None:
            await self._pass_on(path, data, NO_PROMPT, context)

        return run

    async def _generate_one(self, request: pb.GenerateOneRequest, context: ServicerContext) -> None:
        tenant = self._server.authenticator.tenant(context)
        prompt = self._server.naming.of_start(request.start, tenant)
        path = f"/{_SERVICE}/GenerateOne"
        await self._pass_on(path, request.SerializeToString(), prompt, context)

    async def _pass_on(
        self, path: str, data: bytes, prompt: PromptNames, context: ServicerContext
    ) -> None:
        """Let a replica answer a call, and another one if it is lost before its first message.

        Raises:
            RequestError: The replica refuses the call, or two replicas are lost.
        """
        writer = Writer(context, self._server.write_timeout_s)
        for is_again in (False, True):
            ticket = self._server.replicas.choose(prompt)
            call = self._call(ticket.replica, path, data, context)
            try:
                async for response in call:
                    await writer.write(_with_handle(path, response, ticket.replica, writer))
                return
            except grpc.aio.AioRpcError as failure:
                error = self._error(ticket.replica, failure)
                if error is None:
                    await context.abort(failure.code(), failure.details())
                elif is_again or writer.has_begun or error.reason.code != "UNAVAILABLE":
                    raise error from None
            finally:
                call.cancel()
                ticket.end()

    def _call(self, replica: Replica, path: str, data: bytes, context: ServicerContext) -> Any:
        method = replica.client.channel.unary_stream(path)
        metadata = self._server.forwarded(context)
        return method(data, metadata=metadata, timeout=context.time_remaining())

    def _error(self, replica: Replica, failure: Any) -> RequestError | None:
        """Return what a failed call of a replica says; None of a status without a reason."""
        error = from_call(failure)
        if failure.code() is grpc.StatusCode.UNAVAILABLE:
            is_draining = isinstance(error, RequestError) and error.reason is Reason.DRAINING
            mark = self._server.replicas.draining if is_draining else self._server.replicas.lost
            mark(replica)
            if not isinstance(error, RequestError):
                message = "the replica of this call was lost"
                return RequestError(Reason.ENGINE_DOWN, message, retry_after_s=1.0)
        return error if isinstance(error, RequestError) else None

    async def _abort(self, request: pb.AbortRequest, context: ServicerContext) -> None:
        """End requests on the replica of a handle, or on all."""
        responses = await self._ask("Abort", request, pb.AbortResponse, context)
        num_aborted = sum(response.num_aborted for _, response in responses)
        await self._write(context, pb.AbortResponse(num_aborted=num_aborted))

    async def _explain(self, request: pb.ExplainRequest, context: ServicerContext) -> None:
        """Say why requests wait, on the replica of a handle or on all."""
        found = []
        for replica, response in await self._ask("Explain", request, pb.ExplainResponse, context):
            for explanation in response.explanations:
                explanation.handle = handles.to_client(replica, explanation.handle)
                found.append(explanation)
        if not found:
            target = request.WhichOneof("target")
            message = f"{target}: no live request of this tenant has it"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field=target or "target")
        await self._write(context, pb.ExplainResponse(explanations=found))

    async def _ask(
        self, method: str, request: Any, kind: type[Any], context: ServicerContext
    ) -> list[tuple[Replica, Any]]:
        """Call a method of the replica that a handle names, or of all; unknown targets are none."""
        replicas = self._server.replicas.up
        if request.WhichOneof("target") == "handle":
            try:
                replica, request.handle = handles.from_client(self._server.replicas, request.handle)
            except RequestError:
                return []
            replicas = [replica]
        metadata = self._server.forwarded(context)

        async def ask(replica: Replica) -> tuple[Replica, Any] | None:
            call = replica.client.channel.unary_unary(
                f"/{_SERVICE}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=kind.FromString,
            )
            try:
                return replica, await call(request, metadata=metadata, timeout=_CALL_S)
            except grpc.aio.AioRpcError as failure:
                error = self._error(replica, failure)
                if error is not None and error.reason.code not in ("UNAVAILABLE", "NOT_FOUND"):
                    raise error from None
                return None

        # All at once: the call takes as long as the slowest replica, not as their sum.
        answers = await asyncio.gather(*map(ask, replicas))
        return [answer for answer in answers if answer is not None]

    async def _write(self, context: ServicerContext, response: Message) -> None:
        await Writer(context, self._server.write_timeout_s).write(response.SerializeToString())


def _with_handle(path: str, data: bytes, replica: Replica, writer: Writer) -> bytes:
    """Return a response whose handle names the replica; a handle is in the first one alone."""
    if writer.has_begun or not path.endswith("/GenerateOne"):
        return data
    response = pb.GenerateOneResponse.FromString(data)
    for event in response.events:
        if event.HasField("accepted"):
            event.accepted.handle = handles.to_client(replica, event.accepted.handle)
    changed: bytes = response.SerializeToString()
    return changed
