"""The weights of an encoder: the tensors of a checkpoint, checked by name and shape, and packed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from chairlift.api.choices import Quantize
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.checkpoints.files.forms import with_newer_norms
from chairlift.checkpoints.files.stored import Shape
from chairlift.kernels import Linear
from chairlift.model.encoders.spec import EncoderConfig


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class EncoderLayerWeights:
    """One layer; H is `hidden_size`."""

    qkv: Linear
    output: Linear
    attention_norm: Norm | None
    gate_up: Linear
    down: Linear
    feed_forward_norm: Norm


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The head of a classifier; float32."""

    dense: Linear | None
    norm: Norm | None
    output: Linear


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """A whole encoder; the tables have the dtype of the residual stream."""

    embedding: Tensor
    """`[vocab_size, H]`."""
    positions: Tensor | None
    """`[num_positions, H]`, of a text's tokens from the first on."""
    token_types: Tensor | None
    """`[num_token_types, H]`."""
    embedding_norm: Norm
    layers: tuple[EncoderLayerWeights, ...]
    final_norm: Norm | None
    relative_bias: Tensor | None
    """float32 `[num_buckets, num_heads]`."""
    head: HeadWeights | None


def encoder_stream_dtype(config: EncoderConfig, quantize: Quantize) -> torch.dtype:
    """Return the dtype of the residual stream: float32 where layers quantize their inputs."""
    return config.dtype if quantize is Quantize.NONE else torch.float32


def load_encoder_weights(
    folder: Path,
    config: EncoderConfig,
    quantize: Quantize = Quantize.NONE,
    on_progress: Callable[[int, int], None] | None = None,
) -> EncoderWeights:
    """Load the checkpoint of an encoder.

    Args:
        folder: A folder with `model.safetensors`, or its shards.
        config: The configuration of the same model.
        quantize: How the linear layers of the encoder are stored; tables, norms and the head of a
            classifier are not quantized.
        on_progress: Called with the bytes done and the bytes in total after every tensor.

    Raises:
        ModelError: A file is missing or corrupt, or a tensor is missing, unexpected, or of the
            wrong shape or type.
    """
    with ExitStack() as files:
        stored = Checkpoint.open(folder, files)
        checkpoint = replace(stored, tensors=with_newer_norms(stored.tensors))
        reader = _Reader(checkpoint, config, quantize, on_progress)
        reader.check()
        return reader.weights()


class _Reader:
    """Names the tensors once, for the check and for the reading."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EncoderConfig,
        quantize: Quantize,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._spec, self._names = config.spec, config.names
        self._dtype = config.dtype
        self._stream = encoder_stream_dtype(config, quantize)
        self._format = None if quantize is Quantize.NONE else quantize.value
        self._on_progress = on_progress
        self._done = 0
        # A checkpoint of the encoder alone has no prefix, one with a head has.
        prefixed = f"{self._names.prefix}{self._names.embedding}.weight"
        self._prefix = self._names.prefix if prefixed in checkpoint.tensors else ""

    def check(self) -> None:
        """Raise ModelError unless the tensors are those of the model."""
        shapes = dict(self._shapes())
        tensors = self._checkpoint.tensors
        starts = tuple(f"{p}{n}" for n in self._names.unused for p in ("", self._prefix))
        used = {n: t for n, t in tensors.items() if n in shapes or not n.startswith(starts)}
        Checkpoint(self._checkpoint.source, used).check(shapes)

    def _shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of every tensor that is read."""
        spec, names, p = self._spec, self._names, self._prefix
        hidden, head = spec.hidden_size, spec.classifier
        tables = [(names.embedding, spec.vocab_size)]
        tables += [(names.positions, spec.num_positions)] * bool(spec.num_positions)
        tables += [(names.token_types, spec.num_token_types)] * bool(spec.num_token_types)
        yield from ((f"{p}{name}.weight", (size, hidden)) for name, size in tables)
        if (bias := spec.relative_bias) is not None:
            yield f"{p}{names.relative_bias}.weight", (bias.num_buckets, spec.num_heads)
        yield from self._norm_shapes(p + names.embedding_norm)
        for number in range(spec.num_layers):
            yield from self._layer_shapes(number)
        if names.final_norm:
            yield from self._norm_shapes(p + names.final_norm)
        if head is not None:
            yield from _linear_shapes(self._dense_name(), hidden, hidden, head.dense_bias)
            if head.has_norm:
                yield from self._norm_shapes(names.dense_norm)
            yield from _linear_shapes(names.classifier, len(head.labels), hidden, True)

    def _layer_shapes(self, number: int) -> Iterator[tuple[str, Shape]]:
        spec, names, hidden = self._spec, self._names, self._spec.hidden_size
        p = f"{self._prefix}{names.layers}.{number}."
        inner, bias = spec.intermediate_size, spec.mlp_bias
        for name in names.qkv:
            outputs = 3 * hidden // len(names.qkv)
            yield from _linear_shapes(p + name, outputs, hidden, spec.attention_bias)
        yield from _linear_shapes(p + names.output, hidden, hidden, spec.attention_bias)
        if spec.layers[number].has_attention_norm:
            yield from self._norm_shapes(p + names.attention_norm)
        for name in names.gate_up:
            outputs = inner * (2 if spec.is_gated else 1) // len(names.gate_up)
            yield from _linear_shapes(p + name, outputs, hidden, bias)
        yield from _linear_shapes(p + names.down, hidden, inner, bias)
        yield from self._norm_shapes(p + names.feed_forward_norm)

    def _norm_shapes(self, name: str) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.weight", (self._spec.hidden_size,)
        if self._spec.norm_bias:
            yield f"{name}.bias", (self._spec.hidden_size,)

    def _dense_name(self) -> str:
        """BERT's dense layer belongs to the encoder; the others' to the head."""
        dense = self._names.dense
        return self._prefix + dense if dense.startswith("pooler.") else dense

    def weights(self) -> EncoderWeights:
        """Read and pack all tensors."""
        spec, names, p = self._spec, self._names, self._prefix
        positions = None
        if spec.num_positions:
            table = self._read(f"{p}{names.positions}.weight", self._stream)
            positions = table[spec.first_position :].contiguous()
        types = self._read(f"{p}{names.token_types}.weight", self._stream)
        bias = spec.relative_bias and self._read(f"{p}{names.relative_bias}.weight", torch.float32)
        return EncoderWeights(
            embedding=self._table(p + names.embedding),
            positions=positions,
            token_types=types if spec.num_token_types else None,
            embedding_norm=self._norm(p + names.embedding_norm),
            layers=tuple(self._layer(number) for number in range(spec.num_layers)),
            final_norm=self._norm(p + names.final_norm) if names.final_norm else None,
            relative_bias=bias if isinstance(bias, Tensor) else None,
            head=self._head(),
        )

    def _layer(self, number: int) -> EncoderLayerWeights:
        spec, names = self._spec, self._names
        p = f"{self._prefix}{names.layers}.{number}."
        has_norm = spec.layers[number].has_attention_norm
        return EncoderLayerWeights(
            qkv=self._linear([p + name for name in names.qkv]),
            output=self._linear([p + names.output]),
            attention_norm=self._norm(p + names.attention_norm) if has_norm else None,
            gate_up=self._linear([p + name for name in names.gate_up]),
            down=self._linear([p + names.down]),
            feed_forward_norm=self._norm(p + names.feed_forward_norm),
        )

    def _head(self) -> HeadWeights | None:
        head, names = self._spec.classifier, self._names
        if head is None:
            return None
        return HeadWeights(
            dense=self._float_linear(self._dense_name()),
            norm=self._norm(names.dense_norm, torch.float32) if head.has_norm else None,
            output=self._float_linear(names.classifier),
        )

    def _read(self, name: str, dtype: torch.dtype) -> Tensor:
        stored = self._checkpoint.tensors.get(name)
        if stored is None:
            return torch.empty(0)
        tensor = torch.empty(stored.shape, dtype=dtype)
        stored.read(tensor)
        self._done += stored.num_bytes
        if self._on_progress is not None:
            self._on_progress(self._done, self._checkpoint.num_bytes)
        return tensor

    def _table(self, name: str) -> Tensor:
        return self._read(f"{name}.weight", self._stream)

    def _norm(self, name: str, dtype: torch.dtype | None = None) -> Norm:
        dtype = dtype or self._stream
        bias = self._read(f"{name}.bias", dtype) if self._spec.norm_bias else None
        return Norm(self._read(f"{name}.weight", dtype), bias)

    def _linear(self, names: list[str]) -> Linear:
        weight = torch.cat([self._read(f"{name}.weight", self._dtype) for name in names])
        biases = [self._read(f"{n}.bias", self._dtype) for n in names if self._has(f"{n}.bias")]
        return Linear(weight, torch.cat(biases) if biases else None, self._format)

    def _float_linear(self, name: str) -> Linear:
        bias = self._read(f"{name}.bias", torch.float32) if self._has(f"{name}.bias") else None
        return Linear(self._read(f"{name}.weight", torch.float32), bias)

    def _has(self, name: str) -> bool:
        return name in self._checkpoint.tensors


def _linear_shapes(
    name: str, outputs: int, inputs: int, has_bias: bool
) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs)
    if has_bias:
        yield f"{name}.bias", (outputs,)
