"""Metrics of delivered tokens, counted by the core: Python handles no single token."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0
)  # fmt: skip
TOKEN_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5
)  # fmt: skip
"""Both are the buckets of OpenTelemetry's GenAI conventions; the first has one more at its end."""

Figures = tuple[list[int], float]
"""Values in each bucket, not cumulative, and the sum of the values."""


class Deliveries(Protocol):
    """Counts of tokens, read from any thread."""

    @property
    def tokens(self) -> Mapping[str, int]:
        """Return the tokens delivered so far, by the label of the tenant."""

    @property
    def first_token(self) -> Figures:
        """Return the seconds from arrival to the first tokens, in buckets of `FIRST_TOKEN_S`."""

    @property
    def inter_token(self) -> Figures:
        """Return the seconds between tokens of a request, in buckets of `TOKEN_S`."""


class TokenCollector(Collector):
    """Delivered tokens by tenant."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        name, text = "chairlift_generated_tokens", "Tokens delivered to clients."
        family = CounterMetricFamily(name, text, labels=["tenant"])
        for label, count in self._deliveries.tokens.items():
            family.add_metric([label], count)
        yield family


class IntervalCollector(Collector):
    """A histogram that the core keeps."""

    def __init__(
        self, name: str, text: str, bounds: tuple[float, ...], figures: Callable[[], Figures]
    ) -> None:
        self._name = name
        self._text = text
        self._limits = [*(str(bound) for bound in bounds), "+Inf"]
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        counts, total = self._figures()
        buckets = list(zip(self._limits, itertools.accumulate(counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=total)
