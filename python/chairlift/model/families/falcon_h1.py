"""Falcon-H1: attention and Mamba-2 side by side in each layer, and factors of what they map."""

from dataclasses import replace

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import Family, attention, decoder, mlp, rms_norm
from chairlift.model.families.granite import FEED_FORWARD_NAMES, MAMBA_DEFAULTS, mamba
from chairlift.model.specs.layer_parts import Attention
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.recurrence import Mamba2


def _multipliers(fields: Fields, name: str, count: int) -> list[float]:
    """Read so many factors; null is 1 for each."""
    values = fields.values.get(name)
    if values is None:
        return [1.0] * count
    if not isinstance(values, list) or len(values) != count:
        fields.fail(name, f"a list of {count} numbers")
    return [Fields(fields.path, {name: value}).number(name) for value in values]


def _attention(fields: Fields, factor: float) -> Attention:
    """Read attention whose inputs have a factor: here the scores have it twice."""
    bias = fields.flag("attention_bias")
    if bias and factor != 1.0:
        fields.fail("attention_bias", "false beside an attention_in_multiplier")
    read = attention(fields, qkv_bias=bias, out_bias=bias)
    return replace(read, multiplier=read.scale * factor**2 * fields.number("key_multiplier"))


def _mamba(fields: Fields) -> Mamba2:
    read, factor = mamba(fields), fields.number("ssm_in_multiplier")
    if read.bias and factor != 1.0:
        fields.fail("mamba_proj_bias", "false beside an ssm_in_multiplier")
    if fields.flag("projectors_bias") != read.bias:
        fields.fail("projectors_bias", f"{read.bias}, as mamba_proj_bias".lower())
    has_norm = fields.flag("mamba_rms_norm")
    if has_norm and fields.flag("mamba_norm_before_gate"):
        fields.fail("mamba_norm_before_gate", "false")
    multipliers = tuple(factor * read for read in _multipliers(fields, "ssm_multipliers", 5))
    return replace(read, has_norm=has_norm, multipliers=multipliers)


def _falcon_h1(fields: Fields) -> ModelSpec:
    gate, down = _multipliers(fields, "mlp_multipliers", 2)
    of_inputs = fields.number("attention_in_multiplier")
    layer = LayerSpec(
        _attention(fields, of_inputs),
        replace(mlp(fields, bias=fields.flag("mlp_bias")), gate_multiplier=gate),
        rms_norm(fields),
        recurrent=_mamba(fields),
        attention_multiplier=of_inputs * fields.number("attention_out_multiplier"),
        recurrent_multiplier=fields.number("ssm_out_multiplier"),
        feed_forward_multiplier=down,
    )
    return decoder(
        fields,
        [layer] * fields.integer("num_hidden_layers"),
        embedding_multiplier=fields.number("embedding_multiplier"),
        logits_multiplier=fields.number("lm_head_multiplier"),
    )


FALCON_H1 = Family(
    _falcon_h1,
    FEED_FORWARD_NAMES,
    defaults={
        **MAMBA_DEFAULTS,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "mamba_d_ssm": 1024,
        "mamba_norm_before_gate": True,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "key_multiplier": 1.0,
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "lm_head_multiplier": 1.0,
    },
)
