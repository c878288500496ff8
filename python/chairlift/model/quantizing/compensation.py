"""Rounds the weights of a layer so that later weights make up for the errors of earlier ones.

Sources: GPTQ (Frantar et al., 2023), which is Optimal Brain Quantization (Frantar and Alistarh,
2022) with a fixed order of inputs. Here a block of inputs gets its scale and minimum from the
weights as they are when its turn comes, errors before it included.
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
_RANGES: Final = [0.6 + 0.025 * step for step in range(21)]
"""Parts of the range of the weights of a block that are tried for its codes of four bits."""
_HIGHEST: Final = {"INT8_ROTATED_128": 127, "INT4_ROTATED_128": 15, "INT4_ROTATED": 15}
"""The highest code by type of blocks."""
_AFFINE: Final = frozenset(("INT4_ROTATED_128", "INT4_ROTATED"))
"""Types whose blocks have a minimum, and codes from 0 on; others have as many codes below 0."""


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


def round_compensated(weight: Tensor, factor: Tensor | None, block_type: str) -> Tensor:
    """Return the blocks of a weight, each error spread over the inputs that come later.

    Args:
        weight: float32 `[N, K]`; K is a multiple of 32.
        factor: `SecondMoments.factor` of the layer's inputs; without one each weight is rounded
            alone.
        block_type: A type that `compensated_type` gives.

    Returns:
        uint8 `[N, bytes of a row]`.
    """
    w = weight.contiguous().clone()
    _core.rotate(w)
    if factor is None:
        factor = torch.eye(w.shape[1])
    highest, is_affine = _HIGHEST[block_type], block_type in _AFFINE
    blocks = []
    for first, last in block_bounds(w.shape[1], block_type):
        weights = w[:, first:last].contiguous()
        head = _affine_head(weights, highest) if is_affine else _scale(weights, highest)
        codes, errors = _round_block(weights, head, highest, factor[first:last, first:last])
        blocks += [head.view(torch.uint8), _packed_nibbles(codes) if is_affine else _bytes(codes)]
        w[:, last:].addmm_(errors, factor[first:last, last:], alpha=-1)
    return torch.cat(blocks, dim=1)


def _scale(weights: Tensor, highest: int) -> Tensor:
    """Return the scale of a block `[N, K]` whose largest magnitude gets the highest code.

    Returns:
        float16 `[N, 1]`.
    """
    return (weights.abs().amax(dim=1, keepdim=True) / highest).half()


def _affine_head(weights: Tensor, highest: int) -> Tensor:
    """Return the scale and the minimum of a block `[N, K]`, as float16 `[N, 2]`.

    Parts of the range around its middle give codes, for which the best scale and minimum follow by
    least squares. Those with the smallest squared error count, as in `--quantize int4`.
    """
    count = weights.shape[1]
    low, high, total = weights.amin(dim=1), weights.amax(dim=1), weights.sum(dim=1)
    smallest = torch.full_like(low, torch.inf)
    head = torch.zeros(len(weights), 2, dtype=torch.float16)
    for part in _RANGES:
        scale = part * (high - low) / highest
        codes = _codes(weights, scale, (high + low - highest * scale) / 2, highest)
        ones, products = codes.sum(dim=1), (codes * weights).sum(dim=1)
        determinant = count * codes.square().sum(dim=1) - ones.square()
        # Codes that are all the same say nothing of a scale.
        determinant[determinant == 0] = torch.inf
        tried = torch.empty_like(head)
        tried[:, 0] = (count * products - ones * total) / determinant
        tried[:, 1] = (total - tried[:, 0] * ones) / count
        scale, minimum = tried.float().unbind(dim=1)
        codes = _codes(weights, scale, minimum, highest)
        errors = (codes.mul_(scale[:, None]).add_(minimum[:, None]) - weights).square_().sum(dim=1)
        is_smaller = errors < smallest
        smallest[is_smaller], head[is_smaller] = errors[is_smaller], tried[is_smaller]
    # Weights that are not finite, or too large for float16, make outputs that are not finite.
    head[smallest.isinf()] = torch.nan
    return head


def _codes(weights: Tensor, scale: Tensor, minimum: Tensor, highest: int) -> Tensor:
    inverse = _inverse(scale)
    return ((weights - minimum[:, None]) * inverse[:, None]).round_().clamp_(0, highest)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


def _round_block(
    weights: Tensor, head: Tensor, highest: int, factor: Tensor
) -> tuple[Tensor, Tensor]:
    """Round the weights of a block input by input, and change what follows in it.

    Args:
        weights: float32 `[N, K]`.
        head: float16 `[N, 1 or 2]`: the scales, and the minima if there are any.
        highest: The highest code; the lowest is 0 with minima, else as far below 0.
        factor: `[K, K]`.

    Returns:
        The codes float32 `[N, K]`, and the errors `[N, K]` over the diagonal of the factor.
    """
    scale, *minima = head.float().unbind(dim=1)
    minimum = minima[0] if minima else torch.zeros_like(scale)
    lowest = 0 if minima else -highest
    inverse = _inverse(scale)
    columns = weights.T.contiguous()
    codes, errors = torch.empty_like(columns), torch.empty_like(columns)
    for k in range(len(columns)):
        torch.round((columns[k] - minimum) * inverse, out=codes[k]).clamp_(lowest, highest)
        errors[k] = (columns[k] - (scale * codes[k] + minimum)) / factor[k, k]
        columns[k + 1 :].addr_(factor[k, k + 1 :], errors[k], alpha=-1)
    return codes.T, errors.T


def _bytes(codes: Tensor) -> Tensor:
    return codes.to(torch.int8).view(torch.uint8)


def _packed_nibbles(codes: Tensor) -> Tensor:
    """Return codes float32 `[N, K]` as uint8 `[N, K / 2]`: of each 32, code k beside k + 16."""
    halves = codes.to(torch.uint8).reshape(len(codes), -1, 2, BLOCK // 2)
    low, high = halves.unbind(dim=2)
    return (low | high << 4).flatten(1)
