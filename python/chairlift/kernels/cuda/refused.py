"""The kernels that no GPU has yet: a model that asks for one is refused when it is loaded."""

from typing import Final

from torch import Tensor

from chairlift.kernels.interface import (
    DeltaRules,
    RaggedBatch,
    ScanRules,
)

REFUSED: Final = "a model that asks for this is refused on a GPU when it is loaded"


def causal_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    batch: RaggedBatch,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    gates: tuple[Tensor, Tensor] | None = None,
    has_silu: bool = False,
) -> None:
    """Refuse: there is no such kernel."""
    raise NotImplementedError(REFUSED)


def gated_delta(
    qkv: Tensor,
    gate: Tensor,
    b_a: Tensor,
    rules: DeltaRules,
    state: Tensor,
    batch: RaggedBatch,
    out: Tensor,
) -> None:
    """Refuse: there is no such kernel."""
    raise NotImplementedError(REFUSED)


def selective_scan(
    xbc: Tensor,
    dt: Tensor,
    rules: ScanRules,
    num_groups: int,
    state: Tensor,
    batch: RaggedBatch,
    out: Tensor,
) -> None:
    """Refuse: there is no such kernel."""
    raise NotImplementedError(REFUSED)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor | None, group_size: int, eps: float
) -> None:
    """Refuse: there is no such kernel."""
    raise NotImplementedError(REFUSED)
