"""The requests of one call: begun, fed with events, ended together when the call breaks."""

import functools
import logging
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from chairlift import types
from chairlift.errors import Reason, RequestError
from chairlift.logs import fields
from chairlift.server import convert
from chairlift.server.context import ServerContext
from chairlift.server.live import LiveRequest
from chairlift.server.outbox import Outbox
from chairlift.server.status import CODES, to_error
from chairlift.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from chairlift.engine.handle import Handle

_log = logging.getLogger(__name__)

_LAST_CREDIT: Final = types.Change(credit_is_final=True)
_SHORTEST_S: Final = 0.001
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Requests:
    """The sink of one call's requests.

    Each has the client's label, unique among the live ones of the call, and the engine's handle,
    unique on the server. `deliver` runs once per step on the event loop.
    """

    def __init__(
        self,
        server: ServerContext,
        outbox: Outbox,
        *,
        tenant: str,
        connection: str,
        time_remaining: Callable[[], float | None],
        only_one: bool = False,
    ) -> None:
        """Starts with no request.

        Args:
            server: Of the server.
            outbox: Takes the events.
            tenant: Whose requests these are.
            connection: By which the call came.
            time_remaining: Gives the seconds until the call's deadline, if it has one.
            only_one: No request follows the first, and its error is the call's: it becomes
                `error`, not an event.
        """
        self.error: RequestError | None = None
        self.has_tokens = False
        self._server = server
        self._outbox = outbox
        self._tenant = tenant
        self._connection = connection
        self._time_remaining = time_remaining
        self._only_one = self._half_closed = only_one
        self._labels: dict[str, LiveRequest] = {}
        self._num_waiting = 0
        outbox.on_full, outbox.on_room = self._pause, self._resume

    def __len__(self) -> int:
        return len(self._labels)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._labels

    async def start(self, start: pb.Start) -> None:
        """Submits a request; `Accepted` or a refusal comes by `deliver`.

        Raises:
            RequestError: It is wrong, its label is in use, the tenant has used up a quota,
                or nothing enters now.
        """
        arrived_at = time.monotonic()
        if start.request_id in self._labels:
            message = "request_id: a live request of this stream has the same"
            raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field="request_id")
        engine = self._server.gate.admit()
        request, output = convert.to_request(
            start,
            served=self._server.model_names,
            tenant=self._tenant,
            limits=engine.engine.text_limits,
        )
        request = before_deadline(request, self._time_remaining())
        with ExitStack() as undo:
            lease = self._server.quotas.acquire(self._tenant, self._connection)
            undo.callback(lease.release)
            prepared = await engine.prepare(request)
            lease.reserve(len(prepared.prompt), prepared.num_answers)
            slot = self._server.backlog.admit(
                self._tenant, prepared.times.start_within_s, suspended=request.credit == 0
            )
            undo.callback(slot.end, started=False)
            handle = engine.submit(prepared, self)
            undo.pop_all()
        request_id = start.request_id or handle.name
        live = LiveRequest(
            handle,
            request_id,
            output,
            self._tenant,
            lease,
            slot,
            arrived_at,
        )
        self._labels[live.request_id] = live
        self._server.live.add(live)
        self._num_waiting += 1
        self._server.batch_end.joined(half_closed=self._half_closed)
        if _TRACEPARENT.fullmatch(start.traceparent):
            trace = fields(handle=handle.name, traceparent=start.traceparent)
            _log.info("request has a trace", extra=trace)

    def cancel(self, request_id: str) -> None:
        """Ends a request early; no effect on one that is not live."""
        live = self._labels.get(request_id)
        if live is not None:
            self._server.gate.engine().abort(live.handle)

    def update(self, update: pb.Update) -> None:
        """Changes a request from its next step on.

        Raises:
            RequestError: It is not live, or a field is wrong; then it is untouched.
        """
        live = self._live(update.request_id)
        self._server.gate.engine().change(live.handle, convert.to_change(update))

    def credit(self, credit: pb.Credit) -> None:
        """Gives a request more tokens.

        Raises:
            RequestError: It is not live.
        """
        live = self._live(credit.request_id)
        self._server.gate.engine().change(live.handle, types.Change(credit=credit.tokens))
        if credit.tokens:
            live.slot.begin()

    def _live(self, request_id: str) -> LiveRequest:
        convert.check_request_id(request_id)
        live = self._labels.get(request_id)
        if live is None:
            message = "request_id: no live request of this stream has it"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field="request_id")
        return live

    def _pause(self) -> None:
        """Lets the requests stand still: their client does not read."""
        self._server.metrics.stream_paused()
        engine = self._server.gate.engine()
        for live in self._labels.values():
            engine.pause(live.handle)

    def _resume(self) -> None:
        engine = self._server.gate.engine()
        for live in self._labels.values():
            engine.resume(live.handle)

    def half_close(self) -> None:
        """No request follows, and no credit."""
        if not self._half_closed:
            self._half_closed = True
            self._server.batch_end.half_closed(self._num_waiting)
            for live in self._labels.values():
                if live.handle.prepared.credit is not None:
                    self._server.gate.engine().change(live.handle, _LAST_CREDIT)

    def abandon(self) -> None:
        """Ends all requests, because nobody listens; synchronous, so that `finally` may call it."""
        for live in list(self._labels.values()):
            self._server.gate.engine().abort(live.handle)
            if live.is_accepted:
                self._note_end(live, types.FinishReason.CANCELLED, "CANCELLED")
            if live.handle.request_id is not None:
                self._outbox.forget(live.handle.request_id)
            self._forget(live)

    def deliver(self, events: list[tuple["Handle", types.Event]]) -> None:
        """Takes the events of one step."""
        for handle, event in events:
            live = self._server.live.get(handle.name)
            if live is None:
                continue  # Abandoned; the engine did not know yet.
            match event:
                case types.Tokens():
                    raise AssertionError(event)  # The outboxes take them.
                case types.Accepted():
                    self._on_accepted(live, event)
                case types.Finished():
                    self._on_finished(live, event)
                case types.Failed():
                    self._on_failed(live, event)

    def _on_accepted(self, live: LiveRequest, event: types.Accepted) -> None:
        live.is_accepted = True
        self._server.live.accepted(live)
        self._server.metrics.accepted(self._tenant, event.num_prompt_tokens)
        self._outbox.accept(
            event.request_id,
            live.request_id,
            convert.from_accepted(event, live.handle.name),
            live.output,
            tenant_label=self._server.metrics.tenant_label(self._tenant),
            arrived_at=live.arrived_at,
            on_start=functools.partial(self._on_start, live),
            num_answers=live.handle.prepared.num_answers,
        )

    def _on_start(self, live: LiveRequest) -> None:
        self.has_tokens = True
        self._server.metrics.started(self._tenant, time.monotonic() - live.arrived_at)
        self._started(live, has_token=True)
        # `Accepted` may lie there unwritten, and an outbox that is not empty wakes nobody.
        self._outbox.wake()

    def _on_finished(self, live: LiveRequest, event: types.Finished) -> None:
        live.use(event.usage)
        finished = convert.from_finished(event, live.output)
        if event.last:
            self._note_end(live, event.reason, "OK", event)
            self._on_end(live, index=event.index, finished=finished)
            return
        assert live.handle.request_id is not None
        self._outbox.end(
            live.handle.request_id,
            live.request_id,
            index=event.index,
            last=False,
            finished=finished,
        )

    def _on_failed(self, live: LiveRequest, event: types.Failed) -> None:
        if event.reason is Reason.ENGINE_DOWN:
            self._server.gate.close()
        error = RequestError(
            event.reason, event.message, field=event.field, retry_after_s=event.retry_after_s
        )
        if live.is_accepted:
            if event.usage is not None:
                live.use(event.usage)
            self._note_end(live, event.reason, CODES[event.reason].name, event)
            if self._only_one:
                self.error = error
                self._on_end(live)
                return
            failed = convert.from_failed(event, to_error(error), live.output)
            self._on_end(live, failed=failed)
        else:
            self._forget(live)
            self.refuse(live.request_id, pb.COMMAND_KIND_START, error)

    def _on_end(
        self,
        live: LiveRequest,
        *,
        index: int = 0,
        finished: pb.Finished | None = None,
        failed: pb.Failed | None = None,
    ) -> None:
        self._forget(live)
        assert live.handle.request_id is not None
        self._outbox.end(
            live.handle.request_id,
            live.request_id,
            index=index,
            finished=finished,
            failed=failed,
        )

    def refuse(self, request_id: str, command: pb.CommandKind, error: RequestError) -> None:
        """Answers a command that is refused; a live request of this label is untouched."""
        if command == pb.COMMAND_KIND_START:
            self._server.metrics.refused(self._tenant, error.reason)
            # The label and the message may be as wrong as the request: neither is written.
            why = fields(
                tenant=self._tenant or None, reason=error.reason.value, field=error.field or None
            )
            _log.info("request refused", extra=why)
        if self._only_one:
            self.error = error
            self._outbox.wake()
            return
        rejected = pb.Rejected(command=command, error=to_error(error))
        self._outbox.add(pb.Event(request_id=request_id, rejected=rejected))

    def _note_end(
        self,
        live: LiveRequest,
        reason: types.FinishReason | Reason,
        status: str,
        end: types.Finished | types.Failed | None = None,
    ) -> None:
        """Counts and logs the end of a queued request; there is no event where nobody listens."""
        seconds = time.monotonic() - live.arrived_at
        timeline = None if end is None else end.timeline
        self._server.metrics.ended(self._tenant, reason, seconds, timeline)
        account = {} if live.usage is None else asdict(live.usage)
        times = {} if timeline is None else _fields_of(timeline)
        details = fields(
            handle=live.handle.name,
            request_id=live.request_id,
            tenant=live.tenant or None,
            status=status,
            reason=reason.value,
            seconds=seconds,
            **account,
            **times,
        )
        _log.info("request ended", extra=details)

    def _started(self, live: LiveRequest, *, has_token: bool) -> None:
        """The request no longer waits."""
        live.has_started = True
        live.slot.end(started=has_token)
        self._num_waiting -= 1
        live.lease.start()
        self._server.batch_end.left(half_closed=self._half_closed)

    def _forget(self, live: LiveRequest) -> None:
        if not live.has_started:
            self._started(live, has_token=False)
        live.lease.release()
        del self._labels[live.request_id]
        self._server.live.remove(live)


def _fields_of(timeline: types.Timeline) -> dict[str, float | int | None]:
    times = asdict(timeline)
    by_cause = times.pop("queued_by_cause_s")
    return times | {f"queued_{cause}_s": time_s for cause, time_s in by_cause.items()}


def before_deadline(request: types.Request, remaining_s: float | None) -> types.Request:
    """A first token that comes after the call's deadline comes for nobody."""
    if remaining_s is None:
        return request
    asked_s, within_s = request.schedule.time_to_first_token_s, max(remaining_s, _SHORTEST_S)
    if asked_s is not None and asked_s <= within_s:
        return request
    return replace(request, schedule=replace(request.schedule, time_to_first_token_s=within_s))
