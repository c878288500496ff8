"""What a sampler takes: all that a request asks of its draws, with every default filled in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """What a request asks of its draws beside what all draws have, complete; each default is off.

    In the order in which they apply, and temperature between `top_n_sigma` and `typical_p`.
    """

    allowed_token_ids: tuple[int, ...] | None = None
    """Only these are drawn; None allows all."""
    banned_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids: the last one is not drawn behind the others."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[bytes, ...] = ()
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    num_candidates: int = 0
    """The likeliest tokens that are reported with each draw."""


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """A `Sampling` with every default filled in."""

    temperature: float
    """0 is greedy."""
    top_k: int
    """0 is off."""
    top_p: float
    """1 is off."""
    min_p: float
    """0 is off."""
    seed: int
    """64 bits, unsigned."""
    options: SamplerOptions = SamplerOptions()
