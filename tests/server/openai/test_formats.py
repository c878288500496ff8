"""Formats of answers with the real client of the OpenAI API, and under vLLM's names."""

import json
import re

import openai
import pytest

SCHEMA = {
    "type": "object",
    "properties": {"up": {"type": "boolean"}, "lift": {"enum": ["chair", "drag"]}},
    "required": ["up", "lift"],
    "additionalProperties": False,
}
NAMED = {"name": "lift", "schema": SCHEMA, "strict": True}


def check(text):
    value = json.loads(text)
    assert value.keys() == {"up", "lift"}
    assert isinstance(value["up"], bool)


async def test_answers_are_what_a_schema_describes(api):
    async with api() as served:
        schema = {"type": "json_schema", "json_schema": NAMED}
        fields = {"temperature": 1.0, "seed": 1, "max_tokens": 100}
        whole = await served.chat(response_format=schema, **fields)
        assert whole.choices[0].finish_reason == "stop"
        check(whole.choices[0].message.content)
        chunks = await served.chunks(response_format=schema, **fields)
        deltas = [choice.delta.content or "" for c in chunks for choice in c.choices]
        assert "".join(deltas) == whole.choices[0].message.content
        response = await served.client.responses.create(
            model="",
            input="go",
            text={"format": {"type": "json_schema", **NAMED}},
            max_output_tokens=100,
        )
        check(response.output_text)


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"guided_regex": "[a-z]{4}"}, "[a-z]{4}"),
        ({"guided_choice": ["up", "down"]}, "up|down"),
        ({"guided_grammar": 'start: "a" "b"'}, "ab"),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
        ({"structured_outputs": {"choice": ["up", "down"]}}, "up|down"),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"structured_outputs": {"json": '{"const": "x"}'}}, '"x"'),
        ({"response_format": {"type": "text"}}, "(?s:.*)"),
    ],
)
async def test_a_format_under_the_names_of_vllm(api, extra, pattern):
    async with api() as served:
        fields = {"temperature": 1.0, "seed": 1, "max_tokens": 30}
        chat = await served.chat(extra_body=extra, **fields)
        assert re.fullmatch(pattern, chat.choices[0].message.content)
        completion = await served.client.completions.create(
            model="", prompt="go", extra_body=extra, **fields
        )
        assert re.fullmatch(pattern, completion.choices[0].text)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "strange"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "text", "other": 1}}, "response_format.other"),
        ({"guided_regex": "a("}, "guided_regex"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"other": 1}}, "structured_outputs.other"),
        (
            {"guided_regex": "a", "structured_outputs": {"choice": ["b"]}},
            "structured_outputs.choice",
        ),
    ],
)
async def test_a_wrong_format_is_refused_by_name(api, body, param):
    async with api() as served:
        with pytest.raises(openai.BadRequestError) as refused:
            await served.chat(extra_body=body)
        assert refused.value.param == param
