"""Requests of one tenant that ask for as much work as their fields allow."""

import asyncio
import json
from itertools import count

from chairlift.v1 import generation_pb2 as pb

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.chaos.malformed import GENERATE_ONE, end_of
from tests.server.connection import start

ROUNDS = {Scale.QUICK: 1, Scale.MEDIUM: 10, Scale.LONG: 100}
LONGEST = list(range(3, 203))
"""As many tokens of a prompt as leave room for an answer."""

FINE, REFUSED = ("OK", ""), ("INVALID_ARGUMENT", "BAD_PARAMETER")


def schema(number):
    """Almost the longest schema there may be; each number has another, so that none is known."""
    word = {"type": "string", "pattern": "^[a-z]{1,40}(-[a-z0-9]{1,40}){0,8}$"}
    names = [f"field_{number}_{i}" for i in range(2400)]
    described = {"type": "object", "properties": dict.fromkeys(names, word), "required": names[:40]}
    return json.dumps(described)


def costly(number):
    """Yield the name of each request, itself, and what may come of it."""
    many = pb.Sampling(
        temperature=1.0,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        presence_penalty=0.5,
        logit_bias={i % 380: i / 100 for i in range(1024)},
        bad_words=[f"{i:03}" * 20 for i in range(64)],
        typical_p=0.9,
        top_n_sigma=2.0,
        dry_multiplier=1.0,
        dry_penalty_last_n=2**31,
        xtc_probability=1.0,
        xtc_threshold=0.01,
    )
    yield "every option of a draw", start(prompt=LONGEST, sampling=many), {FINE}
    scores = pb.Output(token_ids=True, text=True, echo=True, logprobs=20, prompt_logprobs=20)
    yield "log probabilities of a prompt", start(prompt=LONGEST, output=scores), {FINE}
    several = pb.Sampling(temperature=1.0, n=16)
    yield "sixteen answers", start(prompt=LONGEST, sampling=several), {FINE}
    patterns = [f"(?:a|b|{number})*a(?:.){{0,{size}}}z" for size in (1, 2, 4, 8)]
    stops = pb.Stopping(max_tokens=8, stop_regex=patterns)
    yield "patterns that end an answer", start(stopping=stops), {FINE}
    stops = pb.Stopping(max_tokens=8, stop_regex=[f"(?:a|b|{number})*a(?:.){{0,200}}z"])
    yield "a pattern whose automaton is too large", start(stopping=stops), {REFUSED}
    limits = pb.Constraint(json_schema=schema(number))
    yield "a new schema of 200 KiB", start(constraint=limits), {FINE, REFUSED}
    limits = pb.Constraint(regex=f"(?s:(a|.{{1,500}}{number}){{1,300}})")
    yield "a new pattern of an answer", start(constraint=limits), {FINE, REFUSED}


async def run(scale, lab):
    server = await lab.server(**PACED)
    numbers = count()
    seen = {}

    async def ask(channel, name, command, expected):
        message = pb.GenerateOneRequest(start=command.start).SerializeToString()
        status = await end_of(channel.unary_stream(GENERATE_ONE)(message))
        assert status in expected, (name, status)
        seen[name] = status

    async def attack():
        async with server.channel() as channel:
            for i in range(ROUNDS[scale]):
                asked = [ask(channel, *one) for one in costly(next(numbers))]
                await asyncio.gather(*asked)
                lab.progress(f"costly fields: {i} rounds")

    before = await server.inside("figures")
    good = await beside_one(lab, server, attack())
    await server.until_idle()
    after = await server.inside("figures")
    refused = [name for name, status in seen.items() if status == REFUSED]
    return Figures(
        "costly fields",
        f"{ROUNDS[scale]} x {len(seen)} requests",
        [
            f"refused: {', '.join(refused) or 'none'}; all others answered",
            good,
            f"memory {(after['memory'] - before['memory']) / 2**20:+.1f} MiB",
        ],
    )
