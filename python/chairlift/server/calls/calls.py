"""The two kinds of calls that generate, of any protocol over gRPC: with many requests, or with one.

A call with many has a task that reads commands; its handler writes events. The two never wait for
each other, except that commands are read only while the outbox has room: a call that read and wrote
in one loop would deadlock once both flow-control windows are full.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from chairlift.api import types
from chairlift.api.errors import EngineState, Reason, RequestError
from chairlift.engine.prepare.prepared import Prepared
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.outbox import Outbox
from chairlift.server.calls.requests import Requests
from chairlift.server.convert.messages import DeliveryOptions
from chairlift.server.handoff.handoffs import Handoff
from chairlift.server.limits.receiving import Messages
from chairlift.server.rpc.status import INTERNAL_MESSAGE
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer
from chairlift.v1 import generation_pb2 as pb

_log = logging.getLogger(__name__)


def _requests_of(
    server: ServerContext, outbox: Outbox, context: ServicerContext, *, only_one: bool = False
) -> Requests:
    return Requests(
        server,
        outbox,
        tenant=server.authenticator.tenant(context),
        connection=context.peer(),
        time_remaining=context.time_remaining,
        only_one=only_one,
        traceparent=_traceparent(context),
    )


def _traceparent(context: ServicerContext) -> str:
    """Return the trace context in the metadata of a call, or an empty text."""
    metadata = context.invocation_metadata() or ()
    return next((str(value) for key, value in metadata if key == "traceparent"), "")


class StreamCall:
    """Many requests on one stream; a protocol says what a message does, and what an event is."""

    def __init__(
        self, server: ServerContext, outbox: Outbox, commands: Messages, context: ServicerContext
    ) -> None:
        self._server = server
        self._outbox = outbox
        self._commands = commands
        self._requests = _requests_of(server, outbox, context)
        self._writer = Writer(context, server.write_timeout_s)
        self._is_starting = False
        commands.in_use = lambda: bool(self._requests) or self._is_starting

    async def run(self) -> None:
        """Run until the client has half-closed and its requests have ended, or the server drains.

        Raises:
            RequestError: The call fails as a whole.
        """
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(self._on_read)
        try:
            while not self._is_over(reader):
                await self._outbox.wait()
                for message in self._outbox.take():
                    for response in self.encode(message):
                        await self._writer.write(response)
        finally:
            # Only synchronous work here: this also runs when the call is being cancelled.
            reader.cancel()
            self._requests.close()
        has_ended = reader.done() and not reader.cancelled()
        if self._server.gate.phase is EngineState.DEAD or not (self._writer.has_begun or has_ended):
            raise self._server.gate.refusal()

    def _is_over(self, reader: asyncio.Task[None]) -> bool:
        """Return whether nothing can follow; raise the error of a command that is no protobuf."""
        if reader.done() and not reader.cancelled():
            reader.result()
        is_idle = not self._requests and not self._outbox and not self._is_starting
        return is_idle and (reader.done() or self._server.gate.draining.is_set())

    def _on_read(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled():
            reader.exception()  # Retrieved here, for a call that breaks before `_is_over`.
        self._outbox.wake()

    async def _read(self) -> None:
        async for message in self._commands:
            self._is_starting = True
            try:
                await self.execute(message)
            except RequestError as error:
                self.refuse(message, error)
            except Exception:
                _log.exception("a command failed")
                self.refuse(message, RequestError(Reason.INTERNAL, INTERNAL_MESSAGE))
            finally:
                self._is_starting = False
                self._outbox.wake()
            await self._outbox.wait_for_room()
        # A broken call looks like a half-close from here; its handler is cancelled besides.
        self._requests.half_close()

    async def execute(self, message: Any) -> None:
        """Execute a message; an error of it reaches no other request of the stream.

        Raises:
            RequestError: It is refused.
        """
        raise NotImplementedError

    def refuse(self, message: Any, error: RequestError) -> None:
        """Add the event that says why a message is refused."""
        raise NotImplementedError

    def encode(self, message: bytes) -> Iterable[object]:
        """Return the responses that hold the events of an encoded `GenerateResponse`."""
        return (message,)


class GenerateCall(StreamCall):
    """The stream of `GenerationService.Generate`."""

    async def execute(self, message: pb.GenerateRequest) -> None:
        """Execute a command.

        Raises:
            RequestError: The command is refused, or there is none.
        """
        kind = message.WhichOneof("command")
        command = getattr(message, kind) if kind else None
        if isinstance(command, pb.Start):
            await self._requests.start(command)
        elif isinstance(command, pb.Cancel):
            self._requests.cancel(command.request_id)
        elif isinstance(command, pb.Update):
            await self._requests.update(command)
        elif isinstance(command, pb.Credit):
            self._requests.credit(command)
        elif isinstance(command, pb.Resume):
            self._requests.resume(command)
        else:
            text = "command: expected start, cancel, update, credit or resume, got none"
            raise RequestError(Reason.BAD_PARAMETER, text, field="command")

    def refuse(self, message: pb.GenerateRequest, error: RequestError) -> None:
        """Add a `Rejected`."""
        kind = message.WhichOneof("command") or ""
        request_id = getattr(message, kind).request_id if kind else ""
        self._requests.refuse(request_id, error, kind)


class OneCall:
    """One request, whose refusal or failure is the status of the call.

    Nothing is sent before the first tokens: until headers are sent, client libraries know that a
    call that fails may be retried.
    """

    def __init__(self, server: ServerContext, outbox: Outbox, context: ServicerContext) -> None:
        self._outbox = outbox
        self._requests = _requests_of(server, outbox, context, only_one=True)
        self._writer = Writer(context, server.write_timeout_s)

    async def submit(self) -> None:
        """Submit the request.

        Raises:
            RequestError: It is refused.
        """
        raise NotImplementedError

    def encode(self, message: bytes) -> Iterable[object]:
        """Return the responses that hold the events of an encoded `GenerateResponse`."""
        return (message,)

    async def run(self) -> None:
        """Run until the request has ended.

        Raises:
            RequestError: It was refused, or it failed.
        """
        try:
            await self.submit()
            while self._requests:
                await self._outbox.wait()
                if self._requests.has_tokens:
                    await self._write()
            if self._requests.has_tokens or self._requests.error is None:
                await self._write()
        finally:
            # Only synchronous work here: this also runs when the call is being cancelled.
            self._requests.close()
        if self._requests.error is not None:
            raise self._requests.error

    async def _write(self) -> None:
        for message in self._outbox.take():
            for response in self.encode(message):
                await self._writer.write(response)


class GenerateOneCall(OneCall):
    """The call of `GenerationService.GenerateOne`; `Accepted` is sent with the first tokens."""

    def __init__(
        self, server: ServerContext, outbox: Outbox, start: pb.Start, context: ServicerContext
    ) -> None:
        super().__init__(server, outbox, context)
        self._start = start

    async def submit(self) -> None:
        """Submit the request; the call takes no credit.

        Raises:
            RequestError: The request is refused, or has a credit.
        """
        if self._start.HasField("credit"):
            message = "credit: this call takes no Credit, so there is no way to allow more"
            raise RequestError(Reason.BAD_PARAMETER, message, field="credit")
        await self._requests.start(self._start)


class ConvertedCall(OneCall):
    """The call of another protocol with one request, which is converted already."""

    def __init__(
        self,
        server: ServerContext,
        outbox: Outbox,
        context: ServicerContext,
        request: types.Request,
        output: DeliveryOptions,
        label: str,
        handoff: Handoff | None = None,
    ) -> None:
        super().__init__(server, outbox, context)
        self._server = server
        self._submission = (request, output, label)
        self._handoff = handoff
        self._prepared: Prepared | None = None

    async def submit(self) -> None:
        """Submit the request."""
        request, output, label = self._submission
        live = await self._requests.submit(
            request, output, label, arrived_at=time.monotonic(), handoff=self._handoff
        )
        if self.wants_ticket:
            self._prepared = live.prepared

    @property
    def wants_ticket(self) -> bool:
        """Whether the answer says where the KV blocks of the prompt are."""
        return self._handoff is not None and self._handoff.wants_ticket

    def handoff_params(self) -> dict[str, Any]:
        """Return what another server needs to get them, if the answer is to say it."""
        assert self._prepared is not None, "invariant: it was submitted, and wants a ticket"
        return self._server.handoffs.params(self._prepared)

    def encode(self, message: bytes) -> Iterable[object]:
        """Return the responses of all events."""
        for event in pb.GenerateResponse.FromString(message).events:
            yield from self.convert(event)

    def convert(self, event: pb.Event) -> Iterable[object]:
        """Return the responses that hold an event."""
        raise NotImplementedError
