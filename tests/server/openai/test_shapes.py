"""Every object and event is one of the types of the `openai` package, strictly."""

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.openai.conftest import HELLO

TOOL = {"type": "function", "name": "ride", "parameters": {"type": "object", "properties": {}}}
FORMAT = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
ASKED = {
    "temperature": 0.5,
    "top_p": 0.9,
    "max_output_tokens": 6,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "instructions": "three",
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "truncation": "auto",
    "user": "u",
}
PLAIN = {"format": {"type": "text"}, "verbosity": "medium"}


def events(response):
    assert response.status == 200, response.body
    lines = response.body.decode().splitlines()
    return [line[6:] for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        ASKED,
        {"text": {"format": FORMAT, "verbosity": "low"}, "reasoning": {"effort": "low"}},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"tools": [TOOL, {"type": "web_search"}], "tool_choice": "none", "reasoning": None},
    ],
)
async def test_responses_and_their_events_are_of_the_types(api, fields):
    adapter = TypeAdapter(ResponseStreamEvent)
    async with api() as served:
        body = {"model": "tiny", "input": "one two", "max_output_tokens": 6, **fields}
        whole = await served.post("/v1/responses", body)
        assert whole.status == 200, whole.body
        values = [whole.json()]
        Response.model_validate_json(whole.body, strict=True)
        streamed = events(await served.post("/v1/responses", {**body, "stream": True}))
        for event in streamed:
            adapter.validate_json(event, strict=True)
            if "response" in json.loads(event):
                values.append(json.loads(event)["response"])
        assert len(values) == 4
        for value in values:
            for name, given in fields.items():
                if name in ASKED:
                    assert value[name] == given, name
            assert value["text"] == fields.get("text", PLAIN)
            assert value["service_tier"] == "default"
            assert value["tool_choice"] == fields.get("tool_choice", "auto")
            assert len(value["tools"]) == len(fields.get("tools", ()))
            assert value["reasoning"].keys() == {"effort", "summary"}
            assert [value[name] for name in ("store", "background")] == [False, False]
            assert value["previous_response_id"] is None


async def test_choices_and_their_chunks_are_of_the_types(api):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    cases = (
        ("/v1/chat/completions", {"messages": HELLO}, {"logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "one"}, {"logprobs": 2}),
    )
    kinds = {"/v1/completions": (Completion, Completion)}
    async with api() as served:
        for path, body, logprobs in cases:
            whole, chunk = kinds.get(path, (ChatCompletion, ChatCompletionChunk))
            for fields in ({}, logprobs):
                given = {**body, **fields, "model": "tiny", "max_tokens": 4}
                response = await served.post(path, given)
                assert response.status == 200, response.body
                whole.model_validate_json(response.body, strict=True)
                for event in events(await served.post(path, {**given, **options})):
                    value = json.loads(event)
                    if path == "/v1/completions" and value["choices"]:
                        # OpenAI's own chunks have no reason before the last, which the type lacks.
                        value["choices"][0]["finish_reason"] = "stop"
                    chunk.model_validate_json(json.dumps(value), strict=True)
