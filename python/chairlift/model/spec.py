"""A model as data: what its layers compute, and with which sizes.

A family (`families/`) turns config.json into a `ModelSpec`. The tensors of a checkpoint, the memory
plan, the buffers of a step, the KV groups and the forward pass read the spec; none of them knows a
family. What a spec cannot say is refused when config.json is read, by the name of the field.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from chairlift.errors import ModelError


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
class Rope:
    """Rotary position embedding over all of a head."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | DividedScaling | None = None


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Root mean square norm with a weight per number."""

    eps: float


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention of a token to those before it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    window: int | None = None
    """A token sees itself and the `window - 1` tokens before it; None sees all."""
    qk_norm: RmsNorm | None = None
    """Norm of each head's query and key before RoPE."""
    qkv_bias: bool = False
    out_bias: bool = False

    @property
    def query_size(self) -> int:
        """Numbers of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Numbers of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, slots=True)
class Mlp:
    """Gated feed-forward, SwiGLU (Shazeer, 2020)."""

    intermediate_size: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer: attention, then feed-forward, each on the normed residual stream."""

    attention: Attention
    feed_forward: Mlp
    norm: RmsNorm
    """Before attention and before the feed-forward."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """The table of token embeddings."""

    vocab_size: int
    """Rows of the table and width of the logits."""
    hidden_size: int


@dataclass(frozen=True, slots=True)
class Head:
    """The linear layer that scores the vocabulary."""

    is_tied: bool
    """A checkpoint without a tensor for the head uses that of the embedding."""


class LayerShape(NamedTuple):
    """The sizes that all layers of a model share."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder from token ids to logits.

    Raises:
        ModelError: There is no layer, or the sizes of one differ from those of the first: the
            buffers of a step and the blocks of the KV cache have one shape for all layers.
    """

    embedding: Embedding
    layers: tuple[LayerSpec, ...]
    final_norm: RmsNorm
    head: Head

    def __post_init__(self) -> None:
        if not self.layers:
            message = "layers: expected at least one, got none"
            raise ModelError(message)
        expected = self.shape
        for number, layer in enumerate(self.layers):
            got = _shape(self.embedding, layer)
            if got != expected:
                name = next(n for n in got._fields if getattr(got, n) != getattr(expected, n))
                message = (
                    f"layers[{number}].{name}: expected {getattr(expected, name)} as in layers[0],"
                    f" got {getattr(got, name)}"
                )
                raise ModelError(message)

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.embedding.vocab_size

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.embedding.hidden_size

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def shape(self) -> LayerShape:
        """The sizes of every layer."""
        return _shape(self.embedding, self.layers[0])

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The different position embeddings of the layers, in order of appearance."""
        return tuple(dict.fromkeys(layer.attention.rope for layer in self.layers))

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """The sliding window of each KV group; layers with an equal window are one group."""
        return tuple(dict.fromkeys(layer.attention.window for layer in self.layers))

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """The KV group of each layer."""
        group = {window: number for number, window in enumerate(self.kv_windows)}
        return tuple(group[layer.attention.window] for layer in self.layers)


def _shape(embedding: Embedding, layer: LayerSpec) -> LayerShape:
    attention = layer.attention
    return LayerShape(
        embedding.hidden_size,
        layer.feed_forward.intermediate_size,
        attention.num_heads,
        attention.num_kv_heads,
        attention.head_dim,
    )


def with_rope_scaling(spec: ModelSpec, scaling: DividedScaling) -> ModelSpec:
    """Return a spec whose position embeddings are scaled in another way."""
    layers = (
        replace(
            layer,
            attention=replace(layer.attention, rope=replace(layer.attention.rope, scaling=scaling)),
        )
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))
