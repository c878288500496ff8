"""How much of a scenario is run, and what came of it."""

import statistics
from dataclasses import dataclass, field
from enum import StrEnum


class Scale(StrEnum):
    """Seconds in `make test`, a few minutes, or as long as a release deserves."""

    QUICK = "quick"
    MEDIUM = "medium"
    LONG = "long"


COMPARED_S = 60
"""The most that a run to compare with takes, however long the one that is measured."""


@dataclass
class Figures:
    """One row of the table in docs/benchmarks/robustness.md."""

    scenario: str
    amount: str
    """How much was done."""
    found: list[str] = field(default_factory=list)
    """What was counted and measured, each with its unit."""

    def row(self) -> str:
        """In Markdown."""
        return f"| {self.scenario} | {self.amount} | {'; '.join(self.found)} |"


def percentile(values: list[float], part: int) -> float:
    """The given percentile; of one value, that value."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[part - 1]


def milliseconds(seconds: float) -> str:
    """`12.3 ms`."""
    return f"{seconds * 1e3:.1f} ms"


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line through the second half of the points, by least squares."""
    late = points[len(points) // 2 :]
    return statistics.linear_regression(*zip(*late, strict=True)).slope
