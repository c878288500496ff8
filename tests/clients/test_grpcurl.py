"""The real grpcurl against a real server, by the very lines of docs/api.md."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.console import assert_shown, examples

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".tools" / "bin"
SOURCE = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"
DOCUMENTED_ADDRESS = "127.0.0.1:50051"

API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def grpcurl():
    """The path of grpcurl, built by Go where it is not there yet."""
    program = BIN / "grpcurl"
    if program.exists():
        return program
    if shutil.which("go") is None:
        reason = "grpcurl needs Go to be built, which is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    environment = {**os.environ, "GOBIN": str(BIN)}
    subprocess.run(["go", "install", SOURCE], env=environment, check=True, timeout=900)
    return program


@pytest.fixture
def run(grpcurl, serve):
    """Run grpcurl lines against a server in this process; return exit code and output."""

    async def run(server, command):
        address = server.address.removeprefix("unix:")
        command = command.replace(f" {DOCUMENTED_ADDRESS} ", f" -unix {address} ")
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            env={**os.environ, "PATH": f"{grpcurl.parent}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    return run


@pytest.mark.timeout(1000)
def test_the_page_has_lines_for_everything_that_is_promised(grpcurl):
    commands = "\n".join(example.command for example in examples(API, "grpcurl"))
    for promised in (" list", "Health/Check", "/Generate", "/GenerateOne", '"cancel"', '"chat"'):
        assert promised in commands


async def test_the_lines_of_the_page_print_what_it_shows(run, serve):
    async with serve() as server:
        for example in examples(API, "grpcurl"):
            _, output = await run(server, example.command)
            assert_shown(example.shown, output)


def line(method, *messages):
    data = " ".join(json.dumps(message) for message in messages)
    return f"grpcurl -plaintext -d '{data}' {DOCUMENTED_ADDRESS} chairlift.v1.{method}"


def events(output):
    """The events of all messages that grpcurl printed."""
    decoder, found = json.JSONDecoder(), []
    while output := output.lstrip():
        message, end = decoder.raw_decode(output)
        found += message.get("events", [])
        output = output[end:]
    return found


IDS = {"ids": [1, 2, 3]}
BAD = {
    "empty prompt": ({"text": ""}, "InvalidArgument"),
    "no prompt": ({}, "InvalidArgument"),
    "prompt longer than the model": ({"token_ids": {"ids": [1] * 300}}, "InvalidArgument"),
    "prompt longer than the pool": ({"token_ids": {"ids": [1] * 200}}, "FailedPrecondition"),
    "token outside the vocabulary": ({"token_ids": {"ids": [390]}}, "InvalidArgument"),
    "nan temperature": (
        {"token_ids": IDS, "sampling": {"temperature": "NaN"}},
        "InvalidArgument",
    ),
    "negative temperature": (
        {"token_ids": IDS, "sampling": {"temperature": -1}},
        "InvalidArgument",
    ),
    "top_p 0": ({"token_ids": IDS, "sampling": {"top_p": 0}}, "InvalidArgument"),
    "top_p 2": ({"token_ids": IDS, "sampling": {"top_p": 2}}, "InvalidArgument"),
    "max_tokens 0": ({"token_ids": IDS, "stopping": {"max_tokens": 0}}, "InvalidArgument"),
    "unknown adapter": ({"token_ids": IDS, "adapter": "x"}, "NotFound"),
    "unknown model": ({"token_ids": IDS, "model": "x"}, "NotFound"),
    "more answers than rows": ({"token_ids": IDS, "sampling": {"n": 999}}, "InvalidArgument"),
    "21 candidates of the prompt": (
        {"token_ids": IDS, "output": {"prompt_logprobs": 21}},
        "InvalidArgument",
    ),
}


async def test_each_kind_of_bad_input_has_its_status(run, serve, kv_blocks):
    async with serve(kv_cache_memory=kv_blocks(8)) as server:
        for name, (request, code) in BAD.items():
            status, output = await run(
                server, line("GenerationService/GenerateOne", {"start": request})
            )
            assert status != 0, name
            assert f"  Code: {code}\n" in output, name


async def test_a_stream_answers_two_requests_refuses_a_third_and_ends_ok(run, serve):
    a = {"start": {"request_id": "a", "token_ids": IDS, "stopping": {"max_tokens": 200}}}
    b = {"start": {"request_id": "b", "token_ids": IDS, "stopping": {"max_tokens": 3}}}
    wrong = {"start": {"request_id": "c", "token_ids": IDS, "sampling": {"top_p": 2}}}
    update = {"update": {"request_id": "unknown"}}
    async with serve() as server:
        status, output = await run(
            server, line("GenerationService/Generate", a, b, a, wrong, update)
        )
        assert status == 0
        received = events(output)
        assert sorted(e["request_id"] for e in received if e.get("last")) == ["a", "b", "c"]
        rejected = [e for e in received if "rejected" in e]
        assert {(e["request_id"], e["rejected"]["error"]["code"]) for e in rejected} == {
            ("a", "STATUS_CODE_ALREADY_EXISTS"),
            ("c", "STATUS_CODE_INVALID_ARGUMENT"),
            ("unknown", "STATUS_CODE_NOT_FOUND"),
        }


async def test_abort_and_info_answer(run, serve):
    async with serve() as server:
        for method, part in (
            ("GenerationService/Abort", None),
            ("ServerService/GetServerInfo", "SERVER_STATE_SERVING"),
            ("ServerService/GetModelInfo", "LlamaForCausalLM"),
            ("ServerService/GetLoad", "num_free_blocks"),
        ):
            message = {"all": {}} if part is None else {}
            status, output = await run(server, line(method, message))
            assert status == 0
            assert (part or "{}") in output
        question = line("GenerationService/Explain", {"request_id": "unknown"})
        status, output = await run(server, question)
        assert "NotFound" in output


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_each_version_of_reflection_describes_itself(run, serve, version):
    name = f"grpc.reflection.{version}.ServerReflection"
    command = f"grpcurl -plaintext {DOCUMENTED_ADDRESS} describe {name}"
    async with serve() as server:
        status, output = await run(server, command)
    assert status == 0, output
    assert output.startswith(f"{name} is a service")


async def test_the_health_of_each_service_is_listed(run, serve):
    async with serve() as server:
        status, output = await run(
            server, f"grpcurl -plaintext {DOCUMENTED_ADDRESS} grpc.health.v1.Health/List"
        )
    assert status == 0, output
    assert {value["status"] for value in json.loads(output)["statuses"].values()} == {"SERVING"}
