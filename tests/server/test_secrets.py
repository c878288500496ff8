"""What clients send in confidence is found nowhere but in their own answers.

A prompt, a conversation, a stop string and tokens of callers hold a word; good, bad and broken
requests are driven over every method, and then all that the server wrote or said is searched.
"""

import logging
import urllib.request

import grpc
import pytest
from chairlift.api.logs import JsonFormatter, TextFormatter
from chairlift.engine.engine import Engine
from chairlift.v1 import embedding_pb2, server_pb2, tokenizer_pb2
from chairlift.v1 import generation_pb2 as pb
from google.protobuf import wrappers_pb2

from tests.server.connection import Status, receive, start

CANARY = "kanarienvogel"
TOKEN = f"{CANARY}-0123456789abcdef"
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", text=CANARY)])
STOPS = pb.Stopping(max_tokens=4, ignore_eos=True, stop=[CANARY])
UNICODE_ERROR = b"\x0a\x20" + CANARY.encode() + b"\xff" * 19


@pytest.fixture
def settings(tmp_path, free_port):
    """Of a server with a token, metrics and a quota that is soon used up."""
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"ann:{TOKEN}\n")
    return {
        "auth_tokens": str(tokens),
        "metrics_listen": f"127.0.0.1:{free_port}",
        "tenant_max_queued_tokens": 100,
        "record": str(tmp_path / "trace"),
    }


STARTS = {
    "text": lambda: start("a", prompt=CANARY, stopping=STOPS),
    "chat": lambda: start("a", prompt=CHAT, stopping=STOPS),
    "too long for the quota": lambda: start("a", prompt=f"{CANARY} " * 20, stopping=STOPS),
    "too long for the model": lambda: start("a", prompt=f"{CANARY} " * 400),
    "a wrong number": lambda: start("a", prompt=CANARY, temperature=-1),
    "an empty stop": lambda: start("a", prompt=CANARY, stopping=pb.Stopping(stop=[CANARY, ""])),
    "long stops": lambda: start("a", prompt="up", stopping=pb.Stopping(stop=[CANARY * 100])),
    "many stops": lambda: start("a", prompt="up", stopping=pb.Stopping(stop=[CANARY] * 100)),
    "another model": lambda: start("a", prompt="up", model=CANARY),
    "an adapter": lambda: start("a", prompt="up", adapter=CANARY),
    "a salt": lambda: start("a", prompt="up", prefix_cache=pb.PrefixCache(salt=CANARY * 100)),
    "a traceparent": lambda: start("a", prompt="up", traceparent=CANARY),
    "a role": lambda: start("a", prompt=pb.Chat(messages=[pb.ChatMessage(role=CANARY, text="x")])),
    "a long label": lambda: start(CANARY * 100, prompt="up"),
}


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


async def drive(server, metadata):
    """Send everything; return what came back but answers."""
    said = []
    for make in STARTS.values():
        calls = (
            server.generation.Generate(iter([make(), make()]), metadata=metadata),
            server.generation.GenerateOne(
                pb.GenerateOneRequest(start=make().start), metadata=metadata
            ),
        )
        for call in calls:
            received = await receive(call)
            said.append(str(received.status))
            said += [str(e.rejected) + str(e.failed) for e in received.events]
            said.append(str(await call.trailing_metadata()))
    said += await broken_messages(server, metadata)
    unary = (
        (server.tokenizer.Tokenize, tokenizer_pb2.TokenizeRequest(text=CANARY)),
        (server.tokenizer.Tokenize, tokenizer_pb2.TokenizeRequest(model=CANARY)),
        (server.tokenizer.ApplyChatTemplate, tokenizer_pb2.ApplyChatTemplateRequest(chat=CHAT)),
        (server.embedding.Embed, embedding_pb2.EmbedRequest(model=CANARY)),
        (server.info.GetModelInfo, server_pb2.GetModelInfoRequest(model=CANARY)),
        (server.generation.Abort, pb.AbortRequest(request_id=CANARY)),
        (server.generation.Explain, pb.ExplainRequest(request_id=CANARY)),
    )
    for method, request in unary:
        try:
            await method(request, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            said += [str(Status.of(error)), str(error.trailing_metadata())]
    return said


async def broken_messages(server, metadata):
    """Messages that cannot be decoded, to methods that read one."""
    said = []
    text = wrappers_pb2.StringValue(value=CANARY).SerializeToString()
    for method in ("Generate", "GenerateOne", "Abort", "Explain"):
        for data in (text, text[:-1], UNICODE_ERROR, CANARY.encode()):
            path = f"/chairlift.v1.GenerationService/{method}"
            call = server.channel.stream_stream(path)(iter([data]), metadata=metadata)
            try:
                while await call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                said += [str(Status.of(error)), str(error.trailing_metadata())]
    return said


async def test_prompts_and_tokens_are_nowhere_to_be_read(serve, settings, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    async with serve(server=settings) as server:
        said = await drive(server, bearer(TOKEN))
        assert any("QUOTA_EXCEEDED" in text or "PROMPT_TOO_LONG" in text for text in said)
        said += await drive(server, bearer(f"{CANARY}-wrong-0123456789"))
        said += await drive(server, (("authorization", f"{CANARY} {CANARY}"),))
        tokens = tmp_path / "tokens"
        tokens.write_text(f"ann {TOKEN}\n")
        said += await drive(server, bearer(TOKEN))
        with urllib.request.urlopen(f"http://{settings['metrics_listen']}/metrics") as page:
            metrics = page.read().decode()
        assert "chairlift_requests_refused_total" in metrics
    captured = capfd.readouterr()
    trace = (tmp_path / "trace").read_bytes()
    assert trace
    assert "the old files stay in use" in caplog.text
    text = {record.getMessage() for record in caplog.records}
    assert text >= {"request ended", "request refused", "call failed", "draining"}
    places = {
        "statuses and refusals": "\n".join(said),
        "metrics": metrics,
        "log": caplog.text,
        "log as text": "\n".join(map(TextFormatter().format, caplog.records)),
        "log as JSON": "\n".join(map(JsonFormatter().format, caplog.records)),
        "output": captured.out + captured.err,
        "trace": trace.decode("utf-8", "replace"),
    }
    assert [name for name, text in places.items() if CANARY in text] == []


async def test_a_step_that_fails_shows_no_client_its_traceback(serve, settings, monkeypatch):
    async with serve(server=settings) as server:

        def break_down(*_):
            message = f"while computing {CANARY}"
            raise RuntimeError(message)

        monkeypatch.setattr(Engine, "advance", break_down)
        call = server.generation.Generate(iter([start("a", prompt=CANARY)]), metadata=bearer(TOKEN))
        received = await receive(call)
        assert CANARY not in str(received.status) + str(received.events)
        assert "finished" not in received.kinds("a")
