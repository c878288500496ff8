"""Cohere 2 (Command R7B): both halves side by side under one layer norm, RoPE of neighbours."""

from dataclasses import replace

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    LLAMA_NAMES,
    SLIDING,
    Family,
    attention,
    decoder,
    kinds_by_pattern,
    mlp,
    windows_by_kind,
)
from chairlift.model.specs.layer_parts import LayerNorm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


def _spec(fields: Fields) -> ModelSpec:
    bias = fields.flag("attention_bias")
    every = attention(fields, qkv_bias=bias, out_bias=bias)
    assert every.rope is not None, "the fields of RoPE have defaults"
    rope = replace(every.rope, interleaved=True)
    norm = LayerNorm(fields.number("layer_norm_eps"), has_bias=False)
    kinds = kinds_by_pattern(fields, 4)
    windows = windows_by_kind(fields, kinds, fields.optional_integer("sliding_window"))
    # Layers that see all tokens know no positions.
    layers = [
        LayerSpec(
            replace(every, rope=rope if kind == SLIDING else None, window=window),
            mlp(fields),
            norm,
            parallel=True,
        )
        for kind, window in zip(kinds, windows, strict=True)
    ]
    return decoder(
        fields,
        layers,
        final_norm=norm,
        logits_multiplier=fields.number("logit_scale"),
    )


COHERE2 = Family(
    _spec,
    LLAMA_NAMES,
    defaults={
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
)
