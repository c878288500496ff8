"""The HTTP port from the start of the server to its end, and the deadlines of exchanges."""

import asyncio

import pytest
from chairlift.server.http import http_call

from tests.server.connection import until
from tests.server.openai.conftest import HELLO
from tests.server.openai.raw_http import Raw

CHAT = "/v1/chat/completions"
BODY = {"messages": HELLO, "max_tokens": 4, "ignore_eos": True}


async def test_while_the_model_loads_it_says_so(serve):
    seen = {}

    async def look(serving):
        port = int(serving.server.http_url.rpartition(":")[2])
        for path in ("/health", "/v1/models"):
            async with Raw(port) as raw:
                await raw.request("GET", path)
                seen[path] = await raw.response()
        async with Raw(port) as raw:
            await raw.post(CHAT, BODY)
            seen[CHAT] = await raw.response()

    async with serve(server={"http_listen": "127.0.0.1:0"}, before_load=look):
        assert [response.status for response in seen.values()] == [503, 503, 503]
        assert seen["/health"].json() == {"status": "starting"}
        assert seen[CHAT].error["code"] == "starting"
        assert seen[CHAT].headers["retry-after"] == "1"


async def test_draining_ends_what_runs_and_refuses_the_rest(api):
    async with api() as served:
        stream = await served.chat(stream=True, max_tokens=150)
        chunks = aiter(stream)
        await anext(chunks)
        stopping = asyncio.create_task(served.server.server.stop(grace_s=60))
        await served.server.server.gate.draining.wait()
        assert (await served.get("/health")).json() == {"status": "draining"}
        response = await served.post(CHAT, BODY)
        assert (response.status, response.error["code"]) == (503, "draining")
        rest = [chunk async for chunk in chunks]
        assert rest[-1].choices[0].finish_reason == "length"
        await stopping


async def test_after_the_grace_a_stream_ends_with_an_error(api):
    async with api() as served, served.raw() as raw:
        await raw.post(CHAT, {**BODY, "max_tokens": 240, "stream": True})
        await raw.head()
        await raw.chunk()
        stopping = asyncio.create_task(served.server.server.stop(grace_s=0))
        last = b""
        while chunk := await raw.chunk():
            last = chunk
        assert b'"code": "draining"' in last
        await stopping


async def test_a_deadline_ends_the_exchange(api):
    async with api(max_num_seqs=1) as served:
        long = {**BODY, "max_tokens": 240}
        response = await served.post(CHAT, long, x_request_timeout="0.1")
        assert (response.status, response.error["code"]) == (408, "request_timeout")
        await served.server.until_idle()
        async with served.raw() as raw:
            await raw.post(CHAT, {**long, "stream": True}, x_request_timeout="0.1")
            assert b'"code": "request_timeout"' in (await raw.response()).body
        await served.server.until_idle()
        for value in ("0", "-1", "soon", "nan", "inf"):
            response = await served.post(CHAT, BODY, x_request_timeout=value)
            assert (response.status, response.error["param"]) == (400, "x-request-timeout")
        assert (await served.post(CHAT, BODY, x_request_timeout="60")).status == 200


async def test_a_stream_that_waits_is_kept_alive(api, monkeypatch):
    monkeypatch.setattr(http_call, "KEEP_ALIVE_S", 0.02)
    async with api(max_num_seqs=1) as served:
        running = await served.chat(stream=True, max_tokens=240)
        async with served.raw() as raw:
            await raw.post(CHAT, {**BODY, "stream": True})
            head = await raw.head()
            assert head.status == 200
            assert await raw.chunk() == b": waiting\n\n"
            await running.close()
            chunks = []
            while chunk := await raw.chunk():
                chunks.append(chunk)
            assert b"".join(chunks).endswith(b"data: [DONE]\n\n")


async def test_a_lost_engine_is_an_error_and_the_next_request_is_answered(api):
    async with api() as served:
        engine = served.server.server.gate.engine()
        stream = await served.chat(stream=True, max_tokens=240)
        await anext(aiter(stream))
        engine.fail_all()
        with pytest.raises(Exception, match="the engine stopped"):
            async for _ in stream:
                pass
        await until(lambda: served.server.server.gate.phase == "serving")
        assert (await served.post(CHAT, BODY)).status == 200


async def test_models_and_what_is_not_there(api):
    async with api(server={"served_model_name": "tiny,other/name"}) as served:
        models = [model async for model in served.client.models.list()]
        assert [model.id for model in models] == ["tiny", "other/name"]
        assert (await served.client.models.retrieve("other/name")).id == "other/name"
        response = await served.get("/v1/models/none")
        assert (response.status, response.error["code"]) == (404, "model_not_found")
        assert (await served.get("/v2")).error["code"] == "not_found"
        assert (await served.get(CHAT)).error["code"] == "method_not_allowed"
