"""OLMo 2 and 3: norms after each half alone, and a norm over all heads of queries and of keys.

OLMo-Hybrid has the gated delta rule in most layers, with norms before their halves.
"""

from dataclasses import replace

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    FULL,
    LLAMA_NAMES,
    SLIDING,
    Family,
    attention,
    decoder,
    kinds_by_pattern,
    mlp,
    rms_norm,
    state_names,
    windows_by_kind,
)
from chairlift.model.families.hybrids import LINEAR, delta, mixer_kinds
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.recurrence import GatedDelta

_NAMES = LLAMA_NAMES.with_parts(
    attention_norm_after="post_attention_layernorm",
    feed_forward_norm_after="post_feedforward_layernorm",
)


_THETA = 500_000.0
"""The base of RoPE in OLMo 3, where no field names another."""


def _layer(fields: Fields, kind: str | None = None) -> LayerSpec:
    bias, norm = fields.flag("attention_bias"), rms_norm(fields)
    theta = None if kind is None else fields.number("rope_theta", default=_THETA)
    if kind == SLIDING and theta != _THETA:
        theta = None  # versions of `transformers` differ in whether it holds for these layers
    heads = attention(fields, qk_norm=norm, qkv_bias=bias, out_bias=bias, kind=kind, theta=theta)
    heads = replace(heads, norms_all_heads=True)
    return LayerSpec(heads, mlp(fields), norm, norm_before=False, norm_after=True)


def _olmo2(fields: Fields) -> ModelSpec:
    return decoder(fields, [_layer(fields)] * fields.integer("num_hidden_layers"))


def _olmo3(fields: Fields) -> ModelSpec:
    kinds = kinds_by_pattern(fields, 4, fixed=True)
    windows = windows_by_kind(fields, kinds, fields.optional_integer("sliding_window"))
    by_kind = {kind: _layer(fields, kind) for kind in {*kinds}}
    layers = [
        by_kind[kind].with_window(window) for kind, window in zip(kinds, windows, strict=True)
    ]
    return decoder(fields, layers)


def _has_rope(fields: Fields) -> bool:
    """Return whether attention has RoPE: published checkpoints say null for its theta."""
    inner = fields.values.get("rope_scaling") or fields.values.get("rope_parameters")
    values = inner if isinstance(inner, dict) and "rope_theta" in inner else fields.values
    return "rope_theta" not in values or values["rope_theta"] is not None


def _delta(fields: Fields) -> GatedDelta:
    given = {name: value for name, value in fields.values.items() if value is not None}
    num_heads = fields.integer("num_attention_heads")
    num_keys = fields.optional_integer("linear_num_key_heads") or num_heads
    key_dim = fields.optional_integer("linear_key_head_dim")
    if key_dim is None:
        key_dim = 3 * fields.integer("hidden_size") // (4 * num_keys)
    defaults = {
        "linear_num_key_heads": num_heads,
        "linear_num_value_heads": num_heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": 2 * key_dim,
    }
    read = delta(Fields(fields.path, {**defaults, **given}))
    # The norm of a head has an eps of its own, which no field names.
    share = 2.0 if fields.flag("linear_allow_neg_eigval") else 1.0
    return replace(read, norm_eps=1e-5, max_beta=share)


def _olmo_hybrid(fields: Fields) -> ModelSpec:
    attended = _layer(fields)
    if not _has_rope(fields):
        attended = attended.without_rope()
    recurrent = replace(attended.with_state(_delta(fields)), norm_before=True, norm_after=False)
    num_layers = fields.integer("num_hidden_layers")
    default = [FULL if layer % 4 == 3 else LINEAR for layer in range(num_layers)]
    if FULL not in default:
        default[-1] = FULL
    kinds = mixer_kinds(fields, LINEAR, default)
    return decoder(fields, [attended if kind == FULL else recurrent for kind in kinds])


OLMO2 = Family(_olmo2, _NAMES, defaults={"rms_norm_eps": 1e-5})
OLMO3 = Family(
    _olmo3,
    _NAMES,
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
)
OLMO_HYBRID = Family(
    _olmo_hybrid,
    _NAMES.with_parts(
        feed_forward_norm="post_attention_layernorm",
        projection=tuple(f"linear_attn.{part}_proj" for part in "qkvg"),
        beta_alpha=("linear_attn.b_proj", "linear_attn.a_proj"),
        conv=tuple(f"linear_attn.{part}_conv1d" for part in "qkv"),
        mixed_output="linear_attn.o_proj",
        **{**state_names("linear_attn"), "state_norm": "linear_attn.o_norm"},
    ),
    defaults={"linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True},
    ignored=("mtp.",),
)
