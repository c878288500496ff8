"""Ministral 3: Mistral with YaRN, and queries that grow with their position."""

from dataclasses import replace

from chairlift.checkpoints.files.fields import Fields
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
from chairlift.model.families.rope import position_scale
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""The defaults of `transformers` where config.json has no such fields."""


def _spec(fields: Fields) -> ModelSpec:
    if fields.values.get("rope_parameters") is None:
        fields = Fields(fields.path, {**fields.values, "rope_parameters": _ROPE})
    if fields.values.get("layer_types") is not None:
        fields.fail("layer_types", "absent for this architecture")
    heads = replace(attention(fields), position_scale=position_scale(fields))
    window = effective_window(fields, fields.optional_integer("sliding_window"))
    layer = LayerSpec(heads, mlp(fields), rms_norm(fields))
    return decoder(fields, with_windows(layer, [window] * fields.integer("num_hidden_layers")))


MINISTRAL3 = Family(
    _spec,
    LLAMA_NAMES,
    defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5},
)
