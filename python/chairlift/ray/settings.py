"""The settings of replicas on Ray Serve."""

import os
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chairlift.api.config import EngineConfig, checked, engine_config
from chairlift.api.errors import ConfigError
from chairlift.client.security import Security
from chairlift.server.config import ServerConfig

_OF_INGRESS: Final = (
    *("tls_cert", "tls_key", "auth_tokens", "trust_tenant_metadata"),
    *("max_receive_bytes", "write_timeout_s", "adapters_on_demand"),
)
"""Settings of a server that the ingress has, too."""
_OWN: Final = ("listen", "http_listen", "metrics_listen", "record", "tls_client_ca", "page")
"""Settings of a server that a replica sets itself, or cannot have."""
_SHUTDOWN_S: Final = 15.0
"""Time after the grace of a drain until Serve ends a replica."""


class RaySettings(BaseModel):
    """What `chairlift.ray:build` takes, as an argument of `serve run` or a key of its YAML file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str = "demo"
    """The model, as `chairlift serve` takes it."""
    server: dict[str, Any] = {}
    """Options of `chairlift serve` for every replica, with underscores: max_num_seqs, say."""
    num_replicas: Annotated[int, Field(ge=1, le=256)] = 2
    """Engines; with max_replicas the number at the start."""
    max_replicas: Annotated[int, Field(ge=1, le=256)] | None = None
    """Engines at most: sets their number by waiting and running tokens. Default: no autoscaling."""
    min_replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """Engines at least, where their number is set by tokens."""
    target_tokens: Annotated[int, Field(ge=1)] = 16_384
    """Waiting and running tokens that one engine should have."""
    scale_up_delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long more engines must be wanted before they start."""
    scale_down_delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0
    """How long fewer must be wanted before some drain and end."""
    listen: str = "127.0.0.1:50051"
    """HOST:PORT of the ingress for gRPC; beyond loopback TLS and tokens are needed."""
    num_ingresses: Annotated[int, Field(ge=1, le=256)] = 1
    """Ingresses, at most one on a machine."""
    engine_host: str = "127.0.0.1"
    """Address of engines for ingresses; "node" is that of their machine in the cluster, which needs
    TLS and tokens."""
    tls_ca: str | None = None
    """PEM file of the authority of the engines' certificates."""
    routing: str = "both"
    """round-robin, least-load, prefix or both."""
    actor_options: dict[str, Any] = {}
    """Options of Ray for each engine: num_cpus, num_gpus, resources. Default: one processor."""

    @model_validator(mode="after")
    def _check(self) -> "RaySettings":
        self.configs()
        low, high = self.min_replicas, self.max_replicas
        if high is not None and not low <= self.num_replicas <= high:
            message = f"num_replicas: expected {low} to {high}, got {self.num_replicas}"
            raise ConfigError(message)
        return self

    def configs(self) -> tuple[EngineConfig, ServerConfig]:
        """Return the settings of a replica and those of the ingress, checked.

        Raises:
            ConfigError: A name or a value in `server` is wrong.
        """
        for name in _OWN:
            if name in self.server:
                message = f"server.{name}: replicas on Ray cannot set it"
                raise ConfigError(message)
        of_server = {k: v for k, v in self.server.items() if k in ServerConfig.model_fields}
        of_engine = {k: v for k, v in self.server.items() if k not in of_server}
        engine = engine_config(**of_engine)
        checked(ServerConfig, model=self.model, **of_server).check_with(engine)
        of_ingress = {k: v for k, v in of_server.items() if k in _OF_INGRESS}
        ingress = checked(ServerConfig, model=self.model, listen=self.listen, **of_ingress)
        return engine, ingress

    @property
    def drain_grace_s(self) -> float:
        """Return the seconds that live requests have when a replica ends."""
        default = ServerConfig.model_fields["drain_grace_s"].default
        return float(self.server.get("drain_grace_s", default))

    @property
    def shutdown_s(self) -> float:
        """Return the seconds after which Serve ends a replica that drains."""
        return self.drain_grace_s + _SHUTDOWN_S

    @property
    def security(self) -> Security:
        """Return how an ingress connects to engines: with the token in CHAIRLIFT_TOKEN, if any.

        Raises:
            ConfigError: Engines ask for a token, and there is none.
        """
        token = os.environ.get("CHAIRLIFT_TOKEN")
        if self.server.get("auth_tokens") is not None and not token:
            message = "CHAIRLIFT_TOKEN: engines have auth_tokens, and the ingress has no token"
            raise ConfigError(message)
        return Security(token=token, tls_ca=self.tls_ca)
