"""`GenerationService`: the methods; `calls.py` has the streams."""

from typing import Any, Final

import grpc

from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import RequestState, Waiting
from chairlift.server.calls.calls import GenerateCall, GenerateOneCall
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.registry import LiveRequest
from chairlift.server.convert.messages import wait_cause
from chairlift.server.limits.receiving import Messages
from chairlift.server.rpc.status import duration
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

_STATES: Final = {
    RequestState.WAITING: pb.REQUEST_STATE_WAITING,
    RequestState.RUNNING: pb.REQUEST_STATE_RUNNING,
    RequestState.SUSPENDED: pb.REQUEST_STATE_SUSPENDED,
}


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Streams of generated tokens."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def add_to(self, server: Any) -> None:
        """Register the methods; the streams are written as encoded messages."""
        name = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name
        handlers = {
            "Generate": grpc.stream_stream_rpc_method_handler(
                self.Generate, pb.GenerateRequest.FromString
            ),
            "GenerateOne": grpc.unary_stream_rpc_method_handler(
                self.GenerateOne, pb.GenerateOneRequest.FromString
            ),
            "Abort": grpc.unary_unary_rpc_method_handler(
                self.Abort, pb.AbortRequest.FromString, pb.AbortResponse.SerializeToString
            ),
            "Explain": grpc.unary_unary_rpc_method_handler(
                self.Explain, pb.ExplainRequest.FromString, pb.ExplainResponse.SerializeToString
            ),
        }
        handler = grpc.method_handlers_generic_handler(name, handlers)
        server.add_generic_rpc_handlers((handler,))
        # As generated code does; the accept loop relies on it (`listener.py`).
        server.add_registered_method_handlers(name, handlers)

    async def Generate(self, request_iterator: Messages, context: ServicerContext) -> None:
        """Execute commands and write events."""
        self._server.gate.admit()
        with self._server.outboxes.open() as outbox:
            await GenerateCall(self._server, outbox, request_iterator, context).run()

    async def GenerateOne(self, request: pb.GenerateOneRequest, context: ServicerContext) -> None:
        """Run one request; a refusal or failure is the status of the call."""
        self._server.gate.admit()
        with self._server.outboxes.open() as outbox:
            await GenerateOneCall(self._server, outbox, request.start, context).run()

    async def Abort(self, request: pb.AbortRequest, context: ServicerContext) -> pb.AbortResponse:
        """End live requests of the caller's tenant, of any connection."""
        engine = self._server.gate.engine()
        tenant = self._server.authenticator.tenant(context)
        aborted = self._server.live.find(tenant, request)
        for live in aborted:
            engine.abort(live)
        return pb.AbortResponse(num_aborted=len(aborted))

    async def Explain(
        self, request: pb.ExplainRequest, context: ServicerContext
    ) -> pb.ExplainResponse:
        """Say why live requests of the caller's tenant wait, of any connection.

        Raises:
            RequestError: The target names no live request, or the engine does not answer in time.
        """
        tenant = self._server.authenticator.tenant(context)
        engine = self._server.gate.engine()
        found = self._server.live.find(tenant, request)
        waits = await engine.explain(found) if found else []
        explanations = [
            self._explanation(live, waiting)
            for live, waiting in zip(found, waits, strict=True)
            if waiting is not None
        ]
        if not explanations:
            target = request.WhichOneof("target")
            message = f"{target}: no live request of this tenant has it"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field=target or "target")
        return pb.ExplainResponse(explanations=explanations)

    def _explanation(self, live: LiveRequest, waiting: Waiting) -> pb.Explanation:
        is_queued = waiting.state is RequestState.WAITING
        wait_s = self._server.backlog.starts_in_s(waiting.num_before) if is_queued else None
        return pb.Explanation(
            handle=live.handle,
            request_id=live.label,
            state=_STATES[waiting.state],
            cause=wait_cause(waiting.cause),
            num_before=waiting.num_before,
            num_computed_tokens=waiting.num_computed_tokens,
            num_tokens=waiting.num_tokens,
            estimated_wait=None if wait_s is None else duration(wait_s),
        )
