"""Keys and values in eight bits on the CPU: little more than half of what bfloat16 takes and moves.

Per KV head of a block there are codes of the keys and of the values, each where the number of the
model's dtype would lie, and behind them a float32 scale for each token's key and each one's value:
a number is its code times the scale, which is the largest magnitude of the 127.
"""

import torch
from torch import Tensor

from chairlift.attention.cpu import CpuBackend
from chairlift.kernels.reference import quantize_rows

SCALE_BYTES = 4


class Int8CpuBackend(CpuBackend):
    """Keys and values as codes; queries and results keep the model's dtype."""

    layout = "cpu-k_transposed-v_rows-16-int8"

    def __init__(self, dtype: torch.dtype) -> None:
        """Name the model's dtype, which decides where a code lies."""
        self._dtype = dtype

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

    def pack(self, key: Tensor, value: Tensor) -> Tensor:
        """Lay out one block, `[num_kv_heads, head_bytes]`."""
        codes, scales = zip(*(quantize_rows(half) for half in (key, value)), strict=True)
        key, value = (half.to(self._dtype) for half in codes)
        packed = super().pack(key, value).to(torch.int8)
        # [tokens, heads, 1] -> [heads, tokens]
        tails = (scale.squeeze(-1).T.contiguous().view(torch.int8) for scale in scales)
        return torch.cat((packed, *tails), dim=1)

    def unpack(self, block: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
        """Return codes times scales, `[block_size, num_kv_heads, head_dim]` in float32."""
        half = block_size * SCALE_BYTES
        codes = block[:, : -2 * half].to(self._dtype)
        key, value = super().unpack(codes, block_size)
        tails = block[:, -2 * half :].contiguous().view(torch.float32)
        # [heads, 2 * tokens] -> [tokens, heads, 1]
        key_scale, value_scale = (tail.T.unsqueeze(-1) for tail in tails.chunk(2, dim=1))
        return key * key_scale, value * value_scale
