"""The interface between a model and the kernels of a device."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class LinearLayer(Protocol):
    """A linear layer whose weights are laid out for its kernels."""

    @property
    def in_features(self) -> int:
        """Inputs."""

    @property
    def out_features(self) -> int:
        """Outputs."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are stored."""

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b`, `[T, out_features]`.

        Args:
            x: `[T, in_features]`.
            out_dtype: float32 for the logits of a 16-bit model; else the dtype of `x`.
            out: Where the result goes.
        """


class Kernels(Protocol):
    """The kernels of a device; a module can be one. An output is allocated unless `out` is given.

    Shapes: T tokens, H numbers of each.
    """

    def linear(
        self, weight: Tensor, bias: Tensor | None = None, quantize: str | None = None
    ) -> LinearLayer:
        """Make a layer of `weight` `[out_features, in_features]` and `bias` `[out_features]`."""

    @property
    def linear_from_blocks(self) -> Callable[[Tensor, str, Tensor | None, torch.dtype], Any] | None:
        """A layer of blocks as a GGUF file holds them; None where no kernel reads them.

        Arguments: the blocks, uint8 `[out_features, bytes of a row]`; their type; the bias, float32
        `[out_features]`; the dtype of inputs and outputs.
        """

    def linear_bytes(
        self, out_features: int, in_features: int, dtype: torch.dtype, weight_format: str | None
    ) -> int:
        """Return the bytes of such a layer."""

    def select_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write `x[rows]`; `x` `[N, ...]`, `rows` int32 `[T]`, `out` `[T, ...]`."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        """Return `x / rms(x) * weight` over the last axis; `x` `[T, H]`, `weight` `[H]`."""

    def add_rms_norm(
        self, x: Tensor, update: Tensor, weight: Tensor, eps: float, out: Tensor | None = None
    ) -> Tensor:
        """Add `update` `[T, H]` to `x` in place, then return the norm of the sum."""

    def silu_mul(self, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        """Return `silu(gate) * up`, `[T, I]`; `gate_up` `[T, 2 I]` holds both side by side."""
