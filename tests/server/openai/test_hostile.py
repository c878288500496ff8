"""Hostile clients over HTTP: an answer or an end, never a hang, a leak or a traceback."""

import asyncio
import json

from chairlift.server.calls import outbox
from chairlift.server.http import exchange, json_body, protocol

from tests.server.connection import until
from tests.server.openai.conftest import HELLO

CHAT = "/v1/chat/completions"
BODY = {"messages": HELLO, "max_tokens": 4, "ignore_eos": True}


def nested(depth):
    return b'{"messages":' + b"[" * depth + b"]" * depth + b"}"


MALFORMED = {
    "empty": b"",
    "no JSON": b"hello",
    "half": b'{"messages": [',
    "a list": b"[]",
    "a number": b"3",
    "not UTF-8": b'{"messages": "\xff"}',
    "deep": nested(json_body.MAX_DEPTH + 1),
    "very deep": nested(400_000),
    "many parts": b'{"messages":[' + b"[]," * json_body.MAX_PARTS + b"[]]}",
    "quotes behind brackets": b"[" * 65 + b'"' + b'\\"' * 25_000,
    "deep behind an escaped backslash": b'["\\\\",' + b"[" * json_body.MAX_DEPTH,
    "deep with text": b'{"a": "[[[", "messages":' + b'{"a":' * 80 + b"1" + b"}" * 81,
    "NaN": b'{"temperature": NaN}',
    "a long number": b'{"seed": ' + b"9" * 5000 + b"}",
    "a large number": b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1e400}',
    "not closed text": b'{"a": "' + b"\\" * 1000,
}


async def test_malformed_bodies_are_refused_and_the_connection_lives(api):
    async with api() as served, served.raw() as raw:
        for name, body in MALFORMED.items():
            await raw.post(CHAT, body)
            if not body:
                # A body of no bytes has no length either.
                assert (await raw.response()).status == 400
                continue
            response = await raw.response()
            assert response.status == 400, name
            assert response.error["type"] == "invalid_request_error", name
        await raw.post(CHAT, BODY)
        assert (await raw.response()).status == 200


async def test_brackets_in_text_are_no_depth(api):
    async with api() as served:
        message = {"role": "user", "content": '[{\\"' * 20 + "\\"}
        response = await served.post(CHAT, {**BODY, "messages": [message]})
        assert response.status == 200


async def test_a_large_body_is_refused_whatever_it_says_of_its_length(api):
    async with api(server={"max_receive_bytes": 4096}) as served:
        response = await served.post(CHAT, b" " * 5000)
        assert (response.status, response.error["code"]) == (413, "body_too_large")
        async with served.raw() as raw:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            await raw.send(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
            await raw.send(b"1000\r\n" + b" " * 4096 + b"\r\n" * 1)
            await raw.send(b"1000\r\n" + b" " * 4096 + b"\r\n0\r\n\r\n")
            assert (await raw.response()).status == 413
            assert await raw.at_end()


ODD_HEADS = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "no host of HTTP/1.0": (b"GET /health HTTP/1.0\r\n\r\n", 403),
    "two hosts": (b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", 400),
    "long target": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 431),
    "long header": (b"GET /health HTTP/1.1\r\na: " + b"b" * 20_000 + b"\r\n\r\n", 431),
    "endless header": (b"GET /health HTTP/1.1\r\na: " + b"b" * 80_000, 431),
    "many headers": (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
    "bad name": (b"GET /health HTTP/1.1\r\nhost: localhost\r\na b: c\r\n\r\n", 400),
    "folded": (b"GET /health HTTP/1.1\r\nhost: localhost\r\n b\r\n\r\n", 400),
    "two lengths": (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        400,
    ),
    "length and chunks": (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "negative length": (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        400,
    ),
    "bad chunk": (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        400,
    ),
    "no path": (b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", None),
    "connect": (b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n", None),
    "upgrade": (
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
        b"connection: upgrade\r\nupgrade: websocket\r\n\r\n",
        200,
    ),
    "unknown path": (b"GET /%00%ff/../v1 HTTP/1.1\r\nhost: localhost\r\n\r\n", 404),
    "another method": (b"PUT /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", 405),
}


async def test_odd_heads_get_an_error_of_http(api, caplog):
    async with api() as served:
        for name, (head, status) in ODD_HEADS.items():
            async with served.raw() as raw:
                await raw.send(head)
                response = await raw.response()
                assert response.status == status or (status is None and response.status >= 400)
                assert response.status < 500, name
                assert status == 200 or response.error["message"], name
        assert "Traceback" not in caplog.text
        assert (await served.get("/health")).status == 200


async def test_a_slow_head_and_a_silent_connection_are_closed(api, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.05)
    async with api() as served:
        async with served.raw() as raw:
            await raw.send(b"GET /health HTTP/1.1\r\nho")
            assert (await raw.response()).status == 408
            assert await raw.at_end()
        async with served.raw() as raw:
            assert await raw.at_end()


async def test_a_slow_body_is_refused(api, monkeypatch):
    monkeypatch.setattr("chairlift.server.limits.receiving.MESSAGE_S", 0.05)
    monkeypatch.setattr(exchange, "_DRAIN_S", 0.01)
    async with api() as served, served.raw() as raw:
        await raw.request(
            "POST", CHAT, **{"content-type": "application/json", "content-length": "50"}
        )
        response = await raw.response()
        assert (response.status, response.error["code"]) == (408, "request_timeout")
        assert await raw.at_end()


async def test_a_pipelined_request_is_dropped_and_the_first_one_answered(api):
    async with api() as served, served.raw() as raw:
        data = json.dumps(BODY).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        await raw.send((head.encode() + data) * 50)
        response = await raw.response()
        assert response.status == 200
        assert response.headers["connection"] == "close"
        assert await raw.at_end()
        await served.server.until_idle()
        assert served.server.num_ended("length") == 1


async def test_a_connection_serves_one_request_after_the_other(api):
    async with api() as served, served.raw() as raw:
        for stream in (False, True, False):
            await raw.post(CHAT, {**BODY, "stream": stream})
            assert (await raw.response()).status == 200


async def test_clients_that_leave_free_what_they_held(api):
    async with api(max_num_seqs=4) as served:

        async def leave(number):
            async with served.raw() as raw:
                stream = bool(number % 2)
                await raw.post(CHAT, {**BODY, "max_tokens": 200, "stream": stream})
                if stream and number % 4 == 1:
                    await raw.head()
                raw.writer.transport.abort()

        await asyncio.gather(*(leave(number) for number in range(40)))
        await served.server.until_idle()
        assert len(served.server.server._context.live) == 0
        assert (await served.post(CHAT, BODY)).status == 200


async def test_a_client_that_leaves_amid_its_body_is_forgotten(api):
    async with api() as served:
        async with served.raw() as raw:
            await raw.request(
                "POST", CHAT, **{"content-type": "application/json", "content-length": "50"}
            )
            await raw.send(b'{"messages"')
        receiving = served.server.server._receiving
        await until(lambda: not receiving._waiting)


async def test_requests_of_a_client_that_does_not_read_are_suspended(api, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_TOKEN_BYTES", 256)
    monkeypatch.setattr("chairlift.server.http.listener._SEND_BUFFER_BYTES", 1024)
    prompts = ["one", "two", "three"] * 4
    body = {"prompt": prompts, "max_tokens": 240, "ignore_eos": True, "stream": True, "logprobs": 0}
    async with api(max_num_seqs=8) as served, served.raw() as raw:
        raw.writer.transport.pause_reading()
        await raw.post("/v1/completions", body)
        await served.server.until_load(lambda load: load.num_running_suspended)
        # Others go on meanwhile.
        assert (await served.post(CHAT, BODY)).status == 200
        raw.writer.transport.resume_reading()
        response = await raw.response()
        assert response.body.endswith(b"data: [DONE]\n\n")
        tokens = 0
        for line in response.body.split(b"\n\n")[:-2]:
            choice = json.loads(line.removeprefix(b"data: "))["choices"][0]
            tokens += len((choice["logprobs"] or {"tokens": ()})["tokens"])
        assert tokens == 12 * 240
        await served.server.until_idle()


async def test_a_client_that_never_reads_is_cut_off(api, monkeypatch):
    monkeypatch.setattr("chairlift.server.http.listener._SEND_BUFFER_BYTES", 1024)
    body = {"prompt": ["one"] * 64, "max_tokens": 240, "stream": True, "ignore_eos": True}
    async with api(server={"write_timeout_s": 0.2}) as served, served.raw() as raw:
        raw.writer.transport.pause_reading()
        await raw.post("/v1/completions", {**body, "logprobs": 0})
        await until(lambda: served.server.server._context.live)
        await until(lambda: not served.server.server._context.live)
        await served.server.until_idle()


async def test_further_connections_than_allowed_are_closed(api):
    async with api(server={"max_connections": 2}) as served:
        async with served.raw() as first, served.raw() as second:
            for raw in (first, second):
                await raw.request("GET", "/health")
                assert (await raw.response()).status == 200
            async with served.raw() as third:
                assert await third.at_end()
        connections = served.server.server._ports.http._state.connections
        await until(lambda: not connections)
        assert (await served.get("/health")).status == 200
