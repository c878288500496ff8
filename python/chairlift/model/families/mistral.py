"""Mistral: Llama with one sliding window for all layers, and no biases."""

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
    if fields.values.get("layer_types") is not None:
        fields.fail("layer_types", "absent for this architecture")
    window = effective_window(fields, fields.optional_integer("sliding_window"))
    layer = LayerSpec(attention(fields), mlp(fields), rms_norm(fields))
    windows = [window] * fields.integer("num_hidden_layers")
    return decoder(fields, with_windows(layer, windows))


MISTRAL = Family(_spec, LLAMA_NAMES, defaults={"num_key_value_heads": 8, "sliding_window": 4096})
