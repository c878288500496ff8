"""The tensors of norms and linear layers in a checkpoint, and how layers are packed into one."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.checkpoints.files.stored import Shape
from chairlift.model.specs.layer_parts import LayerNorm, NormSpec


class NormTensor(NamedTuple):
    """The weight of a norm, and its bias."""

    name: str
    size: int
    norm: NormSpec
    stored: str = "weight"
    """The last part of the name of the weight."""

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias."""
        return isinstance(self.norm, LayerNorm) and self.norm.has_bias

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        yield f"{self.name}.{self.stored}", (self.size,)
        if self.has_bias:
            yield f"{self.name}.bias", (self.size,)


class Interleaved(NamedTuple):
    """How the rows of a tensor lie, which belong to several layers in turn."""

    num_groups: int
    sizes: tuple[int, ...]
    """Rows of each part of a group."""
    order: tuple[int, ...]
    """The parts, as they are wanted."""

    def apart(self, rows: Tensor) -> Tensor:
        """Return the rows `[num_groups * sum(sizes), ...]`, all of one part before the next."""
        groups = rows.view(self.num_groups, sum(self.sizes), *rows.shape[1:])
        parts = torch.split(groups, list(self.sizes), dim=1)
        return torch.cat([parts[part].reshape(-1, *rows.shape[1:]) for part in self.order])


class LinearTensors(NamedTuple):
    """Linear layers of the same inputs, which are packed into one with outputs side by side."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]
    """Of each of the names."""
    inputs: int
    has_bias: bool = False
    interleaved: Interleaved | None = None
    """Of the rows of the first name."""

    def runs(self, block_types: Mapping[str, str]) -> Iterator[tuple["LinearTensors", str | None]]:
        """Yield neighbours that are stored alike, and the type of their blocks.

        Args:
            block_types: Of the tensors that stay as they are stored, by name; others are joined.
        """
        parts = zip(self.names, self.outputs, strict=True)
        for kind, run in groupby(parts, lambda part: block_types.get(f"{part[0]}.weight")):
            names, outputs = zip(*run, strict=True)
            order = self.interleaved if names[0] == self.names[0] else None
            yield LinearTensors(names, outputs, self.inputs, self.has_bias, order), kind

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        for name, outputs in zip(self.names, self.outputs, strict=True):
            yield f"{name}.weight", (outputs, self.inputs)
            if self.has_bias:
                yield f"{name}.bias", (outputs,)


def linear(
    at: str, *parts: tuple[str, int], fused: str = "", inputs: int, bias: bool = False
) -> LinearTensors:
    """Return layers of the same inputs: names behind `at`, and outputs.

    Args:
        at: How the names begin.
        parts: The end of a name, and outputs, of each layer.
        fused: The end of the name of one tensor in the place of all; empty is none.
        inputs: Of each layer.
        bias: Whether they have one.
    """
    own_names, outputs = zip(*parts, strict=True)
    if fused:
        own_names, outputs = (fused,), (sum(outputs),)
    return LinearTensors(tuple(at + name for name in own_names), outputs, inputs, bias)
