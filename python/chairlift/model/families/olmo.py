"""OLMo 2 and 3: norms after each half alone, and a norm over all heads of queries and of keys."""

from dataclasses import replace

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
    windows_by_kind,
)
from chairlift.model.fields import Fields
from chairlift.model.spec import LayerSpec, ModelSpec

_NAMES = replace(
    LLAMA_NAMES,
    attention_norm_after="post_attention_layernorm",
    feed_forward_norm_after="post_feedforward_layernorm",
)


def _layer(fields: Fields, kind: str | None = None) -> LayerSpec:
    bias, norm = fields.flag("attention_bias"), rms_norm(fields)
    own = attention(fields, qk_norm=norm, qkv_bias=bias, out_bias=bias, kind=kind)
    own = replace(own, norms_all_heads=True)
    return LayerSpec(own, mlp(fields), norm, norm_before=False, norm_after=True)


def _olmo2(fields: Fields) -> ModelSpec:
    return decoder(fields, [_layer(fields)] * fields.integer("num_hidden_layers"))


def _olmo3(fields: Fields) -> ModelSpec:
    kinds = kinds_by_pattern(fields, 4)
    windows = windows_by_kind(fields, kinds, fields.optional_integer("sliding_window"))
    by_kind = {kind: _layer(fields, kind) for kind in (FULL, SLIDING)}
    layers = [
        by_kind[kind].with_window(window) for kind, window in zip(kinds, windows, strict=True)
    ]
    return decoder(fields, layers)


OLMO2 = Family(_olmo2, _NAMES, defaults={"rms_norm_eps": 1e-5})
OLMO3 = Family(
    _olmo3,
    _NAMES,
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 500_000.0},
)
