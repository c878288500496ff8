"""The weights of a model: the tensors of a checkpoint, packed for the kernels.

All names, shapes and types are checked before the first tensor is read, so that a wrong checkpoint
fails at once. Tensors are packed one after another, so that memory holds about one copy. Blocks of
GGUF files, and groups of quantized checkpoints, are packed without a change of their values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chairlift.choices import Quantize
from chairlift.errors import ModelError
from chairlift.kernels import ExpertLayers, Kernels, LinearLayer, cpu
from chairlift.model.checkpoint import Checkpoint
from chairlift.model.config import ModelConfig
from chairlift.model.norms import Norm
from chairlift.model.recurrent import RecurrentWeights
from chairlift.model.spec import Experts, LayerSpec
from chairlift.model.stored import WeightTensor
from chairlift.model.tensors import (
    ExpertTensors,
    LayerTensors,
    LinearTensors,
    ModelTensors,
    NormTensor,
    RecurrentTensors,
)


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
    attention_norm_after: Norm | None = None
    feed_forward_norm_after: Norm | None = None
    experts: "ExpertWeights | None" = None
    recurrent: RecurrentWeights | None = None

    @property
    def first_norm(self) -> Norm | None:
        """Of the inputs of the first half; None where that gets the stream itself."""
        return self.feed_forward_norm if self.attention_norm is None else self.attention_norm


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A mixture of experts."""

    router: LinearLayer
    """H to a score of each expert."""
    packed: ExpertLayers
    """The experts, and how their scores choose them."""
    num_bytes: int
    """Of the experts and the router."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model."""

    embedding: Tensor
    """`[vocab_size, H]`."""
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    head: LinearLayer | None
    """H to `vocab_size`; None of an encoder."""


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
        checkpoint = Checkpoint.open(model, files, config.scheme).without(config.ignored)
        is_tied = config.spec.head.is_tied
        checkpoint.check(tensors.shapes(), optional={head_name} if is_tied else ())
        reader = _Reader(
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
        )


def _load_head(
    reader: "_Reader", tensors: ModelTensors, embedding: Tensor, weight_format: str | None
) -> LinearLayer:
    """With tied embeddings a checkpoint need not have a head; if it has one, that one counts."""
    own = tensors.head
    if own is not None and f"{own.names[0]}.weight" in reader.checkpoint.tensors:
        return reader.linear(own, weight_format)
    if reader.keeps(tensors.embedding):
        return reader.linear(tensors.embedding, weight_format)
    return reader.kernels.linear(embedding, quantize=weight_format)


def _load_layer(
    reader: "_Reader", layer: LayerTensors, spec: LayerSpec, weight_format: str | None
) -> LayerWeights:
    return LayerWeights(
        attention_norm=reader.optional_norm(layer.attention_norm),
        qkv=reader.optional_linear(layer.qkv, weight_format),
        query_norm=reader.head_norm(layer.query_norm),
        key_norm=reader.head_norm(layer.key_norm),
        output=reader.optional_linear(layer.output, weight_format),
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
    )


def _load_recurrent(
    reader: "_Reader", tensors: RecurrentTensors, weight_format: str | None
) -> RecurrentWeights:
    project = reader.linear(tensors.projection, weight_format)
    output = reader.linear(tensors.output, weight_format)
    numbers = {part: reader.numbers(*own) for part, own in tensors.numbers.items()}
    numbers["conv_weight"] = numbers["conv_weight"].squeeze(1).T.contiguous()
    if "rate" in numbers:
        numbers["rate"] = numbers["rate"].exp()
    b_a = reader.optional_linear(tensors.b_a, None)
    return RecurrentWeights(project, output, b_a=b_a, **numbers)


def _load_experts(
    reader: "_Reader", tensors: ExpertTensors, spec: Experts, weight_format: str | None
) -> ExpertWeights:
    router = reader.linear(tensors.router, None)
    for part in tensors.gate_up:
        if len(kinds := [kind for _, kind in part.runs(reader.block_types)]) > 1:
            problem = f"expected the type of its gate, {kinds[0]}, got {kinds[-1]}"
            message = f"{part.names[-1]}.weight: {problem} (--dtype bfloat16 widens both)"
            raise ModelError(message)
    gate_up = [reader.linear(part, weight_format) for part in tensors.gate_up]
    down = [reader.linear(part, weight_format) for part in tensors.down]
    choice_bias = tensors.choice_bias
    bias = None if choice_bias is None else reader.numbers(choice_bias).flatten().tolist()
    return ExpertWeights(
        router,
        reader.kernels.experts(gate_up, down, spec, bias),
        sum(layer.num_bytes for layer in (router, *gate_up, *down)),
    )


class _SideBySide:
    """Layers of the same inputs whose weights are stored in different ways."""

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        self._layers = layers
        self.in_features = layers[0].in_features
        self.out_features = sum(layer.out_features for layer in layers)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are stored."""
        return sum(layer.num_bytes for layer in self._layers)

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b`; see `LinearLayer`."""
        if out is None:
            out = torch.empty(x.shape[0], self.out_features, dtype=out_dtype or x.dtype)
        first = 0
        for layer in self._layers:
            layer(x, out=out[:, first : first + layer.out_features])
            first += layer.out_features
        return out


class _Reader:
    """Copies tensors out of the files, converts them, and reports the progress."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        on_progress: Callable[[int, int], None] | None,
        kernels: Kernels,
        device: torch.device,
        block_types: Mapping[str, str],
        stream_dtype: torch.dtype,
    ) -> None:
        self.kernels = kernels
        self.device = device
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.block_types = block_types
        self.stream_dtype = stream_dtype
        self.on_progress = on_progress
        self.done = 0
        self.total = checkpoint.num_bytes

    def norm(self, norm: NormTensor) -> Norm:
        """Read a norm of the residual stream."""
        weight = self._joined([f"{norm.name}.weight"], self.stream_dtype).to(self.device)
        if not norm.has_bias:
            return Norm(norm.norm, weight)
        bias = self._joined([f"{norm.name}.bias"], self.stream_dtype).to(self.device)
        return Norm(norm.norm, weight, bias)

    def numbers(self, *names: str) -> Tensor:
        """Read tensors whole, in float32, joined along their first axis."""
        return self._joined(names, torch.float32)

    def optional_norm(self, norm: NormTensor | None) -> Norm | None:
        """Read a norm of the residual stream, if there is one."""
        return None if norm is None else self.norm(norm)

    def head_norm(self, norm: NormTensor | None) -> Tensor | None:
        """Read the weight of a norm of queries or keys, if there is one."""
        if norm is None:
            return None
        return self._joined([f"{norm.name}.weight"], self.dtype).to(self.device)

    def matrix(self, linear: LinearTensors) -> Tensor:
        """Read the weights of linear layers, outputs of one after those of the other."""
        names = [f"{name}.weight" for name in linear.names]
        return self._ordered(linear, self._joined(names, self.dtype)).to(self.device)

    def _ordered(self, linear: LinearTensors, rows: Tensor) -> Tensor:
        """Return the rows of layers, those of the first in the order that is wanted."""
        if linear.interleaved is None:
            return rows
        first, rest = torch.split(rows, [linear.outputs[0], len(rows) - linear.outputs[0]])
        return torch.cat([linear.interleaved.apart(first), rest])

    def keeps(self, linear: LinearTensors) -> bool:
        """Return whether the weights of a layer stay in blocks."""
        return f"{linear.names[0]}.weight" in self.block_types

    def linear(self, linear: LinearTensors, weight_format: str | None) -> LinearLayer:
        """Pack layers that share their inputs into one, outputs side by side.

        Args:
            linear: The layers.
            weight_format: Of those that do not stay as they are stored; None is the dtype.
        """
        runs = list(linear.runs(self.block_types))
        layers = [self._packed(run, kind, weight_format) for run, kind in runs]
        return layers[0] if len(layers) == 1 else _SideBySide(layers)

    def optional_linear(
        self, linear: LinearTensors | None, weight_format: str | None
    ) -> LinearLayer | None:
        """Pack layers as `linear` does, if there are any."""
        return None if linear is None else self.linear(linear, weight_format)

    def _packed(
        self, linear: LinearTensors, block_type: str | None, weight_format: str | None
    ) -> LinearLayer:
        biases = [f"{name}.bias" for name in linear.names] if linear.has_bias else []
        from_blocks = self.kernels.linear_from_blocks
        if block_type is None or from_blocks is None:
            bias = None
            if biases:
                bias = self._ordered(linear, self._joined(biases, self.dtype)).to(self.device)
            return self.kernels.linear(self.matrix(linear), bias, weight_format)
        stored = [self.checkpoint.tensors[f"{name}.weight"] for name in linear.names]
        parts = [tensor.blocks() for tensor in stored]
        # The head is the largest layer, and is not joined.
        blocks = torch.cat(parts) if len(parts) > 1 else parts[0]
        blocks = self._ordered(linear, blocks)
        self._advance(stored)
        bias = self._ordered(linear, self._joined(biases, torch.float32)) if biases else None
        layer: LinearLayer = from_blocks(blocks, block_type, bias, self.dtype)
        return layer

    def _joined(self, names: Sequence[str], dtype: torch.dtype) -> Tensor:
        """Join tensors along their first axis."""
        stored = [self.checkpoint.tensors[name] for name in names]
        rows = [tensor.shape[0] for tensor in stored]
        joined = torch.empty((sum(rows), *stored[0].shape[1:]), dtype=dtype)
        for part, tensor in zip(torch.split(joined, rows), stored, strict=True):
            tensor.read(part)
        self._advance(stored)
        return joined

    def _advance(self, stored: Iterable[WeightTensor]) -> None:
        """Report tensors as read; one that is read twice counts once."""
        self.done = min(self.total, self.done + sum(tensor.num_bytes for tensor in stored))
        if self.on_progress is not None:
            self.on_progress(self.done, self.total)
