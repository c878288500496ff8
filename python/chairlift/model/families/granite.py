"""Granite 3: Llama with multipliers of embeddings, scores, updates of the stream and logits."""

from dataclasses import replace

from chairlift.model.families.family import (
    LLAMA_NAMES,
    Family,
    attention,
    decoder,
    mlp,
    rms_norm,
)
from chairlift.model.fields import Fields
from chairlift.model.spec import LayerSpec, ModelSpec

DEFAULTS = {
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def granite_layer(fields: Fields) -> LayerSpec:
    """Read a layer with its multipliers."""
    bias = fields.flag("attention_bias")
    own = attention(fields, qkv_bias=bias, out_bias=bias)
    return LayerSpec(
        replace(own, multiplier=fields.number("attention_multiplier", positive=True)),
        mlp(fields, bias=fields.flag("mlp_bias")),
        rms_norm(fields),
        residual_multiplier=fields.number("residual_multiplier"),
    )


def granite_decoder(fields: Fields, layer: LayerSpec) -> ModelSpec:
    """Build the spec of layers that are all alike, with the multipliers of both ends."""
    return decoder(
        fields,
        [layer] * fields.integer("num_hidden_layers"),
        embedding_multiplier=fields.number("embedding_multiplier"),
        logits_multiplier=1.0 / fields.number("logits_scaling", positive=True),
    )


def _spec(fields: Fields) -> ModelSpec:
    return granite_decoder(fields, granite_layer(fields))


GRANITE = Family(_spec, LLAMA_NAMES, defaults=DEFAULTS)
