"""Mixers with a recurrent state, as data: they replace attention, or run beside it."""

from dataclasses import dataclass

from chairlift import _core


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A causal convolution of each channel, between two gates (LFM2)."""

    channels: int
    num_taps: int
    """Tokens that an output sees, its own included."""
    bias: bool = False
    """Whether the convolution and the linear layers have a bias."""

    @property
    def projected_size(self) -> int:
        """Numbers of a token that the layer maps its input to."""
        return 3 * self.channels

    @property
    def mixed_size(self) -> int:
        """Numbers of a token that the layer maps to its output."""
        return self.channels

    @property
    def conv_size(self) -> int:
        """Numbers of a token that a convolution leaves for another operation."""
        return 0

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of a row's state: the last inputs of the convolution."""
        return ((self.num_taps - 1, self.channels),)

    def unsupported_reason(self) -> str | None:
        """Return what no kernel computes, after the name of its field; None if there is nothing."""
        return _taps_unsupported_reason(self.num_taps)


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """The gated delta rule (Yang et al., 2024) of the outputs of a causal convolution."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    """Numbers of a head's key, and of its query."""
    value_dim: int
    num_taps: int
    norm_eps: float
    """`eps` of the norm of each head's output."""
    max_beta: float = 1.0
    """The largest share of a correction: with 2 the state may also turn."""
    interleaved_heads: bool = False
    """Value head n has key head `n % num_key_heads`; else neighbours have the same one."""

    @property
    def key_size(self) -> int:
        """Numbers of all keys."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Numbers of all values."""
        return self.num_value_heads * self.value_dim

    @property
    def projected_size(self) -> int:
        """Numbers of a token that the layer maps its input to: what is convolved, and gates."""
        return self.conv_size + self.value_size + 2 * self.num_value_heads

    @property
    def mixed_size(self) -> int:
        """Numbers of a token that the layer maps to its output."""
        return self.value_size

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of a row's states: last inputs of the convolution, and the state of each head."""
        heads = self.num_value_heads, self.key_dim, self.value_dim
        return (self.num_taps - 1, self.conv_size), heads

    def unsupported_reason(self) -> str | None:
        """Return what no kernel computes, after the name of its field; None if there is nothing."""
        step = _core.DELTA_VALUE_STEP
        if self.value_dim % step:
            return f"value_dim: expected a multiple of {step}, got {self.value_dim}"
        return _taps_unsupported_reason(self.num_taps)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """The selective scan of Mamba-2 (Dao and Gu, 2024) of the outputs of a causal convolution."""

    num_heads: int
    head_dim: int
    num_groups: int
    """Heads of a group share what goes into the state and what comes out."""
    state_dim: int
    num_taps: int
    norm_eps: float
    """`eps` of the norm of a group's outputs, behind their gates."""
    has_norm: bool = True
    """Whether there is that norm."""
    multipliers: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """Factors of the gates, the inputs, B, C and the steps, right after the map of a token."""
    conv_bias: bool = True
    bias: bool = False
    """Whether the linear layers have a bias."""
    whole_norm_size: int | None = None
    """Numbers that are normed together, where a rank has a part of them; None: those of a group."""

    @property
    def inner_size(self) -> int:
        """Numbers of all heads."""
        return self.num_heads * self.head_dim

    @property
    def norm_size(self) -> int:
        """Numbers that are normed together."""
        return self.whole_norm_size or self.inner_size // self.num_groups

    @property
    def part_sizes(self) -> list[int]:
        """Numbers of a token's gates, inputs, B, C and steps."""
        group_size = self.num_groups * self.state_dim
        return [self.inner_size, self.inner_size, group_size, group_size, self.num_heads]

    @property
    def projected_size(self) -> int:
        """Numbers of a token that the layer maps its input to: gates, what is convolved, steps."""
        return self.inner_size + self.conv_size + self.num_heads

    @property
    def mixed_size(self) -> int:
        """Numbers of a token that the layer maps to its output."""
        return self.inner_size

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: inputs of the heads, B and C of the groups."""
        return self.inner_size + 2 * self.num_groups * self.state_dim

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of a row's states: last inputs of the convolution, and the state of each head."""
        heads = self.num_heads, self.state_dim, self.head_dim
        return (self.num_taps - 1, self.conv_size), heads

    def unsupported_reason(self) -> str | None:
        """Return what no kernel computes, after the name of its field; None if there is nothing."""
        step = _core.SCAN_HEAD_STEP
        if self.head_dim % step:
            return f"head_dim: expected a multiple of {step}, got {self.head_dim}"
        return _taps_unsupported_reason(self.num_taps)


def _taps_unsupported_reason(num_taps: int) -> str | None:
    max_taps = _core.MAX_CONV_TAPS
    is_met = 2 <= num_taps <= max_taps
    return None if is_met else f"num_taps: expected 2 to {max_taps}, got {num_taps}"


Recurrent = ShortConv | GatedDelta | Mamba2
