"""How the parts of a model are stored: norms, linear layers, experts, and numbers read whole."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.checkpoints.files.stored import Shape
from chairlift.model.specs.layer_parts import Experts, LayerNorm, NormSpec
from chairlift.model.specs.share import Rows
from chairlift.model.tensors.parts import LayerParts, ModelParts, RecurrentParts


class NormTensor(NamedTuple):
    """The weight of a norm of the residual stream, and its bias."""

    name: str
    size: int
    norm: NormSpec
    stored: str = "weight"
    """The last part of the name of the weight."""
    factor: float = 1.0
    """Multiplies the weight when it is read."""

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias."""
        return isinstance(self.norm, LayerNorm) and self.norm.has_bias

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        yield f"{self.name}.{self.stored}", (self.size,)
        if self.has_bias:
            yield f"{self.name}.bias", (self.size,)


class NumberTensors(NamedTuple):
    """Numbers that are read whole, in the model's dtype or float32, and joined along axis 0."""

    stored: Mapping[str, Shape]
    """Shapes by name."""
    is_float32: bool = True
    pack: Callable[[Tensor], Tensor] | None = None
    """What is made of the numbers when they are read."""
    rows: tuple[Rows, ...] = ()
    """All rows, where a rank holds some of each part of them; else it holds all."""

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        yield from self.stored.items()


class Ones(NamedTuple):
    """The weight of a norm that stores none, in the model's dtype."""

    size: int

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield nothing: no tensor is stored."""
        yield from ()


class Interleaved(NamedTuple):
    """The order of the rows of a tensor in which several layers alternate."""

    num_groups: int
    sizes: tuple[int, ...]
    """Rows of each part of a group."""
    order: tuple[int, ...]
    """The parts in the order in which they are wanted."""

    def deinterleave(self, rows: Tensor) -> Tensor:
        """Return the rows `[num_groups * sum(sizes), ...]`, all of one part before the next."""
        groups = rows.view(self.num_groups, sum(self.sizes), *rows.shape[1:])
        parts = torch.split(groups, list(self.sizes), dim=1)
        return torch.cat([parts[part].reshape(-1, *rows.shape[1:]) for part in self.order])


class LinearTensors(NamedTuple):
    """Linear layers of the same inputs, which are packed into one with outputs side by side."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]
    """Outputs of each of the names."""
    inputs: int
    has_bias: bool = False
    interleaved: Interleaved | None = None
    """The order of the rows of the first name."""
    is_exact: bool = False
    """Never quantized: routers choose what is computed, and errors of decays grow by token."""
    parts: tuple[tuple[Rows, ...], ...] = ()
    """Parts of the outputs of each name, in the order that is wanted; () has one part of each."""
    is_whole: bool = False
    """Every rank computes all outputs: they are few, and no rank could use a part of them."""

    @property
    def rows(self) -> tuple[Rows, ...]:
        """All outputs, where a rank computes some of each part of them."""
        return tuple(chain.from_iterable(self.rows_of_names))

    @property
    def rows_of_names(self) -> tuple[tuple[Rows, ...], ...]:
        """The outputs of each name, in parts."""
        return self.parts or tuple((Rows(num),) for num in self.outputs)

    def runs(self, quant_types: Mapping[str, str]) -> Iterator[tuple["LinearTensors", str | None]]:
        """Yield neighbours that are stored alike, and the type of their blocks.

        Args:
            quant_types: Block types by the names of tensors that stay as they are stored.
        """
        layers = zip(self.names, self.outputs, self.rows_of_names, strict=True)
        for kind, run in groupby(layers, lambda layer: quant_types.get(f"{layer[0]}.weight")):
            names, outputs, parts = zip(*run, strict=True)
            order = self.interleaved if names[0] == self.names[0] else None
            yield self._replace(names=names, outputs=outputs, parts=parts, interleaved=order), kind

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        for name, outputs in zip(self.names, self.outputs, strict=True):
            yield f"{name}.weight", (outputs, self.inputs)
            if self.has_bias:
                yield f"{name}.bias", (outputs,)


class ExpertTensors(NamedTuple):
    """The experts of a mixture; they are packed together."""

    spec: Experts
    gate_up: tuple[LinearTensors, ...]
    """The first layer of each expert."""
    down: tuple[LinearTensors, ...]
    choice_bias: NumberTensors | None
    """A number for each expert, added to its score for the choice alone."""
    factors: NumberTensors | None
    """A factor for the weight of each expert."""

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        for layer in (*self.gate_up, *self.down):
            yield from layer.shapes()
        for numbers in (self.choice_bias, self.factors):
            if numbers is not None:
                yield from numbers.shapes()


Part = NormTensor | LinearTensors | ExpertTensors | NumberTensors | Ones
Numbers = NumberTensors | Ones
ModelTensors = ModelParts[NormTensor, LinearTensors, ExpertTensors, Numbers]
LayerTensors = LayerParts[NormTensor, LinearTensors, ExpertTensors, Numbers]
RecurrentTensors = RecurrentParts[LinearTensors, Numbers]
