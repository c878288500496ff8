"""Constraints through gRPC with the real client: as the engine answers, refused by name, apart."""

import asyncio
import json
import re

import pytest
from chairlift.api.errors import RequestError
from chairlift.api.types import Constraint, Sampling, Stopping
from chairlift.client import connect_async
from chairlift.engine.engine import Engine
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2

from tests.server.connection import start

CONSTRAINTS = [
    Constraint(json_schema={"type": "array", "items": {"type": "boolean"}, "maxItems": 2}),
    Constraint(json_schema='{"enum": ["up", "down"]}'),
    Constraint(json_object=True),
    Constraint(regex="[a-z]{3}-[0-9]{2}"),
    Constraint(lark='start: "up" | "down"'),
    Constraint(choices=("one", "two")),
]
PROMPT = [5, 6, 7, 8]
OPTIONS = {"temperature": 1.0, "seed": 3, "max_tokens": 60}


async def test_a_client_gets_what_the_engine_answers(serve, tiny_folder):
    engine = Engine(tiny_folder, max_num_seqs=8, max_num_batched_tokens=64)
    sampling = Sampling(temperature=1.0, seed=3)
    async with serve() as server, connect_async(server.address) as client:
        for constraint in CONSTRAINTS:
            stopping = Stopping(max_tokens=60)
            (expected,) = engine.generate(PROMPT, sampling, stopping, constraint=constraint)
            answer = await client.generate(PROMPT, constraint=constraint, **OPTIONS).text()
            assert answer == expected.text, constraint


WRONG = [
    (pb.Constraint(), "constraint"),
    (pb.Constraint(json_schema="{"), "constraint.json_schema"),
    (pb.Constraint(json_schema='{"type": "strange"}'), "constraint.json_schema"),
    (pb.Constraint(regex="a("), "constraint.regex"),
    (pb.Constraint(regex="a" * 300_000), "constraint.regex"),
    (pb.Constraint(lark="start: missing"), "constraint.lark"),
    (pb.Constraint(choices=pb.Choices()), "constraint.choices"),
    (pb.Constraint(choices=pb.Choices(choices=[""])), "constraint.choices"),
    (pb.Constraint(choices=pb.Choices(choices=["a"] * 1025)), "constraint.choices"),
]


async def test_what_is_no_constraint_is_refused_by_its_field(serve):
    async with serve() as server:
        for constraint, field in WRONG:
            command = start("bad", constraint=constraint)
            error = (await server.say(command)).events[0].rejected.error
            assert (error.reason, error.field) == ("BAD_PARAMETER", field)
            assert error.message.startswith(f"{field}: ")
        info = await server.info.GetServerInfo(server_pb2.GetServerInfoRequest())
        assert "constraints" in info.features


async def test_a_request_for_which_no_token_is_left_fails_with_its_reason(serve):
    async with serve() as server, connect_async(server.address) as client:
        with pytest.raises(RequestError) as failed:
            await client.generate(
                PROMPT,
                constraint=Constraint(choices=["a", "b"]),
                banned_token_ids=list(range(390)),
                **OPTIONS,
            ).text()
        assert failed.value.reason == "NO_TOKEN_LEFT"
        assert await client.generate(PROMPT, max_tokens=3, ignore_eos=True).text()


async def test_grammars_are_kept_per_tenant(serve, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("one:first-token-of-one\ntwo:second-token-of-two\n")
    tokens.chmod(0o600)
    async with serve(server={"auth_tokens": str(tokens)}) as server:
        preparer = server.server.gate.engine().engine.preparer
        compiled = []
        compile_grammar = preparer._constraints.compile

        def note(source, tenant):
            compiled.append(tenant)
            return compile_grammar(source, tenant)

        preparer._constraints.compile = note
        for token in ("first-token-of-one", "second-token-of-two"):
            async with connect_async(server.address, token=token) as client:
                text = await client.generate(
                    PROMPT, constraint=Constraint(choices=["up"]), **OPTIONS
                ).text()
                assert text == "up"
        assert compiled == ["one", "two"]


async def test_an_answer_that_is_cancelled_amid_its_constraint_leaves_nothing(serve):
    async with serve() as server, connect_async(server.address) as client:
        long = Constraint(regex="[a-z]{600}")
        streams = [
            client.generate(PROMPT, constraint=long, temperature=1.0, seed=i, max_tokens=200)
            for i in range(4)
        ]
        for stream in streams:
            async for _ in stream:
                break
            await stream.cancel()
        sampler = server.server.gate.engine().engine.runner.sampler
        async with asyncio.timeout(10):
            while len(sampler.constraints):
                await asyncio.sleep(0)


async def test_many_clients_each_get_their_own_constraint(serve):
    async with serve() as server, connect_async(server.address) as client:

        async def ask(number):
            constraint = Constraint(regex=f"{number}:[a-z]{{3}}" if number % 3 else "[A-Z]{2}")
            text = await client.generate(
                PROMPT, constraint=constraint, temperature=1.0, seed=number, max_tokens=40
            ).text()
            assert re.fullmatch(constraint.regex, text)

        await asyncio.gather(*map(ask, range(30)))


async def test_an_update_and_credit_work_within_a_constraint(serve):
    async with serve() as server, connect_async(server.address) as client:
        stream = client.generate(
            PROMPT,
            constraint=Constraint(json_schema={"type": "string", "minLength": 20, "maxLength": 30}),
            credit=3,
            **OPTIONS,
        )
        pieces = []
        async for piece in stream:
            pieces.append(piece)
            if len(pieces) == 1:
                await stream.credit(100)
        assert 20 <= len(json.loads("".join(pieces))) <= 30
