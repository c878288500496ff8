"""Bounds on the times of requests: whether a run keeps them, and which requests do."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chairlift.api.errors import ConfigError
from chairlift.api.figures import STATISTICS, TIMES
from chairlift.api.units import parse_duration

if TYPE_CHECKING:
    from chairlift.bench.driven_request import DrivenRequest

_BOUND: Final = re.compile(r"\s*([a-z]+)_([a-z0-9]+)\s*=(.*)")


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound: the 99th percentile of ITL is at most 0.1 s."""

    time: str
    """One of `TIMES`."""
    statistic: str
    """One of `STATISTICS`, without the deviation."""
    max_s: float

    @property
    def figure(self) -> str:
        """Return the name of the figure: `itl_p99_s`."""
        return f"{self.time}_{self.statistic}_s"

    def is_kept_by(self, request: "DrivenRequest") -> bool:
        """Return whether a request's own times are within the bound.

        The statistic is that of its gaps between tokens; the other times it has once. An answer of
        one token has no gap and no time per token, and keeps these bounds, as in vLLM.
        """
        import numpy as np

        if self.time == "itl":
            gaps = request.itl_s or [0.0]
            percent = int(self.statistic[1:]) if self.statistic != "mean" else None
            time_s = np.mean(gaps) if percent is None else np.percentile(gaps, percent)
            return bool(time_s <= self.max_s)
        if request.latency_s is None:
            return False
        times = {"ttft": request.ttft_s, "tpot": request.tpot_s, "latency": request.latency_s}
        return (times[self.time] or 0.0) <= self.max_s


def bounds_of(text: str) -> list[Bound]:
    """Return the bounds of `itl_p99=100ms,ttft_p50=2s`.

    Raises:
        ConfigError: It is no such list.
    """
    bounds = []
    for part in text.split(","):
        match = _BOUND.fullmatch(part)
        known = [s for s in STATISTICS if s != "std"]
        if match is None or match[1] not in TIMES or match[2] not in known:
            message = (
                "slo: expected bounds such as itl_p99=100ms,ttft_p50=2s "
                f"({', '.join(TIMES)}; {', '.join(known)}), got {part!r}"
            )
            raise ConfigError(message)
        try:
            bounds.append(Bound(match[1], match[2], parse_duration(match[3])))
        except ConfigError as error:
            message = f"slo: {match[1]}_{match[2]}: {error}"
            raise ConfigError(message) from None
    return bounds


def num_good(requests: "Iterable[DrivenRequest]", bounds: Sequence[Bound]) -> int:
    """Return how many requests keep every bound."""
    return sum(all(bound.is_kept_by(request) for bound in bounds) for request in requests)


def is_kept(figures: Mapping[str, object], bounds: Sequence[Bound]) -> bool:
    """Return whether the figures of a run keep every bound."""
    return all(float(str(figures[bound.figure])) <= bound.max_s for bound in bounds)


def capacity(
    runs: Iterable[tuple[float, Mapping[str, object]]], bounds: Sequence[Bound]
) -> tuple[float, bool]:
    """Return the highest offered rate up to which the bounds are kept, and whether it is exceeded.

    A rate keeps the bounds if more than half of its runs do. The rates are those that were offered:
    the true capacity is between the result and the next of them.

    Args:
        runs: Offered rate and figures of each.
        bounds: At least one.

    Returns:
        The rate, 0 if the lowest does not keep the bounds; and False if the highest keeps them.
    """
    kept: dict[float, list[bool]] = {}
    for rate, figures in runs:
        kept.setdefault(rate, []).append(is_kept(figures, bounds))
    best = 0.0
    for rate in sorted(kept):
        if 2 * sum(kept[rate]) <= len(kept[rate]):
            return best, True
        best = rate
    return best, False
