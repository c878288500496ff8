"""Attention of encoders: packed sequences, whose tokens see what is before and after them."""

import torch
from torch import Tensor

from chairlift import _core
from chairlift.attention.backend import AttentionBackend, Scoring
from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import cpu


class PackedBackend(AttentionBackend):
    """Keeps the keys and values of the layer at hand alone, and has no blocks."""

    layout = "none"
    kernels = cpu

    def __init__(self) -> None:
        self._key = self._value = torch.empty(0)

    def write(
        self,
        cache: Tensor,  # noqa: ARG002
        key: Tensor,
        value: Tensor,
        slot_mapping: Tensor,  # noqa: ARG002
        block_size: int,  # noqa: ARG002
    ) -> None:
        self._key, self._value = key, value

    def attend(
        self,
        query: Tensor,
        cache: Tensor,  # noqa: ARG002
        metadata: AttentionMetadata,
        *,
        group: int,  # noqa: ARG002
        scoring: Scoring,
        out: Tensor | None = None,
    ) -> Tensor:
        assert (scoring.soft_cap, scoring.sinks) == (None, None), "of no encoder"
        if out is None:
            out = torch.empty(query.shape, dtype=query.dtype)
        _core.full_attention(
            query.flatten(1),
            self._key.flatten(1),
            self._value.flatten(1),
            metadata.query_start_loc,
            out.flatten(1),
            num_heads=query.shape[1],
            scale=scoring.scale,
            reach=None if scoring.window is None else scoring.window - 1,
        )
        return out
