"""The table of refused fields in docs/api.md, from what a server refuses field by field."""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
from chairlift.v1 import embedding_pb2 as embedding
from chairlift.v1 import embedding_pb2_grpc, generation_pb2_grpc
from chairlift.v1 import generation_pb2 as pb
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
NUMBERS = {FieldDescriptor.CPPTYPE_FLOAT: 0.5, FieldDescriptor.CPPTYPE_DOUBLE: 0.5}


def variants(message: Message) -> Iterator[None]:
    """Set each field of a message in turn, on the message itself, and yield with it set."""
    for field in message.DESCRIPTOR.fields:
        before = type(message)()
        before.CopyFrom(message)
        yield from _set(message, field)
        message.CopyFrom(before)


def _set(message: Message, field: FieldDescriptor) -> Iterator[None]:
    value = getattr(message, field.name)
    if field.message_type is None:
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            scalar = "user" if field.name == "role" else "x"
        else:
            scalar = NUMBERS.get(field.cpp_type, 1)
        if field.is_repeated:
            value.append(scalar)
        else:
            setattr(message, field.name, scalar)
        yield
    elif field.message_type.GetOptions().map_entry:
        value[1] = 0.5
        yield
    elif field.message_type.full_name == "google.protobuf.Duration":
        value.seconds = 1
        yield
    elif field.message_type.full_name == "google.protobuf.Struct":
        value.update({"a": 1})
        yield
    else:
        inner = value.add() if field.is_repeated else value
        inner.SetInParent()
        yield
        yield from variants(inner)


def starts() -> Iterator[pb.Start]:
    """Requests with each field of `Start` set in one of them, of all its messages."""
    by_ids = pb.Start(token_ids=pb.TokenIds(ids=[1, 2, 3]), stopping=pb.Stopping(max_tokens=1))
    by_chat = pb.Start(stopping=pb.Stopping(max_tokens=1))
    turn = by_chat.chat.messages.add(role="user", text="go")
    for start, changed in ((by_ids, by_ids), (by_chat, by_chat.chat), (by_chat, turn)):
        for _ in variants(changed):
            yield start


def field_of(error: grpc.aio.AioRpcError) -> str | None:
    """Return the field that a call was refused for as UNSUPPORTED."""
    rich = rpc_status.from_call(error)
    for detail in rich.details if rich else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.reason == "UNSUPPORTED":
            return re.sub(r"\[\d+\]", "[]", info.metadata["field"])
    return None


async def refused_fields(channel: grpc.aio.Channel) -> set[str | None]:
    generation = generation_pb2_grpc.GenerationServiceStub(channel)
    found = set()
    for start in starts():
        call = generation.GenerateOne(pb.GenerateOneRequest(start=start))
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            found.add(field_of(error))
    resume = pb.GenerateRequest(resume=pb.Resume(handle="x", request_id="a"))
    async for response in generation.Generate(iter([resume])):
        found |= {e.rejected.error.field for e in response.events if e.HasField("rejected")}
    try:
        await embedding_pb2_grpc.EmbeddingServiceStub(channel).Embed(embedding.EmbedRequest())
    except grpc.aio.AioRpcError as error:
        found.add(field_of(error))
    return found - {None}


async def test_the_page_lists_exactly_the_fields_that_are_refused(serve):
    section = API.partition("## What this version refuses\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    async with serve() as server, grpc.aio.insecure_channel(server.address) as channel:
        refused = await refused_fields(channel)
    assert listed == refused


def test_every_field_of_a_request_is_tried():
    tried = {
        f"{field.containing_type.name}.{field.name}"
        for start in starts()
        for message in every_message(start)
        for field, _ in message.ListFields()
    }
    assert {"Sampling.logit_bias", "Constraint.lark", "ChatMessage.tool_calls"} <= tried
    assert len(tried) > 60


def every_message(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None and "google" not in field.message_type.full_name:
            if field.message_type.GetOptions().map_entry:
                continue
            for inner in value if field.is_repeated else [value]:
                yield from every_message(inner)
