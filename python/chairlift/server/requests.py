"""The requests of one call: begun, fed with events, ended together when the call breaks."""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chairlift import types
from chairlift.errors import Reason, RequestError
from chairlift.metrics import Metrics
from chairlift.server import convert
from chairlift.server.auth import Callers
from chairlift.server.batch_end import BatchEnd
from chairlift.server.calls import Calls
from chairlift.server.gate import Gate
from chairlift.server.live import LiveRequest, LiveRequests
from chairlift.server.outbox import Outbox, Track
from chairlift.server.quotas import Quotas
from chairlift.server.status import to_error
from chairlift.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from chairlift.engine.handle import Handle

_log = logging.getLogger(__name__)

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Desk:
    """What every call of a server shares."""

    gate: Gate
    callers: Callers
    quotas: Quotas
    calls: Calls
    live: LiveRequests
    metrics: Metrics
    batch_end: BatchEnd
    write_timeout_s: float
    """A call whose client reads nothing for so long ends."""


class Requests:
    """The sink of one call's requests.

    Each has the client's label, unique among the live ones of the call, and the engine's handle,
    unique on the server. `deliver` runs once per step on the event loop.
    """

    def __init__(self, desk: Desk, outbox: Outbox, *, tenant: str, half_closed: bool) -> None:
        """Starts with no request.

        Args:
            desk: Of the server.
            outbox: Takes the events.
            tenant: Whose requests these are.
            half_closed: Whether no request follows the first.
        """
        self._desk = desk
        self._outbox = outbox
        self._tenant = tenant
        self._half_closed = half_closed
        self._labels: dict[str, LiveRequest] = {}
        self._num_waiting = 0

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
            raise RequestError(Reason.REQUEST_ID, message, field="request_id")
        engine = self._desk.gate.admit()
        request, delivery = convert.to_request(
            start, served=engine.engine.model_name, tenant=self._tenant
        )
        seat = self._desk.quotas.enter(self._tenant)
        try:
            prepared = await engine.prepare(request)
            seat.queue(len(prepared.prompt))
            handle = engine.submit(prepared, self)
        except BaseException:
            seat.leave()
            raise
        track = Track(start.request_id or handle.name, delivery)
        live = LiveRequest(handle, track, self._tenant, seat, arrived_at)
        self._labels[live.request_id] = live
        self._desk.live.add(live)
        self._num_waiting += 1
        self._desk.batch_end.joined(half_closed=self._half_closed)
        if _TRACEPARENT.fullmatch(start.traceparent):
            _log.info("request %s has traceparent %s", handle.name, start.traceparent)

    def cancel(self, request_id: str) -> None:
        """Ends a request early; no effect on one that is not live."""
        live = self._labels.get(request_id)
        if live is not None:
            self._desk.gate.engine().abort(live.handle)

    def update(self, update: pb.Update) -> None:
        """Changes a request from its next step on.

        Raises:
            RequestError: It is not live, or a field is wrong; then it is untouched.
        """
        self._change(update.request_id, lambda: convert.to_change(update))

    def credit(self, credit: pb.Credit) -> None:
        """Gives a request more tokens.

        Raises:
            RequestError: It is not live.
        """
        self._change(credit.request_id, lambda: types.Change(credit=credit.tokens))

    def _change(self, request_id: str, change: Callable[[], types.Change]) -> None:
        convert.check_request_id(request_id)
        live = self._labels.get(request_id)
        if live is None:
            message = "request_id: no live request of this stream has it"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field="request_id")
        self._desk.gate.engine().change(live.handle, change())

    def half_close(self) -> None:
        """No request follows."""
        if not self._half_closed:
            self._half_closed = True
            self._desk.batch_end.half_closed(self._num_waiting)

    def abandon(self) -> None:
        """Ends all requests, because nobody listens; synchronous, so that `finally` may call it."""
        for live in list(self._labels.values()):
            self._desk.gate.engine().abort(live.handle)
            if live.is_accepted:
                self._count_end(live, types.FinishReason.CANCELLED)
            self._forget(live)

    def deliver(self, events: list[tuple["Handle", types.Event]]) -> None:
        """Takes the events of one step."""
        for handle, event in events:
            live = self._desk.live.get(handle.name)
            if live is None:
                continue  # Abandoned; the engine did not know yet.
            match event:
                case types.Tokens():
                    self._on_tokens(live, event)
                case types.Accepted():
                    self._on_accepted(live, event)
                case types.Finished():
                    finished = convert.from_finished(event, live.track.delivery)
                    self._on_end(live, event.reason, finished)
                case types.Failed():
                    self._on_failed(live, event)

    def _on_accepted(self, live: LiveRequest, event: types.Accepted) -> None:
        live.is_accepted = True
        self._desk.live.accepted(live)
        self._desk.metrics.accepted(event.num_prompt_tokens)
        self._outbox.add(live.track.accepted(convert.from_accepted(event, live.handle.name)))

    def _on_tokens(self, live: LiveRequest, event: types.Tokens) -> None:
        if live.last_token_at is None:
            self._started(live)
        if event.token_ids:
            since_arrival_s, since_last_s = live.tokens_came()
            self._desk.metrics.tokens(
                len(event.token_ids), since_arrival_s=since_arrival_s, since_last_s=since_last_s
            )
        self._outbox.add_tokens(live.track, event)

    def _on_failed(self, live: LiveRequest, event: types.Failed) -> None:
        if event.reason is Reason.ENGINE_DOWN:
            self._desk.gate.close()
        error = RequestError(
            event.reason, event.message, field=event.field, retry_after_s=event.retry_after_s
        )
        if live.is_accepted:
            failed = convert.from_failed(event, to_error(error), live.track.delivery)
            self._on_end(live, event.reason, failed)
        else:
            self._forget(live)
            self.refuse(live.request_id, pb.COMMAND_KIND_START, error)

    def _on_end(
        self,
        live: LiveRequest,
        reason: types.FinishReason | Reason,
        end: pb.Finished | pb.Failed,
    ) -> None:
        self._count_end(live, reason)
        self._forget(live)
        self._outbox.end(live.track, end)

    def refuse(self, request_id: str, command: pb.CommandKind, error: RequestError) -> None:
        """Answers a command that is refused; a live request of this label is untouched."""
        if command == pb.COMMAND_KIND_START:
            self._desk.metrics.refused(error.reason)
        rejected = pb.Rejected(command=command, error=to_error(error))
        self._outbox.add(pb.Event(request_id=request_id, rejected=rejected))

    def _count_end(self, live: LiveRequest, reason: types.FinishReason | Reason) -> None:
        self._desk.metrics.ended(reason, time.monotonic() - live.arrived_at)

    def _started(self, live: LiveRequest) -> None:
        """The request no longer waits."""
        self._num_waiting -= 1
        live.seat.start()
        self._desk.batch_end.left(half_closed=self._half_closed)

    def _forget(self, live: LiveRequest) -> None:
        if live.last_token_at is None:
            self._started(live)
        live.seat.leave()
        del self._labels[live.request_id]
        self._desk.live.remove(live)
