"""Requests that end with their prompt: what a model gives for them, and where it is kept.

Such a request goes through the scheduler like any other, and asks for one token: the step that
computes the end of its prompt keeps its vector, and its token is not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chairlift.api import checks
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Pooling, PoolingTask

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PoolingAbilities:
    """What a model gives besides text."""

    size: int
    """Numbers of a vector."""
    poolings: Sequence[str] = ()
    """What a request may ask for; empty where the model gives no vectors."""
    default_pooling: str = "mean"
    normalize: bool = True
    """Whether vectors have length 1 unless a request says otherwise."""
    max_length: int = 0
    """The longest input, in tokens."""
    pools_prompt: bool = True
    """Whether the tokens of a prompt count in the pooling."""
    default_dimensions: int | None = None
    """Numbers of a vector unless a request says otherwise; None is all."""
    similarity: str = "cosine"
    """What ranks texts by their vectors: `cosine`, `dot`, `euclidean` or `manhattan`."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Names and texts of what goes before an input."""
    default_prompt: str | None = None
    labels: tuple[str, ...] = ()
    """Labels of a classifier; empty where the model is none."""
    is_multi_label: bool = False
    has_token_types: bool = False
    generates: bool = False
    """Whether the model gives text as well."""


NOTHING = PoolingAbilities(size=0, generates=True)
"""The abilities of a model that gives text alone."""


@dataclass(slots=True, eq=False)
class Pooled:
    """The result of a request: written by the engine's thread, read after the request has ended."""

    task: PoolingTask
    pooling: str
    dimensions: int | None
    normalize: bool
    num_first: int | None = None
    """Tokens of the first text of a pair, whose type is 0; None is no pair."""
    num_prompt: int = 0
    """Tokens at the start that do not count in the pooling."""
    num_tokens: int = 0
    raw: Vector | None = field(default=None, repr=False)
    """The pooled vector, or the logits of the labels."""

    def vector(self) -> Vector:
        """Return the vector, shortened and scaled as the request asks."""
        assert self.raw is not None, "the request has ended"
        vector = self.raw[: self.dimensions]
        if not self.normalize:
            return vector
        length = np.sqrt(np.dot(vector.astype(np.float64), vector.astype(np.float64)))
        scaled: Vector = (vector / max(length, 1e-12)).astype(np.float32)
        return scaled

    def scores(self, *, is_multi_label: bool) -> Vector:
        """Return the score of each label: shares of 1, or a sigmoid for each."""
        assert self.raw is not None, "the request has ended"
        logits = self.raw.astype(np.float64)
        if is_multi_label:
            sigmoids: Vector = (1 / (1 + np.exp(-logits))).astype(np.float32)
            return sigmoids
        powers = np.exp(logits - logits.max())
        shares: Vector = (powers / powers.sum()).astype(np.float32)
        return shares


def check_pooling(options: Pooling, abilities: PoolingAbilities) -> Pooled:
    """Return where the result of a request is to be kept.

    Raises:
        RequestError: The model does not give what is asked for, with the path of the field.
    """
    if options.task is PoolingTask.CLASSIFY:
        if not abilities.labels:
            message = "this model has no classifier: it gives no scores"
            raise _unsupported(message)
        return Pooled(options.task, "", None, normalize=False)
    if not abilities.poolings or abilities.labels:
        what = "scores" if abilities.labels else "text"
        message = f"this model gives {what} and no vectors"
        raise _unsupported(message)
    pooling = options.pooling or abilities.default_pooling
    if pooling not in abilities.poolings:
        expected = " or ".join(abilities.poolings)
        message = f"pooling: expected {expected} with this model, got {pooling}"
        raise RequestError(Reason.BAD_PARAMETER, message, field="pooling")
    dimensions = abilities.default_dimensions
    if options.dimensions is not None:
        dimensions = checks.integer(options.dimensions, "dimensions", 1, abilities.size)
    normalize = abilities.normalize if options.normalize is None else options.normalize
    return Pooled(options.task, pooling, dimensions, checks.flag(normalize, "normalize"))


def _unsupported(message: str) -> RequestError:
    return RequestError(Reason.UNSUPPORTED, message, field="model")
