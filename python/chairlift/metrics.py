"""What Prometheus reads: counters and histograms of requests, and the engine's load at each scrape.

Intervals are those that the server sees, on one monotonic clock: time to first token runs from the
arrival of the request's command to the delivery of its first token, inter-token latency between the
deliveries of tokens. Labels come from closed lists alone, never from a client.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from chairlift.errors import Reason
from chairlift.types import FinishReason

FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0
)  # fmt: skip
TOKEN_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5
)  # fmt: skip
_REQUEST_S: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 600.0
)  # fmt: skip
"""The first three are the buckets of OpenTelemetry's GenAI conventions, with one more at an end."""
_STEP_S: Final = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048
)  # fmt: skip


class LoadSnapshot(Protocol):
    """What the gauges show; `_core.Load` is one."""

    num_waiting: int
    num_running: int
    num_rows_held: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_preemptions: int
    num_prefix_queries: int
    num_prefix_hits: int


class DeliveryFigures(Protocol):
    """What is counted where tokens are delivered; `_core.Outboxes` is one.

    A histogram is the values in each bucket, not added up, and their sum.
    """

    num_tokens: int
    first_token: tuple[list[int], float]
    inter_token: tuple[list[int], float]


class Metrics:
    """The instruments of one server, in a registry of its own."""

    def __init__(
        self, load: Callable[[], LoadSnapshot | None], deliveries: DeliveryFigures
    ) -> None:
        """Creates the instruments.

        Args:
            load: Gives the load when Prometheus asks, from any thread; None while the model loads.
            deliveries: Counts tokens and their times.
        """
        self.registry = CollectorRegistry()
        self.registry.register(_LoadCollector(load))
        self.registry.register(_DeliveryCollector(deliveries))
        self._ended = Counter(
            "chairlift_requests_ended",
            "Requests that ended, by finish or error reason; refused ones are not among them.",
            ["reason"],
            registry=self.registry,
        )
        self._refused = Counter(
            "chairlift_requests_refused",
            "Requests that were never queued, by error reason.",
            ["reason"],
            registry=self.registry,
        )
        self._prompt_tokens = self._counter("chairlift_prompt_tokens", "Tokens of queued prompts.")
        self._request = self._histogram(
            "chairlift_request_seconds", "From arrival to the last event.", _REQUEST_S
        )
        self._step = self._histogram("chairlift_step_seconds", "Of one engine step.", _STEP_S)
        for finish_reason in FinishReason:
            self._ended.labels(finish_reason.value)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def accepted(self, num_prompt_tokens: int) -> None:
        """A request was queued."""
        self._prompt_tokens.inc(num_prompt_tokens)

    def refused(self, reason: Reason) -> None:
        """A request was not queued."""
        self._refused.labels(reason.value).inc()

    def ended(self, reason: FinishReason | Reason, seconds: float) -> None:
        """A queued request came to its end."""
        self._ended.labels(reason.value).inc()
        self._request.observe(seconds)

    def step(self, seconds: float) -> None:
        """The engine finished a step."""
        self._step.observe(seconds)


class _LoadCollector(Collector):
    """Reads the load when Prometheus asks, so that the steps do not have to report it."""

    def __init__(self, load: Callable[[], LoadSnapshot | None]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        if load is None:
            return
        gauges = (
            ("requests_waiting", "Requests that have not started.", load.num_waiting),
            ("requests_running", "Requests in the batch.", load.num_running),
            ("rows_held", "Rows in use or kept empty until a batch ends.", load.num_rows_held),
            ("kv_blocks", "KV blocks that requests can have.", load.num_blocks),
            ("kv_blocks_free", "KV blocks free or evictable.", load.num_free_blocks),
            ("kv_blocks_cached", "KV blocks in the prefix cache.", load.num_cached_blocks),
        )
        counters = (
            ("preemptions", "Requests that lost their row.", load.num_preemptions),
            ("prefix_cache_queries", "Prompt blocks looked up.", load.num_prefix_queries),
            ("prefix_cache_hits", "Prompt blocks found.", load.num_prefix_hits),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"chairlift_{name}", text, value=value)
        for name, text, value in counters:
            yield CounterMetricFamily(f"chairlift_{name}", text, value=value)

    def describe(self) -> list[Metric]:
        """Nothing is known before the model is loaded."""
        return []


class _DeliveryCollector(Collector):
    """Reads what the core counts when Prometheus asks: Python sees no single token."""

    def __init__(self, deliveries: DeliveryFigures) -> None:
        self._deliveries = deliveries

    def collect(self) -> Iterator[Metric]:
        deliveries = self._deliveries
        yield CounterMetricFamily(
            "chairlift_generated_tokens",
            "Tokens delivered to clients.",
            value=deliveries.num_tokens,
        )
        yield _histogram(
            "chairlift_time_to_first_token_seconds",
            "From arrival to first token.",
            FIRST_TOKEN_S,
            deliveries.first_token,
        )
        yield _histogram(
            "chairlift_inter_token_latency_seconds",
            "Between tokens of a request.",
            TOKEN_S,
            deliveries.inter_token,
        )


def _histogram(
    name: str, text: str, bounds: tuple[float, ...], figures: tuple[list[int], float]
) -> HistogramMetricFamily:
    counts, total = figures
    limits = [*(str(bound) for bound in bounds), "+Inf"]
    buckets = list(zip(limits, itertools.accumulate(counts), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)
