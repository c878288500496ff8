"""Clients of a Chairlift server: the names of `chairlift.client`, and the errors they raise."""

from chairlift.api.errors import (
    ChairliftError,
    ConfigError,
    NoServerError,
    Reason,
    RequestError,
    ServerError,
)
from chairlift.client import (
    Answer,
    AsyncClient,
    AsyncGeneration,
    Client,
    Generation,
    RequestOptions,
    UpdateOptions,
    connect,
    connect_async,
    new_start,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncGeneration",
    "ChairliftError",
    "Client",
    "ConfigError",
    "Generation",
    "NoServerError",
    "Reason",
    "RequestError",
    "RequestOptions",
    "ServerError",
    "UpdateOptions",
    "connect",
    "connect_async",
    "new_start",
]
