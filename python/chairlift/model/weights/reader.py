"""Reads the tensors of a checkpoint one after another, and packs them for the kernels."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from chairlift.api.errors import ModelError
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.checkpoints.files.stored import WeightTensor
from chairlift.kernels import ExpertLayers, Kernels, LinearLayer
from chairlift.model.parts.norms import Norm
from chairlift.model.specs.share import Rows, Share
from chairlift.model.tensors.part_tensors import (
    ExpertTensors,
    LinearTensors,
    NormTensor,
    NumberTensors,
    Part,
)


class _ConcatLinear:
    """Layers of the same inputs whose weights are stored in different ways."""

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        self._layers = layers
        self.in_features = layers[0].in_features
        self.out_features = sum(layer.out_features for layer in layers)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are stored."""
        return sum(layer.num_bytes for layer in self._layers)

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b`; see `LinearLayer`."""
        if out is None:
            out = torch.empty(x.shape[0], self.out_features, dtype=out_dtype or x.dtype)
        first = 0
        for layer in self._layers:
            layer(x, out=out[:, first : first + layer.out_features])
            first += layer.out_features
        return out


class WeightReader:
    """Copies tensors out of the files, converts them, and reports the progress."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        on_progress: Callable[[int, int], None] | None,
        kernels: Kernels,
        *,
        device: torch.device,
        dtype: torch.dtype,
        stream_dtype: torch.dtype,
        weight_format: str | None,
        quant_types: Mapping[str, str],
        share: Share | None = None,
    ) -> None:
        self.kernels = kernels
        self.device = device
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.quant_types = quant_types
        self._share = share
        self.stream_dtype = stream_dtype
        self._weight_format = weight_format
        self.on_progress = on_progress
        self.done = 0
        self.total = checkpoint.num_bytes

    def part(self, part: Part) -> Norm | LinearLayer | ExpertLayers | Tensor:
        """Read a part of a model, and pack it; numbers keep the shape in which they are stored.

        Raises:
            ModelError: A tensor cannot be read, or gate and up of an expert are of two block types.
        """
        match part:
            case NormTensor():
                return self._norm(part)
            case LinearTensors():
                return self.linear(part, None if part.is_exact else self._weight_format)
            case ExpertTensors():
                return self._experts(part)
            case NumberTensors():
                return self._numbers(part)
        return torch.ones(part.size, dtype=self.dtype, device=self.device)

    def _norm(self, norm: NormTensor) -> Norm:
        weight = self._joined([f"{norm.name}.{norm.stored}"], self.stream_dtype).to(self.device)
        if norm.factor != 1.0:
            weight.mul_(norm.factor)
        if not norm.has_bias:
            return Norm(norm.norm, weight)
        bias = self._joined([f"{norm.name}.bias"], self.stream_dtype).to(self.device)
        return Norm(norm.norm, weight, bias)

    def _numbers(self, numbers: NumberTensors) -> Tensor:
        dtype = torch.float32 if numbers.is_float32 else self.dtype
        joined = self._joined([*numbers.stored], dtype).to(self.device)
        if numbers.rows:
            joined = self._held(joined, numbers.rows)
        return joined if numbers.pack is None else numbers.pack(joined)

    def _experts(self, experts: ExpertTensors) -> ExpertLayers:
        """Pack all experts of a mixture.

        Raises:
            ModelError: Gate and up of an expert are blocks of two types.
        """
        for part in experts.gate_up:
            if len(kinds := [kind for _, kind in part.runs(self.quant_types)]) > 1:
                problem = f"expected the type of its gate, {kinds[0]}, got {kinds[-1]}"
                message = f"{part.names[-1]}.weight: {problem} (--dtype bfloat16 widens both)"
                raise ModelError(message)
        gate_up = [self.linear(part, self._weight_format) for part in experts.gate_up]
        down = [self.linear(part, self._weight_format) for part in experts.down]
        choice_bias, factors = (
            None if numbers is None else self._numbers(numbers).flatten().tolist()
            for numbers in (experts.choice_bias, experts.factors)
        )
        return self.kernels.experts(gate_up, down, experts.spec, choice_bias, factors)

    def _matrix(self, linear: LinearTensors) -> Tensor:
        """Read the weights of linear layers, outputs of one after those of the other."""
        names = [f"{name}.weight" for name in linear.names]
        return self._ordered(linear, self._joined(names, self.dtype)).to(self.device)

    def _ordered(self, linear: LinearTensors, rows: Tensor) -> Tensor:
        """Return the rows of layers that this rank has, in the order that is wanted."""
        if linear.interleaved is not None:
            first, rest = torch.split(rows, [linear.outputs[0], len(rows) - linear.outputs[0]])
            rows = torch.cat([linear.interleaved.deinterleave(first), rest])
        if self._share is None or linear.is_whole:
            return rows
        return self._held(rows, linear.rows)

    def _held(self, rows: Tensor, parts: Sequence[Rows]) -> Tensor:
        """Return the rows `[N, ...]` of some parts that this rank has; without ranks all."""
        return rows if self._share is None else self._share.held(rows, parts)

    def columns(self, rows: Tensor) -> Tensor:
        """Return the rows `[out, ...]` of one layer that this rank has; without ranks all."""
        return rows if self._share is None else rows[self._share.columns(len(rows))]

    def keeps(self, linear: LinearTensors) -> bool:
        """Return whether the weights of a layer stay in blocks."""
        return f"{linear.names[0]}.weight" in self.quant_types

    def linear(self, linear: LinearTensors, weight_format: str | None) -> LinearLayer:
        """Pack layers that share their inputs into one, outputs side by side.

        Args:
            linear: The layers.
            weight_format: The format of layers that are not kept in blocks; None is the dtype.
        """
        runs = list(linear.runs(self.quant_types))
        layers = [self._packed(run, kind, weight_format) for run, kind in runs]
        return layers[0] if len(layers) == 1 else _ConcatLinear(layers)

    def _packed(
        self, linear: LinearTensors, block_type: str | None, weight_format: str | None
    ) -> LinearLayer:
        biases = [f"{name}.bias" for name in linear.names] if linear.has_bias else []
        from_blocks = self.kernels.linear_from_blocks
        if block_type is None or from_blocks is None:
            bias = None
            if biases:
                bias = self._ordered(linear, self._joined(biases, self.dtype)).to(self.device)
            return self.kernels.linear(self._matrix(linear), bias, weight_format)
        stored = [self.checkpoint.tensors[f"{name}.weight"] for name in linear.names]
        parts = [tensor.blocks() for tensor in stored]
        # The head is the largest layer, and is not joined.
        blocks = torch.cat(parts) if len(parts) > 1 else parts[0]
        blocks = self._ordered(linear, blocks)
        self._advance(stored)
        bias = self._ordered(linear, self._joined(biases, torch.float32)) if biases else None
        layer: LinearLayer = from_blocks(blocks, block_type, bias, self.dtype)
        return layer

    def _joined(self, names: Sequence[str], dtype: torch.dtype) -> Tensor:
        """Join tensors along their first axis."""
        stored = [self.checkpoint.tensors[name] for name in names]
        rows = [tensor.shape[0] for tensor in stored]
        joined = torch.empty((sum(rows), *stored[0].shape[1:]), dtype=dtype)
        for part, tensor in zip(torch.split(joined, rows), stored, strict=True):
            tensor.read(part)
        self._advance(stored)
        return joined

    def _advance(self, stored: Iterable[WeightTensor]) -> None:
        """Report tensors as read; one that is read twice counts once."""
        self.done = min(self.total, self.done + sum(tensor.num_bytes for tensor in stored))
        if self.on_progress is not None:
            self.on_progress(self.done, self.total)
