"""The bytes of a model's weights as they are packed, before any of them is read."""

from dataclasses import replace
from math import prod

from chairlift.api.config import Quantize
from chairlift.kernels import Kernels
from chairlift.model.config import ModelConfig
from chairlift.model.specs.rope import table_bytes
from chairlift.model.tensors.model_tensors import model_tensors, tied_head
from chairlift.model.tensors.part_tensors import (
    ExpertTensors,
    LinearTensors,
    NormTensor,
    NumberTensors,
    Part,
)
from chairlift.model.weights.layers import head_format, kept_blocks, layer_format, stream_dtype

_FLOAT32 = 4


class WeightSizes:
    """What `load_weights` packs of a model."""

    def __init__(self, config: ModelConfig, quantize: Quantize, kernels: Kernels) -> None:
        self._config = config
        self._quantize = quantize
        self._kernels = kernels
        self._tensors = model_tensors(config.stored_spec, config.names)
        self._blocks = kept_blocks(config, quantize, kernels)
        self._stream = stream_dtype(config, quantize, kernels)
        self._layer_format = layer_format(quantize)

    def total(self) -> int:
        """Return the bytes of all weights, and of the tables of RoPE."""
        config, head = self._config, self._tensors.head
        if config.transformers_bytes is not None:
            return config.transformers_bytes
        num_bytes = sum(map(self._packed, replace(self._tensors, head=None).leaves()))
        num_bytes += sum(
            table_bytes(table.rope, table.head_dim, config.max_model_len)
            for table in config.spec.rope_tables
        )
        return num_bytes if head is None else num_bytes + self._head(head)

    def unused_experts(self) -> int:
        """Return the bytes of the experts that a token does not use."""
        unused = 0
        for layer in self._tensors.layers:
            if layer.experts is not None:
                mixture = layer.experts.mixture
                # All experts have the same shapes, and mostly the same format.
                unused += (
                    self._packed(mixture)
                    * (mixture.spec.num - mixture.spec.top_k)
                    // mixture.spec.num
                )
        return unused

    def _packed(self, part: Part) -> int:
        """Return the bytes of a part of the model."""
        dtype = self._config.dtype
        match part:
            case NormTensor():
                return part.size * (1 + part.has_bias) * self._stream.itemsize
            case LinearTensors():
                return self._linear(part, None if part.is_exact else self._layer_format)
            case ExpertTensors():
                layers = *part.gate_up, *part.down
                return sum(self._linear(layer, self._layer_format) for layer in layers)
            case NumberTensors():
                item_size = _FLOAT32 if part.is_float32 else dtype.itemsize
                num_numbers, share = sum(map(prod, part.stored.values())), self._config.share
                if share is not None and part.rows:
                    num_rows = sum(rows.num for rows in part.rows)
                    held = sum(share.width(*rows) for rows in part.rows)
                    num_numbers = num_numbers // num_rows * held
                return num_numbers * item_size
        return part.size * dtype.itemsize

    def _linear(self, part: LinearTensors, weight_format: str | None) -> int:
        dtype, share = self._config.dtype, None if part.is_whole else self._config.share

        def num_outputs(run: LinearTensors) -> int:
            if share is None:
                return sum(run.outputs)
            return sum(share.width(*rows) for rows in run.rows)

        return sum(
            self._kernels.linear_bytes(num_outputs(run), run.inputs, dtype, kind or weight_format)
            for run, kind in part.runs(self._blocks)
        )

    def _head(self, head: LinearTensors) -> int:
        """Return the bytes of the head, whose tensor or that of the embedding are of one size."""
        # They may have different blocks.
        spec, names = self._config.spec, self._config.names
        is_tied = spec.head.is_tied and f"{names.head}.weight" not in self._blocks
        part = tied_head(spec, names) if is_tied else head
        return self._linear(part, head_format(self._quantize))
