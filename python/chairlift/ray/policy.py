"""How many engines there should be, from the tokens that they have."""

import math
from typing import Any


class Tokens:
    """Serve's autoscaling by waiting and running tokens."""

    def __init__(self, target_tokens: int) -> None:
        """Set the target.

        Args:
            target_tokens: Waiting and running tokens that one engine should have.
        """
        self._target_tokens = target_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of engines, and no state.

        Args:
            context: `ray.serve.config.AutoscalingContext`.
        """
        metrics = context.aggregated_metrics or {}
        num_tokens = sum(
            sum(metrics.get(name, {}).values()) for name in ("waiting_tokens", "running_tokens")
        )
        wanted = math.ceil(num_tokens / self._target_tokens)
        low = context.capacity_adjusted_min_replicas
        high = context.capacity_adjusted_max_replicas
        return max(low, min(wanted, high)), {}
