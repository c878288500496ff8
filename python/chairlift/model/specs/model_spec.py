"""A model as data: what its layers compute, and with which sizes.

A family (`families/`) turns config.json into a `ModelSpec`. The tensors of a checkpoint, the memory
plan, the buffers of a step, the KV groups and the forward pass read the spec; none of them knows a
family. What a spec cannot say is refused when config.json is read, by the name of the field.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from chairlift.api.errors import ModelError
from chairlift.attention.backend import Heads
from chairlift.model.specs.layer_parts import Attention, Experts, Mlp, NormSpec
from chairlift.model.specs.recurrence import Recurrent
from chairlift.model.specs.rope import PositionScale, Rope
from chairlift.model.specs.vocabulary import Embedding, Head, LayerInputs


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer: a mixer of tokens, then feed-forward, each adding to the stream.

    The mixer is attention, a recurrent state, or both side by side, of the same inputs. Either half
    may be absent.
    """

    attention: Attention | None
    feed_forward: Mlp | Experts | None
    norm: NormSpec
    """The norm of both halves."""
    recurrent: Recurrent | None = None
    norm_before: bool = True
    """A half gets the normed stream, and else the stream itself."""
    norm_after: bool = False
    """What a half adds to the stream is normed."""
    parallel: bool = False
    """Both halves get the stream before the layer, under one norm."""
    attention_multiplier: float = 1.0
    """Multiplies what attention adds to the stream."""
    recurrent_multiplier: float = 1.0
    feed_forward_multiplier: float = 1.0
    has_scalar: bool = False
    """The checkpoint has a number that the stream is multiplied by behind the layer."""

    @property
    def mixers(self) -> tuple[Attention | Recurrent, ...]:
        """What mixes tokens."""
        return tuple(mixer for mixer in (self.attention, self.recurrent) if mixer is not None)

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
        mlp = self.feed_forward
        return mlp.shared if isinstance(mlp, Experts) else mlp

    def with_window(self, window: int | None) -> "LayerSpec":
        """Return a layer of attention with another window."""
        assert self.attention is not None, "a recurrent state has no window"
        return replace(self, attention=replace(self.attention, window=window))

    def without_rope(self) -> "LayerSpec":
        """Return a layer of attention without a position embedding."""
        assert self.attention is not None, "a recurrent state has none"
        return replace(self, attention=replace(self.attention, rope=None))

    def with_state(self, recurrent: Recurrent) -> "LayerSpec":
        """Return a layer with a recurrent state in the place of attention."""
        return replace(self, attention=None, recurrent=recurrent)

    def unsupported_reason(self) -> str | None:
        """Return what no kernel computes, after the name of its field; None if there is nothing."""
        experts, mixers = self.experts, self.mixers
        if experts is not None and (unsupported_reason := experts.unsupported_reason()) is not None:
            return unsupported_reason
        if self.parallel and (self.norm_after or not self.norm_before or self.is_half):
            return "parallel: expected two halves, with a norm before them alone"
        if self.norm_after and len(mixers) > 1:
            return "norm_after: expected one mixer"
        if self.has_scalar and self.feed_forward is None:
            return "has_scalar: expected a feed-forward"
        return next(
            (found for mixer in mixers if (found := mixer.unsupported_reason()) is not None), None
        )


class SpecError(ModelError):
    """A spec asks for what no kernel computes; the message names a part of it, and no file."""


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

    @property
    def queries_per_kv_head(self) -> int:
        """Heads of queries that share keys and values."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder from token ids to logits.

    Raises:
        SpecError: No layer has attention, or one is what no kernel computes.
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
            raise SpecError(message)
        for number, layer in enumerate(self.layers):
            if (unsupported_reason := layer.unsupported_reason()) is not None:
                message = f"layers[{number}].{unsupported_reason}"
                raise SpecError(message)
            if self.layer_inputs is not None and layer.feed_forward is None:
                message = f"layers[{number}].feed_forward: expected one, since layers have inputs"
                raise SpecError(message)
            if layer.attention is not None:
                self._check_sharing(number, layer.attention)

    def _check_sharing(self, number: int, attention: Attention) -> None:
        """Check that a layer can see the keys and values of the one that it names."""
        if attention.kv_of is None:
            return
        source = self.layers[attention.kv_of].attention if 0 <= attention.kv_of < number else None
        sizes = attention.window, attention.num_kv_heads, attention.head_dim
        if (
            source is None
            or source.kv_of is not None
            or (source.window, source.num_kv_heads, source.head_dim) != sizes
            or self.bidirectional
        ):
            message = (
                f"layers[{number}].kv_of: expected a layer before it with keys of its own, and"
                f" with the same window and heads, of a decoder, got {attention.kv_of}"
            )
            raise SpecError(message)

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
        return tuple(dict.fromkeys(self._shapes_of(self.attentions)))

    def _shapes_of(self, attentions: Iterable[Attention]) -> Iterator[LayerShape]:
        hidden, inner = self.hidden_size, max(map(_intermediate_size, self.layers))
        for attention in attentions:
            yield LayerShape(
                hidden, inner, attention.num_heads, attention.num_kv_heads, attention.head_dim
            )

    @property
    def head_dims(self) -> tuple[int, ...]:
        """The different sizes of a head."""
        return tuple(dict.fromkeys(attention.head_dim for attention in self.attentions))

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of each layer that has one."""
        return tuple(
            attention for layer in self.layers if (attention := layer.attention) is not None
        )

    @property
    def heads(self) -> tuple[Heads, ...]:
        """The different heads that layers project, in order of appearance."""
        return tuple(dict.fromkeys(attention.heads for attention in self.attentions))

    @property
    def has_state(self) -> bool:
        """Whether a layer has a recurrent state: a hybrid."""
        return any(layer.recurrent is not None for layer in self.layers)

    @property
    def router_size(self) -> int:
        """Outputs of the largest router; 0 where there are no experts."""
        return max(
            (experts.router_size for layer in self.layers if (experts := layer.experts)), default=0
        )

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
        for attention in self.attentions:
            if attention.rope is not None:
                for scale in (None, attention.position_scale):
                    found[RopeTable(attention.rope, attention.head_dim, scale)] = None
        return tuple(found)

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """The sliding window of each KV group; layers with an equal window are one group.

        The blocks of an encoder hold nothing, and are one group.
        """
        if self.bidirectional:
            return (None,)
        return tuple(dict.fromkeys(attention.window for attention in self.attentions))

    @property
    def group_shapes(self) -> tuple[LayerShape, ...]:
        """The sizes of the first layer of each KV group; on a GPU those of the whole group."""
        first = {attention.window: attention for attention in reversed(self.attentions)}
        return tuple(self._shapes_of(first[window] for window in self.kv_windows))

    @property
    def layer_groups(self) -> tuple[int | None, ...]:
        """The KV group of each layer; None for one without keys."""
        if self.bidirectional:
            return (0,) * self.num_layers
        group = {window: number for number, window in enumerate(self.kv_windows)}
        attentions = (layer.attention for layer in self.layers)
        return tuple(
            None if attention is None else group[attention.window] for attention in attentions
        )


def _intermediate_size(layer: LayerSpec) -> int:
    """Return the width of a feed-forward that computes every token, or of one expert."""
    widest = layer.dense or layer.experts
    return 0 if widest is None else widest.intermediate_size
