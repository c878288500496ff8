"""Requests whose answers are known, and calls that record what comes of them."""

import asyncio
import random
import time
from dataclasses import dataclass

import grpc
from chairlift.v1 import generation_pb2 as pb
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.chaos.history import Record
from tests.chaos.stacks import stacks
from tests.server.connection import cancel, start

NUM_PROMPTS = 16
MOST_TOKENS = 120

HANG_S = 300.0
"""A call that is open for so long has lost its end, however slow the machine."""

_CLIENT_RACE = "Internal error from Core"
"""What grpc.aio makes of a write that meets the end of its call, whatever the server said."""

ENDED = (
    grpc.aio.AioRpcError,
    grpc.aio.BaseError,
    asyncio.InvalidStateError,
    asyncio.CancelledError,
)
"""What a write raises whose call has ended."""


@dataclass(frozen=True)
class Spec:
    """One request of a call."""

    label: str
    prompt: int
    """Which of the known prompts."""
    max_tokens: int


class Traffic:
    """Greedy requests over the tiny model: an answer is a beginning of what came alone."""

    def __init__(self):
        draw = random.Random(11)
        lengths = [1, 5, 16, 17, 40, 90, 33, 64]
        self.prompts = [
            [draw.randrange(1, 370) for _ in range(lengths[i % len(lengths)])]
            for i in range(NUM_PROMPTS)
        ]
        self.answers = []

    def draw(self, random, label, *, most=MOST_TOKENS):
        """A request."""
        return Spec(label, random.randrange(NUM_PROMPTS), random.randrange(1, most + 1))

    def command(self, spec, **fields):
        """Its message."""
        return start(
            spec.label, prompt=self.prompts[spec.prompt], max_tokens=spec.max_tokens, **fields
        )

    async def learn_answers(self, stub):
        """Learns the answers, from a server that has nothing else to do."""
        answers = []
        for i in range(NUM_PROMPTS):
            (record,) = await self.converse(stub, [Spec("alone", i, MOST_TOKENS)])
            assert len(record.tokens) == MOST_TOKENS
            answers.append(record.tokens)
        self.answers = answers

    async def converse(self, stub, specs, *, timeout=None, disturb=None, **fields):
        """One call with these requests, received to its end.

        Args:
            stub: Of the service.
            specs: The requests.
            timeout: Deadline of the call in seconds.
            disturb: Coroutine function over (call, records) that runs beside it.
            fields: Of every `Start`.
        """
        call = stub.Generate(timeout=timeout)
        records = {spec.label: Record(**vars(spec)) for spec in specs}
        writing = asyncio.create_task(self._write(call, specs, records, disturb, fields))
        reading = asyncio.create_task(self._read(call, records))
        await asyncio.wait({reading}, timeout=HANG_S)
        if not reading.done():
            tasks = stacks(asyncio.get_running_loop())
            message = f"no end in {HANG_S:g} s: {records}, {call}, {writing}\n{tasks}"
            raise AssertionError(message)
        # The call is over: what `disturb` still waits for does not come.
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        for record in records.values():
            record.status, record.reason = reading.result()
        return list(records.values())

    async def _read(self, call, records):
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                for event in response.events:
                    records[event.request_id].add(event)
        except asyncio.CancelledError:
            # The call was cancelled from `disturb`.
            return ("broken", "")
        except grpc.aio.AioRpcError as error:
            return status_of(error)
        return ("OK", "")

    async def _write(self, call, specs, records, disturb, fields):
        try:
            for spec in specs:
                await call.write(self.command(spec, **fields))
            if disturb is not None:
                await disturb(call, records)
            await call.done_writing()
            return None
        except ENDED as error:
            # The reader learns how; a call that hangs shows it.
            return error

    async def one(self, stub, spec, *, timeout=None, **fields):
        """The same by `GenerateOne`."""
        record = Record(**vars(spec))
        start = self.command(spec, **fields).start
        call = stub.GenerateOne(pb.GenerateOneRequest(start=start), timeout=timeout)
        sent = time.monotonic()
        try:
            async for response in call:
                if record.first_s is None:
                    record.first_s = time.monotonic() - sent
                for event in response.events:
                    record.add(event)
            record.status = "OK"
        except grpc.aio.AioRpcError as error:
            record.status, record.reason = status_of(error)
        return record


def status_of(error):
    """Code and reason of a call that failed."""
    if error.details() == _CLIENT_RACE:
        return "client race", ""
    rich = rpc_status.from_call(error)
    for detail in rich.details if rich else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return error.code().name, info.reason
    return error.code().name, ""


async def cancel_all(call, records, labels):
    """Cancel requests by command."""
    for label in labels:
        records[label].was_cancelled = True
        await call.write(cancel(label))
