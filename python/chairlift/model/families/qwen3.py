"""Qwen 3: norms of each head's query and key, perhaps biases, and a window in some layers."""

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
from chairlift.model.families.qwen2 import QWEN2
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


def _spec(fields: Fields) -> ModelSpec:
    bias = fields.flag("attention_bias")
    every = LayerSpec(
        attention(fields, qk_norm=rms_norm(fields), qkv_bias=bias, out_bias=bias),
        mlp(fields),
        rms_norm(fields),
    )
    return decoder(fields, with_windows(every, window_per_layer(fields)))


QWEN3 = Family(_spec, LLAMA_NAMES, defaults={"head_dim": 128, **QWEN2.defaults})
