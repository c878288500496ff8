"""Clients of a Chairlift server: one stream under many callers.

    with connect("127.0.0.1:50051") as client:
        for text in client.generate("Once upon a time", max_tokens=40):
            print(text, end="", flush=True)

    async with connect_async("127.0.0.1:50051") as client:
        async for text in client.generate("Once upon a time", max_tokens=40):
            print(text, end="", flush=True)

Needs grpcio and protobuf alone: no torch, no server.
"""

from chairlift.client.aio import AsyncClient, AsyncGeneration
from chairlift.client.start import new_start
from chairlift.client.sync import Client, Generation

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "Client",
    "Generation",
    "connect",
    "connect_async",
    "new_start",
]


def connect(address: str) -> Client:
    """Gives a client for threads; it connects with its first call.

    Args:
        address: HOST:PORT or unix:PATH.
    """
    return Client(address)


def connect_async(address: str) -> AsyncClient:
    """Gives a client for the running event loop; it connects with its first call.

    Args:
        address: HOST:PORT or unix:PATH.
    """
    return AsyncClient(address)
