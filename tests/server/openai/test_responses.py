"""Responses with the real client: every event as its clients need it, and no memory."""

import json
import re

import pytest
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import start

CHAT = pb.Chat(
    messages=[
        pb.ChatMessage(role="system", text="three"),
        pb.ChatMessage(role="user", text="one two"),
    ]
)
LIFECYCLE = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def respond(served, **fields):
    fields = {"model": "tiny", "input": "one two", "instructions": "three"} | fields
    fields = {"max_output_tokens": 20, "temperature": 0} | fields
    return served.client.responses.create(**fields, extra_body={"ignore_eos": True})


async def test_the_tokens_are_those_of_grpc(api):
    async with api() as served:
        expected = (await served.server.say(start("a", prompt=CHAT, max_tokens=20))).text("a")
        whole = await respond(served)
        assert whole.output_text == expected
        assert (whole.status, whole.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )
        assert whole.usage.output_tokens == 20
        items = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"role": "user", "content": "three"},
        ]
        assert (await respond(served, input=items, store=False)).output_text


async def test_every_event_has_its_type_its_number_and_its_item(api):
    async with api() as served:
        whole = await respond(served)
        events = [event async for event in await respond(served, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = list(dict.fromkeys(event.type for event in events))
        assert kinds == [*LIFECYCLE, "response.incomplete"]
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        assert "".join(event.delta for event in deltas) == whole.output_text
        assert all(event.logprobs == [] for event in deltas)
        last = events[-1].response
        assert last.output[0].content[0].text == whole.output_text
        assert {event.item_id for event in deltas} == {last.output[0].id}
        assert last.usage.total_tokens == whole.usage.total_tokens
        assert events[0].response.output == []


async def test_an_answer_that_ends_by_itself_is_completed(api):
    async with api() as served:
        text = (await respond(served)).output_text
        body = {"input": "one two", "instructions": "three", "temperature": 0, "stop": text[2:4]}
        response = (await served.post("/v1/responses", body)).json()
        assert response["status"] == "completed"
        assert response["output"][0]["status"] == "completed"


async def test_log_probabilities_are_included_if_asked(api):
    async with api() as served:
        fields = {"include": ["message.output_text.logprobs"]}
        whole = await respond(served, **fields)
        entries = whole.output[0].content[0].logprobs
        assert len(entries) == 20
        events = [event async for event in await respond(served, stream=True, **fields)]
        streamed = [e for event in events if "delta" in event.type for e in event.logprobs]
        assert [e.logprob for e in streamed] == [e.logprob for e in entries]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "middle"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": "strong"}}, "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_is_not_supported_is_named(api, fields, param):
    async with api() as served:
        response = await served.post("/v1/responses", {"input": "one", **fields})
        assert (response.status, response.error["param"]) == (400, param)


async def test_tools_of_other_types_are_skipped(api):
    async with api() as served:
        tools = [{"type": "web_search"}, {"type": "custom", "name": "x"}]
        assert (await respond(served, tools=tools)).output_text


async def test_the_tokens_of_an_input_are_counted(api):
    async with api() as served:
        count = served.client.responses.input_tokens.count
        for given in ("one two", "one " * 500, [{"role": "user", "content": "one"}]):
            num = (await count(model="tiny", input=given, instructions="three")).input_tokens
            body = {"input": given, "instructions": "three", "max_output_tokens": 1}
            response = await served.post("/v1/responses", body)
            if response.status == 200:
                assert response.json()["usage"]["input_tokens"] == num
            else:
                assert num > 500
                assert response.error["code"] == "context_length_exceeded"
        for body, param in (({}, "input"), ({"input": "a", "personality": "x"}, "personality")):
            response = await served.post("/v1/responses/input_tokens", body)
            assert (response.status, response.error["param"]) == (400, param)


async def test_an_answer_without_a_limit_goes_on_to_the_context(api):
    async with api() as served:
        (model,) = (await served.get("/v1/models")).json()["data"]
        for path, body in (
            ("/v1/responses", {"input": "one"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one"}]}),
            ("/v1/completions", {"prompt": "one"}),
        ):
            response = await served.post(path, {**body, "ignore_eos": True})
            usage = response.json()["usage"]
            assert usage["total_tokens"] == model["max_model_len"], path


def is_too_long_for_clients(error):
    """How litellm, LangChain, CrewAI and others find that an input is too long."""
    text = error["message"].lower()
    return (
        error["code"] == "context_length_exceeded"
        and "this model's maximum context length is" in text
        and "prompt is too long" in text
        and re.search(r"maximum context length is (\d+) tokens", text) is not None
    )


async def test_clients_know_that_a_prompt_is_too_long(api):
    async with api(max_text_bytes=20_000) as served:
        for words in ("one " * 300, "one " * 3000, "one " * 6000):
            message = {"role": "user", "content": words}
            for path, body, param in (
                ("/v1/responses", {"input": words}, "input"),
                ("/v1/chat/completions", {"messages": [message]}, "messages"),
                ("/v1/chat/completions", {"messages": [message], "stream": True}, "messages"),
                ("/v1/completions", {"prompt": words}, "prompt"),
                ("/v1/completions", {"prompt": [5] * 300}, "prompt"),
                ("/v1/embeddings", {"input": [5] * 300}, "input"),
            ):
                response = await served.post(path, body)
                assert (response.status, response.error["param"]) == (400, param), path
                assert is_too_long_for_clients(response.error), response.error


async def test_every_line_of_a_stream_is_an_event_of_its_name(api):
    async with api() as served:
        body = {"input": "one", "stream": True, "max_output_tokens": 4}
        response = await served.post("/v1/responses", body)
        assert response.headers["content-type"].startswith("text/event-stream")
        for event in response.body.decode().strip().split("\n\n"):
            name, data = event.split("\n")
            assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
