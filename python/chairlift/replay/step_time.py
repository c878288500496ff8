"""The duration of a step: a linear model, fitted to recorded steps."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from chairlift.replay.format import Step, StepTime

DEFAULT = StepTime(fixed_s=5e-3, per_token_s=40e-6, per_context_token_s=40e-9)
"""About a model of 8 billion parameters in bfloat16 on one H100: 16 GB of weights at 3.35 TB/s,
16 GFLOP per token at 400 TFLOP/s, and 128 KiB of keys and values per token of context."""

_BETTER = 1 - 1e-9
"""A larger model must fit better by more than rounding errors."""


def fit(steps: Sequence[Step]) -> StepTime:
    """Fit the model to recorded steps by least squares with no negative coefficient.

    With three coefficients the optimum is found by trying all seven sets of those that are not 0:
    it is the best of the unconstrained solutions that have no negative entry.

    Args:
        steps: At least one; failed ones are left out.
    """
    steps = [step for step in steps if not step.failed]
    features = np.array([(1, step.tokens, step.context) for step in steps], dtype=np.float64)
    seconds = np.array([step.duration for step in steps], dtype=np.float64) * 1e-9
    # Columns of the same size keep the solutions exact.
    scale = features.max(axis=0)
    best, min_error = np.zeros(3), float(seconds @ seconds)
    for size in (1, 2, 3):
        for columns in combinations(range(3), size):
            chosen = list(columns)
            found = np.linalg.lstsq(features[:, chosen] / scale[chosen], seconds, rcond=None)[0]
            residual = seconds - features[:, chosen] @ (found / scale[chosen])
            error = float(residual @ residual)
            if found.min() >= 0 and error < min_error * _BETTER:
                best, min_error = np.zeros(3), error
                best[chosen] = found / scale[chosen]
    fixed, per_token, per_context = best.tolist()
    return StepTime(fixed_s=fixed, per_token_s=per_token, per_context_token_s=per_context)
