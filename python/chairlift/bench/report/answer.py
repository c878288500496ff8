"""What the runs of a report say in words: the answer, and its bound where there is one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chairlift.api.figures import format_value
from chairlift.bench.bound import TITLES, Gain, gain_of, main_pair
from chairlift.bench.medians import medians
from chairlift.bench.slo import Bound, capacity

Run = Mapping[str, Any]


def is_modelled(runs: Sequence[Run]) -> bool:
    """Return whether the times of policies come from a model of the step time."""
    return any(run.get("is_modelled") for run in runs)


def gains_of(runs: Sequence[Run]) -> list[Gain]:
    """Return the gain of the main pair of policies, for each number of rows, all at once."""
    pair = main_pair(str(run["policy"]) for run in runs)
    if pair is None:
        return []
    found = []
    for rows in dict.fromkeys(run["rows"] for run in runs if run["policy"] == pair[0]):
        alike = [run for run in runs if run["rate_per_s"] == "max" and _has_rows(run, rows)]
        gain = gain_of(alike, *pair)
        found += [gain] if gain is not None else []
    return found


def _has_rows(run: Run, rows: int) -> bool:
    return bool(run["rows"] == rows or run["policy"] == "none")


def capacities_of(
    runs: Sequence[Run], bounds: Sequence[Bound]
) -> Iterator[tuple[str, int, float, bool]]:
    """Yield policy, rows, the highest rate within the bounds, and whether the next exceeds them."""
    if not bounds:
        return
    offered = [run for run in runs if isinstance(run["rate_per_s"], int | float)]
    for policy, rows in dict.fromkeys((run["policy"], run["rows"]) for run in offered):
        same = [(r["rate_per_s"], r) for r in offered if (r["policy"], r["rows"]) == (policy, rows)]
        yield policy, rows, *capacity(same, bounds)


def describe_rate(rate: float | str | None) -> str:
    """Return an offered rate in words."""
    if rate is None:
        return "at their own times"
    return "all at once" if rate in ("max", math.inf) else f"at {rate:g}/s"


def policy_sentences(runs: Sequence[Run], bounds: Sequence[Bound] = ()) -> list[str]:
    """Return what a comparison of policies says, the answer first."""
    found = [gain.sentence() for gain in reversed(gains_of(runs))]
    for policy, rows, rate, is_exceeded in capacities_of(runs, bounds):
        words = _capacity(rate, is_exceeded=is_exceeded)
        found.append(f"Within the bounds, {TITLES[policy]} at {rows} rows takes {words}.")
    if found:
        return found
    lines = medians(runs)
    first, last = lines[0], lines[-1]
    times = [format_value("ttft_p50_s", line["ttft_p50_s"]) for line in (first, last)]
    by = "By a model of the step time, with" if is_modelled(runs) else "With"
    return [
        f"{by} requests {describe_rate(last['rate_per_s'])}, the median request got its first "
        f"token after {times[1]} under {TITLES[last['policy']]}"
        + (f", and after {times[0]} under {TITLES[first['policy']]}." if first != last else ".")
    ]


def server_sentences(runs: Sequence[Run], bounds: Sequence[Bound] = ()) -> list[str]:
    """Return what the load on one server says, the answer first."""
    found = [
        f"Within the bounds, the server takes {_capacity(rate, is_exceeded=is_exceeded)}."
        for _, _, rate, is_exceeded in capacities_of(runs, bounds)
    ]
    best = max(medians(runs), key=lambda line: float(line["tokens_per_s"]))
    ttft, itl = (format_value(key, best[key]) for key in ("ttft_p50_s", "itl_p99_s"))
    found.append(
        f"With requests {_arrival(best)}, the server gave "
        f"{best['tokens_per_s']:,.1f} output tokens per second; the median request got its first "
        f"token after {ttft}, and 99 % of the gaps between tokens were at most {itl}."
    )
    if num_failed := sum(int(run["failed"]) for run in runs):
        num_sent = sum(int(run["requests"]) for run in runs)
        found.append(f"{num_failed} of {num_sent} requests failed; the figures are of the others.")
    return found


def _arrival(line: Run) -> str:
    concurrency = line.get("concurrency")
    return f"{concurrency} at a time" if concurrency else describe_rate(line["rate_per_s"])


def _capacity(rate: float, *, is_exceeded: bool) -> str:
    words = f"{rate:g} requests/s" if rate else "less than every offered rate"
    return words + ("" if is_exceeded or not rate else " or more")
