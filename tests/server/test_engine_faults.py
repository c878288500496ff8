"""Faults of the engine, seen by clients: nobody waits for ever, and neighbours notice nothing."""

import math

import pytest
from chairlift.v1 import generation_pb2 as pb

from tests.server.talk import start

POISON = 377


class Panic(BaseException):
    """Like a panic in Rust, which is no Exception."""


def raises(error):
    """The forward pass raises for a prompt that holds the token."""

    def install(runner):
        forward = runner.model.forward

        def broken(input_ids, *args):
            if POISON in input_ids.tolist():
                raise error
            return forward(input_ids, *args)

        runner.model.forward = broken

    return install


def spoils(value):
    """The logits of the request with seed 7 hold a value that is not finite."""

    def install(runner):
        sampler = runner.sampler
        sample = sampler.sample

        def spoiled(logits, slots, **places):
            logits[sampler.seed.index_select(0, slots) == 7, 0] = value
            return sample(logits, slots, **places)

        sampler.sample = spoiled

    return install


@pytest.mark.parametrize(
    ("install", "reason"),
    [
        (raises(ValueError("secret")), "STEP_FAILED"),
        (raises(Panic("secret")), "STEP_FAILED"),
        (raises(MemoryError("secret")), "STEP_FAILED"),
        (spoils(math.nan), "NUMERIC_FAULT"),
        (spoils(math.inf), "NUMERIC_FAULT"),
    ],
    ids=["exception", "panic", "out of memory", "nan", "inf"],
)
async def test_a_fault_of_one_request_fails_it_alone(serve, install, reason):
    async with serve() as server:
        prompts = {f"r{i}": [i + 1, i + 2, i + 3] for i in range(7)}
        expected = {
            name: (await server.say(start(name, prompt=prompt))).tokens(name)
            for name, prompt in prompts.items()
        }
        install(server.server.gate.engine().engine.runner)
        bad = start(
            "bad",
            prompt=[1, POISON],
            sampling=pb.Sampling(temperature=0.0, seed=7),
        )
        heard = await server.say(bad, *(start(n, prompt=p) for n, p in prompts.items()))
        error = heard.end("bad").failed.error
        assert (error.code, error.reason) == (pb.STATUS_CODE_INTERNAL, reason)
        assert "secret" not in error.message
        assert {name: heard.tokens(name) for name in prompts} == expected
        await server.until_idle()
        assert await server.health() == "SERVING"
