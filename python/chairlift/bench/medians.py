"""Repeated runs as one: the median of each figure."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

Group = tuple[str, int, float | str | None]
"""Policy, rows and offered rate."""


def group_of(run: Mapping[str, Any]) -> Group:
    """Return what repeated runs have in common."""
    return run["policy"], run["rows"], run["rate_per_s"]


def grouped(runs: Iterable[Mapping[str, Any]]) -> dict[Group, list[Mapping[str, Any]]]:
    """Return the runs by what they have in common, in their order."""
    found: dict[Group, list[Mapping[str, Any]]] = {}
    for run in runs:
        found.setdefault(group_of(run), []).append(run)
    return found


def medians(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line per group: the median of each number, and the range of `tokens_per_s`."""
    lines = []
    for group in grouped(runs).values():
        first = group[0]
        line: dict[str, Any] = {"num_repeats": len(group)}
        for name, value in first.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and name not in {"rows", "rate_per_s", "repeat"}:
                line[name] = statistics.median(run[name] for run in group)
            elif isinstance(value, str | int | float) or value is None:
                line[name] = value
        rates = [run["tokens_per_s"] for run in group]
        line["tokens_per_s_min"], line["tokens_per_s_max"] = min(rates), max(rates)
        lines.append(line)
    return lines
