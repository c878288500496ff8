"""`GenerationService`: one object per call does the work, see `stream.py` and `single.py`."""

from typing import Any

import grpc

from chairlift.server.context import ServerContext
from chairlift.server.explain import explain
from chairlift.server.receiving import Messages
from chairlift.server.single import GenerateOneCall
from chairlift.server.status_interceptor import ServicerContext
from chairlift.server.stream import GenerateCall
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Streams of generated tokens."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def add_to(self, server: Any) -> None:
        """Registers the methods; the streams come as encoded messages."""
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
        # As generated code does; the accept loop counts on it (`listener.py`).
        server.add_registered_method_handlers(name, handlers)

    async def Generate(self, request_iterator: Messages, context: ServicerContext) -> None:
        """Commands in, events out."""
        self._server.gate.admit()
        with self._server.outboxes.open() as outbox:
            await GenerateCall(self._server, outbox, request_iterator, context).run()

    async def GenerateOne(self, request: pb.GenerateOneRequest, context: ServicerContext) -> None:
        """One request; a refusal or failure is the status of the call."""
        self._server.gate.admit()
        with self._server.outboxes.open() as outbox:
            await GenerateOneCall(self._server, outbox, request.start, context).run()

    async def Abort(self, request: pb.AbortRequest, context: ServicerContext) -> pb.AbortResponse:
        """Ends live requests of the caller's tenant from any connection."""
        engine = self._server.gate.engine()
        tenant = self._server.authenticator.tenant(context)
        aborted = self._server.live.find(tenant, request)
        for live in aborted:
            engine.abort(live.handle)
        return pb.AbortResponse(num_aborted=len(aborted))

    async def Explain(
        self, request: pb.ExplainRequest, context: ServicerContext
    ) -> pb.ExplainResponse:
        """Why live requests of the caller's tenant wait, from any connection."""
        return await explain(self._server, self._server.authenticator.tenant(context), request)
