"""Bodies of responses: what comes is encoded at once, and many pieces are sent in turns."""

import asyncio
import json

import pytest
from chairlift.server.http.exchange import Exchange
from chairlift.server.http.json_pieces import array, arrays, quoted
from chairlift.server.limits.receiving import Receiving
from chairlift.server.protocols.openai.choices import ChoicesAnswer, Form
from chairlift.server.protocols.openai.job import Origin
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.response_events import ResponseAnswer, ResponseStream
from chairlift.server.protocols.openai.resuming import numbered
from chairlift.text.tokenizer import Tokenizer
from chairlift.v1 import generation_pb2 as pb

from tests.server.openai.conftest import HELLO
from tests.tokenizer_families import byte_level_bpe

ORIGIN = Origin("h", 1, "tiny")
NUM_CANDIDATES = 20
SHORT_BYTES = 64 * 2**10
"""Size of a piece that is joined and written in less than a millisecond."""
MANY = 2_000
"""Tokens, whose entries are 2 MB of JSON together."""


@pytest.fixture(scope="module")
def texts():
    tokenizer = Tokenizer(byte_level_bpe())
    return TokenTexts(lambda: tokenizer)


def scored(num, *, first=0):
    """Tokens with the likeliest of each."""
    ids = [(first + i) % 250 for i in range(num * NUM_CANDIDATES)]
    logprobs = pb.Logprobs(
        logprobs=[-0.125 * i for i in range(num)],
        ranks=[0] * num,
        num_candidates=NUM_CANDIDATES,
        candidate_ids=ids,
        candidate_logprobs=[-1.5 - i for i in range(num * NUM_CANDIDATES)],
    )
    return pb.Tokens(text="é\n" * num, token_ids=ids[:num], logprobs=logprobs)


def finished():
    return pb.Finished(reason=pb.FINISH_REASON_LENGTH, usage=pb.Usage(output_tokens=MANY))


def events_of(pieces):
    """Each event of a stream: its name and its data."""
    for event in b"".join(pieces).decode().split("\n\n")[:-1]:
        name, data = event.split("\n")[-2:]
        yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def sent(pieces, *, more=False, num_read=None):
    """Write pieces to a client; return what came, and how often other work had a turn."""
    written, num_turns = [], 0

    async def send(message):
        written.append(message["body"])

    async def other():
        nonlocal num_turns
        while True:
            await asyncio.sleep(0)
            num_turns += 1

    scope = {"headers": [], "client": None, "state": {}}
    limits = {"max_body_bytes": 1, "write_timeout_s": 60.0, "receiving": Receiving()}
    exchange = Exchange(scope, asyncio.Event().wait, send, **limits)
    ticking = asyncio.create_task(other())
    await asyncio.sleep(0)
    await exchange.write_in_turns(pieces, more=more)
    ticking.cancel()
    return written, num_turns


@pytest.mark.parametrize("num", [0, 1, 2, 9])
def test_arrays_of_encoded_values_are_json(num):
    values = [quoted(f"é{i}\n") for i in range(num)]
    assert json.loads(b"".join(array(values))) == [f"é{i}\n" for i in range(num)]
    nested = json.loads(b"".join(arrays([array(values)] * num)))
    assert nested == [[f"é{i}\n" for i in range(num)]] * num


async def test_other_work_has_its_turn_while_a_long_body_is_written():
    pieces = [b"x" * 1024] * 4096
    written, num_turns = await sent(pieces)
    assert b"".join(written) == b"".join(pieces)
    assert max(map(len, written)) <= SHORT_BYTES
    assert num_turns >= 60


async def test_a_short_part_of_a_body_is_written_at_once():
    assert await sent([b"a", b"b"], more=True) == ([b"ab"], 0)
    assert (await sent([], more=True))[0] == []
    assert (await sent([]))[0] == [b""]


def test_entries_are_those_of_the_tokens(texts):
    tokens = scored(3)
    (entry, *_), num = json.loads(b"[%b]" % texts.content(tokens)), NUM_CANDIDATES
    assert entry["logprob"] == 0.0
    assert [e["logprob"] for e in entry["top_logprobs"]] == [-1.5 - i for i in range(num)]
    for i, found in enumerate(entry["top_logprobs"]):
        data = texts.bytes_of(i)
        assert (found["bytes"], found["token"]) == (list(data), data.decode(errors="replace"))
    assert texts.content(pb.Tokens()) == b""


def test_an_answer_is_encoded_as_it_comes(texts):
    form = Form(is_chat=True, texts=texts)
    answer = ChoicesAnswer(ORIGIN, form, 2)
    for step in range(MANY // 8):
        for number in range(2):
            answer.tokens(number, scored(8, first=step))
    for number in range(2):
        answer.finished(number, finished())
    pieces = answer.body()
    assert max(map(len, pieces)) < SHORT_BYTES
    for choice in json.loads(b"".join(pieces))["choices"]:
        assert choice["message"]["content"] == "é\n" * MANY
        content = choice["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in content] == [NUM_CANDIDATES] * MANY


def test_the_end_of_a_stream_has_the_entries_in_pieces(texts):
    stream = ResponseStream(ORIGIN, b'"store":false', texts, frozenset())
    whole = ResponseAnswer(ORIGIN, b'"store":false', texts, frozenset())
    for step in range(MANY // 8):
        tokens = scored(8, first=step)
        whole.tokens(0, tokens)
        stream.tokens(0, tokens)
    whole.finished(0, finished())
    done, end = stream.finished(0, finished()), stream.end()
    assert max(map(len, [*done, *end, *whole.body()])) < SHORT_BYTES
    found = dict(events_of([*done, *end]))
    (item,) = found["response.incomplete"]["response"]["output"]
    (part,) = item["content"]
    assert len(part["logprobs"]) == MANY
    assert found["response.output_item.done"]["item"] == item
    assert found["response.content_part.done"]["part"] == part
    assert found["response.output_text.done"]["logprobs"] == part["logprobs"]
    assert found["response.output_text.done"]["text"] == part["text"] == "é\n" * MANY
    body = json.loads(b"".join(whole.body()))
    assert body == found["response.incomplete"]["response"]


def test_events_of_many_pieces_have_one_id_each():
    pieces = [b"data: 1\n\n", b"data: ", b"2", b"\n\n", b"data: 3\n\n"]
    assert b"".join(numbered(pieces, 7, (0, 0))) == (
        b"id: 7.0\ndata: 1\n\nid: 7.1\ndata: 2\n\nid: 7.2\ndata: 3\n\n"
    )
    assert b"".join(numbered(pieces, 7, (7, 0))) == b"id: 7.1\ndata: 2\n\nid: 7.2\ndata: 3\n\n"
    assert b"".join(numbered(pieces, 7, (7, 1))) == b"id: 7.2\ndata: 3\n\n"
    assert b"".join(numbered(pieces, 7, (8, 0))) == b""


async def test_the_answers_to_a_prompt_share_what_is_encoded_of_it(api):
    """Each of them repeats the prompt: it is encoded once, whatever `n` is."""
    async with api() as served:
        body = {"prompt": "one a😀b two", "echo": True, "logprobs": 5, "max_tokens": 3}
        body |= {"temperature": 1.0, "seed": 3, "ignore_eos": True}
        alone = (await served.post("/v1/completions", body)).json()
        several = (await served.post("/v1/completions", {**body, "n": 8})).json()
        num, (first,) = alone["usage"]["prompt_tokens"], alone["choices"]
        for choice in several["choices"]:
            assert choice["text"].startswith(body["prompt"])
            for name, values in first["logprobs"].items():
                found = choice["logprobs"][name]
                assert (found[:num], len(found)) == (values[:num], num + 3), name
            offsets = choice["logprobs"]["text_offset"]
            assert offsets == sorted(offsets)


async def test_a_whole_answer_has_its_log_probabilities_as_they_are_computed(api, monkeypatch):
    """What comes at the end alone is encoded at the end: the tokens of seconds, at once."""
    most = 0
    content = TokenTexts.content

    def noted(self, tokens):
        nonlocal most
        most = max(most, len(tokens.token_ids))
        return content(self, tokens)

    monkeypatch.setattr(TokenTexts, "content", noted)
    async with api() as served:
        body = {"messages": HELLO, "logprobs": True, "top_logprobs": 20, "max_tokens": 100}
        response = await served.post("/v1/chat/completions", {**body, "ignore_eos": True})
        entries = response.json()["choices"][0]["logprobs"]["content"]
        assert len(entries) == 100
        assert most < 50
