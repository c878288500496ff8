"""What `buf lint` does not hold of `proto/`."""

import re
from pathlib import Path

import grpc
import pytest
from chairlift.api.errors import Reason
from chairlift.v1 import admin_pb2, embedding_pb2, generation_pb2, server_pb2, tokenizer_pb2
from google.protobuf.descriptor import FileDescriptor

MODULES = (admin_pb2, embedding_pb2, generation_pb2, server_pb2, tokenizer_pb2)
FILES: list[FileDescriptor] = [module.DESCRIPTOR for module in MODULES]
PROTO = Path(__file__).parents[1] / "proto"
IDS = [file.name for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_packages_of_other_languages_are_of_one_domain(file: FileDescriptor) -> None:
    options = file.GetOptions()
    host, *path = options.go_package.split(";")[0].split("/")
    # The go command takes a first element with a dot alone for a host.
    assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", host)
    assert path
    domain = ".".join(reversed(host.split(".")))
    assert options.java_package == f"{domain}.v1"


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_the_outer_java_class_is_no_message_service_or_enum(file: FileDescriptor) -> None:
    options = file.GetOptions()
    names = {*file.message_types_by_name, *file.enum_types_by_name, *file.services_by_name}
    assert options.java_multiple_files
    assert options.java_outer_classname not in names


def test_the_reasons_of_the_proto_are_those_of_the_server() -> None:
    source = (PROTO / generation_pb2.DESCRIPTOR.name).read_text(encoding="utf-8")
    listed = re.findall(r"^ +//   ([A-Z_]+) \(([A-Z_]+)\): [A-Z].*\.$", source, re.MULTILINE)
    assert listed == [(reason.value, reason.code) for reason in Reason]
    assert [reason.name for reason in Reason] == [reason.value for reason in Reason]


def test_the_status_codes_of_the_proto_are_those_of_grpc() -> None:
    codes = {
        f"STATUS_CODE_{code.name}": code.value[0]
        for code in grpc.StatusCode
        if code is not grpc.StatusCode.OK
    }
    assert dict(generation_pb2.StatusCode.items()) == {"STATUS_CODE_UNSPECIFIED": 0} | codes


FRAGMENT = re.compile(
    r"(Of|As|By|From|In|Since|Same|The same|Empty|Set|Unset|Never|None|Default)\b|\S+$"
)
"""How a comment begins that makes sense beside its neighbours alone; or one of a single word."""


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_every_comment_stands_alone(file: FileDescriptor) -> None:
    source = (PROTO / file.name).read_text(encoding="utf-8")
    comments = [
        " ".join(line.strip().removeprefix("//").strip() for line in block.splitlines())
        for block in re.findall(r"^(?: *//.*\n)+", source, re.MULTILINE)
    ]
    assert comments
    assert not [text for text in comments if FRAGMENT.match(text)]
    assert not [text for text in comments if not re.match(r"[A-Z\"`].*\.$", text)]
