"""Both ends of a model, as data: from token ids to the residual stream, and back."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Embedding:
    """The table of token embeddings."""

    vocab_size: int
    """Rows of the table and width of the logits."""
    hidden_size: int
    multiplier: float = 1.0
    """Multiplies the rows; rounded to the dtype of the table."""


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Embeddings of each token for each layer, of a table of their own (Gemma 3n and 4).

    `(table[token] * multiplier + norm(map of the embedding)) / sqrt(2)`, of which a layer adds to
    the stream, behind its feed-forward, a map of `activation(map of the stream) * its part`.
    """

    vocab_size: int
    """Rows of the table."""
    size: int
    """Numbers for a layer."""
    multiplier: float
    """Multiplies the rows; rounded to the dtype of the table."""
    norm_eps: float
    """`eps` of the root mean square norm of each layer's part in the map."""
    activation: str


@dataclass(frozen=True, slots=True)
class Head:
    """The linear layer that scores the vocabulary."""

    is_tied: bool
    """A checkpoint without a tensor for the head uses that of the embedding."""
    multiplier: float = 1.0
    """Multiplies the logits."""
    soft_cap: float | None = None
    """A logit `x` then becomes `soft_cap * tanh(x / soft_cap)`."""
