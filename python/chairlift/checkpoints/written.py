"""Writes a safetensors file, tensor after tensor: memory holds one at a time."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import torch
from torch import Tensor

from chairlift.checkpoints.files.stored import ITEM_BYTES, Shape

_ALIGNMENT: Final = 8
"""Bytes of which a header has a multiple."""


class WrittenFile:
    """A safetensors file that is being written; a context manager that closes it.

    All names, types and shapes are known before the first tensor, since they come first.
    """

    def __init__(self, path: Path, tensors: Mapping[str, tuple[str, Shape]]) -> None:
        """Create the file, and write what it will hold.

        Args:
            path: Where; no such file exists.
            tensors: The type and the shape of each tensor by name, in the order of writing.
        """
        self._left = dict(tensors)
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, (dtype, shape) in tensors.items():
            begin, end = end, end + prod(shape) * ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._file = path.open("xb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        assert error is not None or not self._left, "every tensor is written"

    def write(self, name: str, numbers: Tensor) -> None:
        """Write the next tensor, of the type and shape that were announced."""
        first = next(iter(self._left))
        _, shape = self._left.pop(first)
        assert (first, tuple(shape)) == (name, tuple(numbers.shape)), "in their order"
        self._file.write(numbers.contiguous().flatten().view(torch.uint8).numpy().data)
