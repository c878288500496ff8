"""The rotations of RoPE, as a table over positions."""

import math

import torch
from torch import Tensor

from chairlift.model.spec import DividedScaling, LinearScaling, Llama3Scaling, Rope

_POSITIONS_AT_ONCE = 65_536
"""Of the table, whose intermediate values take several times its memory."""


def table_bytes(head_dim: int, num_positions: int) -> int:
    """Return the bytes of `cos_sin_table`."""
    return num_positions * head_dim * torch.float32.itemsize


def cos_sin_table(rope: Rope, head_dim: int, num_positions: int) -> Tensor:
    """Return the rotations of RoPE (Su et al., 2021) for every position.

    The angle is rounded to float32 as `transformers` rounds it: far positions need the same
    rounding for the same tokens. Its cosine is then taken exactly, for the same bits everywhere.

    Returns:
        float32 `[num_positions, head_dim]`: cosines in the first half, sines in the second.
    """
    frequencies, half = _frequencies(rope, head_dim), head_dim // 2
    table = torch.empty(num_positions, head_dim)
    for first in range(0, num_positions, _POSITIONS_AT_ONCE):
        part = table[first : first + _POSITIONS_AT_ONCE]
        positions = torch.arange(first, first + len(part), dtype=torch.float32)
        angles = torch.outer(positions, frequencies).double()
        part[:, :half], part[:, half:] = angles.cos(), angles.sin()
    return table


def _frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Return radians per position, float32 `[head_dim / 2]`; the operations are `transformers`'."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            return _blend(frequencies, scaling)
        case DividedScaling(divisors):
            return frequencies / torch.tensor(divisors)
        case None:
            return frequencies


def _blend(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow the frequencies that turn less than `low_freq_factor` times in the original length.

    Those that turn more than `high_freq_factor` times stay; between the two the slowdown fades
    linearly with the number of turns.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    length = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    kept = (length / wavelengths - low) / (high - low)
    blended = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    slowed = torch.where(wavelengths > length / low, frequencies / scaling.factor, blended)
    return torch.where(wavelengths < length / high, frequencies, slowed)
