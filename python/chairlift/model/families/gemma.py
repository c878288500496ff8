"""Gemma 2 and 3: norms around each half, of weights less 1, and windows in most layers.

EmbeddingGemma is Gemma 3 whose tokens see what is before and after them.
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
    norms_less_one,
    rms_norm,
    windows_by_kind,
)
from chairlift.model.specs.layer_parts import Attention
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec

_NAMES = LLAMA_NAMES.with_parts(
    attention_norm_after="post_attention_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
    feed_forward_norm_after="post_feedforward_layernorm",
)
_DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
# Gemma 3 of old files: `rope_theta` is that of the layers that see all tokens.
_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0

_PATTERN_OF_2 = 2
"""Every other layer of Gemma 2 sees all tokens, whatever a field says."""


def _model(
    fields: Fields, by_kind: dict[str, Attention], pattern: int, logits_soft_cap: float | None
) -> ModelSpec:
    if fields.values.get("use_bidirectional_attention"):
        fields.fail("use_bidirectional_attention", "false")
    norm = rms_norm(fields, plus_one=norms_less_one(fields))
    kinds = kinds_by_pattern(fields, pattern, fixed=pattern == _PATTERN_OF_2)
    windows = windows_by_kind(fields, kinds, fields.optional_integer("sliding_window"))
    feed_forward = mlp(fields, key="hidden_activation")
    layers = [
        LayerSpec(
            replace(by_kind[kind], window=window, multiplier=_multiplier(fields)),
            feed_forward,
            norm,
            norm_after=True,
        )
        for kind, window in zip(kinds, windows, strict=True)
    ]
    return decoder(
        fields,
        layers,
        final_norm=norm,
        embedding_multiplier=fields.integer("hidden_size") ** 0.5,
        logits_soft_cap=logits_soft_cap,
    )


def _multiplier(fields: Fields) -> float:
    return float(fields.number("query_pre_attn_scalar", positive=True) ** -0.5)


def _gemma2(fields: Fields) -> ModelSpec:
    bias = fields.flag("attention_bias")
    every = replace(
        attention(fields, qkv_bias=bias, out_bias=bias),
        soft_cap=fields.optional_number("attn_logit_softcapping", positive=True),
    )
    cap = fields.optional_number("final_logit_softcapping", positive=True)
    return _model(fields, {FULL: every, SLIDING: every}, _PATTERN_OF_2, cap)


def _gemma3(fields: Fields) -> ModelSpec:
    if fields.values.get("attn_logit_softcapping") is not None:
        fields.fail("attn_logit_softcapping", "null")
    bias = fields.flag("attention_bias")
    norm = rms_norm(fields, plus_one=norms_less_one(fields))
    thetas = {
        FULL: fields.number("rope_theta", default=_THETA, positive=True),
        SLIDING: fields.number("rope_local_base_freq", default=_LOCAL_THETA, positive=True),
    }
    by_kind = {
        kind: attention(fields, qk_norm=norm, qkv_bias=bias, out_bias=bias, kind=kind, theta=theta)
        for kind, theta in thetas.items()
    }
    cap = fields.optional_number("final_logit_softcapping", positive=True)
    return _model(fields, by_kind, 6, cap)


def _embedding_gemma(fields: Fields) -> ModelSpec:
    if not fields.flag("use_bidirectional_attention"):
        fields.fail("use_bidirectional_attention", "true in a model without a head")
    # The window is halved on each side, as `transformers` reads it.
    window = fields.integer("sliding_window") // 2 + 1
    changes = {
        "use_bidirectional_attention": False,
        "is_causal": None,
        "sliding_window": window,
    }
    return replace(_gemma3(Fields(fields.path, {**fields.values, **changes})), bidirectional=True)


GEMMA2 = Family(
    _gemma2,
    _NAMES,
    defaults={**_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
)
GEMMA3 = Family(_gemma3, _NAMES, defaults=_DEFAULTS)
EMBEDDING_GEMMA = Family(
    _embedding_gemma,
    replace(_NAMES, embedding="embed_tokens", final_norm="norm", layers="layers", head=""),
    defaults=_DEFAULTS,
)
