"""SmolLM3: Llama with layers without position embeddings, and perhaps a window."""

from dataclasses import replace

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    FULL,
    LLAMA_NAMES,
    SLIDING,
    Family,
    attention,
    decoder,
    layer_kinds,
    mlp,
    rms_norm,
    windows_by_kind,
)
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


def _spec(fields: Fields) -> ModelSpec:
    bias, num_layers = fields.flag("attention_bias"), fields.integer("num_hidden_layers")
    every = attention(fields, qkv_bias=bias, out_bias=bias)
    has_rope = _layers_with_rope(fields, num_layers)
    window = (
        fields.optional_integer("sliding_window") if fields.flag("use_sliding_window") else None
    )
    kinds = layer_kinds(
        fields, [FULL if is_rotated or window is None else SLIDING for is_rotated in has_rope]
    )
    feed_forward, norm = mlp(fields, bias=fields.flag("mlp_bias")), rms_norm(fields)
    layers = [
        LayerSpec(
            replace(every, rope=every.rope if is_rotated else None, window=layer_window),
            feed_forward,
            norm,
        )
        for is_rotated, layer_window in zip(
            has_rope, windows_by_kind(fields, kinds, window), strict=True
        )
    ]
    return decoder(fields, layers)


def _layers_with_rope(fields: Fields, num_layers: int) -> list[bool]:
    """Read `no_rope_layers`, where 1 stands for a layer with RoPE."""
    listed = fields.values.get("no_rope_layers")
    if listed is None:
        interval = fields.integer("no_rope_layer_interval", default=4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    is_list = isinstance(listed, list) and len(listed) >= num_layers
    if not is_list or any(flag not in (0, 1) for flag in listed):
        fields.fail("no_rope_layers", f"a list of at least {num_layers} numbers 0 and 1")
    return [bool(flag) for flag in listed[:num_layers]]


SMOLLM3 = Family(
    _spec,
    LLAMA_NAMES,
    defaults={
        "num_key_value_heads": 4,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
    },
)
