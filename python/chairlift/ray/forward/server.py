"""The gRPC server of an ingress: services, TLS and tokens are those of a server with a model."""

import asyncio
import logging
from typing import Any, Final

import grpc

from chairlift.api.errors import ConfigError, Reason
from chairlift.api.logs import fields
from chairlift.ray.forward.context import ForwardContext
from chairlift.ray.forward.replicas import Replicas
from chairlift.ray.forward.stream import ForwardedCall
from chairlift.ray.forward.unary import SERVICES, UnaryCalls
from chairlift.server.config import ServerConfig, grpc_options
from chairlift.server.limits.receiving import Messages, Receiving
from chairlift.server.ops.health import Health
from chairlift.server.rpc import reflection
from chairlift.server.rpc.listen import bind, check_private, parse_address, unbind
from chairlift.server.rpc.listener import grpc_server
from chairlift.server.rpc.status_interceptor import ServicerContext, StatusInterceptor
from chairlift.server.security.auth import AuthInterceptor, new_authenticator
from chairlift.server.security.tls import server_credentials
from chairlift.v1 import generation_pb2 as pb

_log = logging.getLogger(__name__)

_REMEDY: Final = "that needs tls_cert and tls_key, and auth_tokens; or use 127.0.0.1"
_POLL_S: Final = 0.05
_STOP_S: Final = 0.5


class ForwardingServer:
    """Answers every call of `chairlift.v1` but those of `AdminService` by a replica.

    Attributes:
        context: The replicas, and what calls share.
        has_lost_port: Whether no call is accepted any more.
    """

    def __init__(self, config: ServerConfig, replicas: Replicas) -> None:
        """Check the settings; nothing listens yet.

        Args:
            config: Address, TLS, tokens and limits; those of an engine are not used.
            replicas: Where calls go.

        Raises:
            ConfigError: An address or file is malformed, the server would be open to other
                machines without protection, or certificates of clients are to name tenants.
        """
        if config.tls_client_ca is not None:
            message = "tls_client_ca: not supported here: replicas do not see the certificate"
            raise ConfigError(message)
        self._config = config
        self._address = parse_address(config.listen, "listen")
        self._credentials = server_credentials(config)
        if self._credentials is None or config.auth_tokens is None:
            check_private(self._address, "listen", _REMEDY)
        authenticator = new_authenticator(config)
        self.context = ForwardContext(replicas, authenticator, config.write_timeout_s)
        self.has_lost_port = False
        self._num_calls = 0
        self._health = Health(engine=SERVICES, model=(), tenant_of=authenticator.tenant)
        self._server: grpc.aio.Server | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen.

        Returns:
            The address, with the port that the system chose.

        Raises:
            ConfigError: The address cannot be used.
        """
        config, authenticator = self._config, self.context.authenticator
        receiving = Receiving(config.max_receive_bytes, config.receive_memory_bytes)
        interceptors = (
            StatusInterceptor(_on_failed_call, receiving, authenticator.tenant),
            AuthInterceptor(authenticator),
        )
        server = grpc_server(interceptors, grpc_options(config), self._on_lost_port)
        for name, methods in self._handlers().items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
            server.add_registered_method_handlers(name, methods)
        await self._health.add_to(server)
        reflection.enable(server, (*SERVICES, "grpc.health.v1.Health"))
        self._address = bind(server, self._address, "listen", self._credentials)
        self._server = server
        await server.start()
        self._following = asyncio.create_task(self._follow())
        return str(self._address)

    def _handlers(self) -> dict[str, dict[str, Any]]:
        unary = UnaryCalls(self.context)
        generate = grpc.stream_stream_rpc_method_handler(
            self._generate, pb.GenerateRequest.FromString
        )
        generation = {"Generate": generate, **unary.of_generation()}
        return {SERVICES[0]: generation, **unary.of_others()}

    async def _generate(self, commands: Messages, context: ServicerContext) -> None:
        self._num_calls += 1
        try:
            await ForwardedCall(self.context, commands, context).run()
        finally:
            self._num_calls -= 1

    def _on_lost_port(self, error: BaseException) -> None:
        _log.critical("the port is lost", exc_info=error)
        self.has_lost_port = True

    async def _follow(self) -> None:
        """Tell health checks whether a replica is up."""
        replicas = self.context.replicas
        while True:
            await self._health.set(is_serving=bool(replicas.up))
            await replicas.changed()

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, let streams end with their last request, then close the port.

        Args:
            grace_s: How long live requests may continue.
        """
        self.context.draining.set()
        if self._following is not None:
            self._following.cancel()
        await self._health.shut_down()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        while self._num_calls and loop.time() < until:
            await asyncio.sleep(_POLL_S)
        if self._server is not None:
            unbind(self._address)
            await self._server.stop(_STOP_S)


def _on_failed_call(method: str, reason: Reason) -> None:
    _log.debug("call failed", extra=fields(method=method, reason=reason.value))
