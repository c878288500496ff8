"""Metrics of delivered tokens, counted by the core: Python handles no single token."""

import itertools
import time
from bisect import bisect_left
from collections import deque
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

FINE_TOKEN_S: Final = tuple(sorted({*TOKEN_S, *(1e-4 * 1.1**k for k in range(107))}))
"""Those of `TOKEN_S`, and more between them, for percentiles to within a tenth."""

_KEEP_EACH_S: Final = 10.0
_NUM_KEPT: Final = 6

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
        """Return the seconds between tokens of a request, in buckets of `FINE_TOKEN_S`."""


def coarse(figures: Figures) -> Figures:
    """Return figures of `FINE_TOKEN_S` in the buckets of `TOKEN_S`."""
    counts, total = figures
    ends = [0, *(FINE_TOKEN_S.index(bound) + 1 for bound in TOKEN_S), len(counts)]
    return [sum(counts[start:end]) for start, end in itertools.pairwise(ends)], total


class RecentIntervals:
    """Percentiles of the seconds between tokens, of the last minute; for one event loop."""

    def __init__(
        self, figures: Callable[[], Figures], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start empty.

        Args:
            figures: Returns the counts so far, in buckets of `FINE_TOKEN_S`.
            clock: Returns seconds.
        """
        self._figures = figures
        self._clock = clock
        self._kept: deque[tuple[float, list[int]]] = deque(maxlen=_NUM_KEPT)
        self._last_step = clock()

    def on_step(self) -> None:
        """Keep the counts of now, if the last ones are old."""
        self._last_step = now = self._clock()
        if not self._kept or now - self._kept[-1][0] >= _KEEP_EACH_S:
            self._kept.append((now, self._figures()[0]))

    def percentiles(self, *percents: float) -> list[float] | None:
        """Return percentiles in seconds, each the upper end of its bucket; None without tokens."""
        if not self._kept or self._clock() - self._last_step > _NUM_KEPT * _KEEP_EACH_S:
            return None
        before = self._kept[0][1]
        counts = [now - then for now, then in zip(self._figures()[0], before, strict=True)]
        sums = list(itertools.accumulate(counts))
        if not sums[-1]:
            return None
        bounds = (*FINE_TOKEN_S, FINE_TOKEN_S[-1])
        return [bounds[bisect_left(sums, sums[-1] * percent / 100)] for percent in percents]


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
