"""The OpenAI API of an ingress, in front of servers in this process."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import uvicorn
from chairlift.ray.forward.replicas import ReplicaInfo
from starlette.requests import Request
from transformers import AutoModelForCausalLM

from tests.engine import adapters
from tests.server.openai.raw_http import Raw

http = pytest.importorskip("chairlift.ray.forward.http", reason="aiohttp is not installed")

SERVED = {"http_listen": "127.0.0.1:0", "served_model_name": "tiny"}
LONG = {"max_tokens": 150, "temperature": 0.0, "extra_body": {"ignore_eos": True}}
MAX_BODY_BYTES = 100_000


@dataclass
class Http:
    """An ingress, and the real client of its HTTP port."""

    ingress: Any
    client: openai.AsyncOpenAI
    port: int

    def complete(self, prompt, **fields):
        fields = {"model": "tiny", **LONG, **fields}
        return self.client.completions.create(prompt=prompt, **fields)

    async def until_running(self, num):
        """Wait until so many requests run on the engines."""
        async with asyncio.timeout(20):
            while self.num_running() != num:
                await asyncio.sleep(0.005)

    def num_running(self):
        return sum(e.gate.engine().load().num_running for e in self.ingress.engines.values())


@pytest.fixture
def forward_http(forward):
    """Serve the OpenAI API of an ingress, as Serve's proxy does, on a port of loopback."""

    @asynccontextmanager
    async def run(num=2, *, token=None, engine_server=None, **settings):
        settings |= {"engine_server": {**SERVED, **(engine_server or {})}, "token": token}
        async with forward(num, **settings) as f:
            forwarding = http.HttpForwarding(f.server.context, MAX_BODY_BYTES)

            async def app(scope, receive, send):
                response = await forwarding.answer(Request(scope, receive))
                await response(scope, receive, send)

            config = uvicorn.Config(app, port=0, lifespan="off", log_config=None)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.005)
            port = server.servers[0].sockets[0].getsockname()[1]
            base_url = f"http://127.0.0.1:{port}/v1"
            try:
                async with openai.AsyncOpenAI(
                    base_url=base_url, api_key=token or "none", max_retries=0
                ) as client:
                    yield Http(f, client, port)
            finally:
                server.should_exit = True
                await serving
                await forwarding.close()

    return run


async def test_whole_and_streamed_answers_are_those_of_the_replicas(forward_http):
    async with forward_http() as api:
        url = api.ingress.replicas.find("e0").info.http_url
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as direct:
            expected = await direct.completions.create(model="tiny", prompt=[3, 5, 8], **LONG)
        found = await api.complete([3, 5, 8])
        assert found.choices[0].text == expected.choices[0].text
        assert found.usage.completion_tokens == 150
        stream = await api.complete([3, 5, 8], stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]
        assert len(pieces) > 1
        assert "".join(pieces) == expected.choices[0].text
        assert [model.id async for model in api.client.models.list()] == ["tiny"]


async def test_requests_at_once_go_to_both_and_equal_beginnings_to_one(forward_http):
    async with forward_http() as api:
        waits = [asyncio.create_task(api.complete([3 + n, 5])) for n in range(8)]
        await api.until_running(8)
        running = [e.gate.engine().load().num_running for e in api.ingress.engines.values()]
        assert running == [4, 4]
        await asyncio.gather(*waits)
        prompt = "one two three " * 30
        await api.complete(prompt, max_tokens=2)
        for _ in range(3):
            again = await api.complete(prompt + "four", max_tokens=2)
            details = again.usage.prompt_tokens_details
            assert details.cached_tokens >= again.usage.prompt_tokens * 0.7


async def test_a_port_that_is_closed_costs_no_request(forward_http, tmp_path):
    # Its gRPC port reports loads, so that requests are sent to it.
    closed = ReplicaInfo(f"unix:{tmp_path}/e0.sock", "http://127.0.0.1:1", num_tokens=4096)
    async with forward_http(1, others={"closed": closed}) as api:
        await api.ingress.until_up(2)
        found = await asyncio.gather(*(api.complete([3 + n, 5], max_tokens=4) for n in range(12)))
        assert {answer.usage.completion_tokens for answer in found} == {4}


async def test_a_replica_that_drains_costs_no_request(forward_http):
    async with forward_http() as api:
        held = [asyncio.create_task(api.complete([3 + n, 5])) for n in range(4)]
        await api.until_running(4)
        stopping = asyncio.create_task(api.ingress.engines["e0"].stop(20))
        late = [asyncio.create_task(api.complete([3 + n, 7], max_tokens=4)) for n in range(8)]
        found = await asyncio.gather(*held, *late)
        assert {answer.usage.completion_tokens for answer in found} == {150, 4}
        await stopping


async def test_a_stream_whose_replica_is_lost_ends_with_an_error_event(forward_http, tmp_path):
    async def break_off(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        event = b'data: {"choices": [{"index": 0, "text": "one"}]}\n\n'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n"
        writer.write(head + event)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    broken = ReplicaInfo(f"unix:{tmp_path}/e0.sock", url, num_tokens=4096)
    async with server, forward_http(1, others={"broken": broken}) as api:
        await api.ingress.until_up(2)

        async def until_broken():
            # Of two replicas with nothing to do each gets a request by chance.
            for number in range(50):
                stream = await api.complete([9 + number, 9], stream=True)
                assert [chunk async for chunk in stream]

        with pytest.raises(openai.APIError) as error:
            await until_broken()
        assert error.value.code == "engine_down"


async def test_a_client_that_goes_away_ends_its_request_on_the_replica(forward_http):
    async with forward_http() as api:
        stream = await api.complete([3, 5], stream=True, max_tokens=2000)
        await anext(aiter(stream))
        assert api.num_running() == 1
        await stream.close()
        await api.until_running(0)
        tickets = [replica.num_tickets for replica in api.ingress.replicas.up]
        assert tickets == [0, 0]


async def test_errors_are_in_the_form_of_the_api(forward_http):
    async with forward_http() as api:
        with pytest.raises(openai.BadRequestError) as error:
            await api.complete([3, 5], extra_body={"max_tokenz": 3})
        assert "max_tokenz" in str(error.value)
        with pytest.raises(openai.APIStatusError) as error:
            await api.complete("x" * (MAX_BODY_BYTES + 1))
        assert error.value.status_code == 400
        assert str(MAX_BODY_BYTES) in str(error.value)
        async with Raw(api.port) as raw:
            await raw.post("/v1/completions", {"prompt": "\ud800", "max_tokens": "many"})
            response = await raw.response()
        assert response.status == 400
    async with forward_http(0) as api:
        with pytest.raises(openai.APIStatusError) as error:
            await api.complete([3, 5])
        assert error.value.status_code == 503
        assert error.value.response.headers["retry-after"] == "1"


async def test_tokens_are_checked_and_go_on_to_the_replica(forward_http, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("a:secret-of-tenant-a-0123456789\ningress:secret-of-ingress-0123456789\n")
    tokens.chmod(0o600)
    settings = {"auth_tokens": str(tokens)}
    secrets = {"token": "secret-of-ingress-0123456789"}
    async with forward_http(server=settings, engine_server=settings, **secrets) as api:
        found = await api.complete([3, 5], max_tokens=4)
        assert found.usage.completion_tokens == 4
        stranger = api.client.with_options(api_key="secret-of-nothing-0123456789")
        with pytest.raises(openai.AuthenticationError):
            await stranger.completions.create(model="tiny", prompt=[3, 5])


async def test_a_model_that_is_an_adapter_is_loaded_by_one_replica(
    forward_http, tiny_folder, tmp_path
):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    adapters.write(tmp_path / "adapters" / "up", model)
    settings = {"adapter_folder": str(tmp_path / "adapters")}
    on_demand = {"adapters_on_demand": True}
    async with forward_http(engine_server=on_demand, **settings) as api:
        for _ in range(4):
            completion = await api.complete("one two", model="up")
            assert completion.model == "up"
        engines = api.ingress.engines.values()
        loaded = [[a.name for a in e.gate.engine().engine.adapters.list()] for e in engines]
        assert sorted(loaded) == [[], ["up"]]
        # The name of the model is no adapter's: its requests are spread as before.
        await asyncio.gather(*(api.complete([n, 5]) for n in range(12)))
        assert not any("tiny" in replica.adapters for replica in api.ingress.replicas.up)
        with pytest.raises(openai.NotFoundError):
            await api.complete("one two", model="neither")
