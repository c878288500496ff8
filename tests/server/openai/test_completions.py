"""Completions with the real client: several prompts, token ids, the older log probabilities."""

import pytest
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import start


async def complete(served, prompt, **fields):
    fields = {"model": "tiny", "max_tokens": 8, "temperature": 0} | fields
    return await served.client.completions.create(
        prompt=prompt, **fields, extra_body={"ignore_eos": True}
    )


async def test_each_prompt_is_answered_as_over_grpc(api):
    prompts = ["one two", "three"]
    async with api() as served:
        commands = [start(str(i), prompt=prompt) for i, prompt in enumerate(prompts)]
        received = await served.server.say(*commands)
        expected = [received.text("0"), received.text("1")]
        whole = await complete(served, prompts)
        assert [choice.text for choice in whole.choices] == expected
        assert whole.usage.completion_tokens == 16
        streamed = ["", ""]
        async for chunk in await complete(served, prompts, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
        assert streamed == expected


async def test_prompts_may_be_token_ids(api):
    async with api() as served:
        expected = (await served.server.say(start("a", prompt=(5, 6, 7)))).text("a")
        assert (await complete(served, [5, 6, 7])).choices[0].text == expected
        many = await complete(served, [[5, 6, 7], [8]])
        assert many.choices[0].text == expected
        assert len(many.choices) == 2


async def test_log_probabilities_are_parallel_lists(api):
    async with api() as served:
        command = start("a", prompt="one", output=pb.Output(logprobs=0))
        events = (await served.server.say(command)).of("a")
        expected = [value for event in events for value in event.tokens.logprobs.logprobs]
        logprobs = (await complete(served, "one", logprobs=0)).choices[0].logprobs
        assert logprobs.token_logprobs == expected
        assert len(logprobs.tokens) == len(logprobs.text_offset) == 8
        assert logprobs.text_offset[0] == 0
        streamed = [
            chunk.choices[0].logprobs
            async for chunk in await complete(served, "one", logprobs=0, stream=True)
            if chunk.choices[0].logprobs
        ]
        assert [t for part in streamed for t in part.tokens] == logprobs.tokens
        assert [o for part in streamed for o in part.text_offset] == logprobs.text_offset


async def test_an_echo_begins_with_the_prompt(api):
    async with api() as served:
        plain = (await complete(served, ["one two", "three"], logprobs=2)).choices
        echoed = (await complete(served, ["one two", "three"], logprobs=2, echo=True)).choices
        for before, after in zip(plain, echoed, strict=True):
            assert after.text.endswith(before.text)
            assert after.text.removesuffix(before.text) in ("one two", "three")
            whole, output = after.logprobs, before.logprobs
            assert whole.token_logprobs[0] is None
            assert whole.top_logprobs[0] is None
            assert all(value < 0 for value in whole.token_logprobs[1:])
            assert whole.token_logprobs[-8:] == output.token_logprobs
            for token, offset in zip(whole.tokens, whole.text_offset, strict=True):
                assert token.startswith("bytes:") or after.text[offset:].startswith(token)
            assert whole.text_offset[0] == 0
        streamed, tokens = ["", ""], [[], []]
        async for chunk in await complete(
            served, ["one two", "three"], logprobs=2, echo=True, stream=True
        ):
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
                tokens[choice.index] += choice.logprobs.token_logprobs if choice.logprobs else []
        assert streamed == [choice.text for choice in echoed]
        assert tokens == [choice.logprobs.token_logprobs for choice in echoed]


async def test_best_of_as_many_as_are_sent_changes_nothing(api):
    async with api() as served:
        fields = {"temperature": 1.0, "seed": 7, "n": 2}
        plain = await complete(served, "one", **fields)
        for best_of in (2, None):
            found = await complete(served, "one", **fields, best_of=best_of)
            assert [c.text for c in found.choices] == [c.text for c in plain.choices]


async def test_an_echo_may_be_all_that_is_shown(api):
    async with api() as served:
        fields = {"echo": True, "max_tokens": 0, "logprobs": 1, "n": 2}
        whole = await complete(served, "one two", **fields)
        for choice in whole.choices:
            assert choice.text == "one two"
            assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
            assert choice.finish_reason == "length"
        assert whole.usage.completion_tokens == 0
        text = ""
        async for chunk in await complete(served, "one two", **fields | {"n": 1}, stream=True):
            text += "".join(choice.text for choice in chunk.choices)
        assert text == "one two"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt"),
        ({"prompt": [5, "a"]}, "prompt"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": "a", "best_of": 2, "n": 3}, "best_of"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "logprobs": 9}, "logprobs"),
        ({"prompt": ["a"] * 1025}, "prompt"),
    ],
)
async def test_a_wrong_field_is_named(api, fields, param):
    async with api() as served:
        response = await served.post("/v1/completions", fields)
        assert (response.status, response.error["param"]) == (400, param)
        await served.server.until_idle()


async def test_one_wrong_prompt_refuses_all(api):
    async with api() as served:
        response = await served.post("/v1/completions", {"prompt": ["one", "one " * 400]})
        assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
        await served.server.until_idle()
