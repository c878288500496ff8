"""Reflection of the services, by the name of a method too."""

from contextlib import suppress
from typing import Final

import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

_OLD: Final = "grpc.reflection.v1alpha"
_NEW: Final = "grpc.reflection.v1"


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
    """Describe these services, and reflection itself, to clients of a server.

    Clients ask for `grpc.reflection.v1` first, and some for nothing else. It has the messages of
    v1alpha, byte for byte, so that one servicer answers both.
    """
    _describe_new()
    name = reflection.SERVICE_NAME.replace(_OLD, _NEW)
    servicer = reflection.aio.ReflectionServicer(
        (*services, name, reflection.SERVICE_NAME), pool=_Files()
    )
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = {"ServerReflectionInfo": handler}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    server.add_registered_method_handlers(name, handlers)


def _describe_new() -> None:
    """Add the description of v1 to the default pool, unless a package has brought its own."""
    pool = descriptor_pool.Default()
    with suppress(KeyError):
        pool.FindServiceByName(f"{_NEW}.ServerReflection")
        return
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "grpc/reflection/v1/reflection.proto", _NEW
    for message in file.message_type:
        for field in filter(lambda field: field.type_name, message.field):
            field.type_name = field.type_name.replace(f".{_OLD}.", f".{_NEW}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(_OLD, _NEW)
            method.output_type = method.output_type.replace(_OLD, _NEW)
    pool.Add(file)
