"""An adapter of a folder, packed for the kernels.

All names, shapes and types are checked before the first tensor is read.

Source of the method: LoRA (Hu et al., 2021); the scale of rsLoRA (Kalajdzievski, 2023).
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Opener, either, one_line
from chairlift.checkpoints.files.stored import DTYPES, StoredTensor
from chairlift.checkpoints.safetensors import open_file
from chairlift.model.config import ModelConfig
from chairlift.model.lora.config import MAX_JSON_BYTES, AdapterConfig
from chairlift.model.lora.folder import AdapterFolder, OpenAdapter
from chairlift.model.specs.share import Share
from chairlift.model.tensors.model_tensors import model_tensors
from chairlift.model.tensors.part_tensors import LayerTensors, LinearTensors

FILE: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_A: Final = ".lora_A.weight"
_B: Final = ".lora_B.weight"


LayerT = TypeVar("LayerT")


class AdaptedLayers(NamedTuple, Generic[LayerT]):
    """One thing for each of the linear layers of a decoder layer that adapters change."""

    qkv: LayerT
    output: LayerT
    gate_up: LayerT
    down: LayerT


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """An adapter in memory."""

    rank: int
    layers: tuple[AdaptedLayers[_core.LowRank], ...]
    num_bytes: int


def linears(layer: LayerTensors) -> AdaptedLayers[LinearTensors]:
    """Return the packed linear layers of a decoder layer; one that is absent has no outputs."""
    names = AdaptedLayers._fields
    return AdaptedLayers._make(getattr(layer, name) or LinearTensors((), (), 1) for name in names)


def adapter_bytes(config: ModelConfig, rank: int) -> int:
    """Return the bytes of an adapter of all linear layers, at most."""
    return sum(
        _core.low_rank_bytes(outputs, part.inputs, rank, config.dtype.itemsize)
        for layer in _layers(config)
        for part in linears(layer)
        for outputs in part.outputs
    )


def load_adapter(
    folder: Path | AdapterFolder | OpenAdapter, config: ModelConfig, max_rank: int
) -> PackedAdapter:
    """Load an adapter that PEFT has saved, converted to the model's dtype.

    Args:
        folder: A folder with `adapter_config.json` and `adapter_model.safetensors`.
        config: The configuration of the model that the adapter is for; that of a rank gives the
            update of its columns.
        max_rank: The server's limit.

    Raises:
        ModelError: A file is missing, truncated or corrupt; a field or a tensor is not supported,
            of another model, missing, of the wrong shape or type, or not finite.
    """
    place = AdapterFolder(folder) if isinstance(folder, Path) else folder
    try:
        with place.opened() as opener:
            return _load(place.path, config, max_rank, opener)
    except OSError as error:
        message = f"{place.path}: {(error.strerror or 'cannot be read').lower()}"
        raise ModelError(message) from error


def _load(folder: Path, config: ModelConfig, max_rank: int, opener: Opener) -> PackedAdapter:
    adapter = AdapterConfig.load(folder, max_rank, opener)
    layers = _layers(config)
    shapes = {
        name: (part.inputs, outputs)
        for layer in layers
        for part in linears(layer)
        for name, outputs in zip(part.names, part.outputs, strict=True)
    }
    path = folder / FILE
    if not path.exists() and (folder / "adapter_model.bin").exists():
        message = f"{folder}: adapter_model.bin is not read; save the adapter as {FILE}"
        raise ModelError(message)
    with ExitStack() as files:
        stored = open_file(path, files, MAX_JSON_BYTES, opener)
        _check(path, adapter, stored, shapes)
        reader = _Reader(stored, config.dtype, adapter.scale)
        packed = tuple(_update(reader, linears(layer), config.share) for layer in layers)
    return PackedAdapter(adapter.rank, packed, reader.num_bytes)


def _update(
    reader: "_Reader", layer: AdaptedLayers[LinearTensors], share: Share | None
) -> AdaptedLayers[_core.LowRank]:
    """Pack what is there of a decoder layer.

    What a rank gathers, it updates whole: an update takes next to no time.
    """
    return AdaptedLayers(
        qkv=reader.update(layer.qkv, share),
        output=reader.update(layer.output),
        gate_up=reader.update(layer.gate_up, share),
        down=reader.update(layer.down),
    )


def _layers(config: ModelConfig) -> tuple[LayerTensors, ...]:
    """Return the layers by the names of `transformers`, whatever the checkpoint calls them."""
    return model_tensors(config.stored_spec, config.module_names).layers


def _check(
    path: Path,
    adapter: AdapterConfig,
    stored: Mapping[str, StoredTensor],
    shapes: Mapping[str, tuple[int, int]],
) -> None:
    """Check names, shapes and types against the linear layers of the model."""
    rank, found = adapter.rank, set()
    for name, tensor in stored.items():
        layer = name.removeprefix(_PREFIX).removesuffix(_A).removesuffix(_B)
        if layer not in shapes or name not in (_PREFIX + layer + _A, _PREFIX + layer + _B):
            _fail(path, name, "not a tensor of a LoRA of this model's linear layers")
        inputs, outputs = shapes[layer]
        expected = (rank, inputs) if name.endswith(_A) else (outputs, rank)
        if tensor.shape != expected:
            _fail(path, name, f"expected shape {list(expected)}, got {list(tensor.shape)}")
        if tensor.dtype not in DTYPES:
            _fail(path, name, f"expected type {either(DTYPES)}, got {one_line(tensor.dtype)}")
        found.add(layer)
    if not found:
        message = f"{path}: expected tensors of a LoRA, got none"
        raise ModelError(message)
    for layer in _expected(adapter, shapes, found):
        for half in (_A, _B):
            if _PREFIX + layer + half not in stored:
                _fail(path, _PREFIX + layer + half, "missing")


def _expected(
    adapter: AdapterConfig, shapes: Mapping[str, tuple[int, int]], found: set[str]
) -> Iterator[str]:
    """Yield the layers that the file should hold; every one that it holds is among the targets."""
    targeted: set[str] = set()
    for target in adapter.targets or ():
        # As PEFT compares them: a name, or the end of one.
        of_target = {name for name in shapes if name == target or name.endswith(f".{target}")}
        if not of_target:
            known = dict.fromkeys(name.rpartition(".")[2] for name in shapes)
            message = (
                f"{adapter.path}: target_modules: expected linear layers of this model"
                f" ({either(known)}), got {one_line(target)}"
            )
            raise ModelError(message)
        targeted |= of_target
    if adapter.targets is not None:
        for layer in sorted(found - targeted):
            _fail(adapter.path, layer, "has tensors, and is not among target_modules")
    yield from sorted(found)
    if adapter.targets is not None and not adapter.is_partial:
        yield from sorted(targeted - found)


class _Reader:
    """Copies tensors out of the file, converts and packs them."""

    def __init__(
        self, stored: Mapping[str, StoredTensor], dtype: torch.dtype, scale: float
    ) -> None:
        self.num_bytes = 0
        self._stored = stored
        self._dtype = dtype
        self._scale = scale

    def update(self, linear: LinearTensors, share: Share | None = None) -> _core.LowRank:
        """Pack what is there of layers with the same inputs.

        Args:
            linear: The layers.
            share: Which of their outputs are wanted; None wants all.
        """
        parts, first = [], 0
        for name, rows in zip(linear.names, linear.rows_of_names, strict=True):
            outputs = sum(part.num for part in rows)
            if share is not None:
                outputs = sum(share.width(*part) for part in rows)
            if _PREFIX + name + _A in self._stored:
                a, b = (self._read(_PREFIX + name + half) for half in (_A, _B))
                b = b if share is None else share.held(b, rows)
                parts.append((first, self._scale, a, b))
                item_size = self._dtype.itemsize
                self.num_bytes += _core.low_rank_bytes(outputs, linear.inputs, len(a), item_size)
            first += outputs
        return _core.LowRank(linear.inputs, first, parts)

    def _read(self, name: str) -> Tensor:
        tensor = self._stored[name]
        numbers = torch.empty(tensor.shape, dtype=self._dtype)
        tensor.read(numbers)
        if not torch.isfinite(numbers).all():
            _fail(tensor.path, name, "expected finite numbers, got others")
        return numbers


def _fail(path: Path, name: str, problem: str) -> NoReturn:
    message = f"{path}: {one_line(name)}: {problem}"
    raise ModelError(message)
