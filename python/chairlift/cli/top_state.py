"""The state of `chairlift top`: the last load of a server, and its recent steps."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chairlift.api.recent import Recent, percentile, size_class
from chairlift.cli.watched_steps import WatchedRow, watched_rows
from chairlift.timeline.values import PARTS

if TYPE_CHECKING:
    from google.protobuf import duration_pb2

    from chairlift.v1 import server_pb2 as pb

WINDOW_S: Final = 2.0
"""Window of the rates."""
MAX_STEPS: Final = 4096
"""Most steps that are kept for the figure and the curve of step times."""
_STALE_S: Final = 3.0
"""Figures that are this much older than a frame are marked as stale."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step as it arrived."""

    at: float
    """Arrival, in monotonic seconds."""
    duration_s: float
    parts_s: tuple[float, ...]
    """In the order of `PARTS`."""
    rows: tuple[WatchedRow, ...]
    """Those of other tenants have the number of the row for a handle."""
    num_prompt_tokens: int
    """Tokens of prompts that it computed."""
    num_output_tokens: int
    """Tokens that it gave, accepted drafts included."""
    preempted: tuple[str, ...]
    """Handles of requests that lost a row before it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates over the window; 0 if nothing ran."""

    tokens_per_s: float
    prompt_tokens_per_s: float
    steps_per_s: float
    step_s: float
    """Mean."""
    parts_s: dict[str, float]
    """Mean of each part."""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that has a row now."""

    row: int
    request_id: str
    """Empty for a request of another tenant."""
    num_tokens: int
    """Tokens since the watch began."""
    in_prefill: bool
    number: int
    """Its position among the requests that were seen."""
    token_at: float | None = None
    """Time of its last token, in seconds on the server's clock."""
    token_step: int = 0
    """The step that computed it."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the last minute, in seconds."""

    median_s: float
    p99_s: float


class TopState:
    """Updated by two watches, read by the view."""

    def __init__(
        self,
        target: str,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 0.5,
    ) -> None:
        """Start unconnected.

        Args:
            target: Address of the server.
            clock: Returns seconds.
            interval_s: Between frames.
        """
        self.target = target
        self.info: pb.GetServerInfoResponse | None = None
        self.model_name = ""
        self.load: pb.Load | None = None
        self.error = ""
        """Why there is no connection; empty while there is one."""
        self.steps: deque[Step] = deque(maxlen=MAX_STEPS)
        self._clock = clock
        self._stale_s = _STALE_S + interval_s
        self._since = self._load_at = clock()
        self._totals: deque[tuple[float, dict[str, int]]] = deque()
        self._gaps: Recent[int] = Recent(clock)
        self._last_step = self._unbroken_from = 0
        self._requests: dict[str, RunningRequest] = {}
        self._num_requests = 0

    def connected(self, info: "pb.GetServerInfoResponse", model_name: str) -> None:
        """Reset the state for a new connection, perhaps to another server."""
        self.info, self.model_name, self.error = info, model_name, ""
        self.steps.clear()
        self._requests.clear()
        self._totals.clear()
        self._gaps = Recent(self._clock)
        self._last_step = self._unbroken_from = 0
        self._since = self._clock()

    def lost(self, why: str) -> None:
        """Note that the connection was lost."""
        self.error = why or "the server ended"

    def take(self, load: "pb.Load") -> None:
        """Set the load, which comes once per frame."""
        self.load, now = load, self._clock()
        self._load_at = now
        self._totals.append((now, {t.tenant: t.num_generated_tokens for t in load.tenants}))
        while len(self._totals) > 2 and now - self._totals[1][0] >= WINDOW_S:
            self._totals.popleft()

    @property
    def age_s(self) -> float:
        """Return the age of the figures, in seconds."""
        return self._clock() - self._load_at

    @property
    def is_stale(self) -> bool:
        """Return whether the figures are stale."""
        return self.load is not None and (bool(self.error) or self.age_s > self._stale_s)

    def tokens_per_s(self, tenant: str) -> float:
        """Return the output tokens per second of a tenant, over the window."""
        (first_at, first), (last_at, last) = self._totals[0], self._totals[-1]
        return (last.get(tenant, 0) - first.get(tenant, 0)) / max(last_at - first_at, 1e-3)

    def inter_token(self) -> Latency | None:
        """Return the latency between tokens, of the requests with a name."""
        counts = self._gaps.counts()
        return Latency(percentile(counts, 50), percentile(counts, 99)) if counts else None

    def add(self, step: "pb.Step") -> None:
        """Add a step."""
        from chairlift.v1 import server_pb2

        if step.step != self._last_step + 1:
            # Steps are missing: one of them may have computed a token.
            self._unbroken_from = step.step
        self._last_step = step.step
        ended_at = _seconds(step.start) + _seconds(step.duration)
        for row in step.rows:
            if row.handle:
                self._requests[row.handle] = self._next(step.step, ended_at, row)
        while len(self._requests) > MAX_STEPS:
            self._requests.pop(next(iter(self._requests)))
        rows = tuple(
            row if row.handle else row._replace(handle=_anonymous_id(row.row))
            for row in watched_rows(step)
        )
        parts_s = tuple(_seconds(getattr(step.times, part)) for part in PARTS)
        prefills = [row for row in step.rows if row.work == server_pb2.ROW_WORK_PREFILL]
        self.steps.append(
            Step(
                self._clock(),
                _seconds(step.duration),
                parts_s,
                rows,
                num_prompt_tokens=sum(row.num_tokens - row.num_drafts for row in prefills),
                num_output_tokens=sum(row.sampled + row.num_accepted for row in step.rows),
                preempted=tuple(step.preempted_handles),
            )
        )

    def _next(self, step: int, ended_at: float, row: "pb.StepRow") -> RunningRequest:
        """Return a request's state after a step that includes it."""
        known = self._requests.get(row.handle)
        self._num_requests += known is None
        token_at, token_step = (known.token_at, known.token_step) if known else (None, 0)
        if row.sampled:
            if token_at is not None and token_step >= self._unbroken_from:
                self._gaps.add(size_class(ended_at - token_at))
            token_at, token_step = ended_at, step
        return RunningRequest(
            row.row,
            row.request_id,
            num_tokens=row.sampled + row.num_accepted + (known.num_tokens if known else 0),
            in_prefill=not row.sampled,
            number=known.number if known else self._num_requests - 1,
            token_at=token_at,
            token_step=token_step,
        )

    def running_requests(self) -> dict[str, RunningRequest]:
        """Return the requests of the last steps by handle; those of other tenants have no name."""
        if self.load is None or not self.load.num_running:
            return {}
        now = self._clock()
        last = [step for step in list(self.steps)[-2:] if now - step.at <= WINDOW_S]
        of_row = {row.row: row for step in last for row in step.rows}
        return {
            row.handle: self._requests.get(row.handle) or _unnamed(row)
            for _, row in sorted(of_row.items())
        }

    def number(self, handle: str) -> int:
        """Return a request's lasting number; for requests of other tenants, the row's."""
        request = self._requests.get(handle)
        return request.number if request else int(handle.removeprefix("#") or 0)

    def rates(self) -> Rates:
        """Return the rates over the last `WINDOW_S`, or less after a connection."""
        now = self._clock()
        recent = [step for step in self.steps if now - step.at <= WINDOW_S]
        span = max(min(WINDOW_S, now - self._since), 1e-3)
        count = max(1, len(recent))
        means = [sum(step.parts_s[i] for step in recent) / count for i in range(len(PARTS))]
        return Rates(
            tokens_per_s=sum(step.num_output_tokens for step in recent) / span,
            prompt_tokens_per_s=sum(step.num_prompt_tokens for step in recent) / span,
            steps_per_s=len(recent) / span,
            step_s=sum(step.duration_s for step in recent) / count,
            parts_s=dict(zip(PARTS, means, strict=True)),
        )


def _unnamed(row: WatchedRow) -> RunningRequest:
    return RunningRequest(row.row, "", 0, in_prefill=not row.sampled, number=row.row)


def _anonymous_id(row: int) -> str:
    """Return a substitute for the handle of another tenant's request, which is hidden."""
    return f"#{row}"


def _seconds(duration: "duration_pb2.Duration") -> float:
    return float(duration.ToNanoseconds() * 1e-9)
