"""What `chairlift quantize` writes: the blocks of each quantized layer as a tensor of bytes.

The name of the tensor says what the blocks are: `NAME.int8_rotated_128`, `NAME.int4_rotated_128`
or `NAME.int4_rotated`, uint8 `[N, bytes of a row]`, stand for `NAME.weight` `[N, K]`.
`quantization_config` of config.json has the version of these blocks and the format that was asked
for.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from chairlift import _core
from chairlift.checkpoints.files.fields import Fields, either
from chairlift.checkpoints.files.stored import Shape, StoredTensor
from chairlift.checkpoints.quantized.groups import BLOCK
from chairlift.checkpoints.quantized.layouts import Parts, fail

METHOD: Final = "chairlift"
"""`quant_method` of such a checkpoint."""
VERSION: Final = 3
"""The version that is written: the weights that share a scale depend on the type of the blocks."""
_FACTS: Final = {
    1: {"group_size": 32, "rotation": 64},
    2: {"rotation": 64},
    VERSION: {"rotation": 64},
}
"""What is said of the blocks by version: weights that share a scale, and the largest block of the
rotation. Other versions and values are refused."""
BLOCK_PARTS: Final = {
    "int8_rotated": "INT8_ROTATED",
    "int8_rotated_128": "INT8_ROTATED_128",
    "int4_rotated": "INT4_ROTATED",
    "int4_rotated_128": "INT4_ROTATED_128",
}
"""Block types by the last part of a tensor's name; the first is of version 1, the last came with
version 3."""
FORMATS: Final = {"int8": "INT8_ROTATED_128", "int4": "INT4_ROTATED"}
"""Block types of weights that are rounded alone, by what `--format` calls them."""
_MIN_WIDE_INPUTS: Final = 512
"""Inputs from which four bits have a scale and a minimum per 128 weights. The few weights of a
narrower layer lose more by it than compensation gains, and take no time to speak of."""


def compensated_type(weight_format: str, in_features: int) -> str:
    """Return the block type of a layer whose errors are compensated, by what `--format` says."""
    is_wide = weight_format == "int4" and in_features >= _MIN_WIDE_INPUTS
    return "INT4_ROTATED_128" if is_wide else FORMATS[weight_format]


def stored_config(weight_format: str) -> dict[str, Any]:
    """Return `quantization_config` of a checkpoint whose layers have a format of `FORMATS`."""
    return {"quant_method": METHOD, "version": VERSION, "format": weight_format, **_FACTS[VERSION]}


def check_config(fields: Fields) -> None:
    """Check `quantization_config` of such a checkpoint.

    Raises:
        ModelError: It asks for what is not supported.
    """
    facts = _FACTS.get(fields.integer("version"))
    if facts is None:
        fields.fail("version", either(dict.fromkeys(map(str, _FACTS))))
    for name, expected in facts.items():
        if fields.integer(name) != expected:
            fields.fail(name, str(expected))
    if fields.values.get("format") not in FORMATS:
        fields.fail("format", either(FORMATS))


def blocks_shape(shape: Shape, block_type: str) -> Shape:
    """Return the shape `[N, bytes of a row]` of the blocks of a matrix `[N, K]`."""
    rows, columns = shape
    num_bytes = _core.row_bytes(block_type, columns)
    assert num_bytes is not None, "rows of whole blocks"
    return rows, num_bytes


def block_bounds(columns: int, block_type: str) -> list[tuple[int, int]]:
    """Return where the blocks of a row begin and end: what is left of a row is in blocks of 32."""
    length, _ = _core.BLOCK_TYPES[block_type]
    whole = columns - columns % length
    firsts = [*range(0, whole, length), *range(whole, columns, BLOCK)]
    return list(pairwise((*firsts, columns)))


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A matrix of stored blocks, not read yet; as `StoredTensor`, with a block type."""

    stored: StoredTensor
    name: str
    dtype: str
    """The type of its blocks."""
    shape: Shape
    """`[N, K]`."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.stored.path

    @property
    def num_bytes(self) -> int:
        """In the file."""
        return self.stored.num_bytes

    def blocks(self) -> Tensor:
        """Read the matrix as blocks, uint8 `[N, bytes of a row]`."""
        return self.stored.numbers()

    def read(self, out: Tensor) -> None:
        """Read the values into a contiguous tensor of the same shape, and convert them."""
        numbers = torch.empty(self.shape)
        _core.dequantize(self.blocks(), self.dtype, numbers)
        out.copy_(numbers)


def block_tensor(name: str, parts: Parts) -> BlockTensor:
    """Check the only tensor of a layer.

    Args:
        name: The weight that it stands for.
        parts: The tensors of the layer.

    Raises:
        ModelError: There are several, or its type or shape is wrong.
    """
    [part, *others] = parts
    stored = parts[part]
    if others:
        fail(parts[others[0]], f"one format of a layer, got {stored.name}, too")
    if stored.dtype != "U8":
        fail(stored, f"type U8, got {stored.dtype}")
    columns = 0
    if len(stored.shape) == 2 and 0 not in stored.shape:
        columns = _core.row_weights(BLOCK_PARTS[part], stored.shape[1]) or 0
    if not columns:
        fail(stored, f"rows of whole blocks, got shape {list(stored.shape)}")
    return BlockTensor(stored, name, BLOCK_PARTS[part], (stored.shape[0], columns))
