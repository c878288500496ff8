"""Chat completions with the real client: the same tokens as over gRPC, whole and as a stream."""

import math
import re

import openai
import pytest
from chairlift.api.chats import MAX_ARGUMENTS
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import start
from tests.server.openai.conftest import HELLO

CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", text="one two three")])


def text_of(chunks, index=0):
    deltas = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in deltas)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_tokens_are_those_of_grpc(api, temperature):
    async with api() as served:
        command = start(
            "a",
            prompt=CHAT,
            sampling=pb.Sampling(temperature=temperature, seed=7, top_p=0.9, top_k=50),
            stopping=pb.Stopping(max_tokens=40, ignore_eos=True),
        )
        expected = (await served.server.say(command)).text("a")
        fields = {"temperature": temperature, "seed": 7, "top_p": 0.9, "max_tokens": 40}
        whole = await served.chat(**fields, extra_body={"top_k": 50})
        chunks = await served.chunks(**fields, extra_body={"top_k": 50})
        assert whole.choices[0].message.content == text_of(chunks) == expected
        assert whole.choices[0].finish_reason == "length"


async def test_a_stream_has_a_role_a_reason_and_the_usage_if_asked(api):
    async with api() as served:
        plain = await served.chunks()
        counted = await served.chunks(stream_options={"include_usage": True})
        assert plain[0].choices[0].delta.role == "assistant"
        assert [c.choices[0].finish_reason for c in plain].count("length") == 1
        assert all(chunk.usage is None for chunk in plain + counted[:-1])
        assert counted[-1].choices == []
        usage = counted[-1].usage
        assert (usage.completion_tokens, usage.total_tokens) == (8, usage.prompt_tokens + 8)
        # The same prompt came before it.
        assert usage.prompt_tokens_details.cached_tokens == 16
        assert len({chunk.id for chunk in plain}) == 1
        whole = await served.chat()
        assert whole.usage.completion_tokens == 8
        assert whole.usage.prompt_tokens == usage.prompt_tokens


async def test_several_answers_are_those_of_grpc(api):
    async with api() as served:
        command = start("a", prompt=CHAT, sampling=pb.Sampling(temperature=1, seed=3, n=3))
        events = (await served.server.say(command)).of("a")
        expected = ["".join(e.tokens.text for e in events if e.index == i) for i in range(3)]
        whole = await served.chat(n=3, seed=3, temperature=1)
        chunks = await served.chunks(n=3, seed=3, temperature=1)
        assert [choice.message.content for choice in whole.choices] == expected
        assert [text_of(chunks, i) for i in range(3)] == expected
        assert whole.usage.completion_tokens == 24


async def test_penalties_and_biases_are_those_of_grpc(api):
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 1.5}
    async with api() as served:
        more = {"repetition_penalty": 1.2, "top_k": 40}
        sampling = pb.Sampling(temperature=1, seed=5, logit_bias={7: 3.5}, **penalties, **more)
        command = start("a", prompt=CHAT, sampling=sampling, max_tokens=30)
        expected = (await served.server.say(command)).text("a")
        fields = {"temperature": 1, "seed": 5, "logit_bias": {"7": 3.5}, "max_tokens": 30}
        answer = await served.chat(**fields, **penalties, extra_body=more)
        assert answer.choices[0].message.content == expected
        allowed = await served.chat(logprobs=True, extra_body={"allowed_token_ids": [9]})
        assert len({entry.token for entry in allowed.choices[0].logprobs.content}) == 1


async def test_a_stop_ends_the_answer_before_it(api):
    async with api() as served:
        text = (await served.chat(max_tokens=40)).choices[0].message.content
        stop = text[5:8]
        stopped = await served.chat(max_tokens=40, stop=[stop])
        assert stopped.choices[0].message.content == text[: text.index(stop)]
        assert stopped.choices[0].finish_reason == "stop"
        again = await served.chunks(max_tokens=40, stop=stop)
        assert text_of(again) == stopped.choices[0].message.content


async def test_log_probabilities_are_those_of_grpc(api):
    async with api() as served:
        output = pb.Output(token_ids=True, logprobs=0)
        command = start("a", prompt=CHAT, output=output)
        events = (await served.server.say(command)).of("a")
        expected = [value for event in events for value in event.tokens.logprobs.logprobs]
        whole = (await served.chat(logprobs=True)).choices[0]
        entries = whole.logprobs.content
        assert [entry.logprob for entry in entries] == expected
        assert all(math.isfinite(entry.logprob) for entry in entries)
        data = b"".join(bytes(entry.bytes) for entry in entries)
        assert data.decode(errors="replace").startswith(whole.message.content.rstrip("�"))
        chunks = await served.chunks(logprobs=True)
        streamed = [e for c in chunks if (p := c.choices[0].logprobs) for e in p.content]
        assert streamed == entries


async def test_candidates_are_the_likeliest_tokens(api):
    async with api() as served:
        whole = (await served.chat(logprobs=True, top_logprobs=3)).choices[0]
        for entry in whole.logprobs.content:
            assert len(entry.top_logprobs) == 3
            # The answer is greedy.
            assert entry.top_logprobs[0].logprob == entry.logprob
            assert entry.top_logprobs[0].token == entry.token
        body = {"prompt": "one", "logprobs": 2, "max_tokens": 3, "ignore_eos": True, "seed": 1}
        choice = (await served.post("/v1/completions", body)).json()["choices"][0]
        # The token that was drawn comes beside the likeliest two, unless it is one of them.
        for token, top in zip(
            *map(choice["logprobs"].get, ("tokens", "top_logprobs")), strict=True
        ):
            assert token in top
            assert len(top) in (2, 3)
        body = {"input": "one", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
        part = (await served.post("/v1/responses", body)).json()["output"][0]["content"][0]
        assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])


async def test_a_conversation_is_rendered_by_the_template(api):
    messages = [
        {"role": "developer", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four", "name": "bob"},
    ]
    chat = pb.Chat(
        messages=[
            pb.ChatMessage(role=role, text=text)
            for role, text in (
                *(("system", "one"), ("user", "two")),
                *(("assistant", "three"), ("user", "four")),
            )
        ]
    )
    async with api() as served:
        expected = (await served.server.say(start("a", prompt=chat))).text("a")
        answer = await served.chat(messages=messages)
        assert answer.choices[0].message.content == expected


async def test_a_client_that_leaves_amid_a_stream_cancels_its_request(api):
    async with api(max_num_seqs=2) as served:
        stream = await served.chat(stream=True, max_tokens=200)
        await anext(aiter(stream))
        await stream.close()
        load = await served.server.until_idle()
        assert load.num_running == 0
        assert served.server.num_ended("cancelled") == 1


async def test_an_abort_over_grpc_ends_the_stream_with_an_error(api):
    async with api() as served:
        stream = await served.chat(stream=True, max_tokens=200)
        handle = stream.response.headers["x-request-id"]
        await anext(aiter(stream))
        aborted = await served.server.generation.Abort(pb.AbortRequest(handle=handle))
        assert aborted.num_aborted == 1
        with pytest.raises(openai.APIError, match="cancelled"):
            async for _ in stream:
                pass


WRONG = {
    "temperature": ({"temperature": "hot"}, "temperature", "bad_parameter"),
    "top_p": ({"top_p": 2}, "top_p", "bad_parameter"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens", "bad_parameter"),
    "max_completion_tokens": (
        {"max_completion_tokens": -1},
        "max_completion_tokens",
        "bad_parameter",
    ),
    "n": ({"n": 9}, "n", "bad_parameter"),
    "stop": ({"stop": ["a", ""]}, "stop", "bad_parameter"),
    "seed": ({"seed": 1.5}, "seed", "bad_parameter"),
    "role": ({"messages": [{"role": "x", "content": ""}]}, "messages[0].role", "bad_parameter"),
    "content": ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", None),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "unsupported",
    ),
    "no messages": ({"messages": []}, "messages", "bad_parameter"),
    "no message": ({"messages": [5]}, "messages[0]", "bad_parameter"),
    "long": (
        {"messages": [{"role": "user", "content": "one " * 300}]},
        "messages",
        "context_length_exceeded",
    ),
    "model": ({"model": "gpt-5"}, "model", "model_not_found"),
    "unknown": ({"colour": "red"}, "colour", "bad_parameter"),
    "stream": ({"stream": 1}, "stream", "bad_parameter"),
    "usage": ({"stream_options": {"include_usage": True}}, "stream_options", "unsupported"),
    "top_logprobs": ({"top_logprobs": 2}, "top_logprobs", "bad_parameter"),
    "surrogate": ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0]", None),
    "penalty": ({"presence_penalty": 3}, "presence_penalty", "bad_parameter"),
    "bias": ({"logit_bias": {"a": 1}}, "logit_bias", "bad_parameter"),
    "biases": ({"logit_bias": [1]}, "logit_bias", "bad_parameter"),
    "template": ({"chat_template_kwargs": 3}, "chat_template_kwargs", "bad_parameter"),
}


async def test_a_wrong_field_is_named(api):
    async with api() as served:
        for name, (fields, param, code) in WRONG.items():
            body = {"model": "tiny", "messages": HELLO, **fields}
            response = await served.post("/v1/chat/completions", body)
            assert response.status == (404 if name == "model" else 400), name
            assert (response.error["param"] or "").startswith(param), (name, response.error)
            assert code in (None, response.error["code"]), (name, response.error)
            assert param.split("[")[0] in response.error["message"], name
        await served.server.until_idle()


async def test_null_is_as_good_as_absent(api):
    async with api() as served:
        names = ("temperature", "top_p", "stop", "n", "seed", "stream", "tools", "logit_bias")
        body = {"messages": HELLO, "max_tokens": 2, **dict.fromkeys(names)}
        response = await served.post("/v1/chat/completions", body)
        assert response.status == 200
        assert response.json()["usage"]["completion_tokens"] <= 2


async def test_a_negative_seed_draws_as_its_bits(api):
    async with api() as served:
        drawn = [await served.chat(seed=seed, temperature=1) for seed in (-1, -1, 2**64 - 1)]
        assert len({answer.choices[0].message.content for answer in drawn}) == 1


@pytest.mark.parametrize("skips", [True, False, None])
async def test_special_tokens_are_text_where_a_request_wants_them(api, skips):
    text = "<eos>" * 8 if skips is False else ""
    fields = {} if skips is None else {"skip_special_tokens": skips}
    async with api() as served:
        answer = await served.chat(extra_body={"allowed_token_ids": [0], **fields})
        assert answer.choices[0].message.content == text
        sampling = pb.Sampling(temperature=0, allowed_token_ids=[0])
        command = start("a", prompt=CHAT, sampling=sampling, output=pb.Output(**fields))
        assert (await served.server.say(command)).text("a") == text


async def test_a_pattern_ends_an_answer_as_over_grpc(api):
    async with api() as served:
        whole = (await served.chat(max_tokens=30)).choices[0].message.content
        pattern = "(?s)" + re.escape(whole[3]) + "[^z]?"
        answer = await served.chat(max_tokens=30, extra_body={"stop_regex": pattern})
        assert answer.choices[0].message.content == whole[: whole.index(whole[3])]
        assert answer.choices[0].finish_reason == "stop"
        stopping = pb.Stopping(max_tokens=30, ignore_eos=True, stop_regex=[pattern])
        received = await served.server.say(start("a", prompt=CHAT, stopping=stopping))
        assert received.text("a") == answer.choices[0].message.content
        assert received.end("a").finished.stop == pattern
        response = await served.post(
            "/v1/chat/completions", {"messages": HELLO, "stop_regex": ["a", "("]}
        )
        assert (response.status, response.error["param"]) == (400, "stop_regex")


async def test_template_arguments_have_as_many_values_as_over_grpc(api):
    async with api() as served:
        for arguments, status in (
            ({"a": [1] * (MAX_ARGUMENTS - 1)}, 200),
            ({"a": [1] * MAX_ARGUMENTS}, 400),
            ({"a": [{"b": [[1] * 90]} for _ in range(90)]}, 400),
            ({str(i): 1 for i in range(MAX_ARGUMENTS + 1)}, 400),
        ):
            body = {"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": arguments}
            response = await served.post("/v1/chat/completions", body)
            assert response.status == status, response.body
            if status == 400:
                assert response.error["param"] == "chat_template_kwargs"
                assert f"at most {MAX_ARGUMENTS} values" in response.error["message"]
