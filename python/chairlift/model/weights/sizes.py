"""The bytes of a model's weights as they are packed, before any of them is read."""

from math import prod

from chairlift.api.config import Quantize
from chairlift.kernels import Kernels
from chairlift.model.config import ModelConfig
from chairlift.model.specs.rope import table_bytes
from chairlift.model.tensors.linear_tensors import LinearTensors, NormTensor
from chairlift.model.tensors.model_tensors import ModelTensors
from chairlift.model.weights.layers import (
    head_format,
    kept_blocks,
    layer_format,
    stream_dtype,
    value_norm_size,
)

_FLOAT32 = 4


class WeightSizes:
    """What `load_weights` packs of a model."""

    def __init__(self, config: ModelConfig, quantize: Quantize, kernels: Kernels) -> None:
        self._config = config
        self._quantize = quantize
        self._kernels = kernels
        self._tensors = ModelTensors.of(config.spec, config.names)
        self._blocks = kept_blocks(config, quantize, kernels)
        self._stream = stream_dtype(config, quantize, kernels)
        layers, inputs = self._tensors.layers, self._tensors.layer_inputs
        norms = {norm for layer in layers for norm in (layer.query_norm, layer.key_norm)}
        self._head_norms = norms if inputs is None else norms | {inputs.norm}
        """They do not have the dtype of the stream."""

    def total(self) -> int:
        """Return the bytes of all weights, and of the tables of RoPE."""
        config, tensors = self._config, self._tensors
        if config.transformers_bytes is not None:
            return config.transformers_bytes
        # The scores of a router decide what is computed: it is never quantized, and no decay is.
        exact = {own.router for layer in tensors.layers if (own := layer.experts) is not None}
        states = [layer.recurrent for layer in tensors.layers if layer.recurrent is not None]
        exact |= {state.b_a for state in states if state.b_a is not None}
        layer_kind = layer_format(self._quantize)
        layers = sum(
            self._packed(part, None if part in exact else layer_kind)
            for layer in tensors.layers
            for part in layer.parts()
        )
        numbers = sum(
            _FLOAT32 * prod(shape) for layer in tensors.layers for shape in layer.numbers().values()
        )
        numbers += sum(map(value_norm_size, config.spec.layers)) * config.dtype.itemsize
        positions = sum(
            table_bytes(own.rope, own.head_dim, config.max_model_len)
            for own in config.spec.rope_tables
        )
        return layers + self._ends() + numbers + positions

    def unused_experts(self) -> int:
        """Return the bytes of the experts that a token does not use."""
        unused = 0
        for layer, tensors in zip(self._config.spec.layers, self._tensors.layers, strict=True):
            if layer.experts is not None and tensors.experts is not None:
                parts = *tensors.experts.gate_up, *tensors.experts.down
                num_bytes = sum(self._packed(part, layer_format(self._quantize)) for part in parts)
                # All experts have the same shapes, and mostly the same format.
                unused += num_bytes * (layer.experts.num - layer.experts.top_k) // layer.experts.num
        return unused

    def _packed(self, part: NormTensor | LinearTensors, weight_format: str | None) -> int:
        dtype = self._config.dtype
        if isinstance(part, NormTensor):
            stored = dtype if part in self._head_norms else self._stream
            return part.size * (1 + part.has_bias) * stored.itemsize
        return sum(
            self._kernels.linear_bytes(sum(run.outputs), run.inputs, dtype, kind or weight_format)
            for run, kind in part.runs(self._blocks)
        )

    def _ends(self) -> int:
        """Return the bytes of what is before the layers, and behind them."""
        config, tensors, inputs = self._config, self._tensors, self._tensors.layer_inputs
        spec, itemsize = config.spec, config.dtype.itemsize
        ends = spec.vocab_size * spec.hidden_size * itemsize
        ends += self._packed(tensors.final_norm, None)
        if inputs is not None:
            ends += sum(inputs.embedding.outputs) * inputs.embedding.inputs * itemsize
            ends += self._packed(inputs.context, layer_format(self._quantize))
            ends += self._packed(inputs.norm, None)
        if tensors.head is not None:
            # Its own tensor or that of the embedding have the same size, and may have different
            # blocks.
            is_own = not spec.head.is_tied or f"{config.names.head}.weight" in self._blocks
            head = tensors.head if is_own else tensors.embedding
            ends += self._packed(head, head_format(self._quantize))
        return ends
