"""What `buf lint` does not hold of `proto/`."""

import re

import pytest
from chairlift.v1 import admin_pb2, embedding_pb2, generation_pb2, server_pb2, tokenizer_pb2
from google.protobuf.descriptor import FileDescriptor

MODULES = (admin_pb2, embedding_pb2, generation_pb2, server_pb2, tokenizer_pb2)
FILES: list[FileDescriptor] = [module.DESCRIPTOR for module in MODULES]
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
