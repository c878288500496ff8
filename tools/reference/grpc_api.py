"""The page of the gRPC API, from descriptors with the comments of `proto/`."""

from collections.abc import Iterator, Mapping, Sequence

from google.protobuf import descriptor_pb2

from tools.reference.markdown import page, table

# Numbers of fields in descriptor.proto, of which the path to a comment consists.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS = 2, 3, 4

_LEAD = """
The package is `chairlift.v1`. The comments are those of `proto/chairlift/v1/`, which
`grpcurl describe` and generated stubs have too.
"""


def grpc_page(descriptors: bytes) -> str:
    """Return the page.

    Args:
        descriptors: A `FileDescriptorSet` with source information.
    """
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    return page("gRPC API", _LEAD, *(part for file in files for part in _File(file).parts()))


class _File:
    """One file of `proto/`: its descriptors, and its comments by their paths."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._file = file
        self._comments: Mapping[tuple[int, ...], str] = {
            tuple(location.path): location.leading_comments or location.trailing_comments
            for location in file.source_code_info.location
        }

    def parts(self) -> Iterator[str]:
        yield f"## `{self._file.name}`"
        for index, service in enumerate(self._file.service):
            yield from self._service(service, (_SERVICES, index))
        for index, message in enumerate(self._file.message_type):
            yield from self._message(message, (_MESSAGES, index), "")
        for index, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, (_ENUMS, index), "")

    def _comment(self, path: Sequence[int]) -> str:
        text = self._comments.get(tuple(path), "")
        return "\n".join(line.removeprefix(" ") for line in text.splitlines())

    def _service(
        self, service: descriptor_pb2.ServiceDescriptorProto, path: tuple[int, ...]
    ) -> Iterator[str]:
        yield f"### Service `{service.name}`"
        yield self._comment(path)
        for index, method in enumerate(service.method):
            takes = _stream(method.client_streaming) + _name(method.input_type)
            gives = _stream(method.server_streaming) + _name(method.output_type)
            yield f"#### `{service.name}.{method.name}`"
            yield f"`{takes}` to `{gives}`"
            yield self._comment((*path, _FIELDS, index))

    def _message(
        self, message: descriptor_pb2.DescriptorProto, path: tuple[int, ...], prefix: str
    ) -> Iterator[str]:
        if message.options.map_entry:
            return
        name = prefix + message.name
        yield f"### `{name}`"
        yield self._comment(path)
        maps = {nested.name for nested in message.nested_type if nested.options.map_entry}
        if message.field:
            lines = [
                (str(field.number), f"`{field.name}`", _type(field, message, maps), text)
                for index, field in enumerate(message.field)
                for text in [self._comment((*path, _FIELDS, index))]
            ]
            yield table(("Number", "Field", "Type", "Meaning"), lines)
        for index, nested in enumerate(message.nested_type):
            yield from self._message(nested, (*path, _NESTED, index), f"{name}.")
        for index, enum in enumerate(message.enum_type):
            yield from self._enum(enum, (*path, _NESTED_ENUMS, index), f"{name}.")

    def _enum(
        self, enum: descriptor_pb2.EnumDescriptorProto, path: tuple[int, ...], prefix: str
    ) -> Iterator[str]:
        yield f"### `{prefix}{enum.name}`"
        yield self._comment(path)
        lines = [
            (str(value.number), f"`{value.name}`", self._comment((*path, _FIELDS, index)))
            for index, value in enumerate(enum.value)
        ]
        yield table(("Number", "Value", "Meaning"), lines)


def _stream(is_stream: bool) -> str:
    return "stream of " if is_stream else ""


def _name(full_name: str) -> str:
    return full_name.removeprefix(".chairlift.v1.").removeprefix(".")


def _type(
    field: descriptor_pb2.FieldDescriptorProto,
    message: descriptor_pb2.DescriptorProto,
    maps: set[str],
) -> str:
    types = descriptor_pb2.FieldDescriptorProto
    name = _name(field.type_name) or types.Type.Name(field.type).removeprefix("TYPE_").lower()
    last = name.rpartition(".")[2]
    if last in maps:
        entry = next(nested for nested in message.nested_type if nested.name == last)
        key, value = (_type(part, entry, set()) for part in entry.field)
        return f"map of {key} to {value}"
    if field.label == types.LABEL_REPEATED:
        return f"repeated `{name}`"
    if field.proto3_optional:
        return f"optional `{name}`"
    if field.HasField("oneof_index"):
        return f"`{name}`, of `{message.oneof_decl[field.oneof_index].name}`"
    return f"`{name}`"
