"""Quantized matrices whose codes and scales are tensors of their own, and the blocks made of them.

A kernel reads blocks of 32 neighbours along K, each with its scale. A group of a checkpoint is one
or several blocks, so that the values stay what they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.stored import Shape, StoredTensor

BLOCK: Final = 32
"""Neighbours along K in a block."""


class Groups(NamedTuple):
    """The weights `scales * (codes - zeros)` of a matrix `[N, K]` in G groups along K."""

    codes: Tensor
    """uint8 `[N, K]`."""
    scales: Tensor
    """float32 `[N, G]`."""
    zeros: Tensor | None
    """float32 `[N, G]`; None is the middle of the range of codes."""


@dataclass(frozen=True, slots=True)
class GroupedTensor:
    """A matrix in groups, not read yet; as `StoredTensor`, with a block type."""

    path: Path
    name: str
    shape: Shape
    dtype: str
    """The type of its blocks: Q4_0 or Q8_0 (scales in float16, no zeros), AFFINE4 or AFFINE8."""
    num_bytes: int
    """In the file."""
    groups: Callable[[], Groups]
    """Reads it."""

    def blocks(self) -> Tensor:
        """Read the matrix as blocks, uint8 `[N, bytes of a row]`.

        Raises:
            ModelError: The file has become shorter, or cannot be read.
        """
        codes, scales, zeros = self.groups()
        num_rows, num_codes = codes.shape
        repeats = num_codes // BLOCK // scales.shape[1]
        minima = -scales * (self._middle if zeros is None else zeros)
        scales, minima = (part.repeat_interleave(repeats, 1) for part in (scales, minima))
        codes = codes.view(num_rows, -1, BLOCK)
        if self.dtype == "Q8_0":
            codes = codes ^ 0x80
        elif self.dtype != "AFFINE8":
            codes = codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4
        heads = [scales.half() if self.dtype in {"Q4_0", "Q8_0"} else scales]
        if self.dtype.startswith("AFFINE"):
            heads.append(minima)
        parts = [head.unsqueeze(-1).contiguous().view(torch.uint8) for head in heads]
        return torch.cat((*parts, codes), dim=-1).view(num_rows, -1)

    def read(self, out: Tensor) -> None:
        """Read the values into a contiguous tensor of the same shape, and convert them."""
        codes, scales, zeros = self.groups()
        wide = codes.view(*scales.shape, -1).float()
        middle = self._middle if zeros is None else zeros.unsqueeze(-1)
        out.copy_(((wide - middle) * scales.unsqueeze(-1)).view(out.shape))

    @property
    def _middle(self) -> float:
        return 8.0 if self.dtype in {"Q4_0", "AFFINE4"} else 128.0


def block_type(bits: int, scales: StoredTensor, *, has_zeros: bool) -> str:
    """Return the smallest block type that holds codes, scales and zeros as they are.

    A product of a float32 scale is rounded once before its minimum is added; one of a float16 or
    bfloat16 scale is exact.
    """
    if scales.dtype == "F16" and not has_zeros:
        return "Q4_0" if bits == 4 else "Q8_0"
    return "AFFINE4" if bits == 4 else "AFFINE8"


@dataclass(frozen=True, slots=True)
class _WithScales:
    """A matrix whose numbers and scales are a tensor each, not read yet; as `StoredTensor`."""

    codes: StoredTensor
    scales: StoredTensor
    name: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.codes.path

    @property
    def num_bytes(self) -> int:
        """In the file."""
        return self.codes.num_bytes + self.scales.num_bytes


@dataclass(frozen=True, slots=True)
class FloatTensor(_WithScales):
    """Floats of four bits (MXFP4), with a block type.

    The codes are uint8 `[N, K / 32, 16]`: two numbers in a byte, the first in its low half. The
    scales are uint8 `[N, K / 32]`: the exponents of their values.
    """

    @property
    def shape(self) -> Shape:
        """`[N, K]`."""
        rows, groups = self.scales.shape
        return rows, BLOCK * groups

    @property
    def dtype(self) -> str:
        """The type of its blocks."""
        return "MXFP4"

    def blocks(self) -> Tensor:
        """Read the matrix as blocks, uint8 `[N, bytes of a row]`."""
        pairs = self.codes.numbers()
        codes = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
        halves = codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4
        return torch.cat((self.scales.numbers().unsqueeze(-1), halves), dim=-1).flatten(1)

    def read(self, out: Tensor) -> None:
        """Read the values into a contiguous tensor of the same shape, and convert them."""
        numbers = torch.empty(self.shape)
        _core.dequantize(self.blocks(), self.dtype, numbers)
        out.copy_(numbers)


@dataclass(frozen=True, slots=True)
class ScaledTensor(_WithScales):
    """Eight-bit floats with scales per tile, always widened."""

    tile: Shape
    """Rows and columns that share a scale; the last tiles of a matrix may be smaller."""

    @property
    def shape(self) -> Shape:
        """`[N, K]`."""
        return self.codes.shape

    @property
    def dtype(self) -> str:
        """What the values are stored as."""
        return self.codes.dtype

    def read(self, out: Tensor) -> None:
        """Read the values into a contiguous tensor of the same shape, and convert them."""
        rows, columns = self.shape
        scales = self.scales.numbers().float()
        scales = scales.view(-(-rows // self.tile[0]), -(-columns // self.tile[1]))
        wide = scales.repeat_interleave(self.tile[1], 1)[:, :columns]
        wide = wide.repeat_interleave(self.tile[0], 0)[:rows]
        out.copy_(self.codes.numbers().float() * wide)

    def blocks(self) -> NoReturn:
        """Refuse to read blocks: eight-bit floats have none.

        Raises:
            ModelError: Always.
        """
        message = f"{self.path}: {self.name}: {self.dtype} has no blocks"
        raise ModelError(message)
