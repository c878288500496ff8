"""The requests of one call: started, fed with events, ended together when the call breaks."""

import functools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError, refusal
from chairlift.engine.prepare.block_export import BlockExport
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.outbox import Outbox
from chairlift.server.calls.registry import LiveRequest, Stage
from chairlift.server.calls.request_log import log_end, log_refusal, log_trace
from chairlift.server.calls.telemetry import operation_of
from chairlift.server.calls.turns import Turns
from chairlift.server.convert import messages as convert
from chairlift.server.handoff.handoffs import Handoff
from chairlift.server.limits.quotas import sequences_of
from chairlift.server.rpc.status import to_error
from chairlift.v1 import generation_pb2 as pb


class Requests:
    """The live requests of one call, by the client's labels, which are unique among them.

    Attributes:
        error: The error of the call, if it carries one request alone.
        has_tokens: Whether a first token has been delivered.
        half_closed: Whether no request follows.
        live: By label; the server's registry adds and removes them.
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
        self._is_over = False
        self.live: dict[str, LiveRequest] = {}
        self._turns = Turns()
        outbox.on_full, outbox.on_room = self._pause, self._resume

    def __len__(self) -> int:
        return len(self.live)

    async def start(self, start: pb.Start) -> None:
        """Submit a request; `Accepted` or a refusal by the scheduler comes as an event.

        Raises:
            RequestError: It is wrong, its label is in use, the tenant has used up a quota,
                or the server takes no request now.
        """
        arrived_at = time.monotonic()
        if start.request_id in self.live:
            message = "request_id: a live request of this stream has the same"
            raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field="request_id")
        engine = self._server.gate.admit()
        request, output = convert.to_request(
            start,
            served=self._server.model_names,
            tenant=self._tenant,
            limits=engine.engine.text_limits,
        )
        await self.submit(
            request,
            output,
            start.request_id,
            arrived_at=arrived_at,
            traceparent=start.traceparent,
            resume_window_s=self._server.resumables.window_s(start),
        )

    async def submit(
        self,
        request: types.Request,
        output: convert.DeliveryOptions,
        label: str = "",
        *,
        arrived_at: float,
        traceparent: str = "",
        resume_window_s: float | None = None,
        num_kept_bytes: int = 0,
        export: BlockExport | None = None,
        handoff: Handoff | None = None,
    ) -> LiveRequest:
        """Submit a request that is converted; every protocol's requests come this way.

        Args:
            request: A request of the tenant of this call.
            output: The part of its output that the server itself implements.
            label: The client's, which no live request of this call has; empty is the handle.
            arrived_at: Monotonic seconds.
            traceparent: Trace context of the request; empty is the call's.
            resume_window_s: How long it outlives its call; None is not at all.
            num_kept_bytes: What the call keeps with it for that time.
            export: Takes the KV blocks of its prompt.
            handoff: What a gateway says that sends it to two servers.

        Raises:
            RequestError: The same as of `start`, or its blocks cannot be moved.
        """
        engine = self._server.gate.admit()
        schedule = convert.before_deadline(self._time_remaining(), request.schedule)
        schedule = self._turns.take(schedule, time.monotonic(), is_first=not self.live)
        request = replace(request, schedule=schedule)
        if handoff is not None:
            handoff.check(request)
        with ExitStack() as undo:
            sequences = sequences_of(request)
            lease = self._server.quotas.acquire(self._tenant, self._connection, sequences)
            undo.callback(lease.release)
            # What is held stays loaded until the request itself holds it.
            _held = await self._server.adapter_loads.hold(request, self._connection)
            prepared = await engine.prepare(request, self._connection)
            if export is not None:
                prepared = replace(prepared, export=export)
            if handoff is not None:
                prepared = replace(prepared, source=handoff.source(prepared))
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
                operation=operation_of(request),
                traceparent=traceparent or self._traceparent,
            )
            if resume_window_s is not None:
                live.resumable = self._server.resumables.reserve(
                    self._tenant, self._connection, resume_window_s, num_kept_bytes
                )
                live.resumable.begin(live.handle)
                undo.callback(live.resumable.forget)
            engine.submit(live)
            undo.pop_all()
        self._server.live.add(live)
        log_trace(live)
        return live

    def cancel(self, request_id: str) -> None:
        """End a request early; no effect on one that is not live."""
        live = self.live.get(request_id)
        if live is not None:
            self._server.gate.engine().abort(live)

    async def update(self, update: pb.Update) -> None:
        """Change a request from its next step on.

        Raises:
            RequestError: It is not live, or a field is wrong; then it is unchanged.
        """
        live = self._live(update.request_id)
        change = convert.to_change(update)
        await self._server.gate.engine().update(live, change, self._connection)

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
        live = self.live.get(request_id)
        if live is None:
            message = "request_id: no live request of this stream has it"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field="request_id")
        return live

    def _pause(self) -> None:
        """Suspend the requests, because their client does not read."""
        self._server.metrics.stream_paused()
        engine = self._server.gate.engine()
        for live in self.live.values():
            engine.pause(live)

    def _resume(self) -> None:
        engine = self._server.gate.engine()
        for live in self.live.values():
            engine.resume(live)

    def half_close(self) -> None:
        """Note that no request and no credit follows."""
        if not self.half_closed:
            self.half_closed = True
            self._server.live.half_closed(self.live.values())
            for live in self.live.values():
                if live.prepared.credit is None:
                    continue
                if live.resumable is None:
                    self._end_credit(live)
                else:
                    # Until then it may move to a stream that can pay, and a stream that breaks
                    # looks like a half-close at first.
                    live.resumable.after_window(functools.partial(self._end_credit, live))

    def _end_credit(self, live: LiveRequest) -> None:
        self._server.gate.engine().change(live, types.Change(credit_is_final=True))

    def close(self, *, is_known: bool = True) -> None:
        """End all requests, because their call is over; synchronous, for use in `finally`.

        Those with a window for resuming stay live for it, without a call.

        Args:
            is_known: Whether the client may have a handle, if its event was taken.
        """
        self._is_over = True
        for live in list(self.live.values()):
            if is_known and self.may_be_resumed(live):
                self._server.resumables.detach(live)
                continue
            self._server.gate.engine().abort(live)
            if live.resumable is not None:
                live.resumable.forget()
            if live.stage is not Stage.SUBMITTED:
                log_end(self._server, live, types.FinishReason.CANCELLED, "CANCELLED")
            if live.engine_id is not None:
                self._outbox.forget(live.engine_id)
            self._server.live.ended(live, types.FinishReason.CANCELLED)

    def may_be_resumed(self, live: LiveRequest) -> bool:
        """Return whether a request outlives this call: its client may have its handle."""
        return (
            live.resumable is not None
            # The engine gives the id, and `Accepted` is delivered later.
            and live.stage is not Stage.SUBMITTED
            and live.engine_id is not None
            and self._outbox.may_be_known(live.engine_id)
            and not live.aborted
            and not self._server.gate.draining.is_set()
        )

    def resume(self, resume: pb.Resume) -> None:
        """Take over a request from a stream that was lost, or that its client has given up.

        Raises:
            RequestError: There is none of this tenant, its events are not all there, or the label
                is in use.
        """
        convert.check_request_id(resume.request_id)
        label = resume.request_id or resume.handle
        if label in self.live:
            message = "request_id: a live request of this stream has the same"
            raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field="request_id")
        found = self._server.resumables.find(self._tenant, resume.handle, resume.after_number)
        live = self._server.live.get(found.handle)
        if live is None:
            self._outbox.resume(found.log, None, label, resume.after_number)
        else:
            self.attach(live, label, resume.after_number)

    def attach(self, live: LiveRequest, label: str, after_number: int | None) -> None:
        """Take a queued or started request from its call.

        Args:
            live: With a window for resuming.
            label: Which no live request of this call has.
            after_number: Events after it are sent again; None sends none.
        """
        assert live.resumable is not None, live
        self._server.live.move(live, self, label)
        self._server.gate.engine().resume(live)
        self._outbox.resume(live.resumable.log, live.engine_id, label, after_number)
        live.resumable.attach()

    def detach(self, live: LiveRequest) -> None:
        """End a request here, because another call takes it."""
        if self._is_over:
            return
        error = refusal(Reason.RESUMED_ELSEWHERE)
        if self._only_one:
            self.error = error
            self._outbox.wake()
            return
        failed = pb.Failed(error=to_error(error))
        self._outbox.add(pb.Event(request_id=live.label, last=True, failed=failed))

    def on_event(self, live: LiveRequest, event: types.Event) -> None:
        """Handle an event of a request; tokens go to the outbox by another way."""
        match event:
            case types.Tokens() | types.PromptPiece():
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
            convert.from_accepted(event, live.handle),
            live.output,
            tenant_label=self._server.metrics.tenant_label(self._tenant),
            arrived_at=live.arrived_at,
            num_answers=live.prepared.num_answers,
            log=None if live.resumable is None else live.resumable.log,
        )

    def _on_finished(self, live: LiveRequest, event: types.Finished) -> None:
        live.use(event.usage)
        if event.last:
            log_end(self._server, live, event.reason, "OK", event)
            self._server.live.ended(live, event.reason)
        self._outbox.end(
            event.request_id,
            live.label,
            index=event.index,
            last=event.last,
            finished=convert.from_finished(event, live.output),
        )
        if event.last and live.resumable is not None:
            live.resumable.end()

    def end_failed(self, live: LiveRequest, event: types.Failed) -> tuple[RequestError, bool]:
        """Note the end of a request that failed; return the error, and if it was accepted."""
        if event.reason is Reason.ENGINE_DOWN:
            self._server.gate.close()
        error = RequestError(
            event.reason, event.message, field=event.field, retry_after_s=event.retry_after_s
        )
        was_accepted = live.stage is not Stage.SUBMITTED
        self._server.live.ended(live, event.reason)
        if was_accepted:
            if event.usage is not None:
                live.use(event.usage)
            log_end(self._server, live, event.reason, event.reason.code, event)
        return error, was_accepted

    def _on_failed(self, live: LiveRequest, event: types.Failed) -> None:
        error, was_accepted = self.end_failed(live, event)
        if not was_accepted:
            if live.resumable is not None:
                live.resumable.forget()
            self.refuse(live.label, error)
            return
        if self._only_one:
            self.error = error
        self._outbox.end(
            event.request_id,
            live.label,
            failed=convert.from_failed(event, to_error(error), live.output),
            only_logged=self._only_one,
        )
        if live.resumable is not None:
            live.resumable.end()

    def refuse(self, request_id: str, error: RequestError, kind: str = "start") -> None:
        """Answer a command that is refused; a live request of this label is unchanged."""
        if kind == "start":
            log_refusal(self._server, self._tenant, error)
        if self._only_one:
            self.error = error
            self._outbox.wake()
            return
        last = kind in ("start", "resume") and request_id not in self.live
        rejected = pb.Rejected(error=to_error(error))
        self._outbox.add(pb.Event(request_id=request_id, last=last, rejected=rejected))
