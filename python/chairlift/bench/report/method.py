"""How the runs of a report came about: a paragraph, facts, and what the figures mean."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chairlift.bench.report.answer import Run


@dataclass(frozen=True, slots=True)
class Method:
    """How runs were measured or modelled."""

    about: str
    facts: Mapping[str, object]


DEFINITIONS: Final = (
    ("TTFT", "ttft_p50_s", "from the arrival of a request to its first token"),
    (
        "ITL",
        "itl_p50_s",
        "gap between two events with tokens of an answer; an event of checked drafts has several",
    ),
    ("TPOT", "tpot_p50_s", "(latency - TTFT) / (tokens - 1), of answers of two tokens or more"),
    (
        "latency",
        "latency_p50_s",
        "from the arrival to the end of the answer; vllm bench serve calls it E2EL",
    ),
    (
        "slot use",
        "slot_utilization",
        "rows that computed something, over all rows, averaged over the steps",
    ),
    (
        "KV waste",
        "kv_waste",
        "allocated KV slots that are not written yet, averaged over the steps",
    ),
    ("goodput", "goodput_per_s", "requests per second that keep every bound of --slo"),
)
"""Names of figures, one of their keys, and what they mean."""


def policies_method(runs: Sequence[Run]) -> Method:
    """Return how policies were compared on one machine."""
    first = runs[0]
    facts = {**first["environment"], **{f"work: {k}": v for k, v in first["work"].items()}}
    facts |= {f"lengths: {k}": f"{v:.4g}" for k, v in first["lengths"].items()}
    others = max(run["other_cores"] or 0.0 for run in runs)
    facts["cores that other work used, at most"] = f"{others:.2f}"
    return Method(
        "Every policy gets the same token ids and the same lengths of answers, greedy, "
        "end-of-sequence ignored. Policies take turns within a repetition.",
        facts,
    )


def replay_method(settings: Mapping[str, object], step_time: str) -> Method:
    """Return how policies were replayed.

    Args:
        settings: Settings of the scheduler; each run has its own policy.
        step_time: The model of the step time in words.
    """
    shown = {name: value for name, value in settings.items() if value is not None}
    return Method(
        "No model computed anything: requests arrive at their recorded times, have answers of "
        "their recorded lengths, and the scheduler that serves plans each step on a virtual clock. "
        f"The time of a step is a model: {step_time}. The same command gives the same figures on "
        "every machine. A run that is named recorded was measured by its server.",
        shown,
    )


def server_method(server: str, how: str, facts: Mapping[str, object]) -> Method:
    """Return how load was sent to a server.

    Args:
        server: Its name.
        how: How the requests reached it.
        facts: The load.
    """
    return Method(
        "Requests were sent when they were due, whatever the state of the others, greedy, with "
        "end-of-sequence ignored where the server can. A request arrives when it is sent, and the "
        "times are those that its client saw. Lengths are those of a chat: prompts log-normal "
        "around 24 tokens (of the OpenAI API: words), answers exponential with a cap.",
        {"server": server, "requests reach it": how, **facts, "client": platform.platform()},
    )
