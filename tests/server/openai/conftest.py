import contextlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from chairlift.engine.engine import Engine

from tests import tool_templates
from tests.engine import tiny_model
from tests.engine.drive import script
from tests.server.openai.raw_http import Raw

CALL = '<tool_call>\n{"name": "ride", "arguments": {"up": [1, 2]}}\n</tool_call>'
ANSWER = f"<think>\nUp.\n</think>\n\nI ride.\n{CALL}\n{CALL}"
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


@pytest.fixture
def written(api, tiny_folder, tmp_path, monkeypatch):
    """Serve a model with tools that answers seed 1 with this text."""
    template = tool_templates.QWEN_THINK
    folder = tiny_model.copy_with_template(tiny_folder, tmp_path / "tools", template)

    def run(answer=ANSWER, **settings):
        begin = Engine.__init__

        def scripted(engine, *args, **options):
            begin(engine, *args, **options)
            ids = engine.tokenizer.encode(answer, add_special_tokens=False)
            script(engine, {1: [*ids, tiny_model.EOS]})

        monkeypatch.setattr(Engine, "__init__", scripted)
        return api(model=folder, drafts="off", **settings)

    return run
