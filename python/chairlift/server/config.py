"""The settings of the server, and the gRPC channel options that follow from them."""

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.api.home import expanded

_NAME: Final = re.compile(r"[!-~]{1,128}")


def _names(value: object) -> object:
    """Split names that are joined by commas; a list may hold several."""
    if not isinstance(value, str | list | tuple):
        return value
    texts = [value] if isinstance(value, str) else value
    split = (name.strip() for text in texts for name in str(text).split(","))
    names = tuple(filter(None, split))
    if not names or len(set(names)) < len(names) or not all(map(_NAME.fullmatch, names)):
        message = "expected different names of at most 128 printable characters, none a space"
        raise ValueError(message)
    return names


def _texts(value: object) -> object:
    """Split texts that commas join; a list may hold several."""
    if not isinstance(value, str | list | tuple):
        return value
    texts = [value] if isinstance(value, str) else value
    split = tuple(part.strip() for text in texts for part in str(text).split(","))
    if not all(split):
        message = "expected no empty value"
        raise ValueError(message)
    return split


PROTOCOLS: Final = ("vllm", "oip")
"""Protocols of other servers, each off unless it is named."""


def _protocols(value: object) -> object:
    """Split names as `_names`, and check that each is a protocol's."""
    names = _names(value)
    if isinstance(names, tuple) and not set(names) <= set(PROTOCOLS):
        message = f"expected {' or '.join(PROTOCOLS)}"
        raise ValueError(message)
    return names


class Switch(StrEnum):
    """What a setting with a default of its own is set to."""

    ON = "on"
    OFF = "off"


class Role(StrEnum):
    """What a server does of the work on a prompt and its answer, where two servers share it."""

    PREFILL = "prefill"
    DECODE = "decode"


class ServerConfig(BaseModel):
    """Settings of the server; each is also an option of `chairlift serve`, with this text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str = "demo"
    """Its name, as `resolve_model` takes it."""
    served_model_name: Annotated[tuple[str, ...], BeforeValidator(_names)] | None = None
    """What requests may call the model: names that commas join, or repeat it; the first is
    canonical. Default: the folder's name, or the id."""
    listen: str = "127.0.0.1:50051"
    """HOST:PORT or unix:PATH; beyond loopback TLS and authentication are needed."""
    tls_cert: str | None = None
    """PEM file of the server's certificate, with its chain; default: plain text."""
    tls_key: str | None = None
    """PEM file of the certificate's key; must not be world-readable."""
    tls_client_ca: str | None = None
    """PEM file of the authorities of client certificates, which are then required."""
    auth_tokens: str | None = None
    """File of TENANT:TOKEN lines: every call but the health check carries one of them; default: no
    token is required."""
    admin_tokens: str | None = None
    """File of NAME:TOKEN lines of administrators, which may load and unload adapters; default: no
    caller may."""
    adapters_on_demand: bool = False
    """Load an adapter of adapter_folder when a request names it, for the tenants of
    adapter_tenants; one that is not in use makes room."""
    trust_tenant_metadata: bool = False
    """Let callers name a tenant in the metadata chairlift-tenant, as a gateway does."""
    tenant_max_requests: Annotated[int, Field(ge=1)] | None = None
    """Most live requests of one tenant, n sequences as n; default: no limit."""
    tenant_max_queued_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most prompt tokens of one tenant that wait for their first token; default: no limit."""
    max_queued_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most prompt tokens of all tenants that wait for their first token; default: no limit."""
    tenant_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Most requests per second of one tenant, n sequences as n, as a token bucket of one second;
    default: no limit."""
    metrics_listen: str | None = None
    """HOST:PORT on loopback of the Prometheus endpoint; default: none."""
    otlp_endpoint: str | None = None
    """http://HOST:PORT of an OpenTelemetry collector of traces and metrics, OTLP over gRPC
    (chairlift[otel]); default: none."""
    http_listen: str | None = None
    """HOST:PORT of the OpenAI API over HTTP (chairlift[http]), as for gRPC beyond loopback;
    default: none."""
    http_allowed_host: Annotated[tuple[str, ...], BeforeValidator(_names)] | None = None
    """More names in the Host header of HTTP requests to loopback, as a proxy on this machine sends
    them."""
    page: Switch | None = None
    """Whether the HTTP port has the live page at `/`; default: on loopback only."""
    protocol: Annotated[tuple[str, ...], BeforeValidator(_protocols)] | None = None
    """A protocol of other servers that the port answers, too: vllm (VllmEngine, as gateways call
    it) or oip (KServe v2 and Triton's stream); repeat it for both."""
    kv_events: Annotated[tuple[str, ...], BeforeValidator(_texts)] | None = None
    """[TENANT=]ADDRESS where the events of a tenant's prefix cache are published, which carry its
    prompts: HOST:PORT or unix:PATH over ZeroMQ (chairlift[kv-events]), with ?replay=ADDRESS,
    &format=array and &topic=TEXT; or grpc, for SubscribeKvEvents alone. Repeat it for other
    tenants; default: none."""
    kv_events_allow_remote: bool = False
    """Let other machines connect to the ZeroMQ addresses of kv_events: nothing protects them."""
    role: Role | None = None
    """prefill: compute prompts for other servers, too, which receive their KV blocks
    (TransferService); decode: let prefill_peers compute long prompts. Default: neither."""
    prefill_peers: Annotated[tuple[str, ...], BeforeValidator(_texts)] | None = None
    """HOST:PORT or unix:PATH of prefill servers of the same model, with role decode; beyond this
    machine prefill_ca is needed."""
    prefill_token: str | None = None
    """File of the bearer token for prefill servers; default: none is sent."""
    prefill_ca: str | None = None
    """PEM file of the authorities of their certificates; default: plain text."""
    prefill_address: str | None = None
    """HOST:PORT of this server as the prefill_peers of others name it, with role prefill: for
    gateways that pair servers (kv_transfer_params). Default: listen."""
    strict_roles: bool = False
    """With role decode: a long prompt whose KV blocks do not come fails (PREFILL_UNAVAILABLE)
    instead of being computed here."""
    drain_grace_s: Annotated[float, Field(ge=0)] = 30.0
    """After SIGTERM: how long running requests may continue."""
    load_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """If no weights arrive for this long at the start, the process exits with 70."""
    step_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A step that takes longer hangs: streams fail, the process exits with 70."""
    write_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A call whose client reads nothing for this long ends."""
    max_receive_bytes: Annotated[int, Field(ge=1024)] = 2**20
    """A longer message is refused; 128k tokens take some 0.6 MB as text and 0.4 MB as ids."""
    receive_memory_bytes: Annotated[int, Field(ge=1024)] = 256 * 2**20
    """Memory for messages of all connections that are not complete yet."""
    max_resume_window_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """The longest time that a request may outlive its stream; 0: none may."""
    resume_request_bytes: Annotated[int, Field(ge=2**17)] = 256 * 2**10
    """Sent events of such a request that are kept to be sent again."""
    resume_memory_bytes: Annotated[int, Field(ge=0)] = 128 * 2**20
    """The same, over all requests; a tenant has three quarters of what is free at most."""
    max_connections: Annotated[int, Field(ge=1)] = 1024
    """Open connections of each port, fewer where few files may be open. A further one ends one
    without a request over HTTP, and is closed at once over gRPC."""
    max_concurrent_streams: Annotated[int, Field(ge=1)] = 256
    """Open calls of one connection."""
    record: str | None = None
    """File for the trace that `chairlift replay` runs again; it holds no text."""

    def check_with(self, engine: EngineConfig) -> None:
        """Check these settings beside those of the engine.

        Raises:
            ConfigError: One needs a setting of the engine.
        """
        if not self.adapters_on_demand:
            return
        if engine.adapter_folder is None:
            message = "adapters_on_demand: expected adapter_folder beside it, got none"
            raise ConfigError(message)
        if engine.num_adapter_slots == 0:
            message = "adapters_on_demand: expected max_adapters of at least 1 beside it, got 0"
            raise ConfigError(message)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names by which requests may call the model, the canonical one first."""
        if self.served_model_name is not None:
            return self.served_model_name
        path = expanded(self.model)
        if path.is_file():
            return (path.stem,)
        # Not resolved: a link keeps its name.
        name = Path(os.path.normpath(path.absolute())).name if path.is_dir() else ""
        return (name or self.model,)


def grpc_options(config: ServerConfig) -> list[tuple[str, int]]:
    """Return the channel options; a comment has the reason of each that differs from gRPC's."""
    return [
        ("grpc.max_receive_message_length", config.max_receive_bytes),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        # A call that is not read yet holds this much, not 4 MiB; the window of one that is read
        # grows to the length of its message.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 16_384),
        # Of more than 1,000 calls that arrive at once gRPC ends some as CANCELLED, those of other
        # clients included. They wait here instead, in 128 MiB at most.
        ("grpc.server.max_pending_requests", 8_192),
        ("grpc.server.max_pending_requests_hard_limit", 8_192),
        # A second server on the same port should fail, not take half of the calls.
        ("grpc.so_reuseport", 0),
        # A queued request has no bytes in transit: only pings find out that its client is gone.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Without it a ping times out after 60 s, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Well-found pings of clients are no attack.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        # Handshakes that never end hold a file descriptor each.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.max_metadata_size", 8_192),
        ("grpc.absolute_max_metadata_size", 16_384),
    ]
