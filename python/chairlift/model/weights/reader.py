"""Reads the tensors of a checkpoint one after another, and packs them for the kernels."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.checkpoints.files.stored import WeightTensor
from chairlift.kernels import Kernels, LinearLayer
from chairlift.model.parts.norms import Norm
from chairlift.model.tensors.linear_tensors import LinearTensors, NormTensor


class _SideBySide:
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
        dtype: torch.dtype,
        on_progress: Callable[[int, int], None] | None,
        kernels: Kernels,
        device: torch.device,
        block_types: Mapping[str, str],
        stream_dtype: torch.dtype,
    ) -> None:
        self.kernels = kernels
        self.device = device
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.block_types = block_types
        self.stream_dtype = stream_dtype
        self.on_progress = on_progress
        self.done = 0
        self.total = checkpoint.num_bytes

    def norm(self, norm: NormTensor) -> Norm:
        """Read a norm of the residual stream."""
        name = f"{norm.name}.{norm.stored}"
        weight = self._joined([name], self.stream_dtype).to(self.device)
        if not norm.has_bias:
            return Norm(norm.norm, weight)
        bias = self._joined([f"{norm.name}.bias"], self.stream_dtype).to(self.device)
        return Norm(norm.norm, weight, bias)

    def numbers(self, *names: str) -> Tensor:
        """Read tensors whole, in float32, joined along their first axis."""
        return self._joined(names, torch.float32).to(self.device)

    def optional_norm(self, norm: NormTensor | None) -> Norm | None:
        """Read a norm of the residual stream, if there is one."""
        return None if norm is None else self.norm(norm)

    def head_norm(self, norm: NormTensor | None) -> Tensor | None:
        """Read the weight of a norm of queries or keys, if there is one."""
        if norm is None:
            return None
        return self._joined([f"{norm.name}.weight"], self.dtype).to(self.device)

    def ones(self, size: int) -> Tensor | None:
        """Make the weight of a norm that stores none, if there is one."""
        return torch.ones(size, dtype=self.dtype, device=self.device) if size else None

    def matrix(self, linear: LinearTensors) -> Tensor:
        """Read the weights of linear layers, outputs of one after those of the other."""
        names = [f"{name}.weight" for name in linear.names]
        return self._ordered(linear, self._joined(names, self.dtype)).to(self.device)

    def _ordered(self, linear: LinearTensors, rows: Tensor) -> Tensor:
        """Return the rows of layers, those of the first in the order that is wanted."""
        if linear.interleaved is None:
            return rows
        first, rest = torch.split(rows, [linear.outputs[0], len(rows) - linear.outputs[0]])
        return torch.cat([linear.interleaved.apart(first), rest])

    def keeps(self, linear: LinearTensors) -> bool:
        """Return whether the weights of a layer stay in blocks."""
        return f"{linear.names[0]}.weight" in self.block_types

    def linear(self, linear: LinearTensors, weight_format: str | None) -> LinearLayer:
        """Pack layers that share their inputs into one, outputs side by side.

        Args:
            linear: The layers.
            weight_format: Of those that do not stay as they are stored; None is the dtype.
        """
        runs = list(linear.runs(self.block_types))
        layers = [self._packed(run, kind, weight_format) for run, kind in runs]
        return layers[0] if len(layers) == 1 else _SideBySide(layers)

    def optional_linear(
        self, linear: LinearTensors | None, weight_format: str | None
    ) -> LinearLayer | None:
        """Pack layers as `linear` does, if there are any."""
        return None if linear is None else self.linear(linear, weight_format)

    def _packed(
        self, linear: LinearTensors, block_type: str | None, weight_format: str | None
    ) -> LinearLayer:
        biases = [f"{name}.bias" for name in linear.names] if linear.has_bias else []
        from_blocks = self.kernels.linear_from_blocks
        if block_type is None or from_blocks is None:
            bias = None
            if biases:
                bias = self._ordered(linear, self._joined(biases, self.dtype)).to(self.device)
            return self.kernels.linear(self.matrix(linear), bias, weight_format)
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
