"""The requests of one call: started, fed with events, ended together when the call breaks."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Final

from chairlift import types
from chairlift.errors import Reason, RequestError
from chairlift.logs import fields
from chairlift.server import convert
from chairlift.server.context import ServerContext
from chairlift.server.outbox import Outbox
from chairlift.server.registry import LiveRequest, Stage
from chairlift.server.status import CODES, to_error
from chairlift.server.telemetry import TRACEPARENT, RequestEnd
from chairlift.v1 import generation_pb2 as pb

_log = logging.getLogger(__name__)

_LAST_CREDIT: Final = types.Change(credit_is_final=True)


class Requests:
    """The live requests of one call, by the client's labels, which are unique among them.

    Attributes:
        error: The error of the call, if it carries one request alone.
        has_tokens: Whether a first token has been delivered.
        half_closed: Whether no request follows.
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
        traceparent: str = "",
    ) -> None:
        """Start without requests.

        Args:
            server: The state that all calls share.
            outbox: Takes the events.
            tenant: Owner of the requests.
            connection: The connection of the call.
            time_remaining: Returns the seconds until the call's deadline, or None without one.
            only_one: No request follows the first, and its error is the call's: it is kept in
                `error` and is no event.
            traceparent: Trace context of the call, for requests without one of their own.
        """
        self.error: RequestError | None = None
        self.has_tokens = False
        self.half_closed = only_one
        self._server = server
        self._outbox = outbox
        self._tenant = tenant
        self._connection = connection
        self._time_remaining = time_remaining
        self._only_one = only_one
        self._traceparent = traceparent
        self._by_label: dict[str, LiveRequest] = {}
        outbox.on_full, outbox.on_room = self._pause, self._resume

    def __len__(self) -> int:
        return len(self._by_label)

    async def start(self, start: pb.Start) -> None:
        """Submit a request; `Accepted` or a refusal by the scheduler comes as an event.

        Raises:
            RequestError: It is wrong, its label is in use, the tenant has used up a quota,
                or the server takes no request now.
        """
        arrived_at = time.monotonic()
        if start.request_id in self._by_label:
            message = "request_id: a live request of this stream has the same"
            raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field="request_id")
        engine = self._server.gate.admit()
        request, output = convert.to_request(
            start,
            served=self._server.model_names,
            tenant=self._tenant,
            limits=engine.engine.text_limits,
        )
        label, traceparent = start.request_id, start.traceparent
        await self.submit(request, output, label, arrived_at=arrived_at, traceparent=traceparent)

    async def submit(
        self,
        request: types.Request,
        output: convert.OutputOptions,
        label: str = "",
        *,
        arrived_at: float,
        traceparent: str = "",
    ) -> LiveRequest:
        """Submit a request that is converted; every protocol's requests come this way.

        Args:
            request: Of the tenant of this call.
            output: The part of its output that the server itself implements.
            label: The client's, which no live request of this call has; empty is the handle.
            arrived_at: Monotonic seconds.
            traceparent: Trace context of the request; empty is the call's.

        Raises:
            RequestError: As `start`.
        """
        engine = self._server.gate.admit()
        schedule = convert.before_deadline(self._time_remaining(), request.schedule)
        request = replace(request, schedule=schedule)
        traceparent = traceparent or self._traceparent
        operation = "chat" if isinstance(request.prompt, types.Chat) else "text_completion"
        with ExitStack() as undo:
            lease = self._server.quotas.acquire(self._tenant, self._connection)
            undo.callback(lease.release)
            prepared = await engine.prepare(request)
            lease.reserve(len(prepared.prompt), prepared.num_answers)
            slot = self._server.backlog.admit(
                self._tenant, prepared.times.start_within_s, suspended=request.credit == 0
            )
            undo.callback(slot.end, started=False)
            live = LiveRequest(
                prepared,
                self,
                label,
                self._tenant,
                output,
                lease,
                slot,
                arrived_at,
                operation=operation,
                traceparent=traceparent,
            )
            engine.submit(live)
            undo.pop_all()
        self._by_label[live.label] = live
        self._server.live.add(live)
        if TRACEPARENT.fullmatch(traceparent):
            trace = fields(handle=live.name, traceparent=traceparent)
            _log.info("request has a trace", extra=trace)
        return live

    def cancel(self, request_id: str) -> None:
        """End a request early; no effect on one that is not live."""
        live = self._by_label.get(request_id)
        if live is not None:
            self._server.gate.engine().abort(live)

    def update(self, update: pb.Update) -> None:
        """Change a request from its next step on.

        Raises:
            RequestError: It is not live, or a field is wrong; then it is unchanged.
        """
        live = self._live(update.request_id)
        self._server.gate.engine().change(live, convert.to_change(update))

    def credit(self, credit: pb.Credit) -> None:
        """Allow a request more tokens.

        Raises:
            RequestError: It is not live.
        """
        live = self._live(credit.request_id)
        self._server.gate.engine().change(live, types.Change(credit=credit.tokens))
        if credit.tokens and live.stage < Stage.STARTED:
            live.slot.begin()

    def _live(self, request_id: str) -> LiveRequest:
        convert.check_request_id(request_id)
        live = self._by_label.get(request_id)
        if live is None:
            message = "request_id: no live request of this stream has it"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field="request_id")
        return live

    def _pause(self) -> None:
        """Suspend the requests, because their client does not read."""
        self._server.metrics.stream_paused()
        engine = self._server.gate.engine()
        for live in self._by_label.values():
            engine.pause(live)

    def _resume(self) -> None:
        engine = self._server.gate.engine()
        for live in self._by_label.values():
            engine.resume(live)

    def half_close(self) -> None:
        """Note that no request and no credit follows."""
        if not self.half_closed:
            self.half_closed = True
            self._server.live.half_closed(self._by_label.values())
            for live in self._by_label.values():
                if live.prepared.credit is not None:
                    self._server.gate.engine().change(live, _LAST_CREDIT)

    def abandon(self) -> None:
        """End all requests, because their call is over; synchronous, for use in `finally`."""
        for live in list(self._by_label.values()):
            self._server.gate.engine().abort(live)
            if live.stage is not Stage.SUBMITTED:
                self._log_end(live, types.FinishReason.CANCELLED, "CANCELLED")
            if live.engine_id is not None:
                self._outbox.forget(live.engine_id)
            self._forget(live)

    def on_event(self, live: LiveRequest, event: types.Event) -> None:
        """Handle an event of a request; tokens go to the outbox by another way."""
        match event:
            case types.Tokens():
                raise AssertionError(event)  # The outboxes take them.
            case types.Accepted():
                self._on_accepted(live, event)
            case types.Finished():
                self._on_finished(live, event)
            case types.Failed():
                self._on_failed(live, event)

    def on_first_token(self, live: LiveRequest) -> None:
        """Count a request as started, and wake the writer."""
        self.has_tokens = True
        self._server.metrics.started(self._tenant, time.monotonic() - live.arrived_at)
        self._server.live.started(live)
        # An outbox that held `Accepted` already has not woken its writer for the tokens.
        self._outbox.wake()

    def _on_accepted(self, live: LiveRequest, event: types.Accepted) -> None:
        self._server.live.queued(live, event.request_id)
        self._server.metrics.accepted(self._tenant, event.num_prompt_tokens)
        self._outbox.accept(
            event.request_id,
            live.label,
            convert.from_accepted(event, live.name),
            live.output,
            tenant_label=self._server.metrics.tenant_label(self._tenant),
            arrived_at=live.arrived_at,
            num_answers=live.prepared.num_answers,
        )

    def _on_finished(self, live: LiveRequest, event: types.Finished) -> None:
        live.use(event.usage)
        if event.last:
            self._log_end(live, event.reason, "OK", event)
            self._forget(live)
        self._outbox.end(
            event.request_id,
            live.label,
            index=event.index,
            last=event.last,
            finished=convert.from_finished(event, live.output),
        )

    def _on_failed(self, live: LiveRequest, event: types.Failed) -> None:
        if event.reason is Reason.ENGINE_DOWN:
            self._server.gate.close()
        error = RequestError(
            event.reason, event.message, field=event.field, retry_after_s=event.retry_after_s
        )
        was_accepted = live.stage is not Stage.SUBMITTED
        self._forget(live)
        if not was_accepted:
            self.refuse(live.label, pb.COMMAND_KIND_START, error)
            return
        if event.usage is not None:
            live.use(event.usage)
        self._log_end(live, event.reason, CODES[event.reason].name, event)
        failed = None
        if self._only_one:
            self.error = error
        else:
            failed = convert.from_failed(event, to_error(error), live.output)
        self._outbox.end(event.request_id, live.label, failed=failed)

    def refuse(self, request_id: str, command: pb.CommandKind, error: RequestError) -> None:
        """Answer a command that is refused; a live request of this label is unchanged."""
        if command == pb.COMMAND_KIND_START:
            self._server.metrics.refused(self._tenant, error.reason)
            # The label and the message may be as wrong as the request: neither is logged.
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

    def _log_end(
        self,
        live: LiveRequest,
        reason: types.FinishReason | Reason,
        status: str,
        end: types.Finished | types.Failed | None = None,
    ) -> None:
        """Count and log the end of a request that was queued; an abandoned one has no event."""
        seconds = time.monotonic() - live.arrived_at
        timeline = None if end is None else end.timeline
        self._server.metrics.ended(self._tenant, reason, seconds, timeline)
        self._server.telemetry.ended(live, RequestEnd(reason, seconds, timeline))
        usage = {} if live.usage is None else asdict(live.usage)
        times = {} if timeline is None else _fields_of(timeline)
        details = fields(
            handle=live.name,
            request_id=live.label,
            tenant=live.tenant or None,
            status=status,
            reason=reason.value,
            seconds=seconds,
            **usage,
            **times,
        )
        _log.info("request ended", extra=details)

    def _forget(self, live: LiveRequest) -> None:
        del self._by_label[live.label]
        self._server.live.ended(live)


def _fields_of(timeline: types.Timeline) -> dict[str, float | int | None]:
    times = asdict(timeline)
    by_cause = times.pop("queued_by_cause_s")
    return times | {f"queued_{cause}_s": time_s for cause, time_s in by_cause.items()}
