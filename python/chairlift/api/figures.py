"""The figures of one run of a workload, measured or replayed: the same keys from the same sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Seconds = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """What happened while a workload ran."""

    num_requests: int
    """Requests that were answered."""
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
    itl_s: "Seconds"
    """Gaps between the tokens of each answer."""
    latency_s: "Seconds"
    """From arrival to the end, of each answered request."""


def summarize(
    policy: str, run: Run, *, max_num_seqs: int, max_num_batched_tokens: int
) -> dict[str, str | int | float]:
    """The figures of one run.

    slot_utilization is scheduled rows over rows, budget_utilization computed tokens over the token
    budget, kv_waste the allocated KV slots not yet written, all averaged over the steps that ran.

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
        "requests_per_s": run.num_requests * rate,
        "slot_utilization": run.num_rows / (steps * max_num_seqs),
        "budget_utilization": run.num_tokens / (steps * max_num_batched_tokens),
        "kv_waste": run.kv_waste / steps,
        **_percentiles("ttft", run.ttft_s),
        **_percentiles("itl", run.itl_s),
        **_percentiles("latency", run.latency_s),
    }


def unwritten_share(num_kv_tokens: int, num_used_blocks: int, block_size: int) -> float:
    """Share of the allocated KV slots that hold nothing yet; 0 where nothing is allocated."""
    # The last step of a batch leaves nothing allocated, and so nothing wasted.
    return 1 - num_kv_tokens / (num_used_blocks * block_size) if num_used_blocks else 0.0


def _percentiles(name: str, values: "Seconds") -> dict[str, float]:
    import numpy as np

    p50, p99 = np.percentile(values if len(values) else [0.0], (50, 99)).tolist()
    return {f"{name}_p50_s": p50, f"{name}_p99_s": p99}
