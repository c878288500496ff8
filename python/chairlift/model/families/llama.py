"""Llama 2 and 3, and the many checkpoints that call themselves Llama."""

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import LLAMA_NAMES, Family, attention, decoder, mlp, rms_norm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


def _spec(fields: Fields) -> ModelSpec:
    bias = fields.flag("attention_bias")
    layer = LayerSpec(
        attention(fields, qkv_bias=bias, out_bias=bias),
        mlp(fields, bias=fields.flag("mlp_bias")),
        rms_norm(fields),
    )
    return decoder(fields, [layer] * fields.integer("num_hidden_layers"))


LLAMA = Family(_spec, LLAMA_NAMES)
