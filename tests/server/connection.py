"""Talks to a server in this process: many commands in, all events and the status out."""

import asyncio
import inspect
import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from chairlift.v1 import (
    admin_pb2_grpc,
    embedding_pb2_grpc,
    generation_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    tokenizer_pb2_grpc,
)
from chairlift.v1 import generation_pb2 as pb
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status


def start(request_id="a", *, prompt=(1, 2, 3), max_tokens=8, temperature=0.0, **fields):
    """Return a request over the tiny model that runs to its length by default."""
    fields.setdefault("stopping", pb.Stopping(max_tokens=max_tokens, ignore_eos=True))
    fields.setdefault("sampling", pb.Sampling(temperature=temperature))
    fields.setdefault("output", pb.Output(token_ids=True))
    message = pb.Start(request_id=request_id, **fields)
    if isinstance(prompt, str):
        message.text = prompt
    elif isinstance(prompt, pb.Chat):
        message.chat.CopyFrom(prompt)
    elif prompt is not None:
        message.token_ids.SetInParent()
        message.token_ids.ids.extend(prompt)
    return pb.GenerateRequest(start=message)


def cancel(request_id):
    return pb.GenerateRequest(cancel=pb.Cancel(request_id=request_id))


@dataclass
class Status:
    """How a call ended."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    reason: str = ""
    fields: list[str] = field(default_factory=list)
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error):
        status = cls(error.code(), error.details())
        # The one code that no call may ever end with.
        assert status.code is not grpc.StatusCode.UNKNOWN, error
        rich = rpc_status.from_call(error)
        for detail in rich.details if rich else ():
            info = error_details_pb2.ErrorInfo()
            bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                assert info.domain == "chairlift"
                status.reason = info.reason
            elif detail.Unpack(bad):
                status.fields = [violation.field for violation in bad.field_violations]
            elif detail.Unpack(retry):
                status.retry_after_s = retry.retry_delay.seconds
        return status


async def status_of(call):
    """The status of a unary call that fails."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return Status.of(error)
    return Status()


@dataclass
class Received:
    """All that came of a stream."""

    events: list = field(default_factory=list)
    status: Status = field(default_factory=Status)
    num_messages: int = 0

    def of(self, request_id):
        return [event for event in self.events if event.request_id == request_id]

    def kinds(self, request_id):
        return [event.WhichOneof("event") for event in self.of(request_id)]

    def tokens(self, request_id):
        return [i for event in self.of(request_id) for i in event.tokens.token_ids]

    def text(self, request_id):
        return "".join(event.tokens.text for event in self.of(request_id))

    def end(self, request_id):
        """The last event; there is one, and nothing after it."""
        events = self.of(request_id)
        assert [event.last for event in events].count(True) == 1
        assert events[-1].last
        return events[-1]


class Serving:
    """A server and stubs that talk to it."""

    def __init__(self, server, channel, address):
        self.server = server
        self.channel = channel
        self.address = address
        self.generation = generation_pb2_grpc.GenerationServiceStub(channel)
        self.embedding = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        self.tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        self.info = server_pb2_grpc.ServerServiceStub(channel)
        self.health_stub = health_pb2_grpc.HealthStub(channel)

    async def say(self, *commands):
        """Send commands, half-close, and receive every event."""
        return await receive(self.generation.Generate(iter(commands)))

    async def one(self, command):
        """The same through GenerateOne."""
        request = pb.GenerateOneRequest(start=command.start)
        return await receive(self.generation.GenerateOne(request))

    async def health(self, service=""):
        response = await self.health_stub.Check(health_pb2.HealthCheckRequest(service=service))
        return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)

    def num_ended(self, reason):
        """How many requests have ended for a reason, by the server's own count."""
        name, labels = "chairlift_requests_ended_total", {"reason": reason}
        return self.server.metrics.registry.get_sample_value(name, labels)

    async def load(self):
        response = await self.info.GetLoad(server_pb2.GetLoadRequest())
        return response.load

    async def until_load(self, condition):
        """Wait until a condition of the load holds."""

        async def holds():
            return condition(await self.load())

        await until(holds)

    async def until_idle(self):
        """Wait until the engine has nothing left; the pool must be full then."""

        async def idle():
            load = await self.load()
            return None if load.num_running or load.num_waiting else load

        load = await until(idle)
        assert load.num_rows_held == 0
        assert load.num_kv_tokens == 0
        assert load.num_free_blocks == load.num_blocks
        return load


async def until(condition, *, within_s=60.0):
    """Poll a condition, which may be a coroutine function; return what it returns once true."""
    async with asyncio.timeout(within_s):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.005)


async def receive(call):
    """Receive a stream to its end."""
    received = Received()
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            received.num_messages += 1
            received.events += response.events
    except grpc.aio.AioRpcError as error:
        received.status = Status.of(error)
    return received


async def next_event(call, kind):
    """Read a stream up to the first event of a kind; return all events so far."""
    events = []
    while not any(event.HasField(kind) for event in events):
        response = await call.read()
        assert response is not grpc.aio.EOF, f"the stream ended before {kind}"
        events += response.events
    return events


def accepted(client):
    """Return the server's socket of a connection that is open in this process."""
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError), ExitStack() as stack:
            found = stack.enter_context(socket.socket(fileno=os.dup(int(file.name))))
            if found.getpeername() == client.getsockname():
                stack.pop_all()
                return found
    raise LookupError(client)
