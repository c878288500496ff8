"""Every field of `Sampling` through gRPC does what it does in the engine."""

import pytest
from chairlift.api.types import Output, Sampling, Stopping
from chairlift.client import connect_async
from chairlift.engine.engine import Engine
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import start

COMMON = {"temperature": 1.2, "seed": 3}
PROMPT = [5, 6, 7, 8] * 4
MAX_TOKENS = 40
FEW = {"allowed_token_ids": [7, 8, 9]}
"""With few tokens there are many repetitions."""
DRY = {"dry_multiplier": 4.0, **FEW}
FIELDS = {
    "repetition_penalty": ({}, 2.0),
    "presence_penalty": ({}, 2.0),
    "frequency_penalty": ({}, 2.0),
    "logit_bias": ({}, {5: 100.0}),
    "typical_p": ({}, 0.3),
    "top_n_sigma": ({}, 0.5),
    "dry_multiplier": (FEW, 4.0),
    "dry_base": ({**DRY, "dry_multiplier": 0.1}, 9.0),
    "dry_allowed_length": (DRY, 1),
    "dry_penalty_last_n": (DRY, 4),
    "dry_sequence_breakers": (DRY, ["("]),
    "xtc_probability": ({"xtc_threshold": 0.01}, 1.0),
    "xtc_threshold": ({"xtc_probability": 1.0}, 0.01),
    "allowed_token_ids": ({}, [7, 8, 9]),
    "banned_token_ids": ({}, list(range(100, 300))),
    "bad_words": ({}, ["a", "i", "e"]),
}
"""Of each field: what else is on, and a value that changes the answer."""

OWN = {"temperature", "top_k", "top_p", "min_p", "seed", "n"}
"""Tested elsewhere."""


def test_every_field_has_a_value_here():
    assert {field.name for field in pb.Sampling.DESCRIPTOR.fields} == set(FIELDS) | OWN


@pytest.fixture(scope="module")
def answers(tiny_folder):
    """What the engine answers for each field, and without."""
    engine = Engine(tiny_folder, max_num_seqs=8, max_num_batched_tokens=64)

    def answer(options):
        asked = Sampling(**COMMON, **options)
        stopping = Stopping(max_tokens=MAX_TOKENS, ignore_eos=True)
        return engine.generate(PROMPT, asked, stopping, Output())[0].token_ids

    return {
        name: (answer(others), answer(others | {name: value}))
        for name, (others, value) in FIELDS.items()
    }


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_changes_the_answer(answers, name):
    without, with_field = answers[name]
    assert without != with_field


async def test_a_client_gets_what_the_engine_answers(serve, answers):
    options = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "token_ids": True, **COMMON}
    async with serve() as server, connect_async(server.address) as client:
        for name, (others, value) in FIELDS.items():
            stream = client.generate(PROMPT, **options, **others, **{name: value})
            (answer,) = await stream.all()
            assert answer.token_ids == answers[name][1], name


WRONG = [
    ("repetition_penalty", 0.0),
    ("repetition_penalty", float("inf")),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3.0),
    ("typical_p", 0.0),
    ("top_n_sigma", -1.0),
    ("dry_multiplier", -1.0),
    ("dry_base", 0.5),
    ("dry_allowed_length", 0),
    ("dry_penalty_last_n", 0),
    ("dry_sequence_breakers", pb.StringList(strings=[""])),
    ("dry_sequence_breakers", pb.StringList(strings=["x"] * 17)),
    ("xtc_probability", 1.5),
    ("xtc_threshold", -0.1),
    ("logit_bias", {390: 1.0}),
    ("logit_bias", {3: 101.0}),
    ("logit_bias", dict.fromkeys(range(2000), 1.0)),
    ("allowed_token_ids", [390]),
    ("banned_token_ids", [390]),
    ("banned_token_ids", [1] * 1025),
    ("bad_words", ["x"] * 65),
    ("bad_words", ["x" * 129]),
    ("bad_words", [""]),
]


async def test_a_value_out_of_range_is_refused_by_name(serve):
    async with serve() as server:
        for name, value in WRONG:
            command = start("bad", sampling=pb.Sampling(**{name: value}))
            error = (await server.say(command)).events[0].rejected.error
            assert (error.reason, error.field) == ("BAD_PARAMETER", f"sampling.{name}"), name
            assert error.message.startswith(f"sampling.{name}: expected "), name


async def test_ids_that_are_allowed_and_banned_are_refused(serve):
    sampling = pb.Sampling(allowed_token_ids=[3, 4], banned_token_ids=[4, 3])
    async with serve() as server:
        said = await server.say(start("bad", sampling=sampling))
    error = said.events[0].rejected.error
    assert error.field == "sampling.allowed_token_ids"


async def test_candidates_are_sent_in_flat_arrays(serve, tiny_folder):
    output = Output(logprobs=True, candidates=3)
    stopping = Stopping(max_tokens=MAX_TOKENS, ignore_eos=True)
    engine = Engine(tiny_folder, max_num_seqs=8, max_num_batched_tokens=64)
    (answer,) = engine.generate(PROMPT, Sampling(**COMMON), stopping, output)
    options = {"max_tokens": MAX_TOKENS, "ignore_eos": True, **COMMON}
    async with serve() as server, connect_async(server.address) as client:
        for interval in (0, 1, 7):
            stream = client.generate(PROMPT, logprobs=3, interval=interval, **options)
            got = [
                event.tokens.logprobs async for event in stream.events() if event.HasField("tokens")
            ]
            assert {logprobs.num_candidates for logprobs in got} == {3}
            ids = [i for logprobs in got for i in logprobs.candidate_ids]
            values = [v for logprobs in got for v in logprobs.candidate_logprobs]
            assert ids == [token for line in answer.candidates for token, _ in line]
            assert values == pytest.approx([v for line in answer.candidates for _, v in line])
