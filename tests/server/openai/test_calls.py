"""Calls that are forced, chosen from some tools, cut or replayed by agents."""

import json

import pytest

from tests.server.openai.conftest import CALL
from tests.server.openai.test_tools import FUNCTION, SKI, TOOLS, USER, chat

FORMAT = {"name": "n", "schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}


async def test_a_call_that_is_forced_goes_before_a_format(written):
    tools = [{"type": "function", "function": {"name": "ski", "parameters": SKI}}]
    chat = {"messages": [USER], "tools": tools, "max_tokens": 60, "seed": 7}
    flat = {"input": "one", "tools": [{"type": "function", **tools[0]["function"]}], "seed": 7}
    named = {"type": "function", "function": {"name": "ski"}}
    allowed = {"mode": "required", "tools": [named]}
    async with written(reasoning_format="none") as served:
        for choice in ("required", named, {"type": "allowed_tools", "allowed_tools": allowed}):
            for form in (
                {"response_format": {"type": "json_schema", "json_schema": FORMAT}},
                {"response_format": {"type": "json_object"}},
                {"guided_regex": "a+"},
            ):
                body = {**chat, "tool_choice": choice, **form}
                response = await served.post("/v1/chat/completions", body)
                assert response.status == 200, response.body
                [call] = response.json()["choices"][0]["message"]["tool_calls"]
                assert call["function"]["name"] == "ski"
        for choice in ("required", {"type": "function", "name": "ski"}):
            text = {"format": {"type": "json_schema", **FORMAT}}
            body = {**flat, "tool_choice": choice, "text": text}
            response = await served.post("/v1/responses", body)
            assert response.status == 200, response.body
            assert response.json()["output"][0]["type"] == "function_call"
        # Without a forced call both hold, and an error names the field of the API.
        body = {**chat, "guided_regex": "a+", "tool_choice": "auto", "parallel_tool_calls": False}
        response = await served.post("/v1/chat/completions", body)
        assert (response.status, response.error["param"]) == (400, "guided_regex")


async def test_allowed_tools_are_those_that_the_model_sees(written):
    names = ("ride", "ski", "walk")
    tools = [{"type": "function", "function": {**FUNCTION, "name": name}} for name in names]
    flat = [{"type": "function", **tool["function"]} for tool in tools]
    kept = {"type": "function", "function": {"name": "ski"}}
    async with written() as served:

        async def length(path, **fields):
            response = await served.post(path, {"max_tokens": 1, **fields})
            assert response.status == 200, response.body
            usage = response.json()["usage"]
            return usage.get("prompt_tokens") or usage["input_tokens"]

        path, chat = "/v1/chat/completions", {"messages": [USER]}
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [kept]}}
        own = await length(path, **chat, tools=tools[1:2])
        assert await length(path, **chat, tools=tools, tool_choice=choice) == own
        assert await length(path, **chat, tools=tools) > own
        choice = {"type": "allowed_tools", "mode": "auto"}
        choice["tools"] = [{"type": "function", "name": "ski"}, {"type": "image_generation"}]
        body = {"input": "one", "tools": flat, "tool_choice": choice, "max_output_tokens": 1}
        response = await served.post("/v1/responses", body)
        assert response.json()["usage"]["input_tokens"] == own
        assert response.json()["tool_choice"] == choice
        choice["tools"][0]["name"] = "fly"
        response = await served.post("/v1/responses", body)
        assert (response.status, response.error["param"]) == (400, "tool_choice.tools[0].name")


async def test_items_of_agents_are_turns(written):
    """What Codex and other agents replay: each call and output is a turn of the conversation."""
    items = [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "function", **FUNCTION}],
        },
        {"type": "message", "role": "user", "content": "one"},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "two"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "three"},
        {
            "type": "local_shell_call",
            "call_id": "c2",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "c2", "output": "four"},
        {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "a", "stderr": ""}]},
        {"type": "apply_patch_call", "call_id": "c4", "operation": {"type": "delete_file"}},
        {"type": "apply_patch_call_output", "call_id": "c4", "status": "completed"},
        {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": "five"},
        {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
        {"type": "compaction", "encrypted_content": "x"},
        {
            "type": "message",
            "role": "assistant",
            "id": "m1",
            "content": [{"type": "output_text", "text": "six", "annotations": [], "logprobs": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "seven"}]},
    ]
    async with written() as served:
        body = {"input": items, "max_output_tokens": 4}
        response = await served.post("/v1/responses", body)
        assert response.status == 200, response.body
        chat = {"max_tokens": 4, "tools": TOOLS}
        calls = [
            ("c1", "patch", {"input": "two"}, "three"),
            ("c2", "local_shell", items[5]["action"], "four"),
            ("c3", "shell", items[7]["action"], json.dumps(items[8]["output"])),
            ("c4", "apply_patch", items[9]["operation"], ""),
            ("m", "f", {}, "five"),
        ]
        chat["messages"] = [USER]
        for call_id, name, arguments, output in calls:
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": call_id, "type": "function", "function": function}
            chat["messages"] += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": output},
            ]
        chat["messages"] += [{"role": "assistant", "content": "six"}, {**USER, "content": "seven"}]
        same = await served.post("/v1/chat/completions", chat)
        expected = same.json()["usage"]["prompt_tokens"]
        assert response.json()["usage"]["input_tokens"] == expected
        for kind in ("item_reference", "compaction_trigger", "computer_call_output"):
            body["input"] = [items[1], {"type": kind, "id": "x"}]
            response = await served.post("/v1/responses", body)
            assert (response.status, response.error["param"]) == (400, "input[1].type")


async def test_an_error_of_a_response_names_the_item_or_the_tool(written):
    tools = [{"type": "web_search"}, {"type": "function", "name": "a b"}]
    call = {"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"}
    items = [{"role": "user", "content": "one"}, {"type": "compaction"}, call]
    async with written() as served:
        for body, param in (
            ({"input": "one", "tools": tools}, "tools[1].name"),
            ({"input": items, "instructions": "two"}, "input[2]"),
        ):
            response = await served.post("/v1/responses", body)
            assert (response.status, response.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("stop", "reason"), [("[1", "stop"), ("</tool_call>", "tool_calls"), (None, "tool_calls")]
)
async def test_a_call_that_a_stop_cuts_is_not_finished(written, stop, reason):
    async with written(answer=CALL) as served:
        [choice] = (await chat(served, stop=stop)).choices
        assert choice.message.tool_calls[0].function.name == "ride"
        assert choice.finish_reason == reason
    async with written(answer=CALL) as served:
        reasons = [
            part.choices[0].finish_reason
            async for part in await chat(served, stream=True, stop=stop)
        ]
        assert reasons[-1] == reason


@pytest.mark.parametrize("stream", [False, True])
async def test_an_item_that_a_stop_cuts_is_incomplete(written, stream):
    body = {"input": "one", "tools": [{"type": "function", **FUNCTION}], "seed": 1}
    body |= {"temperature": 0, "stop": ["[1"], "stream": stream}
    async with written(answer=CALL) as served:
        response = await served.post("/v1/responses", body)
        lines = response.body.decode().splitlines()
        whole = json.loads([line for line in lines if "{" in line][-1].removeprefix("data: "))
        whole = whole["response"] if stream else whole
        assert whole["status"] == "completed"
        assert whole["output"][-1]["status"] == "incomplete"


async def test_arguments_that_are_a_text_are_not_encoded_twice(written):
    inner = json.dumps({"up": 'é "x" \n'})
    text = f'<tool_call>{{"name": "ride", "arguments": {json.dumps(inner)}}}</tool_call>'
    async with written(answer=text) as served:
        [whole] = (await chat(served)).choices
        assert whole.message.tool_calls[0].function.arguments == inner
    async with written(answer=text) as served:
        stream = await chat(served, stream=True)
        deltas = [part.choices[0].delta async for part in stream]
        parts = [part for delta in deltas for part in delta.tool_calls or ()]
        assert "".join(part.function.arguments or "" for part in parts) == inner
