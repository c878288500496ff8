"""A `Generate` call of a client: each of its requests is on a stream to the replica that has it.

```text
client --commands--> ForwardedCall --Start--> choose a replica --+--> Upstream of replica a
                                   --others--> of the request ---+--> Upstream of replica b
client <--events---- buffer (64 KiB) <---------------------------+
```

A command or an event is decoded, looked at and passed on. A client that does not read fills the
buffer, then the streams of its replicas, which suspend its requests. When a replica is lost, its
requests that have no output yet are sent to another one, once; the others fail as UNAVAILABLE.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from chairlift.api.errors import ChairliftError, Reason, RequestError, refusal
from chairlift.client.failures import from_call
from chairlift.ray.forward import handles
from chairlift.ray.forward.context import ForwardContext
from chairlift.ray.forward.names import PromptNames
from chairlift.ray.forward.replicas import Replica, Ticket
from chairlift.server.convert.messages import check_request_id
from chairlift.server.limits.receiving import Messages
from chairlift.server.rpc.status import INTERNAL_MESSAGE, to_error
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer
from chairlift.v1 import generation_pb2 as pb

_log = logging.getLogger(__name__)

_METHOD: Final = "/chairlift.v1.GenerationService/Generate"
_MAX_BUFFER_BYTES: Final = 64 * 2**10
_MAX_COMMANDS: Final = 16
"""A request with more commands before its first output is not sent again."""
_WRITE_S: Final = 10.0
"""A replica that takes no command for so long loses the stream."""


class _Upstream:
    """A `Generate` call to one replica, for one call of a client."""

    def __init__(self, owner: "ForwardedCall", replica: Replica, rpc: Any) -> None:
        self.replica = replica
        self.is_over = False
        self._owner = owner
        self._rpc = rpc
        self._release = owner.server.replicas.hold(replica, rpc)
        self.task = asyncio.create_task(self._read())

    async def write(self, command: pb.GenerateRequest) -> None:
        """Send a command; the reader notices if the call is lost."""
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._rpc.write(command)
        except TimeoutError:
            self._rpc.cancel()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass
        except asyncio.CancelledError:
            _raise_if_own()

    async def half_close(self) -> None:
        """Say that no command follows."""
        try:
            await self._rpc.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass
        except asyncio.CancelledError:
            _raise_if_own()

    def close(self) -> None:
        """Break the call, which ends its requests, or detaches those that may be resumed."""
        self._rpc.cancel()
        self.task.cancel()
        self._release()

    async def _read(self) -> None:
        error: ChairliftError | None = None
        try:
            async for data in self._rpc:
                await self._owner.on_response(self, data)
        except grpc.RpcError as failure:
            error = from_call(failure)
        except asyncio.CancelledError:
            # Else the call was cut, because its replica hangs.
            _raise_if_own()
            error = _replica_lost()
        self._release()
        await self._owner.on_end(self, error)


@dataclass(slots=True, eq=False)
class _Request:
    """A live request of the client's call."""

    label: str
    upstream: _Upstream
    ticket: Ticket | None
    prompt: PromptNames | None
    commands: list[pb.GenerateRequest] | None
    """All that came for it, while it may be sent again; None from its first output on."""
    is_again: bool = False
    number: int = 0
    """The number of its last event."""

    def may_move(self) -> bool:
        """Return whether it may be sent to another replica, once, without any output."""
        return self.commands is not None and not self.is_again


class ForwardedCall:
    """The stream of a client."""

    def __init__(
        self, server: ForwardContext, commands: Messages, context: ServicerContext
    ) -> None:
        self.server = server
        self._commands = commands
        self._tenant = server.authenticator.tenant(context)
        self._metadata = server.forwarded(context)
        self._time_remaining = context.time_remaining
        self._writer = Writer(context, server.write_timeout_s)
        self._live: dict[str, _Request] = {}
        self._upstreams: dict[str, _Upstream] = {}
        self._buffer: list[bytes] = []
        self._num_bytes = 0
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        # One command, or one move of requests, at a time: they are sent in order.
        self._lock = asyncio.Lock()
        self._is_half_closed = False
        commands.in_use = lambda: bool(self._live)

    async def run(self) -> None:
        """Run until the client has half-closed and its requests have ended, or the server drains.

        Raises:
            RequestError: The call fails as a whole.
        """
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._wake.set())
        draining = asyncio.create_task(self.server.draining.wait())
        draining.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._is_over(reader):
                await self._wake.wait()
                self._wake.clear()
                while self._buffer:
                    # Messages that follow one another are one message with the events of both.
                    data, self._buffer, self._num_bytes = b"".join(self._buffer), [], 0
                    self._room.set()
                    await self._writer.write(data)
        finally:
            # Only synchronous work here: this also runs when the call is being cancelled.
            reader.cancel()
            draining.cancel()
            for upstream in self._upstreams.values():
                upstream.close()
            for request in self._live.values():
                self._end_ticket(request)

    def _is_over(self, reader: asyncio.Task[None]) -> bool:
        """Return whether nothing can follow; raise the error of a command that is no protobuf."""
        if reader.done() and not reader.cancelled():
            reader.result()
        is_idle = not self._live and not self._buffer and not self._lock.locked()
        return is_idle and (reader.done() or self.server.draining.is_set())

    # --- commands -------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for message in self._commands:
            try:
                async with self._lock:
                    await self._execute(message)
            except RequestError as error:
                self._refuse(message, error)
            except Exception:
                _log.exception("a command failed")
                self._refuse(message, RequestError(Reason.INTERNAL, INTERNAL_MESSAGE))
            finally:
                self._wake.set()
            await self._room.wait()
        async with self._lock:
            self._is_half_closed = True
            for upstream in tuple(self._upstreams.values()):
                await upstream.half_close()

    async def _execute(self, message: pb.GenerateRequest) -> None:
        """Pass a command on.

        Raises:
            RequestError: It is refused here.
        """
        kind = message.WhichOneof("command")
        if kind == "start":
            await self._start(message)
        elif kind == "resume":
            await self._resume(message)
        elif kind is None:
            text = "command: expected start, cancel, update, credit or resume, got none"
            raise RequestError(Reason.BAD_PARAMETER, text, field="command")
        else:
            await self._pass_on(kind, message)

    async def _start(self, message: pb.GenerateRequest) -> None:
        start = message.start
        label = start.request_id
        self._check_label(label)
        prompt = self.server.naming.of_start(start, self._tenant)
        start.request_id = label or secrets.token_urlsafe(16)
        try:
            await self._send_to_one(start.request_id, prompt, [message], is_again=False)
        except RequestError:
            start.request_id = label
            raise

    async def _send_to_one(
        self, label: str, prompt: PromptNames, commands: list[pb.GenerateRequest], *, is_again: bool
    ) -> None:
        """Choose a replica for a request, and send it.

        Raises:
            RequestError: No replica is up, or this server drains.
        """
        if self.server.draining.is_set():
            raise refusal(Reason.DRAINING)
        ticket = self.server.replicas.choose(prompt)
        upstream = self._upstream_of(ticket.replica)
        self._live[label] = _Request(label, upstream, ticket, prompt, commands, is_again)
        for command in tuple(commands):
            await upstream.write(command)
        if self._is_half_closed:
            await upstream.half_close()

    async def _resume(self, message: pb.GenerateRequest) -> None:
        resume = message.resume
        self._check_label(resume.request_id)
        replica, resume_handle = handles.from_client(self.server.replicas, resume.handle)
        label = resume.request_id or resume.handle
        resume.handle, resume.request_id = resume_handle, label
        upstream = self._upstream_of(replica)
        self._live[label] = _Request(label, upstream, None, None, None)
        await upstream.write(message)

    async def _pass_on(self, kind: str, message: pb.GenerateRequest) -> None:
        label = getattr(message, kind).request_id
        request = self._live.get(label)
        if request is not None:
            if request.commands is not None:
                request.commands.append(message)
                if len(request.commands) > _MAX_COMMANDS:
                    request.commands = None
            await request.upstream.write(message)
        elif kind != "cancel":
            check_request_id(label)
            text = "request_id: no live request of this stream has it"
            raise RequestError(Reason.UNKNOWN_REQUEST, text, field="request_id")

    def _check_label(self, label: str) -> None:
        check_request_id(label)
        if label in self._live:
            text = "request_id: a live request of this stream has the same"
            raise RequestError(Reason.DUPLICATE_REQUEST_ID, text, field="request_id")

    def _refuse(self, message: pb.GenerateRequest, error: RequestError) -> None:
        kind = message.WhichOneof("command") or ""
        label = getattr(message, kind).request_id if kind else ""
        last = kind in ("start", "resume") and label not in self._live
        rejected = pb.Rejected(error=to_error(error))
        self._add([pb.Event(request_id=label, last=last, rejected=rejected)])

    def _upstream_of(self, replica: Replica) -> _Upstream:
        upstream = self._upstreams.get(replica.tag)
        if upstream is None or upstream.is_over:
            method = replica.client.channel.stream_stream(
                _METHOD, request_serializer=pb.GenerateRequest.SerializeToString
            )
            rpc = method(metadata=self._metadata, timeout=self._time_remaining())
            upstream = self._upstreams[replica.tag] = _Upstream(self, replica, rpc)
        return upstream

    # --- events ---------------------------------------------------------------------------------

    async def on_response(self, upstream: _Upstream, data: bytes) -> None:
        """Take the events of a replica."""
        response = pb.GenerateResponse.FromString(data)
        moved, is_changed = [], False
        for event in response.events:
            request = self._live.get(event.request_id)
            if request is None or request.upstream is not upstream:
                continue
            if _is_refusal_of_replica(event):
                self._note_refusal(upstream.replica, event)
                if request.may_move():
                    moved.append(request)
                    continue
            is_changed |= self._note(request, event)
        if moved:
            labels = {request.label for request in moved}
            self._add(event for event in response.events if event.request_id not in labels)
            async with self._lock:
                await self._move(moved, refusal(Reason.ENGINE_DOWN))
            # What was added under the lock did not end the call then.
            self._wake.set()
        elif is_changed:
            self._add(response.events)
        else:
            self._add_data(data)
        await self._room.wait()

    def _note(self, request: _Request, event: pb.Event) -> bool:
        """Note an event of a request; return whether it was changed."""
        request.number = max(request.number, event.number)
        kind = event.WhichOneof("event")
        if kind in ("tokens", "prompt", "finished"):
            request.commands = request.prompt = None
        if event.last:
            self._end(request)
        if kind == "accepted":
            handle = handles.to_client(request.upstream.replica, event.accepted.handle)
            event.accepted.handle = handle
        return bool(kind == "accepted")

    def _note_refusal(self, replica: Replica, event: pb.Event) -> None:
        if _error_of(event).reason == Reason.DRAINING.value:
            self.server.replicas.draining(replica)
        else:
            self.server.replicas.lost(replica)

    async def on_end(self, upstream: _Upstream, error: ChairliftError | None) -> None:
        """Take the end of the stream of a replica: its requests move to another one, or fail."""
        is_lost = not isinstance(error, RequestError) or error.reason.code == "UNAVAILABLE"
        if error is not None and is_lost:
            self.server.replicas.lost(upstream.replica)
        async with self._lock:
            upstream.is_over = True
            left = [request for request in self._live.values() if request.upstream is upstream]
            if is_lost:
                await self._move(left, _replica_lost())
            else:
                assert isinstance(error, RequestError), error
                self._fail(left, error)
        self._wake.set()

    async def _move(self, requests: Iterable[_Request], error: RequestError) -> None:
        """Send requests to another replica; those that cannot move fail."""
        for request in requests:
            self._end(request)
            if not request.may_move():
                self._fail([request], error)
                continue
            assert request.prompt is not None, request
            assert request.commands is not None, request
            try:
                await self._send_to_one(
                    request.label, request.prompt, request.commands, is_again=True
                )
            except RequestError as refused:
                self._fail([request], refused)

    def _fail(self, requests: Iterable[_Request], error: RequestError) -> None:
        for request in requests:
            self._end(request)
            failed = pb.Failed(error=to_error(error))
            number = request.number + 1
            self._add([pb.Event(request_id=request.label, number=number, last=True, failed=failed)])

    def _end(self, request: _Request) -> None:
        if self._live.get(request.label) is request:
            del self._live[request.label]
        self._end_ticket(request)

    def _end_ticket(self, request: _Request) -> None:
        if request.ticket is not None:
            request.ticket.end()

    def _add(self, events: Iterable[pb.Event]) -> None:
        response = pb.GenerateResponse(events=events)
        if response.events:
            self._add_data(response.SerializeToString())

    def _add_data(self, data: bytes) -> None:
        self._buffer.append(data)
        self._num_bytes += len(data)
        if self._num_bytes >= _MAX_BUFFER_BYTES:
            self._room.clear()
        self._wake.set()


def _raise_if_own() -> None:
    """Raise a `CancelledError` of the running task; one of its call is another thing."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _error_of(event: pb.Event) -> pb.Error:
    return event.rejected.error if event.HasField("rejected") else event.failed.error


def _is_refusal_of_replica(event: pb.Event) -> bool:
    """Return whether a replica ends a request because it cannot take any."""
    if not event.last or event.WhichOneof("event") not in ("rejected", "failed"):
        return False
    return bool(_error_of(event).code == pb.STATUS_CODE_UNAVAILABLE)


def _replica_lost() -> RequestError:
    message = "the replica of this request was lost; if it returns, the handle resumes the request"
    return RequestError(Reason.ENGINE_DOWN, message, retry_after_s=1.0)
