"""The memory of an encoder by part, computed before a weight is read."""

from chairlift.api.config import EngineConfig, Quantize
from chairlift.kernels import cpu
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.spec import EncoderConfig
from chairlift.model.encoders.weights import encoder_stream_dtype
from chairlift.model.memory.plan import MemoryPlan
from chairlift.model.parts.buffers import buffer_bytes
from chairlift.model.specs.rope import table_bytes
from chairlift.model.weights.layers import stream_dtype
from chairlift.model.weights.sizes import WeightSizes

_FLOAT32 = 4


def plan_encoder(settings: EngineConfig, config: EncoderConfig | ModelConfig) -> MemoryPlan:
    """Return the memory of an encoder; it has no KV cache, and its blocks are numbers alone."""
    num_tokens = settings.max_num_batched_tokens + config.max_model_len
    if isinstance(config, EncoderConfig):
        weights = _weight_bytes(settings, config)
        buffers = num_tokens * _buffer_bytes(settings, config)
    else:
        weights = WeightSizes(config, settings.quantize, cpu).total()
        stream = stream_dtype(config, settings.quantize, cpu)
        buffers = buffer_bytes(config.spec, num_tokens, config.dtype, stream)
    return MemoryPlan(
        weight_bytes=weights,
        active_weight_bytes=weights,
        kv_cache_bytes=0,
        # The hidden states are widened for the pooling.
        activation_bytes=buffers + num_tokens * config.spec.hidden_size * _FLOAT32,
        block_bytes=0,
        num_blocks=1,
    )


def _buffer_bytes(settings: EngineConfig, config: EncoderConfig) -> int:
    """Return the bytes of a token."""
    spec, stream = config.spec, encoder_stream_dtype(config, settings.quantize).itemsize
    up = spec.intermediate_size * (2 if spec.is_gated else 1)
    widths = 3 * spec.hidden_size + spec.hidden_size + up + spec.intermediate_size
    return 3 * spec.hidden_size * stream + widths * config.dtype.itemsize


def _weight_bytes(settings: EngineConfig, config: EncoderConfig) -> int:
    spec, hidden = config.spec, config.spec.hidden_size
    weight_format = None if settings.quantize is Quantize.NONE else settings.quantize.value
    up = spec.intermediate_size * (2 if spec.is_gated else 1)
    shapes = (
        (3 * hidden, hidden),
        (hidden, hidden),
        (up, hidden),
        (hidden, spec.intermediate_size),
    )
    layer = sum(cpu.linear_bytes(*shape, config.dtype, weight_format) for shape in shapes)
    tables = spec.vocab_size + spec.num_positions + spec.num_token_types
    stream = encoder_stream_dtype(config, settings.quantize).itemsize
    norms = (2 * spec.num_layers + 1) * 2
    ropes = sum(table_bytes(rope, spec.head_dim, config.max_model_len) for rope in spec.ropes)
    return spec.num_layers * layer + (tables + norms) * hidden * stream + ropes
