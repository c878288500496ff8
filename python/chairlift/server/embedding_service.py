"""`EmbeddingService`: part of the proto, not of this version."""

from chairlift.errors import Reason, RequestError
from chairlift.server.status_interceptor import ServicerContext
from chairlift.v1 import embedding_pb2 as pb
from chairlift.v1 import embedding_pb2_grpc


class EmbeddingServicer(embedding_pb2_grpc.EmbeddingServiceServicer):
    """Vectors of texts."""

    async def Embed(self, request: pb.EmbedRequest, context: ServicerContext) -> pb.EmbedResponse:
        """Refuse: embeddings come with a later version."""
        message = "Embed: not supported by this version of the server"
        raise RequestError(Reason.UNSUPPORTED, message, field="Embed")
