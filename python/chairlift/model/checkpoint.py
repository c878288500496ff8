"""Safetensors files of a model folder: one, or several with an index.

Files are mapped, so that a tensor takes memory only while it is being copied.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError, safe_open
from torch import Tensor

from chairlift.errors import ModelError
from chairlift.model.fields import either, read_json

Shape = tuple[int, ...]

_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2}

# Constants that old checkpoints carry; they follow from the configuration.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of an open file, not read yet."""

    path: Path
    file: Any
    name: str
    shape: Shape
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return prod(self.shape) * _ITEM_SIZES[self.dtype]

    def read(self) -> Tensor:
        """Maps the tensor; the values are good while the file is open."""
        tensor: Tensor = self.file.get_tensor(self.name)
        return tensor

    def check(self, shape: Shape) -> None:
        """Raises ModelError where shape or type is not what the model needs."""
        if self.shape != shape:
            _fail(self.path, self.name, f"expected shape {list(shape)}, got {list(self.shape)}")
        if self.dtype not in _ITEM_SIZES:
            _fail(self.path, self.name, f"expected type {either(_ITEM_SIZES)}, got {self.dtype}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a model folder by name."""

    source: Path
    """The file that lists them, for messages."""
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, folder: Path, files: ExitStack) -> "Checkpoint":
        """Opens the files of a model folder; they close with `files`.

        Raises:
            ModelError: A file is missing, truncated or corrupt.
        """
        index = folder / "model.safetensors.index.json"
        single = folder / "model.safetensors"
        if single.exists() or not index.exists():
            return cls(single, _open_file(single, files))
        weight_map = _read_index(index)
        shards = {
            shard: _open_file(folder / shard, files) for shard in sorted(set(weight_map.values()))
        }
        for name, shard in weight_map.items():
            if name not in shards[shard]:
                _fail(folder / shard, name, f"missing, though {index.name} says that it is here")
        return cls(index, {name: shards[shard][name] for name, shard in weight_map.items()})

    @property
    def num_bytes(self) -> int:
        """Size of all tensors in the files."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    def check(self, shapes: Mapping[str, Shape], optional: Collection[str] = ()) -> None:
        """Raises ModelError unless these are the tensors; an optional one may be absent."""
        missing = [name for name in shapes if name not in self.tensors and name not in optional]
        if missing:
            _fail(self.source, missing[0], f"missing{_and_more(missing)}")
        unexpected = [name for name in self.tensors if name not in shapes]
        if unexpected:
            path = self.tensors[unexpected[0]].path
            _fail(path, unexpected[0], f"not a tensor of this model{_and_more(unexpected)}")
        for name, tensor in self.tensors.items():
            tensor.check(shapes[name])


_HEADER_BYTES = 1 << 20
"""As much as the header of most files, which `safe_open` reads."""


def _open_file(path: Path, files: ExitStack) -> dict[str, StoredTensor]:
    try:
        # `safe_open` keeps the interpreter while it waits for the file: of a file server that is
        # gone nobody else could tell, nor end the process. This lets go of it.
        with path.open("rb") as header:
            header.read(_HEADER_BYTES)
        file = files.enter_context(safe_open(path, framework="pt"))
    except FileNotFoundError:
        message = f"{path}: no such file"
        raise ModelError(message) from None
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        message = f"{path}: not a whole safetensors file: {reason}"
        raise ModelError(message) from error
    names: list[str] = file.keys()
    tensors = {}
    for name in names:
        if not _DERIVED.fullmatch(name):
            view = file.get_slice(name)
            tensors[name] = StoredTensor(
                path, file, name, tuple(view.get_shape()), view.get_dtype()
            )
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict):
        message = f"{path}: weight_map: expected an object"
        raise ModelError(message)
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            _fail(path, name, f"expected the name of a file beside the index, got {shard!r}")
    return {name: shard for name, shard in weight_map.items() if not _DERIVED.fullmatch(name)}


def _and_more(names: Iterable[str]) -> str:
    others = len(list(names)) - 1
    return f" (and {others} more)" if others else ""


def _fail(path: Path, tensor: str, problem: str) -> NoReturn:
    message = f"{path}: {tensor}: {problem}"
    raise ModelError(message)
