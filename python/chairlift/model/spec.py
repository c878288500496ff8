"""A model as data: what its layers compute, and with which sizes.

A family (`families/`) turns config.json into a `ModelSpec`. The tensors of a checkpoint, the memory
plan, the buffers of a step, the KV groups and the forward pass read the spec; none of them knows a
family. What a spec cannot say is refused when config.json is read, by the name of the field.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from chairlift.attention.backend import Heads
from chairlift.errors import ModelError
from chairlift.model.recurrence import Recurrent
from chairlift.model.rope import PositionScale, Rope
from chairlift.model.vocabulary import Embedding, Head, LayerInputs


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Root mean square norm with a weight per number."""

    eps: float
    plus_one: bool = False
    """The checkpoint holds the weights less 1."""


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer norm with a weight per number."""

    eps: float
    has_bias: bool


NormSpec = RmsNorm | LayerNorm


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention of a token to those before it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope | None
    """None: positions count by the mask alone."""
    window: int | None = None
    """A token sees itself and the `window - 1` tokens before it; None sees all."""
    multiplier: float | None = None
    """Factor of the scores; None is that of the size of a head."""
    position_scale: PositionScale | None = None
    soft_cap: float | None = None
    """A score `s` becomes `soft_cap * tanh(s / soft_cap)`."""
    qk_norm: RmsNorm | None = None
    """Norm of queries and keys before RoPE."""
    norms_all_heads: bool = False
    """That norm is one over all heads, and not one of each."""
    qkv_bias: bool = False
    out_bias: bool = False
    has_gate: bool = False
    """What attention computes is multiplied by the sigmoid of a projection of the same size."""
    kv_of: int | None = None
    """The layer whose keys and values are seen here; None projects its own."""
    keys_are_values: bool = False
    """Keys are values, too, before their norm and rotation: there is no projection of values."""
    value_norm_eps: float | None = None
    """Of a root mean square norm of each value head, without weights; None is none."""

    @property
    def query_size(self) -> int:
        """Numbers of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Numbers of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def heads(self) -> Heads:
        """What the layer projects of each token."""
        num_kv_heads = 0 if self.kv_of is not None else self.num_kv_heads
        return Heads(
            self.num_heads,
            num_kv_heads,
            self.head_dim,
            has_gate=self.has_gate,
            has_values=not self.keys_are_values,
            norms_values=self.value_norm_eps is not None and num_kv_heads > 0,
        )

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.head_dim**-0.5) if self.multiplier is None else self.multiplier

    def obstacle(self) -> str | None:
        """Return what no kernel computes, after the name of its field; None if there is nothing."""
        if self.position_scale is not None and (self.rope is None or self.rope.rotary_dim):
            return "position_scale: expected none unless RoPE rotates all of a head"
        if self.keys_are_values and self.value_norm_eps is None:
            return "keys_are_values: expected a norm of values"
        return None


@dataclass(frozen=True, slots=True)
class Mlp:
    """Feed-forward: `down(activation(gate) * up)` (Shazeer, 2020), or `down(activation(up))`."""

    intermediate_size: int
    activation: str = "silu"
    """`silu`, `gelu`, `gelu_tanh` or `relu2`."""
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0
    """Of what the activation is taken of."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Many small feed-forwards, of which a router chooses some for each token."""

    num: int
    top_k: int
    """Of each token."""
    intermediate_size: int
    """Of each expert."""
    scores: str
    """What weighs an expert: `softmax` over all, `softmax_of_chosen` or `sigmoid`."""
    activation: str = "silu"
    least_sum: float | None = None
    """The weights of a token are divided by their sum, which is at least this; None leaves them."""
    multiplier: float = 1.0
    """Of the weights, after that."""
    has_choice_bias: bool = False
    """The checkpoint has numbers that are added to the scores for the choice alone."""
    shared: Mlp | None = None
    """Computes every token, beside the chosen ones."""
    shared_is_gated: bool = False
    """What it adds is multiplied by the sigmoid of one more output of the router."""
    own_norm: RmsNorm | None = None
    """Of the stream, for the router and for the experts, and of what the shared one and the experts
    add, each with weights of its own; None leaves that to the norms of the layer."""
    has_factors: bool = False
    """The checkpoint has a factor of the weight of each expert."""
    gated: bool = True
    """An expert has a gate, as an `Mlp`."""

    @property
    def router_size(self) -> int:
        """Return the outputs of the router."""
        return self.num + self.shared_is_gated


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer: a mixer of tokens, then feed-forward, each adding to the stream.

    The mixer is attention, a recurrent state, or both side by side, of the same inputs. Either half
    may be absent.
    """

    attention: Attention | None
    feed_forward: Mlp | Experts | None
    norm: NormSpec
    """Of both halves."""
    recurrent: Recurrent | None = None
    norm_before: bool = True
    """A half gets the normed stream, and else the stream itself."""
    norm_after: bool = False
    """What a half adds to the stream is normed."""
    parallel: bool = False
    """Both halves get the stream before the layer, under one norm."""
    attention_multiplier: float = 1.0
    """Of what attention adds to the stream."""
    recurrent_multiplier: float = 1.0
    feed_forward_multiplier: float = 1.0
    has_scalar: bool = False
    """The checkpoint has a number that the stream is multiplied by behind the layer."""

    @property
    def mixers(self) -> tuple[Attention | Recurrent, ...]:
        """What mixes tokens."""
        return tuple(own for own in (self.attention, self.recurrent) if own is not None)

    @property
    def is_half(self) -> bool:
        """Whether a half is absent."""
        return not self.mixers or self.feed_forward is None

    @property
    def experts(self) -> Experts | None:
        """The feed-forward, where that is a mixture of experts."""
        return self.feed_forward if isinstance(self.feed_forward, Experts) else None

    @property
    def dense(self) -> Mlp | None:
        """The feed-forward of every token: all of it, or what experts share."""
        own = self.feed_forward
        return own.shared if isinstance(own, Experts) else own

    def with_window(self, window: int | None) -> "LayerSpec":
        """Return a layer of attention with another window."""
        assert self.attention is not None, "a recurrent state has no window"
        return replace(self, attention=replace(self.attention, window=window))

    def with_state(self, recurrent: Recurrent) -> "LayerSpec":
        """Return a layer with a recurrent state in the place of attention."""
        return replace(self, attention=None, recurrent=recurrent)

    def obstacle(self) -> str | None:
        """Return what no kernel computes, after the name of its field; None if there is nothing."""
        experts, mixers = self.experts, self.mixers
        if experts is not None and not 1 <= experts.top_k <= experts.num:
            return f"experts: expected at least {experts.top_k}, got {experts.num}"
        if experts is not None and experts.own_norm is not None and experts.shared is None:
            return "experts: expected a shared one beside those with norms of their own"
        if self.parallel and (self.norm_after or not self.norm_before or self.is_half):
            return "parallel: expected two halves, with a norm before them alone"
        if self.norm_after and len(mixers) > 1:
            return "norm_after: expected one mixer"
        if self.has_scalar and self.feed_forward is None:
            return "has_scalar: expected a feed-forward"
        return next((found for own in mixers if (found := own.obstacle()) is not None), None)


class RopeTable(NamedTuple):
    """A position embedding of heads of a size, and what queries are also multiplied by."""

    rope: Rope
    head_dim: int
    position_scale: PositionScale | None = None


class LayerShape(NamedTuple):
    """The sizes of layers of one kind."""

    hidden_size: int
    intermediate_size: int
    """The largest: layers may have different ones."""
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder from token ids to logits.

    Raises:
        ModelError: No layer has attention, or one is what no kernel computes.
    """

    embedding: Embedding
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    head: Head
    bidirectional: bool = False
    """A token sees all tokens of its text, within its window on both sides: an encoder, whose
    hidden states are the result, without logits."""
    layer_inputs: LayerInputs | None = None
    """What each layer gets beside the stream; None is nothing."""

    def __post_init__(self) -> None:
        if not self.attentions:
            message = "layers: expected at least one with attention, got none"
            raise ModelError(message)
        for number, layer in enumerate(self.layers):
            if (obstacle := layer.obstacle()) is not None:
                message = f"layers[{number}].{obstacle}"
                raise ModelError(message)
            if self.layer_inputs is not None and layer.feed_forward is None:
                message = f"layers[{number}].feed_forward: expected one, since layers have inputs"
                raise ModelError(message)
            if layer.attention is not None:
                self._check_sharing(number, layer.attention)

    def _check_sharing(self, number: int, own: Attention) -> None:
        """Check that a layer can see the keys and values of the one that it names."""
        if own.kv_of is None:
            return
        source = self.layers[own.kv_of].attention if 0 <= own.kv_of < number else None
        sizes = own.window, own.num_kv_heads, own.head_dim
        if (
            source is None
            or source.kv_of is not None
            or (source.window, source.num_kv_heads, source.head_dim) != sizes
            or self.bidirectional
        ):
            message = (
                f"layers[{number}].kv_of: expected a layer before it with keys of its own, and"
                f" with the same window and heads, of a decoder, got {own.kv_of}"
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
        """The sizes of the first layer with attention; in most models those of every layer."""
        return self.shapes[0]

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The different sizes of layers with attention, in order of appearance."""
        hidden, inner = self.hidden_size, max(_intermediate_size(layer) for layer in self.layers)
        shapes = (
            LayerShape(hidden, inner, own.num_heads, own.num_kv_heads, own.head_dim)
            for own in self.attentions
        )
        return tuple(dict.fromkeys(shapes))

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of each layer that has one."""
        return tuple(own for layer in self.layers if (own := layer.attention) is not None)

    @property
    def heads(self) -> tuple[Heads, ...]:
        """The different heads that layers project, in order of appearance."""
        return tuple(dict.fromkeys(own.heads for own in self.attentions))

    @property
    def has_state(self) -> bool:
        """Whether a layer has a recurrent state: a hybrid."""
        return any(layer.recurrent is not None for layer in self.layers)

    @property
    def router_size(self) -> int:
        """Outputs of the largest router; 0 where there are no experts."""
        return max((own.router_size for layer in self.layers if (own := layer.experts)), default=0)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The different position embeddings of the layers, in order of appearance."""
        return tuple(dict.fromkeys(table.rope for table in self.rope_tables))

    @property
    def last_kept(self) -> int:
        """The last layer that keeps something of a token for those to come."""
        return max(
            number
            for number, layer in enumerate(self.layers)
            if layer.recurrent is not None
            or (layer.attention is not None and layer.attention.kv_of is None)
        )

    @property
    def rope_tables(self) -> tuple[RopeTable, ...]:
        """The different rotations of keys and of queries, in order of appearance."""
        found: dict[RopeTable, None] = {}
        for own in self.attentions:
            if own.rope is not None:
                for scale in (None, own.position_scale):
                    found[RopeTable(own.rope, own.head_dim, scale)] = None
        return tuple(found)

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """The sliding window of each KV group; layers with an equal window are one group.

        The blocks of an encoder hold nothing, and are one group.
        """
        if self.bidirectional:
            return (None,)
        return tuple(dict.fromkeys(own.window for own in self.attentions))

    @property
    def layer_groups(self) -> tuple[int | None, ...]:
        """The KV group of each layer; None for one without keys."""
        if self.bidirectional:
            return (0,) * self.num_layers
        group = {window: number for number, window in enumerate(self.kv_windows)}
        attentions = (layer.attention for layer in self.layers)
        return tuple(None if own is None else group[own.window] for own in attentions)


def _intermediate_size(layer: LayerSpec) -> int:
    """Return the width of a feed-forward that computes every token, or of one expert."""
    widest = layer.dense or layer.experts
    return 0 if widest is None else widest.intermediate_size
