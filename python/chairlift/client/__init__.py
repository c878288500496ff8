"""Clients of a Chairlift server: many requests share one stream.

    with connect("127.0.0.1:50051") as client:
        for text in client.generate("Once upon a time", max_tokens=40):
            print(text, end="", flush=True)

    async with connect_async("127.0.0.1:50051") as client:
        async for text in client.generate("Once upon a time", max_tokens=40):
            print(text, end="", flush=True)

Needs grpcio and protobuf alone: no torch, no server.
"""

from pathlib import Path

from chairlift.client.aio import AsyncClient, AsyncGeneration
from chairlift.client.answer import Answer
from chairlift.client.options import RequestOptions, UpdateOptions
from chairlift.client.security import Security
from chairlift.client.start import new_start
from chairlift.client.sync import Client, Generation

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncGeneration",
    "Client",
    "Generation",
    "RequestOptions",
    "UpdateOptions",
    "connect",
    "connect_async",
    "new_start",
]


def connect(
    address: str,
    *,
    token: str | None = None,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
) -> Client:
    """Return a client for threads; it connects with its first call.

    Args:
        address: HOST:PORT or unix:PATH.
        token: Bearer token; without TLS it is sent to this machine only.
        tls_ca: PEM file of the authorities whose servers are trusted; None is plain text.
        tls_cert: PEM file of a certificate for a server that asks for one.
        tls_key: PEM file of its key.

    Raises:
        ConfigError: The address is malformed, a file cannot be read, or the token would be sent in
            plain text.
    """
    security = Security(token=token, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
    return Client(address, security)


def connect_async(
    address: str,
    *,
    token: str | None = None,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
) -> AsyncClient:
    """Return a client for the running event loop; it connects with its first call.

    Args:
        address: HOST:PORT or unix:PATH.
        token: Bearer token; without TLS it is sent to this machine only.
        tls_ca: PEM file of the authorities whose servers are trusted; None is plain text.
        tls_cert: PEM file of a certificate for a server that asks for one.
        tls_key: PEM file of its key.

    Raises:
        ConfigError: The address is malformed, a file cannot be read, or the token would be sent in
            plain text.
    """
    security = Security(token=token, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
    return AsyncClient(address, security)
