"""What `chairlift quantize` writes: the blocks of each quantized layer as a tensor of bytes.

The name of the tensor says what the blocks are: `NAME.int8_rotated` or `NAME.int4_rotated`, uint8
`[N, bytes of a row]`, stand for `NAME.weight` `[N, K]`. `quantization_config` of config.json has
the version of these blocks and the format that was asked for.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from chairlift import _core
from chairlift.checkpoints.files.fields import Fields, either
from chairlift.checkpoints.files.stored import Shape, StoredTensor
from chairlift.checkpoints.quantized.layouts import Parts, fail

METHOD: Final = "chairlift"
"""`quant_method` of such a checkpoint."""
VERSION: Final = 1
"""The version of the blocks; another one is refused."""
_FACTS: Final = {"group_size": 32, "rotation": 64}
"""What the blocks of this version are: weights that share a scale, and the largest block of the
rotation. Other values are refused."""
BLOCK_PARTS: Final = {"int8_rotated": "INT8_ROTATED", "int4_rotated": "INT4_ROTATED"}
"""Block types by the last part of a tensor's name."""
FORMATS: Final = {"int8": "INT8_ROTATED", "int4": "INT4_ROTATED"}
"""Block types by what `--format` calls them."""


def stored_config(weight_format: str) -> dict[str, Any]:
    """Return `quantization_config` of a checkpoint whose layers have a format of `FORMATS`."""
    return {"quant_method": METHOD, "version": VERSION, "format": weight_format, **_FACTS}


def check_config(fields: Fields) -> None:
    """Check `quantization_config` of such a checkpoint.

    Raises:
        ModelError: It asks for what is not supported.
    """
    for name, expected in {"version": VERSION, **_FACTS}.items():
        if fields.integer(name) != expected:
            fields.fail(name, str(expected))
    if fields.values.get("format") not in FORMATS:
        fields.fail("format", either(FORMATS))


def blocks_shape(shape: Shape, block_type: str) -> Shape:
    """Return the shape `[N, bytes of a row]` of the blocks of a matrix `[N, K]`."""
    rows, columns = shape
    weights, num_bytes = _core.BLOCK_TYPES[block_type]
    return rows, columns // weights * num_bytes


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
    weights, num_bytes = _core.BLOCK_TYPES[BLOCK_PARTS[part]]
    if stored.dtype != "U8":
        fail(stored, f"type U8, got {stored.dtype}")
    if len(stored.shape) != 2 or 0 in stored.shape or stored.shape[1] % num_bytes:
        fail(stored, f"rows of a multiple of {num_bytes} bytes, got shape {list(stored.shape)}")
    rows, row_bytes = stored.shape
    shape = rows, row_bytes // num_bytes * weights
    return BlockTensor(stored, name, BLOCK_PARTS[part], shape)
