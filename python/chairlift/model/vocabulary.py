"""Both ends of a model, as data: from token ids to the residual stream, and back."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Embedding:
    """The table of token embeddings."""

    vocab_size: int
    """Rows of the table and width of the logits."""
    hidden_size: int
    multiplier: float = 1.0
    """Of the rows; rounded to the dtype of the table."""


@dataclass(frozen=True, slots=True)
class Head:
    """The linear layer that scores the vocabulary."""

    is_tied: bool
    """A checkpoint without a tensor for the head uses that of the embedding."""
    multiplier: float = 1.0
    """Of the logits."""
    soft_cap: float | None = None
    """A logit `x` then becomes `soft_cap * tanh(x / soft_cap)`."""
