"""The weights of a model: the tensors of a checkpoint, packed for the kernels.

All names, shapes and types are checked before the first tensor is read, so that a wrong checkpoint
fails at once. Tensors are packed one after another, so that memory holds about one copy. Blocks of
GGUF files, and groups of quantized checkpoints, are packed without a change of their values.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.api.choices import Quantize
from chairlift.api.errors import ModelError
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.kernels import ExpertLayers, Kernels, LinearLayer, cpu
from chairlift.model.config import ModelConfig
from chairlift.model.parts.norms import Norm
from chairlift.model.parts.recurrent import RecurrentWeights
from chairlift.model.specs.layer_parts import Experts
from chairlift.model.specs.model_spec import LayerSpec
from chairlift.model.tensors.mixer_tensors import RecurrentTensors
from chairlift.model.tensors.model_tensors import (
    ExpertTensors,
    LayerInputTensors,
    LayerTensors,
    ModelTensors,
)
from chairlift.model.weights.reader import WeightReader


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; H is `hidden_size`."""

    attention_norm: Norm | None
    """Of the mixer, whatever that is."""
    qkv: LinearLayer | None
    """H to query heads, key heads and value heads, side by side; None without attention."""
    query_norm: Tensor | None
    """`[head_dim]`, or of all heads."""
    key_norm: Tensor | None
    output: LinearLayer | None
    """Heads to H."""
    feed_forward_norm: Norm | None
    gate_up: LinearLayer | None
    """H to gate and up, side by side; to up alone where there is no gate. None where no
    feed-forward computes every token."""
    down: LinearLayer | None
    """Intermediate to H."""
    value_norm: Tensor | None = None
    """`[head_dim]` of ones: the norm of values has no weights."""
    attention_norm_after: Norm | None = None
    feed_forward_norm_after: Norm | None = None
    experts: "ExpertWeights | None" = None
    recurrent: RecurrentWeights | None = None
    input_gate: LinearLayer | None = None
    """H to what the layer's inputs are multiplied by."""
    input_projection: LinearLayer | None = None
    """Inputs to H."""
    input_norm: Norm | None = None
    scalar: Tensor | None = None
    """float32 `[1]`: the stream is multiplied by it behind the layer."""
    sinks: Tensor | None = None
    """float32 `[num_heads]`, of attention."""

    @property
    def first_norm(self) -> Norm | None:
        """Of the inputs of the first half; None where that gets the stream itself."""
        return self.feed_forward_norm if self.attention_norm is None else self.attention_norm


@dataclass(frozen=True, slots=True)
class LayerInputWeights:
    """What gives each layer inputs of its own."""

    embedding: Tensor
    """`[vocab_size, num_layers * size]`"""
    context: LinearLayer
    """H to the inputs of all layers."""
    norm: Tensor
    """`[size]`"""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A mixture of experts."""

    router: LinearLayer
    """H to a score of each expert."""
    packed: ExpertLayers
    """The experts, and how their scores choose them."""
    num_bytes: int
    """Of the experts, the router and the norms."""
    norms: "ExpertNorms | None" = None


class ExpertNorms(NamedTuple):
    """The norms of experts that are apart from those of their layer."""

    router: Norm
    """Of the stream, for the router."""
    before: Norm
    """Of the stream, for the experts."""
    shared_after: Norm
    """Of what the shared one adds."""
    after: Norm
    """Of what the experts add."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model."""

    embedding: Tensor
    """`[vocab_size, H]`."""
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    head: LinearLayer | None
    """H to `vocab_size`; None of an encoder."""
    layer_inputs: LayerInputWeights | None = None


def layer_format(quantize: Quantize) -> str | None:
    """Return what `Linear` calls the format of a layer's weights; None is the model's dtype."""
    return None if quantize is Quantize.NONE else quantize.value


def head_format(quantize: Quantize) -> str | None:
    """Return the same of the head: eight bits at least, since no layer follows it."""
    return None if quantize is Quantize.NONE else Quantize.INT8.value


def kept_blocks(config: ModelConfig, quantize: Quantize, kernels: Kernels) -> Mapping[str, str]:
    """Return the types of the blocks that linear layers keep, by the name of the tensor."""
    keeps = quantize is Quantize.NONE and kernels.linear_from_blocks is not None
    return config.block_types if keeps else {}


def stream_dtype(config: ModelConfig, quantize: Quantize, kernels: Kernels) -> torch.dtype:
    """Return the dtype of the residual stream and its norms.

    Where layers quantize their inputs it is float32: rounding to bfloat16 before would add a sixth
    to the divergence of Q4_1, and the stream takes next to no time.
    """
    is_quantized = quantize is not Quantize.NONE or bool(kept_blocks(config, quantize, kernels))
    return torch.float32 if is_quantized else config.dtype


def load_weights(
    model: Path,
    config: ModelConfig,
    on_progress: Callable[[int, int], None] | None = None,
    quantize: Quantize = Quantize.NONE,
    *,
    kernels: Kernels = cpu,
    device: torch.device | None = None,
) -> Weights:
    """Load a checkpoint, converted to `config.dtype` but for the blocks that linear layers keep.

    Args:
        model: A folder with `model.safetensors`, or its shards and `model.safetensors.index.json`;
            or a GGUF file.
        config: Of the same model.
        on_progress: Called with the bytes done and the bytes in total after every tensor.
        quantize: How linear layers are stored; the embedding and the norms keep the dtype.
        kernels: Make the linear layers.
        device: Where the weights go; None is the CPU.

    Raises:
        ModelError: A file is missing, truncated or corrupt, or a tensor is missing, unexpected,
            of the wrong shape or type.
    """
    tensors = ModelTensors.of(config.spec, config.names)
    head_name = f"{config.names.head}.weight"
    with ExitStack() as files:
        checkpoint = Checkpoint.open(model, files, config.scheme, config.names)
        checkpoint = checkpoint.without(config.ignored)
        is_tied = config.spec.head.is_tied
        checkpoint.check(tensors.shapes(), optional={head_name} if is_tied else ())
        reader = WeightReader(
            checkpoint,
            config.dtype,
            on_progress,
            kernels,
            device or torch.device("cpu"),
            kept_blocks(config, quantize, kernels),
            stream_dtype(config, quantize, kernels),
        )
        embedding = reader.matrix(tensors.embedding)
        weight_format = layer_format(quantize)
        return Weights(
            embedding=embedding,
            layers=tuple(
                _load_layer(reader, layer, own, weight_format)
                for layer, own in zip(tensors.layers, config.spec.layers, strict=True)
            ),
            final_norm=reader.norm(tensors.final_norm),
            head=None
            if tensors.head is None
            else _load_head(reader, tensors, embedding, head_format(quantize)),
            layer_inputs=_load_layer_inputs(reader, tensors.layer_inputs, weight_format),
        )


def _load_layer_inputs(
    reader: WeightReader, tensors: LayerInputTensors | None, weight_format: str | None
) -> LayerInputWeights | None:
    if tensors is None:
        return None
    norm = reader.head_norm(tensors.norm)
    assert norm is not None, "there is one"
    context = reader.linear(tensors.context, weight_format)
    return LayerInputWeights(reader.matrix(tensors.embedding), context, norm)


def _load_head(
    reader: WeightReader, tensors: ModelTensors, embedding: Tensor, weight_format: str | None
) -> LinearLayer:
    """With tied embeddings a checkpoint need not have a head; if it has one, that one counts."""
    own = tensors.head
    if own is not None and f"{own.names[0]}.weight" in reader.checkpoint.tensors:
        return reader.linear(own, weight_format)
    if reader.keeps(tensors.embedding):
        return reader.linear(tensors.embedding, weight_format)
    return reader.kernels.linear(embedding, quantize=weight_format)


def _load_layer(
    reader: WeightReader, layer: LayerTensors, spec: LayerSpec, weight_format: str | None
) -> LayerWeights:
    return LayerWeights(
        attention_norm=reader.optional_norm(layer.attention_norm),
        qkv=reader.optional_linear(layer.qkv, weight_format),
        query_norm=reader.head_norm(layer.query_norm),
        key_norm=reader.head_norm(layer.key_norm),
        output=reader.optional_linear(layer.output, weight_format),
        value_norm=reader.ones(value_norm_size(spec)),
        attention_norm_after=reader.optional_norm(layer.attention_norm_after),
        feed_forward_norm=reader.optional_norm(layer.feed_forward_norm),
        gate_up=reader.optional_linear(layer.gate_up, weight_format),
        down=reader.optional_linear(layer.down, weight_format),
        feed_forward_norm_after=reader.optional_norm(layer.feed_forward_norm_after),
        experts=_load_experts(reader, layer.experts, spec.experts, weight_format)
        if layer.experts is not None and spec.experts is not None
        else None,
        recurrent=None
        if layer.recurrent is None
        else _load_recurrent(reader, layer.recurrent, weight_format),
        input_gate=reader.optional_linear(layer.input_gate, weight_format),
        input_projection=reader.optional_linear(layer.input_projection, weight_format),
        input_norm=reader.optional_norm(layer.input_norm),
        scalar=None if layer.scalar is None else reader.numbers(layer.scalar),
        sinks=next(map(reader.numbers, layer.sinks), None),
    )


def value_norm_size(layer: LayerSpec) -> int:
    """Return the numbers of a norm of values; 0 without one."""
    own = layer.attention
    return own.head_dim if own is not None and own.heads.norms_values else 0


def _load_recurrent(
    reader: WeightReader, tensors: RecurrentTensors, weight_format: str | None
) -> RecurrentWeights:
    project = reader.linear(tensors.projection, weight_format)
    output = reader.linear(tensors.output, weight_format)
    numbers = {part: reader.numbers(*own) for part, own in tensors.numbers.items()}
    numbers["conv_weight"] = numbers["conv_weight"].squeeze(1).T.contiguous()
    if "rate" in numbers:
        rate = numbers["rate"]
        numbers["rate"] = -rate if tensors.rates_are_negative else rate.exp()
    b_a = reader.optional_linear(tensors.b_a, None)
    return RecurrentWeights(project, output, b_a=b_a, **numbers)


def _load_experts(
    reader: WeightReader, tensors: ExpertTensors, spec: Experts, weight_format: str | None
) -> ExpertWeights:
    router = reader.linear(tensors.router, None)
    for part in tensors.gate_up:
        if len(kinds := [kind for _, kind in part.runs(reader.block_types)]) > 1:
            problem = f"expected the type of its gate, {kinds[0]}, got {kinds[-1]}"
            message = f"{part.names[-1]}.weight: {problem} (--dtype bfloat16 widens both)"
            raise ModelError(message)
    gate_up = [reader.linear(part, weight_format) for part in tensors.gate_up]
    down = [reader.linear(part, weight_format) for part in tensors.down]
    numbers = {
        part: reader.numbers(name).flatten().tolist() for part, (name, _) in tensors.numbers.items()
    }
    norms = None
    if tensors.norms is not None:
        norms = ExpertNorms._make(map(reader.norm, tensors.norms))
        # What the router gets is divided by the root of its inputs.
        norms.router.weight.mul_(router.in_features**-0.5)
    return ExpertWeights(
        router,
        reader.kernels.experts(gate_up, down, spec, **numbers),
        sum(part.num_bytes for part in (router, *gate_up, *down, *(norms or ()))),
        norms,
    )
