"""The figures of a load that clients sent, and the runs of a report."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chairlift.api.errors import ChairliftError
from chairlift.api.figures import statistics_of
from chairlift.bench.arrivals import Arrivals
from chairlift.bench.driven_request import durations_of
from chairlift.bench.slo import Bound, num_good
from chairlift.bench.workload import Item
from chairlift.cli.bench.load import LoadResult
from chairlift.cli.report import Result

Send = Callable[[Sequence[Item]], LoadResult]
"""Sends requests and waits for every end."""
Draw = Callable[[Arrivals], Sequence[Item]]
"""Returns the requests for a way of arriving."""

_FLOW_POINTS: Final = 100


def figures(load: LoadResult, bounds: Sequence[Bound] = ()) -> dict[str, str | int | float]:
    """Return the figures of `vllm bench serve` by this project's names; itl is between events.

    Args:
        load: What was sent.
        bounds: Those that a good request keeps.

    Raises:
        ChairliftError: Every request failed.
    """
    requests = [request for request in load.requests if not request.failure]
    if not requests:
        message = f"every request failed, the first with {load.requests[0].failure}"
        raise ChairliftError(message)
    seconds = max(r.finished_s or 0.0 for r in requests) - min(r.arrival_s for r in requests)
    num_tokens = sum(request.num_output for request in requests)
    good = num_good(requests, bounds)
    return {
        "requests": len(load.requests),
        "failed": len(load.requests) - len(requests),
        "output_tokens": num_tokens,
        "seconds": seconds,
        "tokens_per_s": num_tokens / seconds,
        "total_tokens_per_s": (num_tokens + sum(r.num_prompt for r in requests)) / seconds,
        "requests_per_s": len(requests) / seconds,
        **statistics_of(durations_of(requests)),
        **({"good_requests": good, "goodput_per_s": good / seconds} if bounds else {}),
    }


def flow_of(load: LoadResult) -> list[list[float]]:
    """Return seconds, and the requests sent, begun and ended by then, evenly over a run."""
    import numpy as np

    requests = [request for request in load.requests if not request.failure]
    sent = np.sort([r.arrival_s for r in requests])
    begun = np.sort([r.event_times_s[0] for r in requests if r.event_times_s])
    ended = np.sort([r.finished_s or 0.0 for r in requests])
    times = np.linspace(sent[0], ended[-1], _FLOW_POINTS + 1)
    counts = [np.searchsorted(events, times, side="right") for events in (sent, begun, ended)]
    table = np.column_stack([times - sent[0], *counts])
    return [[round(float(time), 4), *map(int, row)] for time, *row in table]


@dataclass(slots=True)
class SentRuns:
    """The runs of a command, each rate once in a repetition."""

    rates_per_s: Sequence[float] = (math.inf,)
    repeat: int = 1
    bounds: Sequence[Bound] = ()
    concurrency: int | None = None
    """Requests at a time; None is any number."""
    reported: list[dict[str, Any]] = field(default_factory=list)
    """What a report shows."""

    def sent(self, send: Send, draw: Draw) -> Iterator[Result]:
        """Send each run and yield its figures.

        Raises:
            ChairliftError: Every request of a run failed.
        """
        for _ in range(self.repeat):
            for rate in self.rates_per_s:
                yield self.noted(send(draw(Arrivals(rate))), rate)

    def noted(
        self,
        load: LoadResult,
        rate_per_s: float = math.inf,
        more: Mapping[str, float] | None = None,
    ) -> Result:
        """Return the figures of a run, and keep it for the report.

        Args:
            load: What was sent.
            rate_per_s: Offered.
            more: Figures beside those of every load.

        Raises:
            ChairliftError: Every request failed.
        """
        rate: float | str = "max" if math.isinf(rate_per_s) else rate_per_s
        number = len(self.reported) + 1
        found = {**figures(load, self.bounds), **(more or {})}
        place: dict[str, Any] = {
            "policy": "server",
            "rows": None,
            "rate_per_s": rate,
            "repeat": number,
            "concurrency": self.concurrency,
        }
        self.reported.append({**place, **found, "flow": flow_of(load)})
        return {"run": number, "rate_per_s": rate, **found}
