"""Every fault of the engine, under load: no client waits forever, and neighbours are unaffected."""

import asyncio
from dataclasses import dataclass

import grpc
from chairlift.v1 import generation_pb2 as pb

from tests.chaos.faults import POISON
from tests.chaos.figures import Figures, Scale
from tests.chaos.history import History, Record
from tests.chaos.served import Setup
from tests.chaos.traffic import Spec, status_of
from tests.server.connection import start

ROUNDS = {Scale.QUICK: 1, Scale.MEDIUM: 2, Scale.LONG: 100}
TOKENS = 60
STEP_TIMEOUT_S = 3.0
"""Long enough for a server that gets a tenth of the processor."""
HANG_S = 60.0
"""A call that takes longer hangs."""


@dataclass(frozen=True)
class Case:
    """A fault and what has to come of it."""

    fault: str
    failed_ids: str = ""
    """How the request that meets the fault ends; empty where it is answered."""
    others: frozenset = frozenset()
    """How its neighbours may end instead of being answered."""
    exit_code: int = 0
    text: bool = False


DOWN = frozenset({"ENGINE_DOWN"})
CASES = [
    Case("exception once"),
    Case("exception", "STEP_FAILED"),
    Case("panic", "STEP_FAILED"),
    Case("out of memory", "STEP_FAILED"),
    Case("nan", "NUMERIC_FAULT"),
    Case("inf", "NUMERIC_FAULT"),
    Case("tokenizer panics", "INTERNAL", text=True),
    Case("thread ends", "ENGINE_DOWN", DOWN),
    Case("thread ends always", "ENGINE_DOWN", DOWN, exit_code=70),
    Case("model fails for all", "ENGINE_DOWN", DOWN, exit_code=70),
    Case("hang", "ENGINE_DOWN", DOWN, exit_code=70),
]
# A call that reaches gRPC while it closes its port is cancelled by gRPC itself.
MAY_END = {("UNAVAILABLE", "ENGINE_DOWN"), ("UNAVAILABLE", ""), ("CANCELLED", "")}


async def run(scale, lab):
    await lab.server()
    num_requests = 0
    for number in range(ROUNDS[scale]):
        for case in CASES:
            num_requests += await strike(lab, case)
            lab.progress(f"engine faults: round {number + 1}, {case.fault}")
        await run_out_of_files(lab)
    return Figures(
        "faults of the engine",
        f"{len(CASES) + 1} faults, {ROUNDS[scale]} times each, {num_requests:,} requests",
        ["0 clients hang", "survivors as alone", "the guilty alone pays where the engine lives"],
    )


async def strike(lab, case):
    """One fault in one server; return how many requests saw it."""
    server = await lab.start(Setup(server={"step_timeout_s": STEP_TIMEOUT_S}))
    history = History(lab.scratch / "faults.jsonl")
    await server.inside("fault", case.fault)
    async with server.stub() as stub, asyncio.timeout(HANG_S):
        # The model may well write the poisonous token by itself.
        clean = [i for i, a in enumerate(lab.traffic.answers) if POISON not in a[:TOKENS]]
        places = [clean[i % len(clean)] for i in range(12)]
        specs = [[Spec(f"r{i}{j}", places[4 * i + j], TOKENS) for j in range(4)] for i in range(3)]
        *others, failed_ids = await asyncio.gather(
            *(lab.traffic.converse(stub, some) for some in specs), meet(stub, case)
        )
        for records in others:
            history.note(*records)
        assert failed_ids.end == (case.failed_ids or "LENGTH"), (case, failed_ids)
        if case.exit_code:
            # It ends by itself, in its time; until then every request fails with a status.
            while server.process.exitcode is None:
                record = await lab.traffic.one(stub, Spec("late", clean[0], 5))
                history.note(record)
                assert record.status != "OK"
        else:
            await again(lab, stub, history, case, clean[0])
    if case.exit_code == 0:
        await server.until_idle()
        server.signal()
    assert await server.exit_code() == case.exit_code
    rules = {"may_fail": case.others, "may_end": MAY_END if case.others else set()}
    return len(history.check(lab.traffic.answers, **rules))


async def meet(stub, case):
    """The request that meets the fault."""
    sampling = pb.Sampling(temperature=0.0, seed=7)
    prompt = "a lift" if case.text else [1, POISON]
    command = start("guilty", prompt=prompt, max_tokens=8, sampling=sampling)
    record = Record("guilty", 0, 8)
    try:
        async for response in stub.Generate(iter([command])):
            for event in response.events:
                record.add(event)
            if record.end:
                break
    except grpc.aio.AioRpcError as error:
        # It came while the engine restarted for its neighbours.
        _, record.end = status_of(error)
    return record


async def again(lab, stub, history, case, prompt):
    """The server serves, at once or after a restart."""
    while True:
        record = await lab.traffic.one(stub, Spec("again", prompt, 30))
        history.note(record)
        if record.status == "OK":
            return
        assert case.others, record
        await asyncio.sleep(0.02)


async def run_out_of_files(lab):
    """More connections than file descriptors; those that are open go on, and then all is well."""
    server = await lab.start(Setup(max_files=64))
    async with server.stub() as stub:
        await lab.traffic.one(stub, Spec("before", 1, 5))
        host, _, port = server.address.rpartition(":")
        opened = await asyncio.gather(
            *(asyncio.open_connection(host, int(port)) for _ in range(150))
        )
        for i in range(5):
            record = await lab.traffic.one(stub, Spec("amid", i, 20))
            assert record.status == "OK", record
        for _, writer in opened:
            writer.close()
    async with server.stub() as stub, asyncio.timeout(HANG_S):
        record = await lab.traffic.one(stub, Spec("after", 2, 20), timeout=HANG_S)
        assert record.status == "OK", record
    server.signal()
    assert await server.exit_code() == 0
