"""Phi-3 and Phi-4-mini: one tensor for query, key and value, one for gate and up, and LongRoPE."""

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
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


def _spec(fields: Fields) -> ModelSpec:
    fields = _with_names(fields)
    window = effective_window(fields, fields.optional_integer("sliding_window"))
    layer = LayerSpec(attention(fields, partial=True), mlp(fields), rms_norm(fields))
    return decoder(fields, with_windows(layer, [window] * fields.integer("num_hidden_layers")))


def _with_names(fields: Fields) -> Fields:
    """Return fields with one name of LongRoPE, which has others in the first files."""
    changes = {}
    for name in ("rope_scaling", "rope_parameters"):
        values = fields.values.get(name)
        if not isinstance(values, dict):
            continue
        key = "rope_type" if "rope_type" in values else "type"
        if values.get(key) in _LONG_ROPE:
            changes[name] = {**values, "rope_type": "longrope"}
        elif values.get(key) not in (None, "default", "longrope"):
            Fields(fields.path, values, f"{name}.", fields.keys).fail(key, "default or longrope")
    return Fields(fields.path, {**fields.values, **changes}, fields.prefix, fields.keys)


_LONG_ROPE = "su", "yarn"

PHI3 = Family(
    _spec,
    LLAMA_NAMES.with_parts(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"),
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ignores_code=True,
)
