"""docs/api-refused-fields.md lists every field that a server refuses, as a server refuses it.

`UPDATE_DOCS=1 pytest tests/server/test_refused_fields.py` writes the page again.
"""

import os
import re
from pathlib import Path

import grpc
from chairlift.server.services.overview import FEATURES
from chairlift.v1 import admin_pb2, embedding_pb2, generation_pb2, server_pb2, tokenizer_pb2
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import Status

PAGE = Path(__file__).parents[2] / "docs" / "api-refused-fields.md"

HEAD = """# Fields that this version refuses

The proto describes more than this version does. A request that sets one of these fields, sends one
of these commands or calls one of these methods is refused with the reason beside it, by name; no
field is ignored in silence. `GetServerInfo.features` lists what a server does beyond plain
generation.

This table is made by `tests/server/test_refused_fields.py` from the answers of a running server.

| Field, command or method | Reason |
| --- | --- |
"""

REFUSALS = {"UNSUPPORTED"}
"""The reason that no other value of the field would avoid."""

SERVICES = [
    service
    for file in (generation_pb2, embedding_pb2, tokenizer_pb2, server_pb2, admin_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]

FIELD_OF_FEATURE = {
    "adapters": "Start.adapter",
    "constraints": "Start.constraint",
    "echo": "Start.output.echo",
    "embeddings": "EmbeddingService.Embed",
    "logit_bias": "Start.sampling.logit_bias",
    "penalties": "Start.sampling.repetition_penalty",
    "prompt_logprobs": "Start.output.prompt_logprobs",
    "resume": "GenerateRequest.resume",
    "tools": "Start.chat.tools",
}
"""What `features` must not list while the field is refused, and must list afterwards."""


def sample(field):
    """A value that differs from the default."""
    kinds = {field.CPPTYPE_STRING: "x", field.CPPTYPE_BOOL: True, field.CPPTYPE_ENUM: 1}
    is_real = field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE)
    return kinds.get(field.cpp_type, 0.5 if is_real else 1)


def setters(descriptor):
    """Every field that can be set in a message of this type, with a function that sets it."""
    for field in descriptor.fields:
        name, message = field.name, field.message_type
        if message is None:
            yield lambda m, f=field: set_value(m, f)
        elif message.GetOptions().map_entry:
            value = sample(message.fields_by_name["value"])
            yield lambda m, n=name, v=value: getattr(m, n).update({1: v})
        elif message.full_name == "google.protobuf.Duration":
            yield lambda m, n=name: getattr(m, n).FromSeconds(1)
        elif message.full_name == "google.protobuf.Struct":
            yield lambda m, n=name: getattr(m, n).update({"x": "y"})
        else:
            yield lambda m, n=name: member(m, n).SetInParent()
            for setter in setters(message):
                yield lambda m, n=name, s=setter: s(member(m, n))


def set_value(message, field):
    if field.is_repeated:
        getattr(message, field.name).append(sample(field))
    else:
        setattr(message, field.name, sample(field))


def member(message, name):
    """A message inside another, or the first of a list of them."""
    inner = getattr(message, name)
    if not hasattr(inner, "add"):
        return inner
    return inner[0] if inner else inner.add()


def commands():
    """A valid Start with one more field, for each field; then the other commands."""
    for setter in setters(pb.Start.DESCRIPTOR):
        start = pb.Start(chat=pb.Chat(messages=[pb.ChatMessage(role="user", text="hello")]))
        setter(start)
        # An answer of one token ends before the next of the same name starts.
        start.stopping.max_tokens = 1
        yield pb.GenerateRequest(start=start)
    for field in pb.GenerateRequest.DESCRIPTOR.fields:
        command = pb.GenerateRequest()
        getattr(command, field.name).SetInParent()
        yield command


async def refused_commands(server):
    """The names of refused fields and commands, with their reasons."""
    found = {}
    for command in commands():
        for event in (await server.say(command)).events:
            error = event.rejected.error
            if error.reason in REFUSALS:
                kind = command.WhichOneof("command")
                owner = "Start" if kind == "start" else "GenerateRequest"
                name = re.sub(r"\[\d+\]", "", error.field)
                found[f"{owner}.{name}"] = error.reason
    return found


async def refused_methods(server):
    """The names of methods that refuse every request."""
    found = {}
    for service in SERVICES:
        for method in service.methods:
            path = f"/{service.full_name}/{method.name}"
            call = server.channel.stream_stream(path)(iter([b""]), timeout=0.5)
            try:
                while await call.read() is not grpc.aio.EOF:
                    if method.server_streaming:
                        call.cancel()
            except (grpc.aio.AioRpcError, grpc.aio.BaseError) as error:
                reason = Status.of(error).reason
                if reason in REFUSALS:
                    found[f"{service.name}.{method.name}"] = reason
            except BaseException as error:
                # A stream that this test has cancelled is one that was not refused.
                if type(error).__name__ != "CancelledError":
                    raise
    return found


async def test_the_page_lists_what_a_server_refuses_and_features_does_not(serve):
    async with serve() as server:
        refused = await refused_commands(server) | await refused_methods(server)
        info = await server.info.GetServerInfo(server_pb2.GetServerInfoRequest())
    rows = [f"| `{name}` | {reason} |" for name, reason in sorted(refused.items())]
    page = HEAD + "\n".join(rows or ["| none | |"]) + "\n"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(page)
    assert page == PAGE.read_text()
    assert list(info.features) == sorted(FEATURES)
    for feature, name in FIELD_OF_FEATURE.items():
        assert (feature in info.features) == (name not in refused), feature
