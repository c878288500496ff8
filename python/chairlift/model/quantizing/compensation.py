"""Rounds the weights of a layer so that later weights make up for the errors of earlier ones.

Sources: GPTQ (Frantar et al., 2023), which is Optimal Brain Quantization (Frantar and Alistarh,
2022) with a fixed order of inputs. Here a block of inputs gets its scale (and minimum) from the
weights as they are when its turn comes, errors before it included, by the rule of `--quantize`.
"""

from typing import Final

import torch
from torch import Tensor

from chairlift import _core
from chairlift.checkpoints.quantized.groups import BLOCK
from chairlift.checkpoints.quantized.stored_blocks import block_bounds, blocks_shape

_DAMPING: Final = 0.01
"""Part of the mean second moment that is added to each: few tokens leave some directions unseen."""
_MAX_TRIES: Final = 6
_PLAIN: Final = {"INT8_ROTATED_128": ("Q8_0", 1), "INT4_ROTATED": ("Q4_1", 2)}
"""The type of blocks of 32 weights that are rotated already, and the numbers before their codes."""


class SecondMoments:
    """Sums of the products of a layer's inputs, rotated as the layer rotates them."""

    def __init__(self, in_features: int) -> None:
        self.sums = torch.zeros(in_features, in_features)

    def add(self, x: Tensor) -> None:
        """Add the inputs `[T, in_features]` of some tokens."""
        x = x.to(torch.float32, copy=True).contiguous()
        _core.rotate(x)
        self.sums.addmm_(x.T, x)

    def factor(self) -> Tensor | None:
        """Return U `[K, K]`, upper triangular, of the inverse `U^T U` of the damped sums.

        None stands for inputs that say nothing: all zero, or not finite.
        """
        diagonal = self.sums.diagonal()
        mean = float(diagonal.mean())
        if not 0 < mean < torch.inf:
            return None
        damping = _DAMPING * mean
        for _ in range(_MAX_TRIES):
            damped = self.sums.clone()
            damped.diagonal().add_(damping)
            lower, failed = torch.linalg.cholesky_ex(damped)
            if not failed:
                inverse = torch.cholesky_inverse(lower)
                upper: Tensor
                upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
                if not failed:
                    return upper
            damping *= 10
        return None


def round_plainly(weight: Tensor, block_type: str) -> Tensor:
    """Return the blocks uint8 `[N, bytes of a row]` of `weight` float32 `[N, K]`."""
    shape = len(weight), weight.shape[1]
    blocks = torch.empty(blocks_shape(shape, block_type), dtype=torch.uint8)
    _core.quantize(weight, block_type, blocks)
    return blocks


def round_compensated(weight: Tensor, block_type: str, factor: Tensor) -> Tensor:
    """Return the blocks of a weight, each error spread over the inputs that come later.

    Args:
        weight: float32 `[N, K]`; K is a multiple of 32.
        block_type: A type of rotated weights that `chairlift quantize` writes.
        factor: `SecondMoments.factor` of the layer's inputs.

    Returns:
        uint8 `[N, bytes of a row]`.
    """
    w = weight.contiguous().clone()
    _core.rotate(w)
    blocks = []
    for first, last in block_bounds(w.shape[1], block_type):
        weights = w[:, first:last].contiguous()
        head = _head(weights, block_type)
        codes, errors = _round_block(weights, head, factor[first:last, first:last])
        blocks += [head.view(torch.uint8), _packed(codes, head)]
        w[:, last:].addmm_(errors, factor[first:last, last:], alpha=-1)
    return torch.cat(blocks, dim=1)


def _head(weights: Tensor, block_type: str) -> Tensor:
    """Return the scale, and the minimum if there is one, of a block: float16 `[N, 1 or 2]`.

    A scale of 128 weights is the largest of those that blocks of 32 would have.
    """
    plain, num_numbers = _PLAIN[block_type]
    blocks = round_plainly(weights, plain).view(len(weights), weights.shape[1] // BLOCK, -1)
    return blocks[..., : 2 * num_numbers].contiguous().view(torch.float16).amax(dim=1)


def _round_block(weights: Tensor, head: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Round the weights of a block input by input, and change what follows in it.

    Args:
        weights: float32 `[N, K]`, changed.
        head: float16 `[N, 1 or 2]`: the scale, and the minimum if there is one.
        factor: `[K, K]`.

    Returns:
        The codes float32 `[N, K]`, and the errors `[N, K]` over the diagonal of the factor.
    """
    has_minima = head.shape[1] == 2
    heads = head.float()
    scale = heads[:, 0]
    minimum = heads[:, 1] if has_minima else torch.zeros_like(scale)
    lowest, highest = (0, 15) if has_minima else (-127, 127)
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    columns = weights.T.contiguous()
    codes, errors = torch.empty_like(columns), torch.empty_like(columns)
    for k in range(len(columns)):
        torch.round((columns[k] - minimum) * inverse, out=codes[k]).clamp_(lowest, highest)
        errors[k] = (columns[k] - (scale * codes[k] + minimum)) / factor[k, k]
        columns[k + 1 :].addr_(factor[k, k + 1 :], errors[k], alpha=-1)
    return codes.T, errors.T


def _packed(codes: Tensor, head: Tensor) -> Tensor:
    """Return codes float32 `[N, K]` as bytes: those of four bits, which have minima, by halves."""
    if head.shape[1] == 1:
        return codes.to(torch.int8).view(torch.uint8)
    low, high = codes.to(torch.uint8).chunk(2, dim=1)
    return low | high << 4
