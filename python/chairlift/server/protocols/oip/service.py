"""The methods of `GRPCInferenceService`."""

from collections.abc import Callable
from typing import Any

from chairlift import _core
from chairlift.api.errors import RequestError
from chairlift.server.calls.context import ServerContext
from chairlift.server.convert.fields import bad
from chairlift.server.limits.receiving import Messages
from chairlift.server.protocols.oip.calls import InferCall, StreamInferCall
from chairlift.server.protocols.oip.convert import NAMES, VERSION, check_version, to_job
from chairlift.server.protocols.oip.tensors import INPUTS, OUTPUTS
from chairlift.server.protocols.stubs import open_inference_pb2 as oip
from chairlift.server.protocols.stubs import open_inference_pb2_grpc
from chairlift.server.rpc.status_interceptor import ServicerContext


class InferenceServicer(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """One model, in one version."""

    def __init__(self, server: ServerContext, is_serving: Callable[[], bool]) -> None:
        """Start.

        Args:
            server: The state that all calls share.
            is_serving: Returns whether the engine answers requests.
        """
        self._server = server
        self._is_serving = is_serving

    def add_to(self, server: Any) -> None:
        """Register the methods."""
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)

    async def ServerLive(
        self, request: oip.ServerLiveRequest, context: ServicerContext
    ) -> oip.ServerLiveResponse:
        """Return that the process answers."""
        return oip.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: oip.ServerReadyRequest, context: ServicerContext
    ) -> oip.ServerReadyResponse:
        """Return whether a request sent now would be answered."""
        return oip.ServerReadyResponse(ready=self._is_serving())

    async def ModelReady(
        self, request: oip.ModelReadyRequest, context: ServicerContext
    ) -> oip.ModelReadyResponse:
        """Return the same for a model."""
        check_version(request.name, request.version, self._server.model_names)
        return oip.ModelReadyResponse(ready=self._is_serving())

    async def ServerMetadata(
        self, request: oip.ServerMetadataRequest, context: ServicerContext
    ) -> oip.ServerMetadataResponse:
        """Return what the server is."""
        return oip.ServerMetadataResponse(
            name="chairlift", version=_core.__version__, extensions=["model_stream_infer"]
        )

    async def ModelMetadata(
        self, request: oip.ModelMetadataRequest, context: ServicerContext
    ) -> oip.ModelMetadataResponse:
        """Return the tensors of the model."""
        check_version(request.name, request.version, self._server.model_names)
        tensor = oip.ModelMetadataResponse.TensorMetadata
        return oip.ModelMetadataResponse(
            name=request.name or self._server.model_names[0],
            versions=[VERSION],
            platform="chairlift",
            inputs=[tensor(name=n, datatype=kind, shape=[1]) for n, kind in INPUTS.items()],
            outputs=[tensor(name=n, datatype=kind, shape=[1]) for n, kind in OUTPUTS.items()],
        )

    async def ModelInfer(
        self, request: oip.ModelInferRequest, context: ServicerContext
    ) -> oip.ModelInferResponse:
        """Return a whole answer."""
        server = self._server
        engine = server.gate.admit()
        tenant, limits = server.authenticator.tenant(context), engine.engine.text_limits
        try:
            job = to_job(request, served=server.model_names, tenant=tenant, limits=limits)
            if job.is_stream:
                raise bad("stream", "expected false: ModelStreamInfer has answers in parts")
            with server.outboxes.open() as outbox:
                call = InferCall(server, outbox, context, job)
                await call.run()
        except RequestError as error:
            raise NAMES.translate(error) from None
        return call.response

    async def ModelStreamInfer(self, request_iterator: Messages, context: ServicerContext) -> None:
        """Execute requests and write their responses."""
        self._server.gate.admit()
        with self._server.outboxes.open() as outbox:
            await StreamInferCall(self._server, outbox, request_iterator, context).run()
