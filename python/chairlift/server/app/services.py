"""The services of the gRPC port."""

from collections.abc import Iterable
from typing import Any

import grpc

from chairlift.api.config import EngineConfig
from chairlift.server.app.protocols import servicers_of, services_of
from chairlift.server.calls.context import ServerContext
from chairlift.server.config import ServerConfig
from chairlift.server.ops.health import Health
from chairlift.server.rpc import reflection
from chairlift.server.services.adapter_calls import AdminServicer
from chairlift.server.services.embedding_service import EmbeddingServicer
from chairlift.server.services.generation_service import GenerationServicer
from chairlift.server.services.overview import Overview
from chairlift.server.services.server_service import ServerServicer
from chairlift.server.services.tokenizer_service import TokenizerServicer
from chairlift.server.transfer.attached import Transfers
from chairlift.server.transfer.service import TransferServicer
from chairlift.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    embedding_pb2,
    generation_pb2,
    server_pb2,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
    transfer_pb2,
)

_OF_ENGINE = (generation_pb2, embedding_pb2, admin_pb2)
"""Files of the services that need a running engine."""
_OF_MODEL = (tokenizer_pb2, server_pb2)
"""Files of those that need a loaded model only."""
_OF_PREFILL = (transfer_pb2,)
"""Files of those that only a prefill server has."""


def new_health(context: ServerContext, protocols: Iterable[str], *, is_prefill: bool) -> Health:
    """Return the health of all services, each of which does not serve yet."""
    files = (*_OF_ENGINE, *(_OF_PREFILL if is_prefill else ()))
    return Health(
        engine=(*_names(files), *services_of(protocols)),
        model=_names(_OF_MODEL),
        tenant_of=context.authenticator.tenant,
        write_timeout_s=context.write_timeout_s,
    )


async def add_services(
    server: grpc.aio.Server,
    context: ServerContext,
    engine_config: EngineConfig,
    config: ServerConfig,
    overview: Overview,
    health: Health,
    transfers: Transfers,
) -> None:
    """Register all services, those of other protocols and reflection included.

    Args:
        server: Not started yet.
        context: The state that all calls share.
        engine_config: Settings of the engine.
        config: Settings of the server.
        overview: What the server tells of itself.
        health: From `new_health`.
        transfers: What the role of the server adds.
    """
    GenerationServicer(context).add_to(server)
    EmbeddingServicer(context).add_to(server)
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(TokenizerServicer(context), server)
    ServerServicer(context, engine_config, overview).add_to(server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(context), server)
    protocols = config.protocol or ()
    for servicer in servicers_of(protocols, context, engine_config, health):
        servicer.add_to(server)
    files: tuple[Any, ...] = (*_OF_ENGINE, *_OF_MODEL)
    if transfers.exporting is not None:
        TransferServicer(context, transfers.exporting).add_to(server)
        files = (*files, *_OF_PREFILL)
    await health.add_to(server)
    names = (*_names(files), *services_of(protocols), "grpc.health.v1.Health")
    reflection.enable(server, names)


def _names(files: Iterable[Any]) -> tuple[str, ...]:
    """Return the full names of the services of generated modules."""
    return tuple(
        service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values()
    )
