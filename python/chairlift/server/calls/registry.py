"""The live requests of the server: one record for each, and its stages from arrival to end.

    SUBMITTED ──▶ QUEUED ──▶ STARTED ──▶ ENDED
        └────────────┴──────────────────▶

The stage of a record is the only place that says whether a request waits. Whatever counts waiting
requests (quotas, the backlog, the end of a static batch) is updated by `Registry.started` alone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Protocol

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import FinishReason
from chairlift.engine.submitted_request import SubmittedRequest
from chairlift.server.calls.resumables import Resumable
from chairlift.server.convert.messages import DeliveryOptions
from chairlift.server.limits.backlog import AdmissionSlot
from chairlift.server.limits.quotas import QuotaLease
from chairlift.v1 import generation_pb2 as pb

_MAX_ENDED: Final = 4096
"""Ended requests whose names are kept: a step that is still to be reported may name them."""


class Stage(IntEnum):
    """How far a request is."""

    SUBMITTED = 0
    """The engine has not answered yet."""
    QUEUED = 1
    """The scheduler has taken it, and it has no token yet."""
    STARTED = 2
    """Its first token has been delivered."""
    ENDED = 3


class Call(Protocol):
    """The call that a request came by."""

    half_closed: bool
    """Whether no request follows."""
    live: "dict[str, LiveRequest]"
    """Its live requests by label; only the registry changes it."""

    def on_event(self, request: "LiveRequest", event: types.Event) -> None:
        """Handle an event of one of its requests."""

    def on_first_token(self, request: "LiveRequest") -> None:
        """Handle the first token of one of its requests."""

    def detach(self, request: "LiveRequest") -> None:
        """Handle that another call takes one of its requests."""


@dataclass(slots=True, eq=False)
class LiveRequest(SubmittedRequest):
    """A request between its submission and its last event, which its call handles."""

    call: Call
    label: str
    """The client's name of the request; the handle's where the client gives none."""
    tenant: str
    output: DeliveryOptions
    lease: QuotaLease
    slot: AdmissionSlot
    arrived_at: float
    """Monotonic seconds."""
    operation: str = "text_completion"
    """What it is called in traces; `chat` for a conversation."""
    traceparent: str = ""
    """The trace context of its caller, as it came."""
    stage: Stage = Stage.SUBMITTED
    usage: types.Usage | None = None
    """Sum over the answers that have ended."""
    resumable: Resumable | None = None
    """The log and window of a request that outlives its stream."""

    def __post_init__(self) -> None:
        self.label = self.label or self.handle

    def deliver(self, event: types.Event) -> None:
        """Handle an event; a request whose call is over ignores it."""
        if self.stage is not Stage.ENDED:
            self.call.on_event(self, event)

    def on_first_token(self) -> None:
        """Tell the call that the first token is delivered."""
        self.call.on_first_token(self)

    def use(self, usage: types.Usage) -> None:
        """Add the tokens of an answer that has ended."""
        before = self.usage or types.Usage(0, 0, 0)
        self.usage = types.Usage(
            before.prompt_tokens + usage.prompt_tokens,
            before.cached_tokens + usage.cached_tokens,
            before.output_tokens + usage.output_tokens,
            before.transferred_tokens + usage.transferred_tokens,
        )


@dataclass(frozen=True, slots=True)
class RequestNames:
    """What steps call a request; kept after its end, unlike its prompt."""

    engine_id: int
    handle: str
    request_id: str
    tenant: str
    reason: str = ""
    """Why it ended; empty while it is live."""
    num_output_tokens: int = 0
    """Output tokens of all its answers, once it has ended."""


class Registry:
    """All live requests of the server by handle, and those of each call by label.

    For one event loop.
    """

    def __init__(self, flush: Callable[[], None] = lambda: None) -> None:
        """Start without requests.

        Args:
            flush: Runs a partial static batch; called after the requests of it were submitted.
        """
        self._by_handle: dict[str, LiveRequest] = {}
        self._names: dict[int, RequestNames] = {}
        self._ended: deque[RequestNames] = deque()
        self._batch_flush = StaticBatchFlush(flush)

    def __len__(self) -> int:
        return len(self._by_handle)

    def add(self, request: LiveRequest) -> None:
        """Register a request that was submitted."""
        self._by_handle[request.handle] = request
        request.call.live[request.label] = request
        self._batch_flush.add(half_closed=request.call.half_closed)

    def queued(self, request: LiveRequest, engine_id: int) -> None:
        """Note that the scheduler has taken a request."""
        request.stage = Stage.QUEUED
        self._names[engine_id] = RequestNames(
            engine_id, request.handle, request.label, request.tenant
        )

    def started(self, request: LiveRequest, *, has_token: bool = True) -> None:
        """Count a request as one that no longer waits.

        Args:
            request: SUBMITTED or QUEUED.
            has_token: Whether the request has a token, as opposed to one that ends without.
        """
        request.stage = Stage.STARTED
        request.slot.end(started=has_token)
        request.lease.start()
        self._batch_flush.remove(half_closed=request.call.half_closed)

    def move(self, request: LiveRequest, call: Call, label: str) -> None:
        """Give a request that is queued or has started to another call, under another label."""
        request.call.detach(request)
        del request.call.live[request.label]
        if request.stage < Stage.STARTED:
            # In this order: for a moment without it the batch would seem complete.
            self._batch_flush.add(half_closed=call.half_closed)
            self._batch_flush.remove(half_closed=request.call.half_closed)
        request.call, request.label = call, label
        call.live[label] = request
        if request.engine_id is not None:
            names = self._names[request.engine_id]
            self._names[request.engine_id] = replace(names, request_id=label)

    def half_closed(self, requests: Iterable[LiveRequest]) -> None:
        """Note that the call of these requests takes no further request."""
        num_waiting = sum(request.stage < Stage.STARTED for request in requests)
        self._batch_flush.half_closed(num_waiting)

    def ended(self, request: LiveRequest, reason: FinishReason | Reason) -> None:
        """Forget a request; its names are kept for a while, for its last step comes later.

        Args:
            request: In any stage.
            reason: Why it ended.
        """
        if request.stage < Stage.STARTED:
            self.started(request, has_token=False)
        request.stage = Stage.ENDED
        request.lease.release()
        self._by_handle.pop(request.handle, None)
        del request.call.live[request.label]
        names = None if request.engine_id is None else self._names.get(request.engine_id)
        # An engine that was restarted counts its ids from the start: another may have this one.
        if names is not None and names.handle == request.handle:
            num_output = 0 if request.usage is None else request.usage.output_tokens
            names = replace(names, reason=reason.value.lower(), num_output_tokens=num_output)
            self._names[names.engine_id] = names
            self._ended.append(names)
        while len(self._ended) > _MAX_ENDED:
            oldest = self._ended.popleft()
            if self._names.get(oldest.engine_id) is oldest:
                del self._names[oldest.engine_id]

    def adapters(self) -> tuple[set[str], set[str]]:
        """Return the adapters of live requests with a token, and without; any thread may call."""
        running: set[str] = set()
        waiting: set[str] = set()
        for live in list(self._by_handle.values()):
            if live.prepared.adapter is not None:
                names = running if live.stage is Stage.STARTED else waiting
                names.add(live.prepared.adapter.name)
        return running, waiting

    def get(self, handle: str) -> LiveRequest | None:
        """Return the live request of a handle, of any tenant; None if there is none."""
        return self._by_handle.get(handle)

    def find(self, tenant: str, request: pb.AbortRequest | pb.ExplainRequest) -> list[LiveRequest]:
        """Return the live requests of a tenant that the target of a request names.

        Raises:
            RequestError: It has no target.
        """
        target = request.WhichOneof("target")
        if target is None:
            names = " or ".join(field.name for field in request.DESCRIPTOR.oneofs[0].fields)
            message = f"target: expected {names}, got none of them"
            raise RequestError(Reason.BAD_PARAMETER, message, field="target")
        return [
            live
            for live in self._of_tenant(tenant)
            if target == "all"
            or (target == "handle" and live.handle == request.handle)
            or (target == "request_id" and live.label == request.request_id)
        ]

    def labelled(self, tenant: str, labels: frozenset[str]) -> list[LiveRequest]:
        """Return the live requests of a tenant that have one of these labels."""
        return [live for live in self._of_tenant(tenant) if live.label in labels]

    def _of_tenant(self, tenant: str) -> Iterator[LiveRequest]:
        return (live for live in list(self._by_handle.values()) if live.tenant == tenant)

    def names(self, engine_id: int) -> RequestNames | None:
        """Return the names of a request that a step lists, live or just ended."""
        return self._names.get(engine_id)


class StaticBatchFlush:
    """Counts waiting requests of streams that may send more and of streams that will not.

    A static batch waits for as many requests as fit. Once no stream that has requests in the queue
    can send another, waiting longer is in vain, and the batch runs as it is.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        """Start with no request waiting.

        Args:
            flush: Runs a partial batch.
        """
        self._flush = flush
        self._num_waiting_open = 0
        self._num_waiting_closed = 0

    def add(self, *, half_closed: bool) -> None:
        """Count a request that was submitted."""
        if half_closed:
            self._num_waiting_closed += 1
            self._check()
        else:
            self._num_waiting_open += 1

    def remove(self, *, half_closed: bool) -> None:
        """Discount a request that no longer waits: it started, or it ended."""
        if half_closed:
            self._num_waiting_closed -= 1
        else:
            self._num_waiting_open -= 1
            self._check()

    def half_closed(self, num_waiting: int) -> None:
        """Note that a stream with this many waiting requests will send no more."""
        self._num_waiting_open -= num_waiting
        self._num_waiting_closed += num_waiting
        self._check()

    def _check(self) -> None:
        if self._num_waiting_closed and not self._num_waiting_open:
            self._flush()
