"""The tensors that a checkpoint holds for a model: their names, shapes, and how they are packed.

The check of a checkpoint, the loader and the memory plan read the same lists.
"""

from collections.abc import Iterator
from typing import NamedTuple

from chairlift.model.linear_tensors import LinearTensors, NormTensor, linear
from chairlift.model.mixer_tensors import (
    NO_ATTENTION,
    RecurrentTensors,
    attention_tensors,
    recurrent_tensors,
)
from chairlift.model.names import CheckpointNames
from chairlift.model.spec import Experts, LayerSpec, ModelSpec
from chairlift.model.stored import Shape


class LayerTensors(NamedTuple):
    """The tensors of one decoder layer."""

    attention_norm: NormTensor | None
    """Of the mixer, whatever that is."""
    qkv: LinearTensors | None
    """Of attention, as the next three."""
    query_norm: NormTensor | None
    key_norm: NormTensor | None
    output: LinearTensors | None
    attention_norm_after: NormTensor | None
    feed_forward_norm: NormTensor | None
    """None also where both halves share the norm of attention."""
    gate_up: LinearTensors | None
    """Without a gate: up alone; of the shared feed-forward where there are experts."""
    down: LinearTensors | None
    feed_forward_norm_after: NormTensor | None
    experts: "ExpertTensors | None" = None
    recurrent: RecurrentTensors | None = None

    def parts(self) -> "Iterator[NormTensor | LinearTensors]":
        """Yield each part but single numbers: of the choice of experts, of recurrent states."""
        for part in self:
            if isinstance(part, ExpertTensors | RecurrentTensors):
                yield from part.parts()
            elif part is not None:
                yield part


class ExpertTensors(NamedTuple):
    """The tensors of a mixture of experts."""

    router: LinearTensors
    gate_up: tuple[LinearTensors, ...]
    """Of each expert."""
    down: tuple[LinearTensors, ...]
    choice_bias: str | None
    choice_bias_shape: Shape

    def parts(self) -> "Iterator[NormTensor | LinearTensors]":
        """Yield each part."""
        yield self.router
        yield from self.gate_up
        yield from self.down


class ModelTensors(NamedTuple):
    """The tensors of a model; embedding and head have the same shape."""

    embedding: LinearTensors
    layers: tuple[LayerTensors, ...]
    final_norm: NormTensor
    head: LinearTensors | None
    """None of an encoder."""

    @classmethod
    def of(cls, spec: ModelSpec, names: CheckpointNames) -> "ModelTensors":
        """Return the tensors of a spec."""
        table = (spec.vocab_size,), spec.hidden_size
        return cls(
            embedding=LinearTensors((names.embedding,), *table),
            layers=tuple(
                _layer_tensors(layer, spec.hidden_size, names, f"{names.layers}.{number}.")
                for number, layer in enumerate(spec.layers)
            ),
            final_norm=NormTensor(names.final_norm, spec.hidden_size, spec.final_norm),
            head=None if spec.bidirectional else LinearTensors((names.head,), *table),
        )

    def shapes(self) -> dict[str, Shape]:
        """Return the name and shape of every stored tensor."""
        parts: list[NormTensor | LinearTensors] = [self.embedding, self.final_norm]
        if self.head is not None:
            parts.append(self.head)
        shapes: dict[str, Shape] = {}
        for layer in self.layers:
            parts.extend(layer.parts())
            if layer.experts is not None and layer.experts.choice_bias is not None:
                shapes[layer.experts.choice_bias] = layer.experts.choice_bias_shape
            if layer.recurrent is not None:
                for own in layer.recurrent.numbers.values():
                    shapes |= own
        return shapes | {name: shape for part in parts for name, shape in part.shapes()}


def _layer_tensors(layer: LayerSpec, hidden: int, names: CheckpointNames, at: str) -> LayerTensors:
    own, recurrent = layer.attention, layer.recurrent
    attention = NO_ATTENTION if own is None else attention_tensors(own, hidden, names, at)
    mixes, feeds = bool(layer.mixers), layer.feed_forward is not None

    def norm(name: str, is_there: bool) -> NormTensor | None:
        return NormTensor(at + name, hidden, layer.norm) if is_there else None

    has_own_norm = layer.norm_before and not layer.parallel
    experts, dense = layer.experts, layer.dense
    gate_up = down = None
    if dense is not None:
        gate, up, to_hidden = names.gate, names.up, names.down
        if experts is not None:
            gate, up, to_hidden = (
                f"{names.shared}.{name.rpartition('.')[2]}" for name in (gate, up, to_hidden)
            )
        inner = dense.intermediate_size
        gate_up = linear(
            at,
            *([(gate, inner)] if dense.gated else []),
            (up, inner),
            fused=names.gate_up if dense.gated else "",
            inputs=hidden,
            bias=dense.bias,
        )
        down = linear(at, (to_hidden, hidden), inputs=inner, bias=dense.bias)
    return LayerTensors(
        attention_norm=norm(names.attention_norm, mixes and layer.norm_before),
        **attention._asdict(),
        attention_norm_after=norm(names.attention_norm_after, mixes and layer.norm_after),
        feed_forward_norm=norm(names.feed_forward_norm, feeds and has_own_norm),
        gate_up=gate_up,
        down=down,
        feed_forward_norm_after=norm(names.feed_forward_norm_after, feeds and layer.norm_after),
        experts=None if experts is None else _expert_tensors(experts, hidden, names, at),
        recurrent=None if recurrent is None else recurrent_tensors(recurrent, hidden, names, at),
    )


def _expert_tensors(
    experts: Experts, hidden: int, names: CheckpointNames, at: str
) -> ExpertTensors:
    inner = experts.intermediate_size
    gates = [names.expert_gate, names.expert_up] if experts.gated else [names.expert_up]
    outputs: tuple[int, ...] = (inner,) * len(gates)
    if names.expert_gate_up:
        gates, outputs = [names.expert_gate_up], (sum(outputs),)
    numbers = range(experts.num)
    return ExpertTensors(
        router=linear(
            at,
            (names.router, experts.num),
            *([(names.shared_gate, 1)] if experts.shared_is_gated else []),
            inputs=hidden,
        ),
        gate_up=tuple(
            LinearTensors(tuple(at + gate.format(n) for gate in gates), outputs, hidden)
            for n in numbers
        ),
        down=tuple(
            LinearTensors((at + names.expert_down.format(n),), (hidden,), inner) for n in numbers
        ),
        choice_bias=at + names.choice_bias if experts.has_choice_bias else None,
        choice_bias_shape=(*(1,) * (names.choice_bias_axes - 1), experts.num),
    )
