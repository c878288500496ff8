"""One request of a measured load, and the times that are said of it."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class DrivenRequest:
    """The times of one request, in seconds after the start."""

    arrival_s: float
    num_prompt: int
    num_padding: int = 0
    """Tokens at the end of the answer that are computed and not counted."""
    num_output: int = 0
    """Tokens of the answer so far."""
    event_times_s: list[float] = field(default_factory=list)
    """Times of the events with tokens."""
    finished_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time from the arrival to the first token."""
        return self.event_times_s[0] - self.arrival_s if self.event_times_s else None

    @property
    def itl_s(self) -> list[float]:
        """Gaps between the events with tokens."""
        return [after - before for before, after in itertools.pairwise(self.event_times_s)]

    @property
    def tpot_s(self) -> float | None:
        """Time for each token behind the first; None for an answer of fewer than two."""
        if self.finished_s is None or self.num_output < 2:
            return None
        return (self.finished_s - self.event_times_s[0]) / (self.num_output - 1)

    @property
    def latency_s(self) -> float | None:
        """Time from the arrival to the end."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s


def durations_of(requests: Iterable[DrivenRequest]) -> dict[str, list[float]]:
    """Return the seconds of each of `TIMES`: of every request, and for `itl` of every gap."""
    known = list(requests)
    return {
        "ttft": [r.ttft_s for r in known if r.ttft_s is not None],
        "tpot": [r.tpot_s for r in known if r.tpot_s is not None],
        "itl": [gap for request in known for gap in request.itl_s],
        "latency": [r.latency_s for r in known if r.latency_s is not None],
    }
