"""Reflection of the services, by the name of a method too."""

import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection


class _Files:
    """The default descriptor pool, which also finds the file of a method.

    `DescriptorPool.FindFileContainingSymbol` knows services and messages alone, while the protocol
    allows `package.Service.Method`, which is what ghz sends.
    """

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> object:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """Return the file of a service, a method or a message.

        Raises:
            KeyError: There is none of this name.
        """
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def enable(server: grpc.aio.Server, services: tuple[str, ...]) -> None:
    """Describe these services, and the reflection service itself, to clients of a server."""
    names = (*services, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=_Files())
