import contextlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from tests.server.openai.raw_http import Raw

HELLO = [{"role": "user", "content": "one two three"}]


@dataclass
class Api:
    """A server, the real client, and raw connections."""

    server: Any
    client: openai.AsyncOpenAI

    @property
    def url(self):
        return self.server.server.http_url

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    def raw(self):
        return Raw(self.port)

    async def post(self, path, body, **headers):
        """One request on a connection of its own."""
        async with self.raw() as raw:
            await raw.post(path, body, **headers)
            return await raw.response()

    async def get(self, path, **headers):
        async with self.raw() as raw:
            await raw.request("GET", path, **headers)
            return await raw.response()

    def chat(self, **fields):
        fields = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0} | fields
        extra = {"ignore_eos": True} | fields.pop("extra_body", {})
        return self.client.chat.completions.create(**fields, extra_body=extra)

    async def chunks(self, **fields):
        return [chunk async for chunk in await self.chat(stream=True, **fields)]


@pytest.fixture
def api(serve):
    """Serve the tiny model over HTTP, too."""

    @asynccontextmanager
    async def run(*, server=None, token="none", **settings):
        server = {"http_listen": "127.0.0.1:0", "served_model_name": "tiny", **(server or {})}
        async with contextlib.AsyncExitStack() as stack:
            serving = await stack.enter_async_context(serve(server=server, **settings))
            base_url = f"{serving.server.http_url}/v1"
            client = openai.AsyncOpenAI(base_url=base_url, api_key=token, max_retries=0)
            yield Api(serving, await stack.enter_async_context(client))

    return run
