"""The tensors that a checkpoint holds for a model: their names, shapes, and how they are packed.

The check of a checkpoint, the loader and the memory plan read the same records.
"""

from dataclasses import replace

from chairlift.checkpoints.files.names import CheckpointNames
from chairlift.checkpoints.files.stored import Shape
from chairlift.model.specs.layer_parts import Experts
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.tensors.mixer_tensors import recurrent_tensors, with_attention
from chairlift.model.tensors.names import LayerNames
from chairlift.model.tensors.part_tensors import (
    ExpertTensors,
    Interleaved,
    LayerTensors,
    LinearTensors,
    ModelTensors,
    NormTensor,
    NumberTensors,
    Part,
)
from chairlift.model.tensors.parts import ExpertNorms, ExpertParts


def model_tensors(spec: ModelSpec, names: CheckpointNames) -> ModelTensors:
    """Return how a checkpoint with these names stores the parts of a model."""
    table, hidden = (spec.vocab_size, spec.hidden_size), spec.hidden_size
    tensors = ModelTensors(
        embedding=NumberTensors({f"{names.embedding}.weight": table}, is_float32=False),
        layers=tuple(
            _layer_tensors(spec, layer, LayerNames(names, at))
            for layer, at in zip(spec.layers, names.each_layer(spec.num_layers), strict=True)
        ),
        final_norm=NormTensor(names.final_norm, hidden, spec.final_norm),
        head=None
        if spec.bidirectional
        else LinearTensors((names.head,), (spec.vocab_size,), hidden),
    )
    layer_inputs = spec.layer_inputs
    if layer_inputs is None:
        return tensors
    every, width = LayerNames(names, ""), spec.num_layers * layer_inputs.size
    return replace(
        tensors,
        layer_embedding=every.weight("layer_embedding", layer_inputs.vocab_size, width),
        layer_context=every.linear("layer_context", width, inputs=hidden)._replace(is_whole=True),
        layer_context_norm=every.weight("layer_context_norm", layer_inputs.size),
    )


def tied_head(spec: ModelSpec, names: CheckpointNames) -> LinearTensors:
    """Return a head whose tensor is that of the embedding."""
    return LinearTensors((names.embedding,), (spec.vocab_size,), spec.hidden_size)


def stored_shapes(tensors: ModelTensors) -> dict[str, Shape]:
    """Return the name and shape of every stored tensor."""
    parts: list[Part] = [*tensors.leaves()]
    return {name: shape for part in parts for name, shape in part.shapes()}


def unused_tensors(spec: ModelSpec, names: CheckpointNames) -> tuple[str, ...]:
    """Return how the names of tensors begin that a checkpoint may have for nothing.

    They project keys and values of layers that see those of another.
    """
    ends = *names["qkv"][1:], *names["key_norm"]
    layers = zip(spec.layers, names.each_layer(spec.num_layers), strict=True)
    return tuple(
        f"{at}{end}."
        for layer, at in layers
        if layer.attention is not None and layer.attention.kv_of is not None
        for end in ends
    )


def _layer_tensors(model: ModelSpec, layer: LayerSpec, names: LayerNames) -> LayerTensors:
    hidden, norm = model.hidden_size, layer.norm
    tensors = LayerTensors()
    if layer.mixers and layer.norm_before:
        tensors = replace(tensors, attention_norm=names.norm("attention_norm", hidden, norm))
    if layer.mixers and layer.norm_after:
        after = names.norm("attention_norm_after", hidden, norm)
        tensors = replace(tensors, attention_norm_after=after)
    if layer.attention is not None:
        tensors = with_attention(tensors, layer.attention, hidden, names)
    if layer.recurrent is not None:
        recurrent = recurrent_tensors(layer.recurrent, hidden, names)
        tensors = replace(tensors, recurrent=recurrent)
    if layer.feed_forward is not None:
        tensors = _with_feed_forward(tensors, layer, hidden, names)
    if layer.has_scalar:
        tensors = replace(tensors, scalar=names.numbers("scalar", 1))
    if model.layer_inputs is None:
        return tensors
    size = model.layer_inputs.size
    projection = names.linear("input_projection", hidden, inputs=size)
    return replace(
        tensors,
        input_gate=names.linear("input_gate", size, inputs=hidden)._replace(is_whole=True),
        input_projection=projection._replace(is_whole=True),
        input_norm=names.norm("input_norm", hidden, norm),
    )


def _with_feed_forward(
    tensors: LayerTensors, layer: LayerSpec, hidden: int, names: LayerNames
) -> LayerTensors:
    experts, dense = layer.experts, layer.dense
    if layer.norm_before and not layer.parallel:
        before = names.norm("feed_forward_norm", hidden, layer.norm)
        tensors = replace(tensors, feed_forward_norm=before)
    if layer.norm_after:
        after = names.norm("feed_forward_norm_after", hidden, layer.norm)
        tensors = replace(tensors, feed_forward_norm_after=after)
    if dense is not None:
        shared = "shared_" if experts is not None else ""
        inner, bias = dense.intermediate_size, dense.bias
        sizes = (inner,) * (1 + dense.gated)
        tensors = replace(
            tensors,
            gate_up=names.linear(f"{shared}gate_up", *sizes, inputs=hidden, bias=bias, last=True),
            down=names.linear(f"{shared}down", hidden, inputs=inner, bias=bias),
        )
    if experts is not None:
        tensors = replace(tensors, experts=_expert_tensors(experts, hidden, names))
    return tensors


def _expert_tensors(
    experts: Experts, hidden: int, names: LayerNames
) -> ExpertParts[NormTensor, LinearTensors, ExpertTensors]:
    inner, bias, num = experts.intermediate_size, experts.bias, experts.num
    sizes = (inner,) * (1 + experts.gated)
    gate_up = names.linear("expert_gate_up", *sizes, inputs=hidden, bias=bias, last=True)
    down = names.linear("expert_down", hidden, inputs=inner, bias=bias)
    if names.table.has_interleaved_experts:
        gate_up = gate_up._replace(interleaved=Interleaved(inner, (1, 1), (0, 1)))
    axes, has_gate = names.table.choice_bias_axes, experts.shared_is_gated
    scores = [num, 1] if has_gate else [num]
    router = names.linear("router", *scores, inputs=hidden, bias=experts.router_bias)
    return ExpertParts(
        router=router._replace(is_exact=True, is_whole=True),
        mixture=ExpertTensors(
            experts,
            tuple(_numbered(gate_up, number) for number in range(num)),
            tuple(_numbered(down, number) for number in range(num)),
            names.numbers("choice_bias", *(1,) * (axes - 1), num)
            if experts.has_choice_bias
            else None,
            names.numbers("factors", num) if experts.has_factors else None,
        ),
        norms=_expert_norms(experts, hidden, names),
    )


def _numbered(linear: LinearTensors, number: int) -> LinearTensors:
    """Return the layer of one expert, whose number stands in the braces of its names."""
    return linear._replace(names=tuple(name.format(number) for name in linear.names))


def _expert_norms(
    experts: Experts, hidden: int, names: LayerNames
) -> ExpertNorms[NormTensor] | None:
    norm = experts.separate_norm
    if norm is None:
        return None
    # What the router gets is divided by the root of its inputs.
    router = names.norm("router_norm", hidden, norm)
    return ExpertNorms(
        router_norm=router._replace(stored="scale", factor=hidden**-0.5),
        experts_norm=names.norm("experts_norm", hidden, norm),
        shared_norm_after=names.norm("shared_norm_after", hidden, norm),
        experts_norm_after=names.norm("experts_norm_after", hidden, norm),
    )
