"""Counters and histograms of requests, steps and calls.

Intervals are those that the server sees, on one monotonic clock: time to first token runs from the
arrival of the request's command to the delivery of its first token, inter-token latency between the
deliveries of tokens. Labels come from closed lists alone, never from a client; for tenants see
`TenantLabels`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from chairlift._core import Load, PrefixStoreStats
from chairlift.api.errors import Reason
from chairlift.api.types import FinishReason, Timeline
from chairlift.server.metrics.activity import Activity
from chairlift.server.metrics.deliveries import (
    FIRST_TOKEN_S,
    TOKEN_S,
    Deliveries,
    IntervalCollector,
    RecentIntervals,
    TokenCollector,
    coarse,
)
from chairlift.server.metrics.load import LoadCollector, ServedModel
from chairlift.server.metrics.prefix_store import PrefixStoreCollector
from chairlift.server.metrics.tenants import TenantLabels
from chairlift.server.metrics.vllm import AdapterRequests, VllmCollector

STEP_PARTS: Final = ("schedule", "inputs", "forward", "sample", "update")

_REQUEST_S: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 600.0
)  # fmt: skip
"""The buckets of OpenTelemetry's GenAI conventions, with one more at the end."""
_STEP_S: Final = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048
)  # fmt: skip
_DELIVERY_S: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0
)  # fmt: skip


class Metrics:
    """The instruments of one server, in a registry of its own."""

    def __init__(
        self,
        load: Callable[[], Load | None],
        model: ServedModel,
        tenant_label: TenantLabels,
        deliveries: Deliveries,
        adapters: Callable[[], AdapterRequests],
    ) -> None:
        """Create the instruments.

        Args:
            load: Returns the load, from any thread; None while the model loads.
            model: The served model.
            tenant_label: Returns the label of a tenant.
            deliveries: The tokens delivered, and their times.
            adapters: Returns the adapters that requests name, from any thread.
        """
        self.registry = CollectorRegistry()
        self.tenant_label = tenant_label
        self.activity = Activity(tenant_label, deliveries)
        self.registry.register(LoadCollector(load, model))
        self.intervals = RecentIntervals(lambda: deliveries.inter_token)
        self._add_counters()
        self._add_histograms()
        self._add_deliveries(deliveries)
        aliases = {
            "time_to_first_token_seconds": self._first_token,
            "inter_token_latency_seconds": self._inter_token,
            "e2e_request_latency_seconds": self._request,
            "request_queue_time_seconds": self._queue,
            "request_prefill_time_seconds": self._prefill,
            "request_decode_time_seconds": self._decode,
        }
        self.registry.register(VllmCollector(load, model, aliases, adapters))

    def watch_prefix_store(self, stats: Callable[[], PrefixStoreStats | None]) -> None:
        """Add the metrics of a prefix store, whose counts any thread may read."""
        self.registry.register(PrefixStoreCollector(stats))

    def _add_counters(self) -> None:
        self._ended = self._counter(
            "requests_ended",
            "Requests that ended, by finish or error reason; refused ones are not among them.",
            "reason",
        )
        self._refused = self._counter(
            "requests_refused", "Requests that were never queued, by error reason.", "reason"
        )
        self._calls_failed = self._counter(
            "calls_failed",
            "Calls that ended with an error, by its reason, such as UNAUTHENTICATED.",
            "reason",
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of queued prompts.", "tenant")
        self._pauses = self._counter(
            "stream_pauses", "Times that requests were suspended because their client did not read."
        )
        self._restarts = self._counter("engine_restarts", "Restarts of a lost engine in place.")
        step_parts = self._counter(
            "step_part_seconds",
            "Time of the engine's steps: schedule, inputs, forward, sample, update; they add up.",
            "part",
        )
        self._step_parts = [step_parts.labels(part) for part in STEP_PARTS]
        for finish_reason in FinishReason:
            self._ended.labels(finish_reason.value)
        for reason in (Reason.UNAUTHENTICATED, Reason.SLOW_READER):
            self._calls_failed.labels(reason.value)

    def _add_histograms(self) -> None:
        self._request = self._histogram(
            "request_seconds", "Time from arrival to the last event.", _REQUEST_S
        )
        self._queue = self._histogram(
            "request_queue_seconds",
            "Time from queueing to its first step, unless its client disconnected.",
            _REQUEST_S,
        )
        self._prefill = self._histogram(
            "request_prefill_seconds",
            "Time from its first step to its first token, unless its client disconnected.",
            _REQUEST_S,
        )
        self._decode = self._histogram(
            "request_decode_seconds",
            "Time from its first token to its end, unless its client disconnected.",
            _REQUEST_S,
        )
        self._step = self._histogram("step_seconds", "Duration of an engine step.", _STEP_S)
        self._delivery_wait = self._histogram(
            "delivery_wait_seconds",
            "Time that a step's events wait for the event loop.",
            _DELIVERY_S,
        )
        self._delivery_work = self._histogram(
            "delivery_work_seconds",
            "Time of the event loop to deliver a step's events.",
            _DELIVERY_S,
        )

    def _add_deliveries(self, deliveries: Deliveries) -> None:
        self._first_token = IntervalCollector(
            "chairlift_time_to_first_token_seconds",
            "Time from arrival to first token.",
            FIRST_TOKEN_S,
            lambda: deliveries.first_token,
        )
        self._inter_token = IntervalCollector(
            "chairlift_inter_token_latency_seconds",
            "Time between tokens of a request.",
            TOKEN_S,
            lambda: coarse(deliveries.inter_token),
        )
        for collector in (TokenCollector(deliveries), self._first_token, self._inter_token):
            self.registry.register(collector)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"chairlift_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"chairlift_{name}", text, buckets=buckets, registry=self.registry)

    def accepted(self, tenant: str, num_prompt_tokens: int) -> None:
        """Count a request that was queued."""
        self._prompt_tokens.labels(self.tenant_label(tenant)).inc(num_prompt_tokens)

    def started(self, tenant: str, seconds: float) -> None:
        """Note the seconds from the arrival of a request to the delivery of its first token."""
        self.activity.started(tenant, seconds)

    def refused(self, tenant: str, reason: Reason) -> None:
        """Count a request that was refused."""
        self.activity.ended(tenant, reason)
        self._refused.labels(reason.value).inc()

    def ended(
        self,
        tenant: str,
        reason: FinishReason | Reason,
        seconds: float,
        timeline: Timeline | None,
    ) -> None:
        """Count the end of a queued request; one whose client disconnected has no timeline."""
        self.activity.ended(tenant, reason)
        self._ended.labels(reason.value).inc()
        self._request.observe(seconds)
        if timeline is None:
            return
        self._queue.observe(timeline.queued_s)
        if timeline.prefill_s is not None:
            self._prefill.observe(timeline.prefill_s)
        if timeline.decode_s is not None:
            self._decode.observe(timeline.decode_s)

    def step(self, seconds: float, parts_s: Sequence[float]) -> None:
        """Note the duration of a step; `parts_s` are in the order of `STEP_PARTS`."""
        self.intervals.on_step()
        self._step.observe(seconds)
        for counter, part_s in zip(self._step_parts, parts_s, strict=True):
            counter.inc(part_s)

    def delivery(self, waited_s: float, worked_s: float) -> None:
        """Note how long the events of a step waited, and how long their delivery took."""
        self._delivery_wait.observe(waited_s)
        self._delivery_work.observe(worked_s)

    def call_failed(self, reason: Reason) -> None:
        """Count a call that ended with an error."""
        self._calls_failed.labels(reason.value).inc()

    def stream_paused(self) -> None:
        """Count a stream whose requests are suspended because its client does not read."""
        self._pauses.inc()

    def restarted(self) -> None:
        """Count a restart of the engine."""
        self._restarts.inc()
