"""The parts of a model: one record, of the tensors in a checkpoint and of the weights in memory.

`ModelTensors` says of each part how it is stored, and `Weights` holds it as the kernels take it.
The check of a checkpoint, the loader and the memory plan walk the record: a new part is a field
here, a line in `model_tensors.py` or `mixer_tensors.py`, its names in `CheckpointNames.parts`, and
what the forward pass does with it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

NormT = TypeVar("NormT")
LinearT = TypeVar("LinearT")
ExpertsT = TypeVar("ExpertsT")
NumbersT = TypeVar("NumbersT")


@dataclass(frozen=True)
class Parts:
    """A record whose fields are parts, records of parts, tuples of these, or None."""

    def leaves(self) -> Iterator[Any]:
        """Yield each part."""
        return _leaves(self)

    def map(self, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401, its parts have other types
        """Return the same record of what a function makes of each part."""
        return _map(self, change)


def _leaves(value: object) -> Iterator[Any]:
    if isinstance(value, Parts):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name))
    elif type(value) is tuple:  # a part is a named one
        for item in value:
            yield from _leaves(item)
    elif value is not None:
        yield value


def _map(value: object, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    if isinstance(value, Parts):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return type(value)(**{name: _map(part, change) for name, part in parts.items()})
    if type(value) is tuple:
        return tuple(_map(item, change) for item in value)
    return None if value is None else change(value)


@dataclass(frozen=True)
class ExpertNorms(Parts, Generic[NormT]):
    """The norms of experts that differ from those of their layer."""

    router_norm: NormT
    """Norm of the stream, for the router."""
    experts_norm: NormT
    """Norm of the stream, for the experts."""
    shared_norm_after: NormT
    """Norm of what the shared expert adds."""
    experts_norm_after: NormT
    """Norm of what the experts add."""


@dataclass(frozen=True)
class ExpertParts(Parts, Generic[NormT, LinearT, ExpertsT]):
    """A mixture of experts."""

    router: LinearT
    """H to a score of each expert, then to the gate of the shared one."""
    mixture: ExpertsT
    """All experts, and how their scores choose them."""
    norms: ExpertNorms[NormT] | None = None


@dataclass(frozen=True)
class RecurrentParts(Parts, Generic[LinearT, NumbersT]):
    """A mixer with a recurrent state; numbers are float32."""

    projection: LinearT
    """H to `projected_size`, or to all of it but `beta_alpha`."""
    mixed_output: LinearT
    """`mixed_size` to H."""
    conv: NumbersT
    """`[num_taps, channels]`, that of the oldest input first."""
    conv_bias: NumbersT | None = None
    """`[channels]`"""
    beta_alpha: LinearT | None = None
    """H to the shares, then the decays, of the heads of the gated delta rule."""
    rate: NumbersT | None = None
    """`[num_value_heads]`: of the decay."""
    dt_bias: NumbersT | None = None
    """`[num_value_heads]`"""
    state_norm: NumbersT | None = None
    """`[value_dim]`: weight of the norm of a head's output; `[inner_size]` of Mamba-2."""
    skip: NumbersT | None = None
    """`[num_heads]`: of Mamba-2."""


@dataclass(frozen=True)
class LayerParts(Parts, Generic[NormT, LinearT, ExpertsT, NumbersT]):
    """A decoder layer; H is `hidden_size`. A layer has None where its spec has no such part."""

    attention_norm: NormT | None = None
    """Before the mixer, whatever that is."""
    qkv: LinearT | None = None
    """H to query heads, key heads and value heads, side by side."""
    query_norm: NumbersT | None = None
    """`[head_dim]`, or of all heads."""
    key_norm: NumbersT | None = None
    value_norm: NumbersT | None = None
    """`[head_dim]` of ones: the norm of values has no weights."""
    sinks: NumbersT | None = None
    """float32 `[num_heads]`, of attention."""
    output: LinearT | None = None
    """Heads to H."""
    recurrent: RecurrentParts[LinearT, NumbersT] | None = None
    attention_norm_after: NormT | None = None
    """Norm of what the mixer adds to the stream."""
    feed_forward_norm: NormT | None = None
    """None also where both halves share the norm before attention."""
    gate_up: LinearT | None = None
    """H to gate and up, side by side; to up alone where there is no gate. Of the shared
    feed-forward where there are experts."""
    down: LinearT | None = None
    """Intermediate to H."""
    experts: ExpertParts[NormT, LinearT, ExpertsT] | None = None
    feed_forward_norm_after: NormT | None = None
    """Norm of what the feed-forward adds to the stream."""
    input_gate: LinearT | None = None
    """H to what the layer's inputs are multiplied by."""
    input_projection: LinearT | None = None
    """Inputs to H."""
    input_norm: NormT | None = None
    """Norm of what the inputs add to the stream."""
    scalar: NumbersT | None = None
    """float32 `[1]`: the stream is multiplied by it behind the layer."""

    @property
    def first_norm(self) -> NormT | None:
        """The norm before the first half; None where that gets the stream itself."""
        return self.feed_forward_norm if self.attention_norm is None else self.attention_norm


@dataclass(frozen=True)
class ModelParts(Parts, Generic[NormT, LinearT, ExpertsT, NumbersT]):
    """A whole model."""

    embedding: NumbersT
    """`[vocab_size, H]`"""
    layers: tuple[LayerParts[NormT, LinearT, ExpertsT, NumbersT], ...]
    final_norm: NormT
    head: LinearT | None
    """H to `vocab_size`; None of an encoder."""
    layer_embedding: NumbersT | None = None
    """`[vocab_size, num_layers * size]`: what each layer gets beside the stream."""
    layer_context: LinearT | None = None
    """H, of the embedding of a token, to the inputs of all layers."""
    layer_context_norm: NumbersT | None = None
    """`[size]`"""
