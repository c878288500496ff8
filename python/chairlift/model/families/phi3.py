"""Phi-3 and Phi-4-mini: one tensor for query, key and value, one for gate and up, and LongRoPE."""

from dataclasses import replace

from chairlift.model.families.family import (
    LLAMA_NAMES,
    Family,
    attention,
    decoder,
    effective_window,
    mlp,
    rms_norm,
    with_windows,
)
from chairlift.model.fields import Fields
from chairlift.model.spec import LayerSpec, ModelSpec


def _spec(fields: Fields) -> ModelSpec:
    scaling = fields.values.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("type") == "yarn":
        # The name of LongRoPE in the first files.
        values = {**fields.values, "rope_scaling": {**scaling, "type": "longrope"}}
        fields = Fields(fields.path, values)
    window = effective_window(fields, fields.optional_integer("sliding_window"))
    layer = LayerSpec(attention(fields), mlp(fields), rms_norm(fields))
    return decoder(fields, with_windows(layer, [window] * fields.integer("num_hidden_layers")))


PHI3 = Family(
    _spec,
    replace(LLAMA_NAMES, qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"),
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ignores_code=True,
)
