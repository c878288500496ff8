"""Function calls and reasoning with the real client, of answers that the test writes."""

import json

import pytest
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import start

USER = {"role": "user", "content": "one"}
FUNCTION = {"name": "ride", "description": "Ride.", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
ARGUMENTS = '{"up": [1, 2]}'


def chat(served, **fields):
    fields = {"model": "tiny", "messages": [USER], "tools": TOOLS, "seed": 1} | fields
    fields = {"max_tokens": 400, "temperature": 0} | fields
    return served.client.chat.completions.create(**fields)


async def test_a_message_has_reasoning_text_and_calls(written):
    async with written() as served:
        whole = await chat(served)
        [choice] = whole.choices
        message = choice.message
        assert (message.content, message.reasoning_content) == ("I ride.", "Up.")
        assert choice.finish_reason == "tool_calls"
        assert [call.type for call in message.tool_calls] == ["function", "function"]
        assert [call.function.name for call in message.tool_calls] == ["ride", "ride"]
        assert {call.function.arguments for call in message.tool_calls} == {ARGUMENTS}
        assert len({call.id for call in message.tool_calls}) == 2


async def test_a_stream_has_the_same_as_deltas(written):
    async with written() as served:
        chunks = [chunk async for chunk in await chat(served, stream=True)]
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        assert "".join(delta.content or "" for delta in deltas) == "I ride."
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Up."
        parts = [part for delta in deltas for part in delta.tool_calls or ()]
        heads = [part for part in parts if part.id]
        assert [(part.index, part.type, part.function.name) for part in heads] == [
            (0, "function", "ride"),
            (1, "function", "ride"),
        ]
        for index in range(2):
            own = [part.function.arguments for part in parts if part.index == index]
            assert len(own) > 3
            assert "".join(own) == ARGUMENTS
        assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_the_helper_of_the_client_reads_a_stream(written):
    async with written() as served:
        fields = {"model": "tiny", "messages": [USER], "tools": TOOLS, "seed": 1, "temperature": 0}
        async with served.client.chat.completions.stream(**fields, max_tokens=400) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
        assert "tool_calls.function.arguments.delta" in kinds
        assert [c.function.arguments for c in final.choices[0].message.tool_calls] == [
            ARGUMENTS
        ] * 2


async def test_a_response_has_an_item_for_each_field(written):
    tools = [{"type": "function", **FUNCTION, "strict": None}, {"type": "web_search"}]
    fields = {"model": "tiny", "input": "one", "tools": tools, "temperature": 0}
    fields = {**fields, "max_output_tokens": 400, "extra_body": {"seed": 1}}
    async with written() as served:
        events = [e async for e in await served.client.responses.create(**fields, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        last = events[-1].response
        assert last.status == "completed"
        assert [item.type for item in last.output] == [
            *("reasoning", "message", "function_call", "function_call"),
        ]
        reasoning, message, first, second = last.output
        assert reasoning.content[0].text == "Up."
        assert message.content[0].text == "I ride."
        assert (first.name, first.arguments, first.status) == ("ride", ARGUMENTS, "completed")
        assert first.call_id != second.call_id
        of_call = [event for event in events if getattr(event, "output_index", None) == 2]
        kinds = list(dict.fromkeys(event.type for event in of_call))
        assert kinds == [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
        ]
        deltas = [event.delta for event in of_call if event.type.endswith(".delta")]
        assert "".join(deltas) == ARGUMENTS
        of_reasoning = {e.type for e in events if getattr(e, "output_index", None) == 0}
        assert {"response.reasoning_text.delta", "response.reasoning_text.done"} <= of_reasoning


async def test_a_whole_response_has_the_items_of_its_stream(written):
    fields = {"model": "tiny", "input": "one", "tools": [{"type": "function", **FUNCTION}]}
    async with written() as served:
        whole = await served.client.responses.create(
            **fields, temperature=0, max_output_tokens=400, extra_body={"seed": 1}
        )
        kinds = [item.type for item in whole.output]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert whole.output_text == "I ride."


@pytest.mark.parametrize("arguments", [ARGUMENTS, '{"up": ', "", "[", "null", "\u0000"])
async def test_replayed_calls_are_never_refused(written, arguments):
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "unknown", "arguments": arguments},
    }
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "a", "content": "5"},
    ]
    items = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"type": "reasoning", "id": "s", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": "I ride.", "status": "completed"},
        {"type": "function_call", "call_id": "a", "name": "unknown", "arguments": arguments},
        {"type": "function_call", "call_id": "b", "name": "ride", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "5"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "6"}],
        },
    ]
    async with written() as served:
        assert (await chat(served, messages=turns, max_tokens=4)).usage.completion_tokens == 4
        body = {"input": items, "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 4}
        response = await served.post("/v1/responses", body)
        assert response.status == 200, response.body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        (
            {"messages": [{"role": "user", "content": "a", "tool_call_id": "b"}]},
            "messages[0].tool_call_id",
        ),
    ],
)
async def test_what_is_wrong_is_named_as_the_client_wrote_it(written, fields, param):
    async with written() as served:
        body = {"messages": [USER], "tools": TOOLS, **fields}
        response = await served.post("/v1/chat/completions", body)
        assert (response.status, response.error["param"]) == (400, param)


async def test_grpc_sends_the_same_fields(written):
    message = pb.Chat(
        messages=[pb.ChatMessage(role="user", text="one")],
        tools=[pb.Tool(name="ride", parameters_json=json.dumps(FUNCTION["parameters"]))],
    )
    fields = {"sampling": pb.Sampling(temperature=0, seed=1)}
    for interval in (1, 0):
        async with written() as served:
            received = await served.server.say(
                start(
                    prompt=message,
                    stopping=pb.Stopping(max_tokens=400),
                    output=pb.Output(interval=interval),
                    **fields,
                )
            )
            tokens = [event.tokens for event in received.of("a") if event.HasField("tokens")]
            assert "".join(part.reasoning for part in tokens) == "Up."
            assert received.text("a") == "I ride."
            parts = [part for event in tokens for part in event.tool_calls]
            assert [part.name for part in parts if part.name] == ["ride", "ride"]
            for position in range(2):
                own = (p.arguments_json for p in parts if p.index == position)
                assert "".join(own) == ARGUMENTS
            assert received.end("a").finished.reason == pb.FINISH_REASON_STOP


SKI = {
    "type": "object",
    "properties": {"fast": {"type": "boolean"}},
    "required": ["fast"],
    "additionalProperties": False,
}


async def test_a_call_that_must_be_made_is_made_by_any_model(written):
    tools = [{"type": "function", "function": {"name": "ski", "parameters": SKI}}]
    fields = {"tools": tools, "seed": 7, "temperature": 1, "parallel_tool_calls": False}
    async with written(reasoning_format="none") as served:
        for choice in ("required", {"type": "function", "function": {"name": "ski"}}):
            [whole] = (await chat(served, tool_choice=choice, **fields)).choices
            [call] = whole.message.tool_calls
            assert list(json.loads(call.function.arguments)) == ["fast"]
            assert whole.finish_reason == "tool_calls"
            stream = await chat(served, tool_choice=choice, stream=True, **fields)
            deltas = [part.choices[0].delta async for part in stream]
            parts = [part for delta in deltas for part in delta.tool_calls or ()]
            assert "".join(p.function.arguments for p in parts) == call.function.arguments
        wrong = {"name": "ski", "parameters": {"type": "object", "properties": {"a": {"type": 3}}}}
        body = {"messages": [USER], "tools": [{"type": "function", "function": wrong}]}
        response = await served.post("/v1/chat/completions", {**body, "tool_choice": "required"})
        assert (response.status, response.error["param"]) == (400, "tools[0].function.parameters")


async def test_strict_tools_hold_over_grpc(written):
    message = pb.Chat(
        messages=[pb.ChatMessage(role="user", text="one")],
        tools=[pb.Tool(name="ski", parameters_json=json.dumps(SKI), strict=True)],
    )
    constraint = pb.Constraint(choices=pb.Choices(choices=["yes"]))
    async with written(reasoning_format="none") as served:
        received = await served.server.say(
            start(prompt=message, constraint=constraint, stopping=pb.Stopping(max_tokens=200))
        )
        tokens = [event.tokens for event in received.of("a") if event.HasField("tokens")]
        arguments = "".join(p.arguments_json for event in tokens for p in event.tool_calls)
        assert (received.text("a") == "yes") != bool(arguments)
