"""A timeline as lists of numbers: what a viewer and a file of runs hold; times in microseconds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from chairlift.timeline.values import (
    PARTS,
    Gap,
    Preemption,
    Request,
    Span,
    Steps,
    Timeline,
    Work,
)


def to_lists(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as lists; spans and times are those of the live page's feed."""
    steps = timeline.steps
    first = int(steps.start_ns[0]) if timeline.num_steps else 0
    return {
        "name": timeline.name,
        "num_rows": timeline.num_rows,
        "num_blocks": timeline.num_blocks,
        "is_modelled": timeline.is_modelled,
        "start_us": ((steps.start_ns - first) // 1000).tolist(),
        "duration_us": (steps.duration_ns // 1000).tolist(),
        "parts_us": (steps.parts_ns // 1000).tolist() if steps.parts_ns.shape[1] else [],
        "num_waiting": steps.num_waiting.tolist(),
        "num_used_blocks": steps.num_used_blocks.tolist(),
        "num_tokens": steps.num_tokens.tolist(),
        "spans": [[*span[:4], int(span.work), *span[5:]] for span in timeline.spans],
        "preempted": [list(lost) for lost in timeline.preemptions],
        "requests": [[request.number, request.label] for request in timeline.requests],
        "gaps": [list(gap) for gap in timeline.gaps],
    }


def from_lists(lists: Mapping[str, Any]) -> Timeline:
    """Return the timeline of `to_lists`, whose times are rounded and whose arrivals are unknown."""
    count = len(lists["start_us"])

    def column(name: str, factor: int = 1) -> "np.ndarray[Any, np.dtype[np.int64]]":
        return np.array(lists[name], dtype=np.int64) * factor

    width = len(PARTS) if lists["parts_us"] else 0
    return Timeline(
        lists["name"],
        lists["num_rows"],
        lists["num_blocks"],
        Steps(
            column("start_us", 1000),
            column("duration_us", 1000),
            column("num_waiting"),
            column("num_used_blocks"),
            column("num_tokens"),
            column("parts_us", 1000).reshape(count, width),
        ),
        tuple(
            Span._make([*span[:4], Work(span[4]), *span[5:]])  # The work is a number in JSON.
            for span in lists["spans"]
        ),
        tuple(Preemption(*lost) for lost in lists["preempted"]),
        tuple(Request(label, number) for number, label in lists["requests"]),
        tuple(Gap(*gap) for gap in lists["gaps"]),
        is_modelled=lists["is_modelled"],
    )
