"""Writes a checkpoint whose linear layers are quantized: tensor after tensor, layer by layer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor

from chairlift import _core
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.checkpoints.files.stored import DTYPES, Shape, WeightTensor
from chairlift.checkpoints.quantized.groups import BLOCK
from chairlift.checkpoints.quantized.stored_blocks import (
    BLOCK_PARTS,
    FORMATS,
    blocks_shape,
    compensated_type,
)
from chairlift.checkpoints.written import WrittenFile
from chairlift.kernels import cpu
from chairlift.model.config import ModelConfig
from chairlift.model.parts.weights import LayerWeights, Weights
from chairlift.model.quantizing.calibration import LayerByLayer, ObservingReader
from chairlift.model.quantizing.compensation import round_compensated, round_plainly
from chairlift.model.tensors.model_tensors import model_tensors, stored_shapes
from chairlift.model.tensors.part_tensors import ExpertTensors, LinearTensors, Part
from chairlift.model.weights.reader import WeightReader

_Reader = TypeVar("_Reader", bound=WeightReader)

_PART_OF: Final = {block_type: part for part, block_type in BLOCK_PARTS.items()}
_HEAD_FORMAT: Final = "int8"
"""No layer follows the head."""


@dataclass(frozen=True, slots=True)
class _QuantizedTensor:
    """A matrix that has been quantized; as `WeightTensor`."""

    path: Path
    name: str
    shape: Shape
    dtype: str
    stored: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks."""
        return self.stored.nbytes

    def blocks(self) -> Tensor:
        """Return the blocks, uint8 `[N, bytes of a row]`."""
        return self.stored

    def read(self, out: Tensor) -> None:
        """Write the values to a contiguous tensor of the same shape, and convert them."""
        numbers = torch.empty(self.shape)
        _core.dequantize(self.stored, self.dtype, numbers)
        out.copy_(numbers)


def write_quantized(
    model: Path,
    config: ModelConfig,
    out: Path,
    weight_format: str,
    ids: Tensor | None = None,
    on_layer: Callable[[], None] = lambda: None,
) -> None:
    """Write the tensors of a model, its linear layers quantized.

    Args:
        model: A folder with config.json.
        config: The model's, with a dtype: nothing is kept in blocks.
        out: The file.
        weight_format: One of `FORMATS`; the head has eight bits in each.
        ids: int32 `[rows, T]`: a text for whose inputs errors are compensated; None rounds each
            weight alone.
        on_layer: Called after each decoder layer.

    Raises:
        ModelError: The checkpoint is not that of the model, or cannot be read.
    """
    with ExitStack() as files:
        writer = _Writer(model, config, weight_format, ids, files)
        with WrittenFile(out, writer.announced()) as file:
            for name, numbers in writer.tensors(on_layer):
                file.write(name, numbers)


class _Writer:
    """Names the tensors once, for the header and for the writing."""

    def __init__(
        self,
        model: Path,
        config: ModelConfig,
        weight_format: str,
        ids: Tensor | None,
        files: ExitStack,
    ) -> None:
        self._config = config
        self._ids = ids
        self._tensors = tensors = model_tensors(config.spec, config.names)
        checkpoint = Checkpoint.open(model, files, config.scheme, config.names)
        checkpoint = checkpoint.without(config.ignored)
        self._head = f"{config.names.head}.weight"
        optional = {self._head} if config.spec.head.is_tied else set()
        shapes = stored_shapes(tensors)
        checkpoint.check(shapes, optional)
        self._checkpoint = replace(
            checkpoint, tensors={n: t for n, t in checkpoint.tensors.items() if n in shapes}
        )
        self._quantized = {
            f"{name}.weight": FORMATS[weight_format]
            if ids is None or isinstance(part, ExpertTensors)
            else compensated_type(weight_format, linear.inputs)
            for part in replace(tensors, head=None).leaves()
            for linear in _linear_parts(part)
            if _is_quantized(linear)
            for name in linear.names
        }
        if tensors.head is not None and _is_quantized(tensors.head):
            self._quantized[self._head] = FORMATS[_HEAD_FORMAT]

    def announced(self) -> dict[str, tuple[str, Shape]]:
        """Return the type and the shape of each tensor by name, in the order of `tensors`."""
        announced: dict[str, tuple[str, Shape]] = {}
        for name, tensor in self._plain():
            announced[name] = _stored_type(tensor, self._config.dtype), tensor.shape
        for name in self._in_order():
            block_type = self._quantized[name]
            shape = blocks_shape(self._source(name).shape, block_type)
            announced[_stored_name(name, block_type)] = "U8", shape
        return announced

    def tensors(self, on_layer: Callable[[], None]) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor by its name."""
        for name, tensor in self._plain():
            numbers = torch.empty(
                tensor.shape, dtype=DTYPES[_stored_type(tensor, self._config.dtype)]
            )
            tensor.read(numbers)
            yield name, numbers
        ids = self._ids
        layers = self._rounded_layers() if ids is None else self._compensated_layers(ids)
        for layer in layers:
            for name, blocks in layer.items():
                yield _stored_name(name, self._quantized[name]), blocks
            on_layer()
        for name in self._after_layers():
            yield _stored_name(name, self._quantized[name]), self._rounded(name)

    def _plain(self) -> Iterator[tuple[str, WeightTensor]]:
        """Yield the tensors that stay as they are."""
        tensors = self._checkpoint.tensors.items()
        yield from ((name, tensor) for name, tensor in tensors if name not in self._quantized)

    def _in_order(self) -> Iterator[str]:
        """Yield the names of the tensors that are quantized, those of a layer together."""
        for number in range(len(self._tensors.layers)):
            yield from self._of_layer(number)
        yield from self._after_layers()

    def _of_layer(self, number: int) -> list[str]:
        return [
            f"{name}.weight"
            for part in self._tensors.layers[number].leaves()
            for linear in _linear_parts(part)
            for name in linear.names
            if f"{name}.weight" in self._quantized
        ]

    def _after_layers(self) -> list[str]:
        in_layers = {
            name for number in range(len(self._tensors.layers)) for name in self._of_layer(number)
        }
        return [name for name in self._quantized if name not in in_layers]

    def _source(self, name: str) -> WeightTensor:
        """Return where the numbers of a layer are; a tied head is the embedding."""
        tensors = self._checkpoint.tensors
        if name == self._head and name not in tensors:
            return tensors[f"{self._config.names.embedding}.weight"]
        return tensors[name]

    def _rows(self, name: str) -> Tensor:
        source = self._source(name)
        rows = torch.empty(source.shape)
        source.read(rows)
        return rows

    def _rounded(self, name: str) -> Tensor:
        """Return the blocks of a matrix each of whose weights is rounded alone."""
        return round_plainly(self._rows(name), self._quantized[name])

    def _rounded_layers(self) -> Iterator[dict[str, Tensor]]:
        for number in range(len(self._tensors.layers)):
            yield {name: self._rounded(name) for name in self._of_layer(number)}

    def _compensated_layers(self, ids: Tensor) -> Iterator[dict[str, Tensor]]:
        """Yield the blocks of each layer, for the inputs that the quantized ones before it make."""
        observing = self._reader(ObservingReader, self._checkpoint, {})
        observing.observes = _is_quantized
        reader = self._reader(WeightReader, self._checkpoint, {})
        layers = (LayerWeights(),) * len(self._tensors.layers)
        others = replace(self._tensors, layers=(), head=None).map(reader.part)
        weights: Weights = replace(others, layers=layers)
        text = LayerByLayer(self._config, weights, ids)
        for number, tensors in enumerate(self._tensors.layers):
            blocks: dict[str, Tensor] = {}
            for observed in text.observe(number, tensors.map(observing.part)):
                names = [f"{name}.weight" for name in observed.tensors.names]
                blocks |= self._compensated(names, observed.moments.factor())
            rest = [name for name in self._of_layer(number) if name not in blocks]
            blocks |= {name: self._rounded(name) for name in rest}
            text.advance(number, tensors.map(self._quantized_reader(blocks).part))
            yield {name: blocks[name] for name in self._of_layer(number)}

    def _compensated(self, names: list[str], factor: Tensor | None) -> dict[str, Tensor]:
        rows = [self._rows(name) for name in names]
        rounded = round_compensated(torch.cat(rows), factor, self._quantized[names[0]])
        parts = torch.split(rounded, [len(part) for part in rows])
        return dict(zip(names, parts, strict=True))

    def _quantized_reader(self, blocks: dict[str, Tensor]) -> WeightReader:
        """Return a reader of a layer that is quantized."""
        source, tensors = self._checkpoint.source, self._checkpoint.tensors
        quantized: dict[str, WeightTensor] = {
            name: _QuantizedTensor(source, name, tensors[name].shape, self._quantized[name], stored)
            for name, stored in blocks.items()
        }
        checkpoint = Checkpoint(source, {**tensors, **quantized})
        types = {name: self._quantized[name] for name in blocks}
        return self._reader(WeightReader, checkpoint, types)

    def _reader(
        self, kind: type[_Reader], checkpoint: Checkpoint, quant_types: dict[str, str]
    ) -> _Reader:
        return kind(
            checkpoint,
            None,
            cpu,
            device=torch.device("cpu"),
            dtype=self._config.dtype,
            stream_dtype=torch.float32,
            weight_format=None,
            quant_types=quant_types,
        )


def _linear_parts(part: Part) -> tuple[LinearTensors, ...]:
    if isinstance(part, ExpertTensors):
        return *part.gate_up, *part.down
    return (part,) if isinstance(part, LinearTensors) else ()


def _is_quantized(linear: LinearTensors) -> bool:
    """Return whether a layer is quantized: a row of others is no whole number of blocks."""
    return not linear.is_exact and linear.inputs % BLOCK == 0


def _stored_name(name: str, block_type: str) -> str:
    return f"{name.removesuffix('.weight')}.{_PART_OF[block_type]}"


def _stored_type(tensor: WeightTensor, dtype: torch.dtype) -> str:
    """Return the type of a tensor that is not quantized; what is no number is widened."""
    names = {stored: name for name, stored in DTYPES.items()}
    return tensor.dtype if tensor.dtype in DTYPES else names[dtype]
