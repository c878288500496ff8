"""The tensors of a model: in one safetensors file, in several with an index, or in GGUF files."""

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import either, one_line, read_json
from chairlift.checkpoints.files.folder import is_gguf
from chairlift.checkpoints.files.forms import with_family_names
from chairlift.checkpoints.files.names import CheckpointNames
from chairlift.checkpoints.files.stored import (
    DTYPES,
    Shape,
    StoredTensor,
    WeightTensor,
    split_experts,
)
from chairlift.checkpoints.gguf.layout import open_gguf
from chairlift.checkpoints.gguf.metadata import DIVISORS
from chairlift.checkpoints.quantized.groups import GroupedTensor
from chairlift.checkpoints.quantized.scheme import Scheme
from chairlift.checkpoints.safetensors import open_file

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
CHECKPOINT_FILES: Final = (_SINGLE, _INDEX)
"""One of them is in each model folder."""

# Constants that old checkpoints carry; they follow from the configuration.
_DERIVED = re.compile(
    r"(?:.*\.)?(?:rotary_emb\.(?:(?:original_)?inv_freq|(?:cos|sin)_cached)|masked_bias)"
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a model by name."""

    source: Path
    """The file that lists them, for messages."""
    tensors: Mapping[str, WeightTensor]

    @classmethod
    def open(
        cls,
        model: Path,
        files: ExitStack,
        scheme: Scheme | None = None,
        names: CheckpointNames | None = None,
    ) -> "Checkpoint":
        """Open the files of a model folder, or a GGUF file; they close with `files`.

        Args:
            model: The folder or file.
            files: Takes the open files.
            scheme: How layers are quantized, where config.json says so.
            names: What its family calls its parts; None leaves all names as they are.

        Raises:
            ModelError: A file is missing, truncated or corrupt.
        """
        if is_gguf(model):
            tensors = split_experts(open_gguf(model, files).tensors)
            return cls(model, {name: tensors[name] for name in tensors if name != DIVISORS})
        folder = model
        index = folder / _INDEX
        single = folder / _SINGLE
        if single.exists() or not index.exists():
            return cls(single, _layers(_open(single, files), scheme, names))
        weight_map = _read_index(index)
        shards = {shard: _open(folder / shard, files) for shard in sorted(set(weight_map.values()))}
        for name, shard in weight_map.items():
            if name not in shards[shard]:
                _fail(folder / shard, name, f"missing, though {index.name} says that it is here")
        listed = {name: shards[shard][name] for name, shard in weight_map.items()}
        return cls(index, _layers(listed, scheme, names))

    def without(self, beginnings: tuple[str, ...]) -> "Checkpoint":
        """Return the tensors whose names begin with none of these."""
        tensors = self.tensors.items()
        kept = {name: tensor for name, tensor in tensors if not name.startswith(beginnings)}
        return Checkpoint(self.source, kept)

    @property
    def num_bytes(self) -> int:
        """Size of all tensors in the files."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    def check(self, shapes: Mapping[str, Shape], optional: Collection[str] = ()) -> None:
        """Raise ModelError unless these are the tensors; an optional one may be absent."""
        missing = [name for name in shapes if name not in self.tensors and name not in optional]
        if missing:
            _fail(self.source, missing[0], f"missing{_and_more(missing)}")
        unexpected = [n for n in self.tensors if n not in shapes and not self._is_zero_bias(n)]
        if unexpected:
            path = self.tensors[unexpected[0]].path
            _fail(path, unexpected[0], f"not a tensor of this model{_and_more(unexpected)}")
        for name, tensor in self.tensors.items():
            if name in shapes:
                _check(tensor, shapes[name])

    def _is_zero_bias(self, name: str) -> bool:
        """Return whether a tensor is a bias of zeros, which AutoGPTQ adds to layers without one."""
        layer, _, part = name.rpartition(".")
        tensor, weight = self.tensors[name], self.tensors.get(f"{layer}.weight")
        if part != "bias" or not isinstance(weight, GroupedTensor):
            return False
        return isinstance(tensor, StoredTensor) and not tensor.numbers().any()


def check_files(model: Path, *, may_lack_all: bool = False) -> None:
    """Check that each file of a model is there and whole, by headers alone.

    Args:
        model: A folder, or a GGUF file.
        may_lack_all: A folder without any weights is good.

    Raises:
        ModelError: With the name of the file.
    """
    is_there = is_gguf(model) or any((model / name).exists() for name in CHECKPOINT_FILES)
    if is_there or not may_lack_all:
        with ExitStack() as files:
            Checkpoint.open(model, files)


def _layers(
    stored: Mapping[str, StoredTensor], scheme: Scheme | None, names: CheckpointNames | None
) -> Mapping[str, WeightTensor]:
    are_transposed = names is not None and names.experts_transposed
    named = stored if names is None else with_family_names(stored, names)
    split = split_experts(named, are_transposed=are_transposed)
    return split if scheme is None else scheme.tensors(split)


def _open(path: Path, files: ExitStack) -> dict[str, StoredTensor]:
    tensors = open_file(path, files)
    return {name: tensors[name] for name in tensors if not _DERIVED.fullmatch(name)}


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict):
        message = f"{path}: weight_map: expected an object"
        raise ModelError(message)
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_file_name(shard):
            _fail(
                path,
                name,
                f"expected the name of a file beside the index, got {one_line(repr(shard))}",
            )
    return {name: shard for name, shard in weight_map.items() if not _DERIVED.fullmatch(name)}


def _is_file_name(name: str) -> bool:
    return Path(name).name == name and name not in {"", ".."} and "\0" not in name


def _check(tensor: WeightTensor, shape: Shape) -> None:
    if tensor.shape != shape:
        problem = f"expected shape {list(shape)}, got {list(tensor.shape)}"
        _fail(tensor.path, tensor.name, problem)
    is_single = isinstance(tensor, StoredTensor)
    if is_single and tensor.dtype not in DTYPES and tensor.dtype not in _core.BLOCK_TYPES:
        problem = f"expected type {either(DTYPES)}, got {one_line(tensor.dtype)}"
        _fail(tensor.path, tensor.name, problem)


def _and_more(names: Iterable[str]) -> str:
    others = len(list(names)) - 1
    return f" (and {others} more)" if others else ""


def _fail(path: Path, tensor: str, problem: str) -> NoReturn:
    message = f"{path}: {one_line(tensor)}: {problem}"
    raise ModelError(message)
