"""The weights of a model: which tensors a checkpoint must have, and how they are packed.

All names, shapes and types are checked before the first tensor is read, so that a wrong checkpoint
fails in a moment. Tensors are packed one after another, so that memory holds about one copy.
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
from chairlift.model.safetensors import Shape


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One layer; H is `hidden_size`."""

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
    blocks: tuple[BlockWeights, ...]
    norm: Tensor
    """`[H]`."""
    lm_head: LinearLayer
    """H to `vocab_size`."""


def layer_code(quantize: Quantize) -> str | None:
    """Gives what `Linear` calls the storage of a layer's weights."""
    return None if quantize is Quantize.NONE else quantize.value


def head_code(quantize: Quantize) -> str | None:
    """The same of the head: eight bits at least, since nothing after it mends an error."""
    return None if quantize is Quantize.NONE else Quantize.INT8.value


def load_weights(
    folder: Path,
    config: ModelConfig,
    on_progress: Callable[[int, int], None] | None = None,
    quantize: Quantize = Quantize.NONE,
    *,
    kernels: Kernels = cpu,
    device: torch.device | None = None,
) -> Weights:
    """Loads a checkpoint, converted to `config.dtype`.

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
    with ExitStack() as files:
        checkpoint = Checkpoint.open(folder, files)
        checkpoint.check(
            tensor_shapes(config), optional={"lm_head.weight"} if config.tie_word_embeddings else ()
        )
        reader = _Reader(
            checkpoint,
            config.dtype,
            layer_code(quantize),
            on_progress,
            kernels,
            device or torch.device("cpu"),
        )
        head = head_code(quantize)
        embedding = reader.tensor("model.embed_tokens.weight")
        # With tied embeddings a checkpoint need not have a head; if it has one, that one counts.
        has_head = "lm_head.weight" in checkpoint.tensors
        return Weights(
            embedding=embedding,
            blocks=tuple(
                _load_block(reader, config, f"model.layers.{layer}.")
                for layer in range(config.num_layers)
            ),
            norm=reader.tensor("model.norm.weight"),
            lm_head=kernels.linear(
                reader.tensor("lm_head.weight") if has_head else embedding, quantize=head
            ),
        )


def trim_heap() -> None:
    """Gives memory that is free in the heap back to the system, where the C library can (glibc).

    Beside the packed weights, loading frees as much again, and by default up to 64 MiB of it stays.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _load_block(reader: "_Reader", config: ModelConfig, at: str) -> BlockWeights:
    attention, mlp = f"{at}self_attn.", f"{at}mlp."
    return BlockWeights(
        attention_norm=reader.tensor(f"{at}input_layernorm.weight"),
        qkv=reader.linear(
            f"{attention}q_proj", f"{attention}k_proj", f"{attention}v_proj", bias=config.qkv_bias
        ),
        query_norm=reader.tensor(f"{attention}q_norm.weight") if config.qk_norm else None,
        key_norm=reader.tensor(f"{attention}k_norm.weight") if config.qk_norm else None,
        output=reader.linear(f"{attention}o_proj", bias=config.o_bias),
        feed_forward_norm=reader.tensor(f"{at}post_attention_layernorm.weight"),
        gate_up=reader.linear(f"{mlp}gate_proj", f"{mlp}up_proj", bias=config.mlp_bias),
        down=reader.linear(f"{mlp}down_proj", bias=config.mlp_bias),
    )


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Gives the name and shape of every tensor of a checkpoint."""
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
        "lm_head.weight": (config.vocab_size, config.hidden_size),
    }
    for layer in range(config.num_layers):
        for name, shape in _block_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    return shapes


def _block_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    for name, rows, columns, bias in (
        ("self_attn.q_proj", heads, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_heads, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_heads, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, heads, config.o_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ):
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


class _Reader:
    """Copies tensors out of the files, converts them, and tells how far it has come."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        code: str | None,
        on_progress: Callable[[int, int], None] | None,
        kernels: Kernels,
        device: torch.device,
    ) -> None:
        self.kernels = kernels
        self.device = device
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.code = code
        self.on_progress = on_progress
        self.done = 0
        self.total = checkpoint.num_bytes

    def linear(self, *layers: str, bias: bool) -> LinearLayer:
        """Packs layers that share their input into one, outputs side by side."""
        weight = self.tensor(*(f"{layer}.weight" for layer in layers))
        joined_bias = self.tensor(*(f"{layer}.bias" for layer in layers)) if bias else None
        return self.kernels.linear(weight, joined_bias, self.code)

    def tensor(self, *names: str) -> Tensor:
        """Joins tensors along their first axis."""
        stored = [self.checkpoint.tensors[name] for name in names]
        rows = [tensor.shape[0] for tensor in stored]
        joined = torch.empty((sum(rows), *stored[0].shape[1:]), dtype=self.dtype)
        for part, tensor in zip(torch.split(joined, rows), stored, strict=True):
            tensor.read(part)
            self.done += tensor.num_bytes
        if self.on_progress is not None:
            self.on_progress(self.done, self.total)
        return joined.to(self.device)
