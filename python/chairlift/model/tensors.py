"""The tensors that a checkpoint holds for a model: their names, shapes, and how they are packed.

The check of a checkpoint, the loader and the memory plan read the same lists.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from chairlift.model.spec import ModelSpec
from chairlift.model.stored import Shape


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """What a checkpoint calls the parts of a `ModelSpec`, without `.weight` and `.bias`."""

    embedding: str
    final_norm: str
    head: str
    layers: str
    """Before the number of a layer; the names below follow that number."""
    attention_norm: str
    query: str
    key: str
    value: str
    query_norm: str
    key_norm: str
    output: str
    feed_forward_norm: str
    gate: str
    up: str
    down: str


class NormTensor(NamedTuple):
    """The weight of a norm."""

    name: str
    size: int

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        yield f"{self.name}.weight", (self.size,)


class LinearTensors(NamedTuple):
    """Linear layers of the same inputs, which are packed into one with outputs side by side."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]
    """Of each of the names."""
    inputs: int
    has_bias: bool = False

    def runs(self, block_types: Mapping[str, str]) -> Iterator[tuple["LinearTensors", str | None]]:
        """Yield neighbours that are stored alike, and the type of their blocks.

        Args:
            block_types: Of the tensors that stay as they are stored, by name; others are joined.
        """
        parts = zip(self.names, self.outputs, strict=True)
        for kind, run in groupby(parts, lambda part: block_types.get(f"{part[0]}.weight")):
            names, outputs = zip(*run, strict=True)
            yield LinearTensors(names, outputs, self.inputs, self.has_bias), kind

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        for name, outputs in zip(self.names, self.outputs, strict=True):
            yield f"{name}.weight", (outputs, self.inputs)
            if self.has_bias:
                yield f"{name}.bias", (outputs,)


class LayerTensors(NamedTuple):
    """The tensors of one decoder layer."""

    attention_norm: NormTensor
    qkv: LinearTensors
    query_norm: NormTensor | None
    key_norm: NormTensor | None
    output: LinearTensors
    feed_forward_norm: NormTensor
    gate_up: LinearTensors
    down: LinearTensors


class ModelTensors(NamedTuple):
    """The tensors of a model; embedding and head have the same shape."""

    embedding: LinearTensors
    layers: tuple[LayerTensors, ...]
    final_norm: NormTensor
    head: LinearTensors

    @classmethod
    def of(cls, spec: ModelSpec, names: CheckpointNames) -> "ModelTensors":
        """Return the tensors of a spec."""
        table = (spec.vocab_size,), spec.hidden_size
        return cls(
            embedding=LinearTensors((names.embedding,), *table),
            layers=tuple(_layer_tensors(spec, names, n) for n in range(spec.num_layers)),
            final_norm=NormTensor(names.final_norm, spec.hidden_size),
            head=LinearTensors((names.head,), *table),
        )

    def shapes(self) -> dict[str, Shape]:
        """Return the name and shape of every stored tensor."""
        parts: list[NormTensor | LinearTensors] = [self.embedding, self.final_norm, self.head]
        for layer in self.layers:
            parts.extend(part for part in layer if part is not None)
        return {name: shape for part in parts for name, shape in part.shapes()}


def _layer_tensors(spec: ModelSpec, names: CheckpointNames, number: int) -> LayerTensors:
    layer, hidden, at = spec.layers[number], spec.hidden_size, f"{names.layers}.{number}."
    attention, feed_forward = layer.attention, layer.feed_forward
    query, kv, inner = attention.query_size, attention.kv_size, feed_forward.intermediate_size

    def norm(name: str, size: int) -> NormTensor:
        return NormTensor(at + name, size)

    def linear(*parts: tuple[str, int], inputs: int, bias: bool) -> LinearTensors:
        own_names, outputs = zip(*parts, strict=True)
        return LinearTensors(tuple(at + name for name in own_names), outputs, inputs, bias)

    has_qk_norm = attention.qk_norm is not None
    return LayerTensors(
        attention_norm=norm(names.attention_norm, hidden),
        qkv=linear(
            (names.query, query),
            (names.key, kv),
            (names.value, kv),
            inputs=hidden,
            bias=attention.qkv_bias,
        ),
        query_norm=norm(names.query_norm, attention.head_dim) if has_qk_norm else None,
        key_norm=norm(names.key_norm, attention.head_dim) if has_qk_norm else None,
        output=linear((names.output, hidden), inputs=query, bias=attention.out_bias),
        feed_forward_norm=norm(names.feed_forward_norm, hidden),
        gate_up=linear(
            (names.gate, inner), (names.up, inner), inputs=hidden, bias=feed_forward.bias
        ),
        down=linear((names.down, hidden), inputs=inner, bias=feed_forward.bias),
    )
