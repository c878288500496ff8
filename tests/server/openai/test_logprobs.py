"""The lists of completions' log probabilities: where tokens begin, and what they are called."""

import json

import pytest
from chairlift.server.protocols.openai.logprobs import LegacyLogprobs, TokenTexts
from chairlift.text.tokenizer import Tokenizer
from chairlift.v1 import generation_pb2 as pb

from tests.tokenizer_families import FAMILIES, byte_level_bpe

TEXTS = [
    "a😀b",
    "👩‍👩‍👧‍👦 ends, ñandú and ไทย",
    "缆车从不 🚡🏔️ x",
    "The chairlift <|begin|>never<|end|> stops<s> x</s>.",
    "  two spaces\n\nlines",
]


def prompt_of(ids):
    return pb.Prompt(token_ids=ids, logprobs=pb.Logprobs(logprobs=[-1.0] * (len(ids) - 1)))


NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def lists_of(runs):
    """The lists by name that runs of encoded values make."""
    return {name: json.loads(b"[%b]" % run) for name, run in zip(NAMES, runs, strict=True)}


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_offsets_are_those_of_the_text(family, skip):
    tokenizer = Tokenizer(FAMILIES[family]())
    for text in TEXTS:
        ids = tokenizer.encode(text)
        lists = LegacyLogprobs(TokenTexts(lambda: tokenizer), skip_special=skip)
        given = lists_of(lists.add(prompt_of(ids)))
        last = 0
        for place, offset in enumerate(given["text_offset"]):
            before = tokenizer.decode(ids[:place], skip)
            if before.endswith("\ufffd"):
                # A part of a character is missing, which the text as a whole has.
                assert last <= offset < len(before)
            else:
                assert offset == len(before), (family, text, place)
            last = offset


def test_a_part_of_a_character_has_its_own_name_and_its_place():
    tokenizer = Tokenizer(byte_level_bpe())
    ids = tokenizer.encode("a😀b")
    lists = LegacyLogprobs(TokenTexts(lambda: tokenizer), skip_special=True)
    given = lists_of(lists.add(prompt_of(ids)))
    assert given["text_offset"] == [0, 1, 1, 1, 2]
    names = ["a", r"bytes:\xf0\x9f", r"bytes:\x98", r"bytes:\x80", "b"]
    assert given["tokens"] == names
    # In pieces, and with the answer behind it, which is a text of its own.
    lists = LegacyLogprobs(TokenTexts(lambda: tokenizer), skip_special=True)
    offsets = [
        offset
        for token_id in ids[:3]
        for offset in lists_of(lists.add(pb.Prompt(token_ids=[token_id])))["text_offset"]
    ]
    answer = pb.Tokens(token_ids=ids[:1], logprobs=pb.Logprobs(logprobs=[-1.0]))
    behind = LegacyLogprobs(TokenTexts(lambda: tokenizer), skip_special=True, offset=lists.end())
    assert [*offsets, *lists_of(behind.add(answer))["text_offset"]] == [0, 1, 1, 2]


def test_candidates_do_not_overwrite_one_another_and_have_the_chosen_one():
    tokenizer = Tokenizer(byte_level_bpe())
    a, first, second, *_ = tokenizer.encode("a😀b")
    logprobs = pb.Logprobs(
        logprobs=[-3.0],
        num_candidates=2,
        candidate_ids=[first, second],
        candidate_logprobs=[-1.0, -2.0],
    )
    lists = LegacyLogprobs(TokenTexts(lambda: tokenizer), skip_special=True)
    given = lists_of(lists.add(pb.Tokens(token_ids=[a], logprobs=logprobs)))
    assert given["top_logprobs"] == [{r"bytes:\xf0\x9f": -1.0, r"bytes:\x98": -2.0, "a": -3.0}]


async def test_every_token_is_in_its_own_map(api):
    async with api() as served:
        for num in (0, 1, 5):
            body = {"prompt": "one a😀b", "logprobs": num, "echo": True, "max_tokens": 8}
            body |= {"temperature": 1.5, "seed": 3}
            response = await served.post("/v1/completions", body)
            lists = response.json()["choices"][0]["logprobs"]
            columns = (lists["tokens"], lists["token_logprobs"], lists["top_logprobs"])
            for token, logprob, candidates in list(zip(*columns, strict=True))[1:]:
                assert candidates[token] >= logprob
                # Tokens without a text share a name.
                assert 1 <= len(candidates) <= num + 1


async def test_a_prompt_that_is_scored_may_fill_the_context(api):
    async with api() as served:
        (model,) = (await served.get("/v1/models")).json()["data"]
        most = model["max_model_len"]
        body = {"prompt": [5] * most, "echo": True, "max_tokens": 0, "logprobs": 1}
        response = await served.post("/v1/completions", body)
        assert response.status == 200, response.body
        assert len(response.json()["choices"][0]["logprobs"]["tokens"]) == most
        assert response.json()["usage"]["completion_tokens"] == 0
        for wrong in ({"prompt": [5] * (most + 1)}, {"max_tokens": 2}, {"echo": False}):
            response = await served.post("/v1/completions", {**body, "max_tokens": 1, **wrong})
            assert response.error["code"] == "context_length_exceeded", wrong
