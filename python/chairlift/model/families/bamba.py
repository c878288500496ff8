"""Bamba: Mamba-2 in most layers, attention with RoPE of half a head in the others."""

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import Family, attention, decoder, mlp, rms_norm
from chairlift.model.families.granite import FEED_FORWARD_NAMES, MAMBA_DEFAULTS, mamba
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec

_SHARE = 0.5
"""The part of a head that `transformers` rotates, whatever the field beside `rope_parameters`."""


def _bamba(fields: Fields) -> ModelSpec:
    num_layers, chosen = fields.integer("num_hidden_layers"), fields.values["attn_layer_indices"]
    is_list = isinstance(chosen, list) and all(type(number) is int for number in chosen)
    if not is_list or not any(number in range(num_layers) for number in chosen):
        fields.fail("attn_layer_indices", f"a list with numbers of the {num_layers} layers")
    bias, norm = fields.flag("attention_bias"), rms_norm(fields)
    feed_forward = mlp(fields, bias=fields.flag("mlp_bias"))
    if fields.values.get("partial_rotary_factor") not in (None, _SHARE):
        fields.fail("partial_rotary_factor", f"{_SHARE}, or one in rope_parameters")
    fields = Fields(fields.path, {**fields.values, "partial_rotary_factor": _SHARE})
    heads = attention(fields, qkv_bias=bias, out_bias=bias, partial=True)
    attended = LayerSpec(heads, feed_forward, norm)
    recurrent = attended.with_state(mamba(fields))
    chosen = {*chosen}
    layers = [attended if number in chosen else recurrent for number in range(num_layers)]
    return decoder(fields, layers)


BAMBA = Family(
    _bamba,
    FEED_FORWARD_NAMES,
    defaults={
        **MAMBA_DEFAULTS,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "attn_layer_indices": None,
    },
)
