"""A wrong request has a status and a field, and affects no other request."""

import math

import grpc
import pytest
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2, tokenizer_pb2
from google.protobuf import duration_pb2

from tests.server.connection import next_event, start, status_of

Code = grpc.StatusCode
SHORT = duration_pb2.Duration(nanos=1)


def sampling(**fields):
    return start("bad", sampling=pb.Sampling(**fields))


def stopping(**fields):
    return start("bad", stopping=pb.Stopping(**fields))


def output(**fields):
    return start("bad", output=pb.Output(**fields))


def schedule(**fields):
    return start("bad", schedule=pb.Schedule(**fields))


def chat(*messages, **fields):
    return start("bad", prompt=pb.Chat(messages=messages, **fields))


def user(text):
    return pb.ChatMessage(role="user", text=text)


def template_argument(value, name="x"):
    command = chat(user("hello"))
    command.start.chat.template_arguments[name] = value
    return command


WRONG = {
    "empty text": (start("bad", prompt=""), "prompt"),
    "no tokens": (start("bad", prompt=[]), "prompt"),
    "no prompt": (start("bad", prompt=None), "prompt"),
    "token outside the vocabulary": (start("bad", prompt=[390]), "token_ids"),
    "token beyond int32": (start("bad", prompt=[2**32 - 1]), "token_ids"),
    "nan temperature": (sampling(temperature=math.nan), "sampling.temperature"),
    "infinite temperature": (sampling(temperature=math.inf), "sampling.temperature"),
    "negative temperature": (sampling(temperature=-1), "sampling.temperature"),
    "top_p 0": (sampling(top_p=0), "sampling.top_p"),
    "top_p 2": (sampling(top_p=2), "sampling.top_p"),
    "nan top_p": (sampling(top_p=math.nan), "sampling.top_p"),
    "min_p 2": (sampling(min_p=2), "sampling.min_p"),
    "n 0": (sampling(n=0), "sampling.n"),
    "n beyond the rows": (sampling(n=1000), "sampling.n"),
    "nan penalty": (sampling(repetition_penalty=math.nan), "sampling.repetition_penalty"),
    "21 candidates": (output(logprobs=21), "output.logprobs"),
    "max_tokens 0": (stopping(max_tokens=0), "stopping.max_tokens"),
    "min_tokens above max_tokens": (stopping(max_tokens=2, min_tokens=3), "stopping.min_tokens"),
    "empty stop": (stopping(stop=[""]), "stopping.stop"),
    "17 stops": (stopping(stop=["x"] * 17), "stopping.stop"),
    "stop token outside": (stopping(stop_token_ids=[390]), "stopping.stop_token_ids"),
    "truncate to nothing": (start("bad", truncate_prompt=0), "truncate_prompt"),
    "negative timeout": (
        schedule(queue_timeout=duration_pb2.Duration(seconds=-1)),
        "schedule.queue_timeout",
    ),
    "priority 11": (schedule(priority=11), "schedule.priority"),
    "priority -11": (schedule(priority=-11), "schedule.priority"),
    "timeout 0": (schedule(time_limit=duration_pb2.Duration()), "schedule.time_limit"),
    "timeout of ages": (
        schedule(time_limit=duration_pb2.Duration(seconds=10**11)),
        "schedule.time_limit",
    ),
    "duration that is none": (
        schedule(time_limit=duration_pb2.Duration(seconds=1, nanos=-1)),
        "schedule.time_limit",
    ),
    "long salt": (start("bad", prefix_cache=pb.PrefixCache(salt="x" * 129)), "prefix_cache.salt"),
    "no messages": (chat(), "chat.messages"),
    "message without content": (chat(pb.ChatMessage(role="user")), "chat.messages[0].content"),
    "message without role": (chat(pb.ChatMessage(text="x")), "chat.messages[0].role"),
    "empty part": (
        chat(pb.ChatMessage(role="user", parts=pb.ContentParts(parts=[pb.ContentPart()]))),
        "chat.messages[0].parts[0]",
    ),
    "tools that the template does not read": (
        chat(user("hello"), tools=[pb.Tool(name="clock")]),
        "chat.tools",
    ),
    "a tool with a space in its name": (
        chat(user("hello"), tools=[pb.Tool(name="a clock")]),
        "chat.tools[0].name",
    ),
    "129 tools": (
        chat(user("hello"), tools=[pb.Tool(name=f"a{i}") for i in range(129)]),
        "chat.tools",
    ),
    "reasoning that the template does not read": (
        chat(pb.ChatMessage(role="assistant", text="x", reasoning="because")),
        "chat.messages[0].reasoning",
    ),
    "reasoning of a user": (
        chat(pb.ChatMessage(role="user", text="x", reasoning="because")),
        "chat.messages[0].reasoning",
    ),
    "calls that the template does not read": (
        chat(pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="clock")])),
        "chat.messages[0].tool_calls",
    ),
    "many calls in all turns": (
        chat(*[pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall()] * 128)] * 33),
        "chat.messages",
    ),
    "a call without a name": (
        chat(pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="1")])),
        "chat.messages[0].tool_calls[0].name",
    ),
    "a call id in a turn of the user": (
        chat(pb.ChatMessage(role="user", text="x", tool_call_id="1")),
        "chat.messages[0].tool_call_id",
    ),
    "a choice of a tool that there is not": (
        chat(user("hello"), tools=[pb.Tool(name="a")], tool_choice=pb.ToolChoice(name="b")),
        "chat.tool_choice.name",
    ),
    "a tool mode that there is not": (
        chat(user("hello"), tool_choice=pb.ToolChoice(mode=99)),
        "chat.tool_choice.mode",
    ),
    "4097 messages": (chat(*[user("a")] * 4097), "chat.messages"),
    "4097 parts": (
        chat(
            pb.ChatMessage(
                role="user", parts=pb.ContentParts(parts=[pb.ContentPart(text="a")] * 4097)
            )
        ),
        "chat.messages",
    ),
    "8193 template arguments": (template_argument([[1] * 4096] * 2), "chat.template_arguments"),
    "a special token as template argument": (
        template_argument("a", name="eos_token"),
        "chat.template_arguments",
    ),
    "129 stop tokens": (stopping(stop_token_ids=[1] * 129), "stopping.stop_token_ids"),
    "an open group": (start("bad", constraint=pb.Constraint(regex="(a")), "constraint.regex"),
    "nan in the template's arguments": (
        template_argument(math.nan),
        "chat.template_arguments",
    ),
}

OTHERS = {
    "prompt longer than the model": (
        start("bad", prompt=[1] * 256),
        (Code.INVALID_ARGUMENT, "PROMPT_TOO_LONG", "prompt"),
    ),
    "more token ids than a message can hold in context": (
        start("bad", prompt=[1] * 900_000),
        (Code.INVALID_ARGUMENT, "PROMPT_TOO_LONG", "prompt"),
    ),
    "text that has more bytes than the context can hold": (
        start("bad", prompt="a " * 400_000),
        (Code.INVALID_ARGUMENT, "PROMPT_TOO_LONG", "prompt"),
    ),
    "unknown adapter": (
        start("bad", adapter="lora"),
        (Code.NOT_FOUND, "UNKNOWN_ADAPTER", "adapter"),
    ),
    "unknown model": (start("bad", model="other"), (Code.NOT_FOUND, "UNKNOWN_MODEL", "model")),
}

CASES = {
    **{
        name: (command, (Code.INVALID_ARGUMENT, "BAD_PARAMETER", field))
        for name, (command, field) in WRONG.items()
    },
    **OTHERS,
}


def rejected(received, request_id="bad", *, last=True):
    """The one rejection of an id: code, reason and field."""
    (event,) = (e for e in received.of(request_id) if e.HasField("rejected"))
    assert event.last == last
    error = event.rejected.error
    assert error.message
    code = next(code for code in Code if code.value[0] == error.code)
    return code, error.reason, error.field


@pytest.mark.parametrize("case", CASES)
async def test_a_wrong_request_is_rejected_and_its_neighbours_go_on(serve, case):
    command, expected = CASES[case]
    async with serve() as server:
        received = await server.say(start("good"), command, start("after"))
        assert received.status.code is Code.OK
        assert rejected(received) == expected
        assert received.kinds("bad") == ["rejected"]
        for request_id in ("good", "after"):
            assert received.end(request_id).finished.reason == pb.FINISH_REASON_LENGTH
        alone = await server.one(command)
        code, reason, field = expected
        assert (alone.status.code, alone.status.reason, alone.events) == (code, reason, [])
        assert alone.status.fields == ([field] if code is Code.INVALID_ARGUMENT else [])
        await server.until_idle()


@pytest.mark.parametrize(
    "request_id", ["x" * 129, "line\nbreak", "größe"], ids=["long", "control", "not ascii"]
)
async def test_an_id_that_is_no_label_is_rejected(serve, request_id):
    async with serve() as server:
        received = await server.say(start(request_id))
        assert rejected(received, request_id) == (
            Code.INVALID_ARGUMENT,
            "BAD_PARAMETER",
            "request_id",
        )


async def test_a_prompt_that_the_pool_can_never_hold_is_a_failed_precondition(serve, kv_blocks):
    async with serve(kv_cache_memory=kv_blocks(4)) as server:
        received = await server.say(start("bad", prompt=[1] * 100), start("good"))
        assert rejected(received) == (Code.FAILED_PRECONDITION, "KV_CAPACITY", "prompt")
        assert received.end("good").HasField("finished")
        await server.until_idle()


async def test_a_duplicate_id_is_rejected_and_the_live_request_untouched(serve):
    async with serve() as server:
        alone = await server.say(start("a", max_tokens=60))
        received = await server.say(start("a", max_tokens=60), start("a", prompt=[7]))
        status = rejected(received, "a", last=False)
        assert status == (Code.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID", "request_id")
        assert received.tokens("a") == alone.tokens("a")
        assert received.end("a").HasField("finished")


async def test_a_full_queue_is_resource_exhausted_with_a_time_to_retry(serve):
    async with serve(max_num_seqs=1, max_queued_requests=2) as server:
        call = server.generation.Generate()
        await call.write(start("running", max_tokens=250))
        await next_event(call, "tokens")
        received = await server.say(*(start(f"r{i}", max_tokens=1) for i in range(6)))
        refused = [e for e in received.events if e.HasField("rejected")]
        assert 3 <= len(refused) <= 4
        for event in refused:
            error = event.rejected.error
            assert (error.code, error.reason) == (pb.STATUS_CODE_RESOURCE_EXHAUSTED, "QUEUE_FULL")
            assert error.retry_after.seconds >= 1
        call.cancel()
        await server.until_idle()


async def test_a_full_queue_is_the_status_of_generate_one(serve):
    async with serve(max_num_seqs=1, max_queued_requests=1) as server:
        call = server.generation.Generate()
        await call.write(start("running", max_tokens=250))
        await next_event(call, "tokens")
        await call.write(start("waiting", max_tokens=250))
        await next_event(call, "accepted")
        received = await server.one(start("a"))
        assert received.status.code is Code.RESOURCE_EXHAUSTED
        assert received.status.reason == "QUEUE_FULL"
        assert received.status.retry_after_s >= 1
        call.cancel()
        await server.until_idle()


async def test_a_request_that_does_not_start_in_time_fails(serve):
    async with serve(max_num_seqs=1) as server:
        waiting = start("late", schedule=pb.Schedule(queue_timeout=SHORT))
        received = await server.say(start("first", max_tokens=50), waiting)
        failed = received.end("late").failed
        assert failed.error.code == pb.STATUS_CODE_DEADLINE_EXCEEDED
        assert failed.error.reason == "QUEUE_TIMEOUT"
        assert received.end("first").HasField("finished")


async def test_the_time_limit_ends_a_request_with_what_there_is(serve):
    async with serve() as server:
        limit = pb.Schedule(time_limit=duration_pb2.Duration(nanos=30_000_000))
        received = await server.say(start("a", max_tokens=253, schedule=limit))
        assert received.end("a").finished.reason == pb.FINISH_REASON_TIME_LIMIT


async def test_commands_that_cannot_be_carried_out_are_rejected(serve):
    # The request waits for a batch that never fills, so that it is live to the end.
    async with serve(batching="static", max_num_seqs=2, batch_timeout_s=100) as server:
        call = server.generation.Generate()
        await call.write(start("live"))
        await next_event(call, "accepted")
        cases = [
            (pb.GenerateRequest(resume=pb.Resume(handle="x")), "NOT_FOUND", "handle"),
            (pb.GenerateRequest(), "INVALID_ARGUMENT", "command"),
        ]
        for command, code, field in cases:
            await call.write(command)
            # Tokens of the live request may come in the same message.
            events = await next_event(call, "rejected")
            (event,) = [event for event in events if event.HasField("rejected")]
            assert pb.StatusCode.Name(event.rejected.error.code) == f"STATUS_CODE_{code}"
            assert event.rejected.error.field == field
            assert event.last == command.HasField("resume")
        call.cancel()


async def test_wrong_unary_requests_have_a_status(serve):
    async with serve() as server:
        for call, code in (
            (server.generation.Abort(pb.AbortRequest()), Code.INVALID_ARGUMENT),
            (server.info.GetModelInfo(server_pb2.GetModelInfoRequest(model="x")), Code.NOT_FOUND),
            (server.info.PlanMemory(server_pb2.PlanMemoryRequest(model="x")), Code.NOT_FOUND),
            (
                server.info.PlanMemory(server_pb2.PlanMemoryRequest(kv_cache_memory=1)),
                Code.INVALID_ARGUMENT,
            ),
            (
                server.info.PlanMemory(server_pb2.PlanMemoryRequest(max_num_seqs=0)),
                Code.INVALID_ARGUMENT,
            ),
            (
                server.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(model="x")),
                Code.NOT_FOUND,
            ),
            (
                server.tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest(token_ids=[390])),
                Code.INVALID_ARGUMENT,
            ),
            (
                server.tokenizer.ApplyChatTemplate(tokenizer_pb2.ApplyChatTemplateRequest()),
                Code.INVALID_ARGUMENT,
            ),
        ):
            assert (await status_of(call)).code is code
