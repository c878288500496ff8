"""The shapes that the CUDA kernels run: those of their instantiations, and what a block holds."""

from typing import Final

import torch

from chairlift.kernels.cuda.ops import MAX_DECODE_ROWS
from chairlift.kernels.cuda.row_ops import NORM_BYTES, VECTOR_BYTES
from chairlift.kernels.cuda.sources import HEAD_DIMS
from chairlift.kernels.limits import ShapeLimits

_SHARED_BYTES: Final = 99 << 10
"""Shared memory that a block may use on every GPU from compute capability 8.0 on."""
_ITEM_BYTES: Final = torch.bfloat16.itemsize

LIMITS: Final = ShapeLimits(
    head_dims=HEAD_DIMS,
    head_dims_text="64, 96, 128, 256 or 512",
    width_step=VECTOR_BYTES // _ITEM_BYTES,
    max_hidden_size=(_SHARED_BYTES - NORM_BYTES) // _ITEM_BYTES,
    max_heads_per_kv_head=MAX_DECODE_ROWS,
)
"""In 16 bits; a subset of what `kernels.cpu` runs."""
