"""From the names of a layer's parts to how they are stored."""

from typing import NamedTuple

from chairlift.checkpoints.files.names import CheckpointNames
from chairlift.model.specs.layer_parts import NormSpec
from chairlift.model.specs.share import Rows
from chairlift.model.tensors.part_tensors import LinearTensors, NormTensor, NumberTensors


class LayerNames(NamedTuple):
    """What a checkpoint calls the parts of one layer, which are keys of `CheckpointNames`."""

    table: CheckpointNames
    at: str
    """How the names begin."""

    def of(self, part: str) -> tuple[str, ...]:
        """Return the whole names of a part."""
        return tuple(self.at + name for name in self.table[part])

    def norm(self, part: str, size: int, spec: NormSpec) -> NormTensor:
        """Return a norm of the residual stream."""
        (name,) = self.of(part)
        return NormTensor(name, size, spec)

    def weight(self, part: str, *shape: int) -> NumberTensors:
        """Return a weight that stays in the model's dtype."""
        (name,) = self.of(part)
        return NumberTensors({f"{name}.weight": shape}, is_float32=False)

    def numbers(self, part: str, *shape: int) -> NumberTensors:
        """Return float32 numbers of a shape; their names end with that of the part.

        Args:
            part: Name of the part.
            *shape: The stored shape.
        """
        (name,) = self.of(part)
        return NumberTensors({name: shape})

    def linear(
        self, part: str, *outputs: int | Rows, inputs: int, bias: bool = False, last: bool = False
    ) -> LinearTensors:
        """Return layers of the same inputs, packed into one.

        Args:
            part: Name of the part. It has a name for each layer, or one tensor has the rows of all.
            outputs: Outputs of each layer; as `Rows` where ranks keep some together.
            inputs: Inputs of each layer.
            bias: Whether they have one.
            last: Whether fewer outputs than names belong to the last names, and not to the first.
        """
        names = self.of(part)
        rows = tuple(Rows(num) if isinstance(num, int) else num for num in outputs)
        parts = (rows,) if len(names) == 1 else tuple((one,) for one in rows)
        names = names[-len(parts) :] if last else names[: len(parts)]
        sizes = tuple(sum(one.num for one in part) for part in parts)
        return LinearTensors(names, sizes, inputs, bias, parts=parts)
