"""Each field of the API is honoured, ignored or refused, as docs/openai.md lists it."""

import json
import re
from pathlib import Path

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from tests.engine import tiny_model
from tests.server.openai.conftest import HELLO

PAGE = (Path(__file__).parents[3] / "docs" / "openai.md").read_text(encoding="utf-8")
PARAMS = {
    "/v1/chat/completions": chat_create_params.CompletionCreateParamsBase,
    "/v1/completions": completion_create_params.CompletionCreateParamsBase,
    "/v1/responses": response_create_params.ResponseCreateParamsBase,
    "/v1/embeddings": embedding_create_params.EmbeddingCreateParams,
}
BODIES = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4, "temperature": 0},
    "/v1/completions": {"prompt": "one two", "max_tokens": 4, "temperature": 0},
    "/v1/responses": {"input": "one two", "max_output_tokens": 4, "temperature": 0},
}
SAMPLES = {
    "verbosity": "low",
    "store": True,
    "service_tier": "priority",
    "background": True,
    "metadata": {"a": "b"},
}
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
OFF = {
    "top_k": [-1, 0],
    "min_p": [0],
    "truncate_prompt_tokens": [-1],
    "use_beam_search": [False],
    "length_penalty": [1, 1.0],
    "spaces_between_special_tokens": [True],
    "return_token_ids": [False],
    "logits_processors": [[]],
    "stop": [[]],
    "logit_bias": [{}],
    "bad_words": [[]],
    "priority": [0, 3],
    "request_id": ["mine"],
    "client_metadata": [{"x": "y"}],
    "repetition_penalty": [1],
}


def listed():
    """The lists of the page: of each endpoint what is honoured, ignored, refused."""
    rows = re.findall(r"^\| `(/v1/\w[^`]*)` \|([^|]*)\|([^|]*)\|([^|]*)\|$", PAGE, re.MULTILINE)
    return {path: [re.findall(r"`(\w+)`", cell) for cell in cells] for path, *cells in rows}


def answer(response):
    assert response.status == 200, response.body
    body = response.json()
    if "choices" in body:
        return [choice.get("message") or choice["text"] for choice in body["choices"]]
    return [item["content"] for item in body["output"]]


@pytest.mark.parametrize("path", PARAMS)
def test_each_field_of_openai_is_on_the_page(path):
    lists = listed()[path]
    names = [name for column in lists for name in column]
    assert len(names) == len(set(names))
    assert set(names) == {*PARAMS[path].__annotations__} | (
        set() if path == "/v1/embeddings" else {"stream"}
    )


async def test_what_is_ignored_changes_nothing(api):
    async with api() as served:
        for path, body in BODIES.items():
            expected = answer(await served.post(path, body))
            for name in listed()[path][1]:
                given = {**body, name: SAMPLES.get(name, {"x": 1})}
                assert answer(await served.post(path, given)) == expected, (path, name)
            for name, values in OFF.items():
                for value in values:
                    assert answer(await served.post(path, {**body, name: value})) == expected


async def test_what_is_refused_or_wrong_is_named(api):
    async with api() as served:
        for path, body in BODIES.items():
            honoured, _, refused = listed()[path]
            for name in (*honoured, *refused):
                given = {**body, name: SAMPLES.get(name, {"x": 1})}
                if name == "metadata":
                    given[name] = [1]
                response = await served.post(path, given)
                assert response.status == 400, (path, name, response.body)
                assert response.error["param"].partition(".")[0] == name, response.error
                assert response.error["message"].startswith(name), response.error


async def test_values_that_are_off_are_not_refused(api):
    chats = {
        "best_of": 1,
        "echo": False,
        "continue_final_message": False,
        "include_reasoning": True,
        "functions": [],
        "function_call": "none",
        "modalities": ["text"],
        "audio": None,
        "documents": [],
        "prediction": {"type": "content", "content": "one"},
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "verbosity": "high",
    }
    path = "/v1/chat/completions"
    async with api() as served:
        expected = answer(await served.post(path, BODIES[path]))
        for name, value in chats.items():
            assert answer(await served.post(path, {**BODIES[path], name: value})) == expected, name
        turn = {"role": "assistant", "content": "one", "annotations": [], "audio": None}
        turn |= {"refusal": None, "function_call": None, "reasoning_details": [], "images": []}
        part = {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}
        plain = [{"role": "assistant", "content": "one"}, {"role": "user", "content": "two"}]
        marked = [turn, {"role": "user", "content": [part], "cache_control": {}}]
        given = [
            answer(await served.post(path, {**BODIES[path], "messages": messages}))
            for messages in (plain, marked)
        ]
        assert given[0] == given[1]
        completion = {**BODIES["/v1/completions"], "logprobs": False, "suffix": ""}
        assert answer(await served.post("/v1/completions", completion))


async def test_responses_take_what_agents_send(api):
    text = {"format": {"type": "text"}, "verbosity": "low"}
    sent = [
        {"reasoning": {"effort": "medium", "summary": "auto"}, "include": []},
        {"reasoning": {"summary": "detailed", "generate_summary": None, "context": "auto"}},
        {"include": ["reasoning.encrypted_content"], "client_metadata": {"a": "b"}},
        {"text": text, "truncation": "auto", "prompt_cache_retention": "24h", "store": False},
        {"stream_options": None, "service_tier": "flex", "prompt_cache_key": "k"},
        *({"reasoning": {"effort": effort}} for effort in EFFORTS),
    ]
    path = "/v1/responses"
    async with api() as served:
        expected = answer(await served.post(path, BODIES[path]))
        for fields in sent:
            assert answer(await served.post(path, {**BODIES[path], **fields})) == expected


async def test_an_effort_reaches_the_template(api, tiny_folder, tmp_path):
    template = (
        "{% for m in messages %}{{ m['content'] }} {% endfor %}"
        "{{ reasoning_effort }} {{ enable_thinking }}"
    )
    folder = tiny_model.copy_with_template(tiny_folder, tmp_path / "efforts", template)
    async with api(model=folder) as served:

        async def length(path, **fields):
            response = await served.post(path, {**BODIES[path], **fields})
            assert response.status == 200, response.body
            usage = response.json()["usage"]
            return usage.get("prompt_tokens") or usage["input_tokens"]

        chat, responses = "/v1/chat/completions", "/v1/responses"
        base = await length(chat)
        assert await length(chat, reasoning_effort="medium") != base
        assert await length(chat, reasoning={"effort": "high"}) == await length(
            chat, reasoning_effort="high"
        )
        assert await length(responses, reasoning={"effort": "medium"}) != await length(responses)
        off = await length(chat, chat_template_kwargs={"enable_thinking": False})
        assert await length(chat, reasoning_effort="none") != await length(
            chat, reasoning_effort="high"
        )
        assert off != base
        own = {"reasoning_effort": "low"}
        assert await length(
            chat, reasoning_effort="medium", chat_template_kwargs=own
        ) == await length(chat, reasoning_effort="low")


async def test_vectors_ignore_what_has_no_effect(api):
    async with api() as served:
        plain = await served.post("/v1/embeddings", {"input": "one"})
        marked = {"input": "one", "user": "a", "priority": 1}
        response = await served.post("/v1/embeddings", marked)
        assert response.status == 200, response.body
        assert response.json()["data"] == plain.json()["data"]
        response = await served.post("/v1/embeddings", {"input": "one", "colour": 1})
        assert (response.status, response.error["param"]) == (400, "colour")


async def test_every_chunk_has_the_usage_of_its_answer_if_asked(api):
    options = {"include_usage": True, "continuous_usage_stats": True}
    sent = {"stream": True, "stream_options": options, "n": 2, "ignore_eos": True}
    async with api() as served:
        for path in ("/v1/chat/completions", "/v1/completions"):
            response = await served.post(path, {**BODIES[path], **sent})
            assert response.status == 200, response.body
            lines = response.body.decode().split("\n\n")
            *chunks, last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            for number in range(2):
                own = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == number]
                counts = [usage["completion_tokens"] for usage in own]
                assert counts == sorted(counts)
                assert counts[-1] == 4
                assert {usage["prompt_tokens"] for usage in own} == {last["usage"]["prompt_tokens"]}
                assert all(
                    usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
                    for usage in own
                )
            assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 8)
