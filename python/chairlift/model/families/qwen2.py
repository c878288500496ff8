"""Qwen 2 and 2.5: biases of query, key and value, and a window in some layers."""

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    LLAMA_NAMES,
    Family,
    attention,
    decoder,
    mlp,
    rms_norm,
    window_per_layer,
    with_windows,
)
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


def _spec(fields: Fields) -> ModelSpec:
    every = LayerSpec(
        attention(fields, qkv_bias=True),
        mlp(fields),
        rms_norm(fields),
    )
    return decoder(fields, with_windows(every, window_per_layer(fields)))


QWEN2 = Family(
    _spec,
    LLAMA_NAMES,
    defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
)
