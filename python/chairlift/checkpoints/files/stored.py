"""A tensor of an open file, of whatever format: read, and not mapped.

A file that shrinks while it is read is an error then, not a signal that ends the process; and all
weights are packed anew, so that mapped pages would only be read once.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import FileIO
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Opener, one_line
from chairlift.checkpoints.files.fields import open_regular as open_regular_file

Shape = tuple[int, ...]

DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types of single numbers that a model may be stored in; others are `_core.BLOCK_TYPES`."""

_NUMBERS: Final = {
    **DTYPES,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""What can be read as it is; integers and eight-bit floats are parts of quantized layers."""
ITEM_BYTES: Final = {name: dtype.itemsize for name, dtype in _NUMBERS.items()}
_MAX_EXPERTS: Final = 4096
_BUFFER_BYTES: Final = 16 << 20
"""Bytes of a tensor that are converted at a time."""


class WeightTensor(Protocol):
    """A tensor of a checkpoint, not read yet, whatever it is stored as."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def name(self) -> str:
        """In the checkpoint."""

    @property
    def shape(self) -> Shape:
        """The shape of the values."""

    @property
    def dtype(self) -> str:
        """A name in `DTYPES` or in `_core.BLOCK_TYPES`, or another that is widened."""

    @property
    def num_bytes(self) -> int:
        """In the file."""

    def read(self, out: Tensor) -> None:
        """Read the values into a contiguous tensor of the same shape, and convert them."""

    def blocks(self) -> Tensor:
        """Read a tensor of a block type as blocks, uint8 `[rows, bytes of a row]`."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of an open file, not read yet."""

    path: Path
    file: FileIO
    name: str
    shape: Shape
    dtype: str
    begin: int
    """Where it begins in the file, in bytes."""
    num_bytes: int
    num_heads: int | None = None
    """Heads of a matrix of queries or keys whose rows are in the order of llama.cpp.

    The two numbers that RoPE rotates together are neighbours in that order, and half a head apart
    in `transformers`.
    """
    is_transposed: bool = False
    """Whether the columns of the matrix are stored one after the other."""

    def read(self, out: Tensor) -> None:
        """Read the values into a contiguous tensor of the same shape, and convert them.

        Raises:
            ModelError: The file has become shorter, or cannot be read.
        """
        if self.is_transposed:
            columns = torch.empty(self.shape[::-1], dtype=out.dtype)
            replace(self, shape=self.shape[::-1], is_transposed=False).read(columns)
            out.copy_(columns.T)
        elif self.dtype in DTYPES:
            self._read_numbers(out.view(-1))
        else:
            self._read_blocks(out.view(-1, self.shape[-1]))
        if self.num_heads is not None:
            out.copy_(self._reorder(out))

    def blocks(self) -> Tensor:
        """Read the blocks of a tensor of a block type as they are, uint8 `[rows, bytes of a row]`.

        Raises:
            ModelError: The file cannot be read.
        """
        blocks = torch.empty(self.shape[0], self.num_bytes // self.shape[0], dtype=torch.uint8)
        self._read_bytes(blocks.view(-1), self.begin)
        return blocks if self.num_heads is None else self._reorder(blocks)

    def numbers(self) -> Tensor:
        """Read single numbers in the dtype and the shape in which they are stored.

        Raises:
            ModelError: The file cannot be read, or the tensor is stored in blocks.
        """
        if self.dtype not in _NUMBERS:
            self._fail(f"{self.name}: {self.dtype} is not supported here")
        numbers = torch.empty(self.shape, dtype=_NUMBERS[self.dtype])
        self._read_bytes(numbers.view(-1), self.begin)
        return numbers

    def _reorder(self, rows: Tensor) -> Tensor:
        """Return the rows in the order of `transformers`."""
        pairs = rows.view(self.num_heads or 1, -1, 2, *rows.shape[1:])
        return pairs.transpose(1, 2).reshape(rows.shape)

    def _read_numbers(self, out: Tensor) -> None:
        stored = DTYPES[self.dtype]
        if stored == out.dtype:
            self._read_bytes(out, self.begin)
            return
        step = _BUFFER_BYTES // stored.itemsize
        buffer = torch.empty(min(step, len(out)), dtype=stored)
        for start in range(0, len(out), step):
            part = out[start : start + step]
            numbers = buffer[: len(part)]
            self._read_bytes(numbers, self.begin + start * stored.itemsize)
            part.copy_(numbers)

    def _read_blocks(self, out: Tensor) -> None:
        weights, num_bytes = _core.BLOCK_TYPES[self.dtype]
        row_bytes = out.shape[1] // weights * num_bytes
        step = max(1, _BUFFER_BYTES // (4 * out.shape[1]))
        blocks = torch.empty(min(step, len(out)), row_bytes, dtype=torch.uint8)
        numbers = torch.empty(len(blocks), out.shape[1])
        for start in range(0, len(out), step):
            part = out[start : start + step]
            self._read_bytes(blocks[: len(part)].view(-1), self.begin + start * row_bytes)
            _core.dequantize(blocks[: len(part)], self.dtype, numbers[: len(part)])
            part.copy_(numbers[: len(part)])

    def _read_bytes(self, numbers: Tensor, begin: int) -> None:
        rest = numbers.view(torch.uint8).numpy().data
        try:
            self.file.seek(begin)
            # A read may return less than was asked for; other threads run meanwhile.
            while rest and (num_read := self.file.readinto(rest)):
                rest = rest[num_read:]
        except OSError as error:
            self._fail(f"{self.name} cannot be read: {(error.strerror or 'error').lower()}")
        if rest:
            self._fail(f"it became shorter while {self.name} was read")

    def _fail(self, problem: str) -> NoReturn:
        message = f"{self.path}: {one_line(problem)}"
        raise ModelError(message)


class _OfExpert(NamedTuple):
    """What each expert has of a tensor of all experts."""

    names: tuple[str, ...]
    """Names of its tensors, each with one part of the outputs."""
    num_axes: int = 3
    """Axes of the tensor of all experts."""
    is_transposed: bool = False


_OF_EXPERT: Final = {
    "weight": _OfExpert(("weight",)),
    "gate_up_proj": _OfExpert(("gate_proj.weight", "up_proj.weight")),
    "down_proj": _OfExpert(("down_proj.weight",)),
    "bias": _OfExpert(("bias",), 2),
}
"""By the last part of the name of a tensor of all experts."""
_OF_TRANSPOSED: Final = {
    f"{layer}{end}": _OfExpert((f"{layer}.{part}",), num_axes, is_transposed=part == "weight")
    for layer in ("gate_up_proj", "down_proj")
    for end, part, num_axes in (
        ("", "weight", 3),
        ("_bias", "bias", 2),
        ("_blocks", "blocks", 4),
        ("_scales", "scales", 3),
    )
}
"""The same of checkpoints that have inputs before outputs."""


def split_experts(
    tensors: Mapping[str, StoredTensor], *, are_transposed: bool = False
) -> dict[str, StoredTensor]:
    """Return the tensors of a file, those of all experts as one or two of each expert.

    `NAME.weight` `[num_experts, outputs, inputs]` becomes `NAME.0.weight`, `NAME.1.weight`, ...,
    and `NAME.bias` `[num_experts, outputs]` becomes `NAME.0.bias`, ...;
    `NAME.gate_up_proj` becomes `NAME.0.gate_proj.weight`, `NAME.0.up_proj.weight`, ..., and
    `NAME.down_proj` becomes `NAME.0.down_proj.weight`, ...

    Args:
        tensors: The tensors of the file.
        are_transposed: `NAME.gate_up_proj` is `[num_experts, inputs, outputs]`, and becomes
            `NAME.0.gate_up_proj.weight`, ..., as `NAME.gate_up_proj_bias` `[num_experts, outputs]`
            becomes `NAME.0.gate_up_proj.bias`, ...; likewise `NAME.down_proj`, and what ends in
            `_blocks` and `_scales`, which have outputs before inputs.
    """
    kinds = {**_OF_EXPERT, **_OF_TRANSPOSED} if are_transposed else _OF_EXPERT
    split: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        layer, _, last = name.rpartition(".")
        kind = kinds.get(last)
        if kind is None or not _is_of_experts(tensor.shape, kind):
            split[name] = tensor
            continue
        (num, outputs, *inputs), num_parts = tensor.shape, len(kind.names)
        step = tensor.num_bytes // num // num_parts
        shape = (outputs // num_parts, *inputs)
        places = product(range(num), kind.names)
        for place, (expert, part) in enumerate(places):
            begin, part_name = tensor.begin + place * step, f"{layer}.{expert}.{part}"
            split[part_name] = replace(
                tensor,
                name=part_name,
                shape=shape[::-1] if kind.is_transposed else shape,
                begin=begin,
                num_bytes=step,
                is_transposed=kind.is_transposed,
            )
    return split


def _is_of_experts(shape: Shape, kind: _OfExpert) -> bool:
    if len(shape) != kind.num_axes:
        return False
    num, outputs = shape[:2]
    # A convolution of each channel has one input: it is no mixture of experts.
    return 1 <= num <= _MAX_EXPERTS and outputs != 1 and outputs % len(kind.names) == 0


def open_regular(path: Path, files: ExitStack, opener: Opener = os.open) -> tuple[FileIO, int]:
    """Open a file, which closes with `files`; return it and its size in bytes.

    Raises:
        ModelError: There is no such file, or it is something else.
    """
    try:
        file = files.enter_context(open_regular_file(path, opener))
        return file, os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        message = f"{path}: no such file"
        raise ModelError(message) from None
    except OSError as error:
        message = f"{path}: {(error.strerror or 'cannot be read').lower()}"
        raise ModelError(message) from error
