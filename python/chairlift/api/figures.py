"""The figures of one run of a workload, measured or replayed: the same keys from the same sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Seconds = Sequence[float] | NDArray[np.float64]


TIMES: Final = ("ttft", "tpot", "itl", "latency")
"""Durations by the names of their figures."""
STATISTICS: Final = ("mean", "std", "p50", "p90", "p95", "p99")
"""What is said of each: mean, standard deviation, percentiles."""
BRIEF: Final = frozenset(
    f"{name}_{what}_s"
    for name in TIMES
    for what in STATISTICS
    if name == "tpot" or what not in {"p50", "p99"}
) | {"total_tokens_per_s"}
"""Figures that tables omit: they are in JSON."""


@dataclass(frozen=True, slots=True)
class Run:
    """What happened while a workload ran."""

    num_requests: int
    """Requests that were answered."""
    num_prompt_tokens: int
    """Tokens of their prompts."""
    num_output_tokens: int
    """Tokens of all answers."""
    seconds: float
    """From the first arrival to the end of the last answer."""
    num_steps: int
    num_rows: int
    """Rows that computed something, summed over the steps."""
    num_tokens: int
    """Tokens computed, summed over the steps."""
    kv_waste: float
    """Unwritten share of the allocated KV slots, summed over the steps."""
    ttft_s: "Seconds"
    """From arrival to the first token, of each request that got one."""
    tpot_s: "Seconds"
    """From the first token to the end, for each token behind the first; of answers of two or more
    tokens."""
    itl_s: "Seconds"
    """Gaps between the events with tokens of each answer."""
    latency_s: "Seconds"
    """From arrival to the end, of each answered request."""


def summarize(
    policy: str, run: Run, *, max_num_seqs: int, max_num_batched_tokens: int
) -> dict[str, str | int | float]:
    """The figures of one run.

    slot_utilization is scheduled rows over rows, budget_utilization computed tokens over the token
    budget, kv_waste the allocated KV slots not yet written, all averaged over the steps that ran.
    The durations are those of `vllm bench serve`; its e2el is the latency here.

    Args:
        policy: Names the run.
        run: What happened.
        max_num_seqs: Rows of the batch.
        max_num_batched_tokens: Token budget of a step.
    """
    steps = max(1, run.num_steps)
    # A run in which nothing was answered took no time and has no rate.
    rate = 1 / run.seconds if run.seconds > 0 else 0.0
    return {
        "policy": policy,
        "requests": run.num_requests,
        "output_tokens": run.num_output_tokens,
        "seconds": run.seconds,
        "tokens_per_s": run.num_output_tokens * rate,
        "total_tokens_per_s": (run.num_prompt_tokens + run.num_output_tokens) * rate,
        "requests_per_s": run.num_requests * rate,
        "slot_utilization": run.num_rows / (steps * max_num_seqs),
        "budget_utilization": run.num_tokens / (steps * max_num_batched_tokens),
        "kv_waste": run.kv_waste / steps,
        **statistics_of(
            {
                "ttft": run.ttft_s,
                "tpot": run.tpot_s,
                "itl": run.itl_s,
                "latency": run.latency_s,
            }
        ),
    }


def unwritten_share(num_kv_tokens: int, num_used_blocks: int, block_size: int) -> float:
    """Share of the allocated KV slots that hold nothing yet; 0 where nothing is allocated."""
    # The last step of a batch leaves nothing allocated, and so nothing wasted.
    return 1 - num_kv_tokens / (num_used_blocks * block_size) if num_used_blocks else 0.0


def statistics_of(durations: "Mapping[str, Seconds]") -> dict[str, float]:
    """Return each of `STATISTICS` of some durations: `ttft_mean_s`, `ttft_p99_s`; 0 for none."""
    import numpy as np

    found = {}
    for name, values in durations.items():
        known = np.asarray(values if len(values) else [0.0], dtype=np.float64)
        percentiles = np.percentile(known, [int(s[1:]) for s in STATISTICS if s[0] == "p"])
        figures = (known.mean(), known.std(), *percentiles)
        for what, figure in zip(STATISTICS, figures, strict=True):
            found[f"{name}_{what}_s"] = float(figure)
    return found


def format_value(key: str, value: str | float | None) -> str:
    """Return a figure with three significant digits and its unit, a perplexity with five."""
    if value is None:
        return ""
    if isinstance(value, str | int):
        return str(value)
    if key.endswith("_per_s"):
        return f"{value:,.1f}"
    if key.endswith("_s") or key == "seconds":
        for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if value * factor >= 1 or unit == "µs":
                return f"{value * factor:#.3g}".rstrip(".") + f" {unit}"
    if key.endswith(("utilization", "waste", "agreement", "acceptance")):
        return f"{value:.1%}"
    if key == "perplexity":
        return f"{value:.5g}"
    return f"{value:.3g}"
