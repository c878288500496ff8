"""Rotary position embeddings (RoPE): how a model scales them, and their rotations as a table."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """RoPE with every position divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """RoPE of Llama 3.1: slow frequencies are divided by `factor`, fast ones stay."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class DividedScaling:
    """RoPE with every frequency divided by a number of its own, as GGUF files hold Llama 3.1's."""

    divisors: tuple[float, ...]
    """`[head_dim / 2]`."""


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): frequencies that turn seldom are divided by `factor`."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    """Factor of cosines and sines."""
    beta_fast: float = 32.0
    """A frequency that turns more often in the original length stays."""
    beta_slow: float = 1.0
    """One that turns less often is divided by all of `factor`."""
    truncate: bool = True
    """The places of both are rounded to whole frequencies."""


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024): frequencies divided by numbers of their own.

    Which of both holds for all positions is decided once, by the longest sequence that is served:
    keys that are cached would not fit another choice.
    """

    short: tuple[float, ...]
    """`[rotary_dim / 2]`: where no sequence is longer than the original length."""
    long: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float
    """Factor of cosines and sines."""


@dataclass(frozen=True, slots=True)
class ProportionalScaling:
    """RoPE that turns the first pairs of a head alone, with the frequencies of all of it."""

    num_pairs: int
    """That turn; each number is rotated with the one half of the head further."""
    factor: float
    """Every position is divided by it."""


Scaling = (
    LinearScaling
    | Llama3Scaling
    | DividedScaling
    | YarnScaling
    | LongRopeScaling
    | ProportionalScaling
)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding."""

    theta: float
    scaling: Scaling | None = None
    rotary_dim: int | None = None
    """The first numbers of a head, which are rotated; None is all of them."""
    interleaved: bool = False
    """A number is rotated with its neighbour, and not with the one half of them further."""


@dataclass(frozen=True, slots=True)
class PositionScale:
    """Queries times `1 + beta * log(1 + floor(position / length))` (Llama 4)."""

    beta: float
    length: int


_POSITIONS_AT_ONCE = 65_536
"""Positions that are computed at a time: intermediate values take several times their memory."""


def table_bytes(rope: Rope, head_dim: int, num_positions: int) -> int:
    """Return the bytes of `cos_sin_table`."""
    return num_positions * (rope.rotary_dim or head_dim) * torch.float32.itemsize


def cos_sin_table(
    rope: Rope, head_dim: int, num_positions: int, position_scale: PositionScale | None = None
) -> Tensor:
    """Return the rotations of RoPE (Su et al., 2021) for every position.

    The angle is rounded to float32 as `transformers` rounds it: far positions need the same
    rounding for the same tokens. Its cosine is then taken exactly, for the same bits everywhere.

    Args:
        rope: The position embedding of a layer.
        head_dim: Numbers of a head of that layer.
        num_positions: Tokens of the longest sequence that is served.
        position_scale: What rotated queries are multiplied by; None for keys.

    Returns:
        float32 `[num_positions, rotary_dim]`: cosines in the first half, sines in the second.
    """
    rotary_dim = rope.rotary_dim or head_dim
    frequencies, half = _frequencies(rope, rotary_dim, num_positions), rotary_dim // 2
    attention_factor = getattr(rope.scaling, "attention_factor", 1.0)
    table = torch.empty(num_positions, rotary_dim)
    for first in range(0, num_positions, _POSITIONS_AT_ONCE):
        part = table[first : first + _POSITIONS_AT_ONCE]
        positions = torch.arange(first, first + len(part), dtype=torch.float32)
        angles = torch.outer(positions, frequencies).double()
        part[:, :half], part[:, half:] = angles.cos(), angles.sin()
        if attention_factor != 1.0:
            part *= attention_factor
        if position_scale is not None:
            periods = (positions / position_scale.length).floor()
            part *= (1 + position_scale.beta * (1 + periods).log()).unsqueeze(1)
    return table


def _frequencies(rope: Rope, rotary_dim: int, num_positions: int) -> Tensor:
    """Return radians per position, float32 `[rotary_dim / 2]`, as `transformers` computes them."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            return _blend(frequencies, scaling)
        case DividedScaling(divisors):
            return frequencies / torch.tensor(divisors)
        case YarnScaling() as scaling:
            return _ramp(rope.theta, exponents, scaling)
        case LongRopeScaling() as scaling:
            is_long = num_positions > scaling.original_max_position_embeddings
            divisors = scaling.long if is_long else scaling.short
            return 1.0 / (torch.tensor(divisors) * rope.theta**exponents)
        case ProportionalScaling(num_pairs, factor):
            frequencies[num_pairs:] = 0
            return frequencies / factor
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


def _ramp(theta: float, exponents: Tensor, scaling: YarnScaling) -> Tensor:
    """Divide by `factor` what turns less than `beta_slow` times in the original length.

    Frequencies that turn more than `beta_fast` times stay; between the two places the share that is
    divided grows linearly.
    """
    rotary_dim = 2 * len(exponents)
    length = scaling.original_max_position_embeddings

    def place(num_turns: float) -> float:
        return rotary_dim * math.log(length / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    places = torch.arange(len(exponents), dtype=torch.float32)
    kept = 1 - ((places - low) / (high - low)).clamp(0, 1)
    powers = theta**exponents
    return 1.0 / (scaling.factor * powers) * (1 - kept) + 1.0 / powers * kept
