"""The protocols of other servers that the gRPC port can answer, by the names of the setting."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from chairlift.api.config import EngineConfig
from chairlift.server.calls.context import ServerContext
from chairlift.server.ops.health import Health

_SERVICES: Final = {
    "vllm": "vllm.grpc.engine.VllmEngine",
    "oip": "inference.GRPCInferenceService",
}


class Servicer(Protocol):
    """The service of a protocol."""

    def add_to(self, server: Any) -> None:
        """Register the methods."""


def services_of(protocols: Iterable[str]) -> tuple[str, ...]:
    """Return the full names of the services."""
    return tuple(_SERVICES[name] for name in protocols)


def servicers_of(
    protocols: Iterable[str], server: ServerContext, config: EngineConfig, health: Health
) -> Iterator[Servicer]:
    """Yield the services; stubs are loaded only for a protocol that is on."""
    for name in protocols:
        if name == "vllm":
            from chairlift.server.protocols.vllm import VllmEngineServicer

            yield VllmEngineServicer(server, config, lambda: health.is_serving)
        else:
            from chairlift.server.protocols.oip import InferenceServicer

            yield InferenceServicer(server, lambda: health.is_serving)
