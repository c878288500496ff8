"""Where the events of a tenant are published: the values of `kv_events`.

[TENANT=]HOST:PORT[?replay=HOST:PORT][&format=array][&topic=TEXT]
[TENANT=]unix:PATH[?replay=unix:PATH]...
[TENANT=]grpc
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl

from chairlift.api.errors import ConfigError
from chairlift.server.config import ServerConfig
from chairlift.server.rpc.listen import TcpAddress, UnixAddress, check_private, parse_address
from chairlift.server.security.auth import ANONYMOUS

_OPTION: Final = "kv_events"
_GRPC: Final = "grpc"
_MAX_TOPIC: Final = 256
_REMEDY: Final = (
    "events carry prompts in plain text: use 127.0.0.1, ::1 or unix:PATH, "
    "or --kv-events-allow-remote"
)


class Form(StrEnum):
    """How an event is written."""

    MAP = "map"
    """A map with the key `type`, which vLLM writes since June 2026."""
    ARRAY = "array"
    """An array that begins with the type, which vLLM wrote before."""


@dataclass(frozen=True, slots=True)
class ZmqEndpoint:
    """A publishing socket, and one that answers requests for what was published."""

    address: TcpAddress | UnixAddress
    replay: TcpAddress | UnixAddress | None
    form: Form
    topic: str


@dataclass(frozen=True, slots=True)
class Published:
    """A tenant whose events are published."""

    tenant: str
    endpoint: ZmqEndpoint | None
    """None: on the gRPC port alone."""


def published(config: ServerConfig, *, prefix_cache: bool) -> tuple[Published, ...]:
    """Parse the setting.

    Args:
        config: The server's settings.
        prefix_cache: Whether the engine has one.

    Raises:
        ConfigError: A value is malformed, names a tenant twice or none where callers have names, or
            other machines can reach an address.
    """
    values = tuple(_published(text, config) for text in config.kv_events or ())
    if values and not prefix_cache:
        message = f"{_OPTION}: there are events of the prefix cache alone, and it is off"
        raise ConfigError(message)
    tenants = [value.tenant for value in values]
    if len(set(tenants)) < len(tenants):
        message = f"{_OPTION}: expected each tenant once, got {', '.join(map(repr, tenants))}"
        raise ConfigError(message)
    return values


def _published(text: str, config: ServerConfig) -> Published:
    where, _, options = text.partition("?")
    tenant, separator, where = where.rpartition("=")
    has_names = config.auth_tokens is not None or config.tls_client_ca is not None
    if not separator and has_names:
        message = f"{_OPTION}: callers have names: expected TENANT=ADDRESS, got {text!r}"
        raise ConfigError(message)
    if not has_names and not config.trust_tenant_metadata and tenant != ANONYMOUS:
        message = f"{_OPTION}: no caller has a name here: expected ADDRESS, got {text!r}"
        raise ConfigError(message)
    if where != _GRPC:
        return Published(tenant, _endpoint(where, options, text, config))
    if options:
        message = f"{_OPTION}: {_GRPC} has no options, got {text!r}"
        raise ConfigError(message)
    if "vllm" not in (config.protocol or ()):
        message = f"{_OPTION}: {_GRPC} needs --protocol vllm, which has SubscribeKvEvents"
        raise ConfigError(message)
    return Published(tenant, None)


def _endpoint(where: str, options: str, text: str, config: ServerConfig) -> ZmqEndpoint:
    pairs: Sequence[tuple[str, str]] = parse_qsl(options, keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs) or not given.keys() <= {"replay", "format", "topic"}:
        message = f"{_OPTION}: expected replay, format and topic once each, got {text!r}"
        raise ConfigError(message)
    if given.get("format", Form.MAP) not in tuple(Form):
        message = f"{_OPTION}: expected format=map or format=array, got {text!r}"
        raise ConfigError(message)
    topic = given.get("topic", "")
    if len(topic) > _MAX_TOPIC:
        message = f"{_OPTION}: expected a topic of at most {_MAX_TOPIC} characters"
        raise ConfigError(message)
    replay = given.get("replay")
    return ZmqEndpoint(
        _address(where, config),
        None if replay is None else _address(replay, config),
        Form(given.get("format", Form.MAP)),
        topic,
    )


def _address(where: str, config: ServerConfig) -> TcpAddress | UnixAddress:
    address = parse_address(where, _OPTION)
    if not config.kv_events_allow_remote:
        check_private(address, _OPTION, _REMEDY)
    return address
