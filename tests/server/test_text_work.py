"""What the tokenizer's service may be given, and what an error says of what was given."""

import shutil

import grpc
import pytest
from chairlift.api.errors import Reason, RequestError, echo
from chairlift.server.rpc.status import to_error, to_status
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import tokenizer_pb2

from tests.server.connection import start, status_of

Code = grpc.StatusCode
MAX_METADATA = 8_192
"""What clients of gRPC take, in bytes."""

QUOTING = "{% for m in messages %}{{ raise_exception('unknown role ' + m.role) }}{% endfor %}"


@pytest.fixture
def tiny_folder(tiny_folder, tmp_path):
    """The tiny model with a template that quotes roles."""
    folder = tmp_path / "quoting"
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").write_text(QUOTING)
    return folder


def tokenize(server, text):
    return server.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(text=text))


def detokenize(server, ids):
    return server.tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest(token_ids=ids))


async def test_a_text_is_tokenized_up_to_its_most_bytes(serve):
    async with serve(max_text_bytes=2_000) as server:
        response = await tokenize(server, "é" * 1_000)
        assert response.token_ids
        assert (await detokenize(server, response.token_ids[:250])).text
        status = await status_of(tokenize(server, "é" * 1_000 + "a"))
        assert (status.code, status.reason) == (Code.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
        assert status.fields == ["text"]


async def test_token_ids_become_text_up_to_their_most(serve):
    async with serve(max_text_bytes=2_000) as server:
        assert (await detokenize(server, [1] * 250)).text
        status = await status_of(detokenize(server, [1] * 251))
        assert (status.code, status.reason) == (Code.INVALID_ARGUMENT, "BAD_PARAMETER")
        assert status.fields == ["token_ids"]
        assert "at most 250, got 251" in status.message


async def test_work_of_the_tokenizer_counts_in_the_quotas(serve):
    async with serve(server={"tenant_rate": 0.01}) as server:
        await tokenize(server, "a")
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", text="a")])
        for call in (
            tokenize(server, "a"),
            detokenize(server, [1]),
            server.tokenizer.ApplyChatTemplate(tokenizer_pb2.ApplyChatTemplateRequest(chat=chat)),
        ):
            status = await status_of(call)
            assert (status.code, status.reason) == (Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")


@pytest.mark.parametrize("role", ["r" * 7_000, "Ä" * 7_000, "🚡" * 7_000, "\n\x00" * 7_000])
async def test_an_error_quotes_100_characters_of_a_role(serve, role):
    command = start("a", prompt=pb.Chat(messages=[pb.ChatMessage(role=role, text="a")]))
    async with serve() as server:
        status = (await server.one(command)).status
        assert (status.code, status.reason) == (Code.INVALID_ARGUMENT, "BAD_PARAMETER")
        assert status.message.startswith("chat template: unknown role ")
        assert len(status.message) < 150
        received = await server.say(command)
        assert received.status.code is Code.OK
        (event,) = received.events
        assert event.rejected.error.message == status.message


@pytest.mark.parametrize("message", ["a" * 10**6, "Ä" * 10**6, "🚡" * 10**6, "\x00" * 10**6])
def test_no_status_is_longer_than_metadata_may_be(message):
    error = RequestError(Reason.BAD_PARAMETER, message, field="prompt", retry_after_s=1.0)
    status = to_status(error)
    # A character is three in a header, or up to four thirds of its bytes in base64.
    num_bytes = 3 * len(status.details.encode())
    num_bytes += sum(len(key) + len(value) * 4 // 3 for key, value in status.trailing_metadata)
    assert num_bytes < MAX_METADATA
    assert len(to_error(error).message) < 1_010


def test_an_echo_is_one_line_of_100_characters():
    assert echo("a b") == "a b"
    assert echo("a\n b\t") == "a b"
    assert echo("Ä" * 100) == "Ä" * 100
    assert echo("Ä" * 101) == "Ä" * 100 + "..."
    assert echo(" " * 10**6 + "a") == "..."
    assert echo("a\ud800") == "a?"
