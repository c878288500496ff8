"""The weights of a model: the tensors of a checkpoint, packed for the kernels.

All names, shapes and types are checked before the first tensor is read, so that a wrong checkpoint
fails at once. Tensors are packed one after another, so that memory holds about one copy.
"""

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chairlift.choices import Quantize
from chairlift.kernels import Kernels, LinearLayer, cpu
from chairlift.model.checkpoint import Checkpoint
from chairlift.model.config import ModelConfig
from chairlift.model.rope import table_bytes
from chairlift.model.spec import ModelSpec
from chairlift.model.tensors import LayerTensors, LinearTensors, ModelTensors, NormTensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; H is `hidden_size`."""

    attention_norm: Tensor
    """`[H]`."""
    qkv: LinearLayer
    """H to query heads, key heads and value heads, side by side."""
    query_norm: Tensor | None
    """`[head_dim]`."""
    key_norm: Tensor | None
    output: LinearLayer
    """Heads to H."""
    feed_forward_norm: Tensor
    gate_up: LinearLayer
    """H to gate and up, side by side."""
    down: LinearLayer
    """Intermediate to H."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model."""

    embedding: Tensor
    """`[vocab_size, H]`."""
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    """`[H]`."""
    head: LinearLayer
    """H to `vocab_size`."""


def layer_format(quantize: Quantize) -> str | None:
    """Return what `Linear` calls the format of a layer's weights; None is the model's dtype."""
    return None if quantize is Quantize.NONE else quantize.value


def head_format(quantize: Quantize) -> str | None:
    """Return the same of the head: eight bits at least, since no layer follows it."""
    return None if quantize is Quantize.NONE else Quantize.INT8.value


def weight_bytes(config: ModelConfig, quantize: Quantize, kernels: Kernels) -> int:
    """Return the bytes of what `load_weights` packs, and of the tables of RoPE."""
    spec, dtype = config.spec, config.dtype
    tensors = ModelTensors.of(spec, config.names)

    def packed(part: NormTensor | LinearTensors, weight_format: str | None) -> int:
        if isinstance(part, NormTensor):
            return part.size * dtype.itemsize
        return kernels.linear_bytes(sum(part.outputs), part.inputs, dtype, weight_format)

    layers = sum(
        packed(part, layer_format(quantize))
        for layer in tensors.layers
        for part in layer
        if part is not None
    )
    embedding = spec.vocab_size * spec.hidden_size * dtype.itemsize
    ends = packed(tensors.final_norm, None) + packed(tensors.head, head_format(quantize))
    return layers + embedding + ends + _rope_bytes(spec, config.max_model_len)


def _rope_bytes(spec: ModelSpec, num_positions: int) -> int:
    return len(spec.ropes) * table_bytes(spec.shape.head_dim, num_positions)


def load_weights(
    folder: Path,
    config: ModelConfig,
    on_progress: Callable[[int, int], None] | None = None,
    quantize: Quantize = Quantize.NONE,
    *,
    kernels: Kernels = cpu,
    device: torch.device | None = None,
) -> Weights:
    """Load a checkpoint, converted to `config.dtype`.

    Args:
        folder: Holds `model.safetensors`, or its shards and `model.safetensors.index.json`.
        config: Of the same folder.
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
        checkpoint = Checkpoint.open(folder, files)
        is_tied = config.spec.head.is_tied
        checkpoint.check(tensors.shapes(), optional={head_name} if is_tied else ())
        reader = _Reader(
            checkpoint,
            config.dtype,
            layer_format(quantize),
            on_progress,
            kernels,
            device or torch.device("cpu"),
        )
        embedding = reader.matrix(tensors.embedding)
        # With tied embeddings a checkpoint need not have a head; if it has one, that one counts.
        has_head = head_name in checkpoint.tensors
        return Weights(
            embedding=embedding,
            layers=tuple(_load_layer(reader, layer) for layer in tensors.layers),
            final_norm=reader.norm(tensors.final_norm),
            head=kernels.linear(
                reader.matrix(tensors.head) if has_head else embedding,
                quantize=head_format(quantize),
            ),
        )


def trim_heap() -> None:
    """Return free memory of the heap to the system, where the C library can (glibc).

    Beside the packed weights, loading frees as much again, and by default up to 64 MiB of it stays.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _load_layer(reader: "_Reader", layer: LayerTensors) -> LayerWeights:
    return LayerWeights(
        attention_norm=reader.norm(layer.attention_norm),
        qkv=reader.linear(layer.qkv),
        query_norm=None if layer.query_norm is None else reader.norm(layer.query_norm),
        key_norm=None if layer.key_norm is None else reader.norm(layer.key_norm),
        output=reader.linear(layer.output),
        feed_forward_norm=reader.norm(layer.feed_forward_norm),
        gate_up=reader.linear(layer.gate_up),
        down=reader.linear(layer.down),
    )


class _Reader:
    """Copies tensors out of the files, converts them, and reports the progress."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        weight_format: str | None,
        on_progress: Callable[[int, int], None] | None,
        kernels: Kernels,
        device: torch.device,
    ) -> None:
        self.kernels = kernels
        self.device = device
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.weight_format = weight_format
        self.on_progress = on_progress
        self.done = 0
        self.total = checkpoint.num_bytes

    def norm(self, norm: NormTensor) -> Tensor:
        """Read the weight of a norm."""
        return self._joined([f"{norm.name}.weight"])

    def matrix(self, linear: LinearTensors) -> Tensor:
        """Read the weights of linear layers, outputs of one after those of the other."""
        return self._joined([f"{name}.weight" for name in linear.names])

    def linear(self, linear: LinearTensors) -> LinearLayer:
        """Pack layers that share their inputs into one, outputs side by side."""
        weight = self.matrix(linear)
        biases = [f"{name}.bias" for name in linear.names]
        bias = self._joined(biases) if linear.has_bias else None
        return self.kernels.linear(weight, bias, self.weight_format)

    def _joined(self, names: list[str]) -> Tensor:
        """Join tensors along their first axis."""
        stored = [self.checkpoint.tensors[name] for name in names]
        rows = [tensor.shape[0] for tensor in stored]
        joined = torch.empty((sum(rows), *stored[0].shape[1:]), dtype=self.dtype)
        for part, tensor in zip(torch.split(joined, rows), stored, strict=True):
            tensor.read(part)
            self.done += tensor.num_bytes
        if self.on_progress is not None:
            self.on_progress(self.done, self.total)
        return joined.to(self.device)
