"""Keys and values in eight bits on the CPU: little more than half of what bfloat16 takes and moves.

Per KV head of a block there are codes of the keys and of the values, each where the number of the
model's dtype would lie, and behind them a float32 scale for each token's key and each one's value:
a number is its code times the scale, which is the largest magnitude of the 127.

Keys and values are rotated before they are rounded (by a Hadamard matrix of all coordinates of a
head, or by blocks of 64), queries likewise, and results back: a few large coordinates of a key do
not make its scale coarse.
"""

import torch

from chairlift.attention.cpu import CpuBackend

SCALE_BYTES = 4


class Int8CpuBackend(CpuBackend):
    """Keys and values as codes; queries and results keep the model's dtype."""

    layout = "cpu-k_transposed-v_rows-16-int8_rotated"

    def __init__(self, dtype: torch.dtype) -> None:
        """Name the model's dtype, which decides where a code lies."""
        self.dtype = dtype

    def stored_dtype(self, dtype: torch.dtype) -> torch.dtype:  # noqa: ARG002
        """Return int8."""
        return torch.int8

    def head_bytes(
        self,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,  # noqa: ARG002
    ) -> int:
        """Return the bytes of codes and scales."""
        return 2 * block_size * (head_dim + SCALE_BYTES)
