"""What batching can gain at most, and why it gains less: the time of a step by its rows.

A policy that keeps `u` of `B` rows busy computes `u B` tokens in a step of `t(u B)`. So one policy
gains `(u_c / u_s) * t(u_s B) / t(u_c B)` over another: the first factor is what slots allow, the
second what longer steps take back.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

_FEW: Final = 3
"""A row count of fewer decode steps says little."""

MAX_OTHER_SHARE: Final = 0.25
"""Share of the cores that other work may use while a claim is measured."""


class StepCurve:
    """The time of a decode step by its number of rows, from the medians of some runs."""

    def __init__(self, curves: Iterable[Sequence[Sequence[float]]]) -> None:
        """Merge curves of the same model.

        Args:
            curves: Each has entries of rows, steps, median seconds.
        """
        sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for curve in curves:
            for rows, count, seconds in curve:
                sums[int(rows)][0] += count
                sums[int(rows)][1] += count * seconds
        often = {rows: found for rows, found in sums.items() if found[0] >= _FEW} or sums
        self.points = [
            (rows, total / count) for rows, (count, total) in sorted(often.items()) if count
        ]
        """Rows and seconds, in order of the rows."""

    def time_s(self, rows: float) -> float | None:
        """Return the time of a step, between the known ones by a line; None without any."""
        import numpy as np

        if not self.points:
            return None
        known, seconds = zip(*self.points, strict=True)
        return float(np.interp(rows, known, seconds))


class Gain(NamedTuple):
    """What one policy gained over another on the same work, and its bound."""

    policy: str
    base: str
    rows: int
    rate_per_s: float | None
    measured: float
    """Ratio of their output tokens per second: the median of neighbouring runs."""
    measured_min: float
    measured_max: float
    num_repeats: int
    slot_ratio: float
    """What slots allow: ratio of the mean rows of a step."""
    step_ratio: float
    """How much longer the step of more rows takes."""
    policy_rows: float
    base_rows: float
    other_cores: float
    """Used by others meanwhile: the highest of the runs."""
    cores: int
    is_modelled: bool = False
    """Whether the times come from a model of the step time."""

    @property
    def predicted(self) -> float:
        """Gain that slots and steps explain."""
        return self.slot_ratio / self.step_ratio

    @property
    def is_claim(self) -> bool:
        """Whether the machine was idle enough beside the measurement."""
        return self.other_cores <= MAX_OTHER_SHARE * self.cores

    def sentence(self) -> str:
        """Return the gain and its bound in words, or why it is no claim."""
        measured = f"{self.measured:.2f}x"
        if self.num_repeats > 1:
            measured += f" ({self.measured_min:.2f} to {self.measured_max:.2f})"
        rows = f"{self.rows} row{'s' * (self.rows != 1)}"
        gain = f"{TITLES[self.policy]} gave {measured} of {TITLES[self.base]} at {rows}"
        bound = f"{self.slot_ratio:.1f}x is the most that slots allow"
        if abs(self.policy_rows - self.base_rows) >= 1:
            bound += (
                f", and a step of {self.policy_rows:.0f} rows takes {self.step_ratio:.1f}x one of "
                f"{self.base_rows:.0f}"
            )
        if self.is_modelled:
            return f"By a model of the step time {gain}; {bound}."
        if self.is_claim:
            return f"On this machine {gain}; {bound}."
        return (
            f"No claim: other work used {self.other_cores:.1f} of {self.cores} cores meanwhile; "
            f"repeat it on an idle machine. What was seen: {gain}; {bound}."
        )


TITLES: Final[Mapping[str, str]] = {
    "none": "no batching",
    "padded": "padded static batching",
    "static": "static batching",
    "dynamic": "dynamic batching",
    "unchunked": "continuous batching without chunks",
    "continuous": "continuous batching",
    "cached": "continuous batching with a prefix cache",
    "recorded": "the recorded run",
}
"""Policies as a sentence names them."""

_BASES: Final = ("static", "dynamic", "none", "padded")
_BETTER: Final = ("continuous", "cached", "unchunked", "dynamic", "static")


def main_pair(policies: Iterable[str]) -> tuple[str, str] | None:
    """Return the policy and the base that the first sentence compares, or None."""
    known = set(policies)
    base = next((name for name in _BASES if name in known), None)
    policy = next((name for name in _BETTER if name in known and name != base), None)
    return None if base is None or policy is None else (policy, base)


def gain_of(runs: Sequence[Mapping[str, Any]], policy: str, base: str) -> Gain | None:
    """Compare two policies on runs of the same rows and rate; None without such runs with tokens.

    Args:
        runs: Finished runs of both, and of others, whose steps count too.
        policy: Name of the policy whose gain it is.
        base: Name of the other.
    """
    by_repeat = [
        {run["repeat"]: run for run in runs if run["policy"] == name and run["tokens_per_s"]}
        for name in (policy, base)
    ]
    repeats = sorted(by_repeat[0].keys() & by_repeat[1].keys())
    if not repeats:
        return None
    pairs = [(by_repeat[0][repeat], by_repeat[1][repeat]) for repeat in repeats]
    ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in pairs]
    curve = StepCurve(run.get("step_curve", ()) for run in runs)
    policy_rows = statistics.fmean(a["mean_rows"] for a, _ in pairs)
    base_rows = statistics.fmean(b["mean_rows"] for _, b in pairs)
    times = curve.time_s(policy_rows), curve.time_s(base_rows)
    first = pairs[0][0]
    return Gain(
        policy=policy,
        base=base,
        rows=first["rows"],
        rate_per_s=first["rate_per_s"],
        measured=statistics.median(ratios),
        measured_min=min(ratios),
        measured_max=max(ratios),
        num_repeats=len(repeats),
        slot_ratio=policy_rows / base_rows,
        step_ratio=times[0] / times[1] if times[0] and times[1] else 1.0,
        policy_rows=policy_rows,
        base_rows=base_rows,
        other_cores=max(run["other_cores"] or 0.0 for pair in pairs for run in pair),
        cores=first["cores"],
        is_modelled=bool(first.get("is_modelled")),
    )
