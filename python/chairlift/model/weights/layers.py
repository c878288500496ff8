"""The weights of a model: the tensors of a checkpoint, packed for the kernels.

All names, shapes and types are checked before the first tensor is read, so that a wrong checkpoint
fails at once. Tensors are packed one after another, so that memory holds about one copy. Blocks of
GGUF files, and groups of quantized checkpoints, are packed without a change of their values.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from chairlift.api.choices import Quantize
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.kernels import Kernels, LinearLayer, cpu
from chairlift.model.config import ModelConfig
from chairlift.model.parts.gather import Gather
from chairlift.model.parts.weights import Weights
from chairlift.model.tensors.model_tensors import model_tensors, stored_shapes, tied_head
from chairlift.model.tensors.part_tensors import LinearTensors
from chairlift.model.weights.gathered import with_gathers
from chairlift.model.weights.reader import WeightReader


def layer_format(quantize: Quantize) -> str | None:
    """Return what `Linear` calls the format of a layer's weights; None is the model's dtype."""
    return None if quantize is Quantize.NONE else quantize.value


def head_format(quantize: Quantize) -> str | None:
    """Return the same of the head: eight bits at least, since no layer follows it."""
    return None if quantize is Quantize.NONE else Quantize.INT8.value


def kept_blocks(config: ModelConfig, quantize: Quantize, kernels: Kernels) -> Mapping[str, str]:
    """Return the types of the blocks that linear layers keep, by the name of the tensor."""
    keeps = quantize is Quantize.NONE and kernels.linear_from_blocks is not None
    return config.quant_types if keeps else {}


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
    gather: Gather | None = None,
) -> Weights:
    """Load a checkpoint, converted to `config.dtype` but for the blocks that linear layers keep.

    Args:
        model: A folder with `model.safetensors`, or its shards and `model.safetensors.index.json`;
            or a GGUF file.
        config: The configuration of the same model.
        on_progress: Called with the bytes done and the bytes in total after every tensor.
        quantize: How linear layers are stored; the embedding and the norms keep the dtype.
        kernels: Make the linear layers.
        device: Where the weights go; None is the CPU.
        gather: Meets the other ranks, where `config.share` says that there are some.

    Raises:
        ModelError: A file is missing, truncated or corrupt, or a tensor is missing, unexpected,
            of the wrong shape or type.
    """
    tensors = model_tensors(config.stored_spec, config.names)
    head_name = f"{config.names.head}.weight"
    with ExitStack() as files:
        checkpoint = Checkpoint.open(model, files, config.scheme, config.names)
        checkpoint = checkpoint.without(config.ignored)
        is_tied = config.spec.head.is_tied
        checkpoint.check(stored_shapes(tensors), optional={head_name} if is_tied else ())
        reader = WeightReader(
            checkpoint,
            on_progress,
            kernels,
            device=device or torch.device("cpu"),
            dtype=config.dtype,
            stream_dtype=stream_dtype(config, quantize, kernels),
            weight_format=layer_format(quantize),
            quant_types=kept_blocks(config, quantize, kernels),
            share=config.share,
        )
        # The head may be the embedding, and has another format.
        weights: Weights = replace(tensors, head=None).map(reader.part)
        if tensors.head is None:
            return weights
        tied = tied_head(config.spec, config.names)
        head = _load_head(reader, tensors.head, tied, weights.embedding, head_format(quantize))
        weights = replace(weights, head=head)
    if config.share is None:
        return weights
    assert gather is not None, "of a rank"
    return with_gathers(weights, config.share, gather, config.stored_spec)


def _load_head(
    reader: WeightReader,
    head: LinearTensors,
    tied: LinearTensors,
    embedding: Tensor,
    weight_format: str | None,
) -> LinearLayer:
    """With tied embeddings a checkpoint need not have a head; if it has one, that one counts."""
    if f"{head.names[0]}.weight" in reader.checkpoint.tensors:
        return reader.linear(head, weight_format)
    if reader.keeps(tied):
        return reader.linear(tied, weight_format)
    return reader.kernels.linear(reader.columns(embedding), quantize=weight_format)
