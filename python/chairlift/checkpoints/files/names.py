"""What checkpoints call the parts of a model: one table for each family."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """What a checkpoint calls the parts of a `ModelSpec`, and how it stores some of them."""

    embedding: str
    """This name and the next three are without `.weight`."""
    final_norm: str
    head: str
    layers: str
    """Before the number of a layer; the names of its parts follow that number."""
    parts: Mapping[str, tuple[str, ...]] = field(hash=False)
    """The names of each part of a layer, or of the inputs of all layers, without `.weight` and
    `.bias`; those of single numbers are whole.

    A key is a field of the records of parts, or of the stored layers that are packed into one.
    A part of several layers has a name for each, or one of a tensor with the rows of all.
    `expert_` are names of each expert, whose number stands in the braces.
    """
    choice_bias_axes: int = 2
    """All but the last have one place."""
    has_interleaved_experts: bool = False
    """Experts have rows of a gate, then an up, and so on, not all gates, then all ups."""
    experts_transposed: bool = False
    """The tensors of all experts of a layer have inputs before outputs, and biases beside them."""
    rates_are_negative: bool = False
    """Rates of decays are stored below 0 in the place of their logarithms."""

    def __getitem__(self, part: str) -> tuple[str, ...]:
        """Return the names of a part."""
        return self.parts[part]

    def with_parts(self, **parts: str | tuple[str, ...]) -> "CheckpointNames":
        """Return a table with other names of some parts; a text is the only name of its part."""
        changed = {part: (name,) if isinstance(name, str) else name for part, name in parts.items()}
        return replace(self, parts={**self.parts, **changed})

    def each_layer(self, num_layers: int) -> Iterator[str]:
        """Yield how the names of each layer begin."""
        return (f"{self.layers}.{number}." for number in range(num_layers))
