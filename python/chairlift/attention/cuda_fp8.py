"""Keys and values in eight bits on a GPU: half of what bfloat16 takes and moves.

Numbers are float8 e4m3 as they are, without a scale: four bits of precision from 2^-6 to 448,
beyond which they are cut off (Micikevicius et al., "FP8 formats for deep learning", 2022). The
kernels widen them in registers, where NaN becomes a number too: a token of a prompt that is not
finite shows in its own logits, not in those of the tokens that read it.
"""

import torch
from torch import Tensor

from chairlift.attention.cuda import CudaBackend

_LARGEST = torch.finfo(torch.float8_e4m3fn).max


class Fp8CudaBackend(CudaBackend):
    """Keys and values in float8; queries and results keep the model's dtype."""

    layout = "cuda-k-v-16-fp8"

    def stored_dtype(self, dtype: torch.dtype) -> torch.dtype:  # noqa: ARG002
        """Return float8 e4m3."""
        return torch.float8_e4m3fn

    def write(
        self, cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor, block_size: int
    ) -> None:
        """Write keys and values, clamped to what float8 holds; see `AttentionBackend.write`."""
        # PyTorch has no indexed writes of float8.
        super().write(
            cache.view(torch.uint8), _narrow(key), _narrow(value), slot_mapping, block_size
        )


def _narrow(numbers: Tensor) -> Tensor:
    """Return the bytes of float8."""
    return numbers.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
