"""The tensors that a checkpoint holds for a model: their names, shapes, and how they are packed.

The check of a checkpoint, the loader and the memory plan read the same lists.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from chairlift.checkpoints.files.names import CheckpointNames
from chairlift.checkpoints.files.stored import Shape
from chairlift.model.specs.layer_parts import Experts, RmsNorm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.tensors.linear_tensors import Interleaved, LinearTensors, NormTensor, linear
from chairlift.model.tensors.mixer_tensors import (
    NO_ATTENTION,
    RecurrentTensors,
    attention_tensors,
    recurrent_tensors,
)


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
    input_gate: LinearTensors | None = None
    """From the stream to what the layer's inputs are multiplied by."""
    input_projection: LinearTensors | None = None
    input_norm: NormTensor | None = None
    scalar: str | None = None
    """Of one number."""
    sinks: Mapping[str, Shape] = {}
    """Those of attention, which has some or none."""

    def numbers(self) -> dict[str, Shape]:
        """Return the names and shapes of what is read as float32, and kept so."""
        recurrent = {} if self.recurrent is None else self.recurrent.numbers
        scalar: Mapping[str, Shape] = {} if self.scalar is None else {self.scalar: (1,)}
        parts = self.sinks, scalar, *recurrent.values()
        return {name: own[name] for own in parts for name in own}

    def parts(self) -> "Iterator[NormTensor | LinearTensors]":
        """Yield each part but single numbers: of the choice of experts, of states, of sinks."""
        for part in self:
            if isinstance(part, ExpertTensors | RecurrentTensors):
                yield from part.parts()
            elif isinstance(part, NormTensor | LinearTensors):
                yield part


class ExpertTensors(NamedTuple):
    """The tensors of a mixture of experts."""

    router: LinearTensors
    gate_up: tuple[LinearTensors, ...]
    """Of each expert."""
    down: tuple[LinearTensors, ...]
    numbers: Mapping[str, tuple[str, Shape]]
    """Names and shapes of what there is of `choice_bias` and `factors`."""
    norms: "ExpertNormTensors | None" = None

    def parts(self) -> "Iterator[NormTensor | LinearTensors]":
        """Yield each part."""
        yield self.router
        yield from self.norms or ()
        yield from self.gate_up
        yield from self.down


class ExpertNormTensors(NamedTuple):
    """The norms of experts that are apart from those of their layer."""

    router: NormTensor
    before: NormTensor
    shared_after: NormTensor
    after: NormTensor


class LayerInputTensors(NamedTuple):
    """The tensors of `LayerInputs`."""

    embedding: LinearTensors
    """The table, `[vocab_size, num_layers * size]`."""
    context: LinearTensors
    """From the embedding of a token to the inputs of all layers."""
    norm: NormTensor
    """Of the part of a layer."""

    @classmethod
    def of(cls, spec: ModelSpec, names: CheckpointNames) -> "LayerInputTensors | None":
        """Return the tensors of a spec; None without such inputs."""
        own = spec.layer_inputs
        if own is None:
            return None
        width = spec.num_layers * own.size
        return cls(
            LinearTensors((names.layer_embedding,), (own.vocab_size,), width),
            LinearTensors((names.layer_context,), (width,), spec.hidden_size),
            NormTensor(names.layer_context_norm, own.size, RmsNorm(own.norm_eps)),
        )


class ModelTensors(NamedTuple):
    """The tensors of a model; embedding and head have the same shape."""

    embedding: LinearTensors
    layers: tuple[LayerTensors, ...]
    final_norm: NormTensor
    head: LinearTensors | None
    """None of an encoder."""
    layer_inputs: LayerInputTensors | None = None

    @classmethod
    def of(cls, spec: ModelSpec, names: CheckpointNames) -> "ModelTensors":
        """Return the tensors of a spec."""
        table = (spec.vocab_size,), spec.hidden_size
        return cls(
            embedding=LinearTensors((names.embedding,), *table),
            layers=tuple(
                _with_inputs(
                    _layer_tensors(layer, spec.hidden_size, names, at), spec, layer, names, at
                )
                for layer, at in zip(spec.layers, names.each_layer(spec.num_layers), strict=True)
            ),
            layer_inputs=LayerInputTensors.of(spec, names),
            final_norm=NormTensor(names.final_norm, spec.hidden_size, spec.final_norm),
            head=None if spec.bidirectional else LinearTensors((names.head,), *table),
        )

    @staticmethod
    def unused(spec: ModelSpec, names: CheckpointNames) -> tuple[str, ...]:
        """Return how the names of tensors begin that a checkpoint may have for nothing.

        They project keys and values of layers that see those of another.
        """
        ends = names.key, names.value, names.key_norm
        layers = zip(spec.layers, names.each_layer(spec.num_layers), strict=True)
        return tuple(
            f"{at}{end}."
            for layer, at in layers
            if layer.attention is not None and layer.attention.kv_of is not None
            for end in ends
        )

    def shapes(self) -> dict[str, Shape]:
        """Return the name and shape of every stored tensor."""
        parts: list[NormTensor | LinearTensors] = [self.embedding, self.final_norm]
        if self.head is not None:
            parts.append(self.head)
        if self.layer_inputs is not None:
            parts.extend(self.layer_inputs)
        shapes: dict[str, Shape] = {}
        for layer in self.layers:
            parts.extend(layer.parts())
            if layer.experts is not None:
                shapes |= dict(layer.experts.numbers.values())
            shapes |= layer.numbers()
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
                names.shared.format(name.rpartition(".")[2]) for name in (gate, up, to_hidden)
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


def _with_inputs(
    tensors: LayerTensors, spec: ModelSpec, layer: LayerSpec, names: CheckpointNames, at: str
) -> LayerTensors:
    """Return a layer's tensors with those of its inputs, and its factor of the stream."""
    if layer.has_scalar:
        tensors = tensors._replace(scalar=at + names.scalar)
    if spec.layer_inputs is None:
        return tensors
    size, hidden = spec.layer_inputs.size, spec.hidden_size
    return tensors._replace(
        input_gate=linear(at, (names.input_gate, size), inputs=hidden),
        input_projection=linear(at, (names.input_projection, hidden), inputs=size),
        input_norm=NormTensor(at + names.input_norm, hidden, layer.norm),
    )


def _expert_tensors(
    experts: Experts, hidden: int, names: CheckpointNames, at: str
) -> ExpertTensors:
    inner = experts.intermediate_size
    gates = [names.expert_gate, names.expert_up] if experts.gated else [names.expert_up]
    outputs: tuple[int, ...] = (inner,) * len(gates)
    if names.expert_gate_up:
        gates, outputs = [names.expert_gate_up], (sum(outputs),)
    numbers, bias = range(experts.num), experts.bias
    order = Interleaved(inner, (1, 1), (0, 1)) if names.in_turn else None
    return ExpertTensors(
        router=linear(
            at,
            (names.router, experts.num),
            *([(names.shared_gate, 1)] if experts.shared_is_gated else []),
            inputs=hidden,
            bias=experts.router_bias,
        ),
        gate_up=tuple(
            LinearTensors(
                tuple(at + gate.format(n) for gate in gates), outputs, hidden, bias, order
            )
            for n in numbers
        ),
        down=tuple(
            LinearTensors((at + names.expert_down.format(n),), (hidden,), inner, bias)
            for n in numbers
        ),
        numbers=_expert_numbers(experts, names, at),
        norms=_expert_norms(experts, hidden, names, at),
    )


def _expert_numbers(
    experts: Experts, names: CheckpointNames, at: str
) -> dict[str, tuple[str, Shape]]:
    numbers: dict[str, tuple[str, Shape]] = {}
    if experts.has_choice_bias:
        shape = (*(1,) * (names.choice_bias_axes - 1), experts.num)
        numbers["choice_bias"] = at + names.choice_bias, shape
    if experts.has_factors:
        numbers["factors"] = at + names.factors, (experts.num,)
    return numbers


def _expert_norms(
    experts: Experts, hidden: int, names: CheckpointNames, at: str
) -> ExpertNormTensors | None:
    norm = experts.own_norm
    if norm is None:
        return None
    others = names.experts_norm, names.shared_norm_after, names.experts_norm_after
    return ExpertNormTensors(
        NormTensor(at + names.router_norm, hidden, norm, stored="scale"),
        *(NormTensor(at + name, hidden, norm) for name in others),
    )
