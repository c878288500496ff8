"""The shapes that the kernels of a device can run; checked before a model is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Shape(Protocol):
    """The sizes of a model's layers, as `LayerShape` has them."""

    @property
    def hidden_size(self) -> int:
        """Numbers of the residual stream."""

    @property
    def intermediate_size(self) -> int:
        """Numbers inside the feed-forward."""

    @property
    def num_heads(self) -> int:
        """Heads of queries."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys, and of values."""

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""


@dataclass(frozen=True, slots=True)
class ShapeLimits:
    """The shapes that the kernels of a device can run; 0 is no limit."""

    head_dims: Sequence[int]
    head_dims_text: str
    """`head_dims` in the words of an error message."""
    width_step: int = 1
    """`hidden_size` and `intermediate_size` are multiples of this."""
    max_hidden_size: int = 0
    max_heads_per_kv_head: int = 0

    def unsupported_reason(self, shape: Shape, where: str = "") -> str | None:
        """Return why the kernels cannot run a shape, by its field; None if they can.

        Args:
            shape: The sizes of a model.
            where: Follows what is expected, such as ` on a GPU`.
        """
        step, max_hidden, group = self.width_step, self.max_hidden_size, self.max_heads_per_kv_head
        hidden, inner, heads = shape.hidden_size, shape.intermediate_size, shape.num_heads
        checks = (
            ("head_dim", self.head_dims_text, shape.head_dim, shape.head_dim in self.head_dims),
            (
                "num_attention_heads",
                f"at most {group} for each KV head",
                heads,
                not group or heads <= group * shape.num_kv_heads,
            ),
            ("hidden_size", f"a multiple of {step}", hidden, hidden % step == 0),
            (
                "hidden_size",
                f"at most {max_hidden}",
                hidden,
                not max_hidden or hidden <= max_hidden,
            ),
            ("intermediate_size", f"a multiple of {step}", inner, inner % step == 0),
        )
        for name, expected, got, is_met in checks:
            if not is_met:
                return f"{name}: expected {expected}{where}, got {got}"
        return None
