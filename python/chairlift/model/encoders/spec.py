"""An encoder as data: what its layers compute, and what a checkpoint calls their tensors.

Encoders have no KV cache and no head over the vocabulary, and their norms have other places than
those of a decoder: they have a specification of their own, beside `ModelSpec`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from chairlift.model.config import GenerationDefaults
from chairlift.model.specs.rope import Rope


@dataclass(frozen=True, slots=True)
class RelativeBias:
    """A number per head and range of distances, added to the scores (MPNet, as T5)."""

    num_buckets: int
    max_distance: int


@dataclass(frozen=True, slots=True)
class EncoderLayerSpec:
    """One layer: attention to all tokens, then a feed-forward."""

    rope: Rope | None = None
    reach: int | None = None
    """A token sees those at most so far before and after it; None sees all."""
    has_attention_norm: bool = True


@dataclass(frozen=True, slots=True)
class Classifier:
    """A head that turns the vector of a text into scores of labels.

    `dense -> activation -> norm -> output`, each but the last only where the model has it.
    """

    labels: tuple[str, ...]
    is_multi_label: bool
    """Scores are sigmoids of their own; else they are shares of one."""
    pooling: str
    """`cls` or `mean`."""
    activation: str | None
    """Activation of the dense layer: `tanh`, `gelu`, or another of `ACTIVATIONS`; None has no such
    layer."""
    has_norm: bool = False
    dense_bias: bool = True


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """What a checkpoint calls the parts of an encoder; a layer's follow its number."""

    embedding: str
    embedding_norm: str
    layers: str
    qkv: tuple[str, ...]
    """One name of a fused layer, or three."""
    output: str
    attention_norm: str
    gate_up: tuple[str, ...]
    """Names of the layers before the activation."""
    down: str
    feed_forward_norm: str
    positions: str = ""
    token_types: str = ""
    relative_bias: str = ""
    final_norm: str = ""
    prefix: str = ""
    """Before all names, in a checkpoint with a head."""
    dense: str = ""
    """Name of the head's dense layer, without the prefix."""
    dense_norm: str = ""
    classifier: str = ""
    unused: tuple[str, ...] = ()
    """Beginnings of names of tensors that vectors and scores do not need."""


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder from token ids to hidden states."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    layers: tuple[EncoderLayerSpec, ...]
    norm_eps: float
    activation: str
    """`silu`, `gelu` or `gelu_tanh`."""
    is_gated: bool = False
    norm_first: bool = False
    """Norms stand before each half and after the last layer; else after each half."""
    norm_bias: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    num_positions: int = 0
    """Rows of the table of learned positions; 0 has none."""
    first_position: int = 0
    """Row of a text's first token in that table."""
    num_token_types: int = 0
    """Rows of the table of token types; 0 has none."""
    relative_bias: RelativeBias | None = None
    classifier: Classifier | None = None

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self.hidden_size // self.num_heads

    @property
    def num_layers(self) -> int:
        """Layers."""
        return len(self.layers)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The different position embeddings of the layers."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """The scheduler's view: one group, of blocks that take no memory."""
        return (None,)


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """One encoder; every field is resolved, and none changes later."""

    architecture: str
    spec: EncoderSpec
    names: EncoderNames
    dtype: torch.dtype
    """The dtype of weights and activations: float32 or bfloat16."""
    max_model_len: int
    """The longest text, in tokens."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    quant_types: Mapping[str, str] = field(default_factory=dict, hash=False)
    stored_format: None = None
