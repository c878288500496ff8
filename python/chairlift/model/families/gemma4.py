"""Gemma 4: heads of another size in layers without a window, shared keys, inputs of each layer.

Some have experts beside the dense feed-forward, under norms of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    FULL,
    LLAMA_NAMES,
    SLIDING,
    Family,
    activation,
    attention,
    decoder,
    experts,
    kinds_by_pattern,
    mlp,
    rms_norm,
    windows_by_kind,
)
from chairlift.model.specs.layer_parts import Attention, Experts, Mlp, RmsNorm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.vocabulary import LayerInputs

_HIDDEN_ACT = "hidden_activation"
_HEADS = "head_dim", "num_key_value_heads"
"""What layers may have of their own."""


def _gemma4(fields: Fields) -> ModelSpec:
    if fields.values.get("use_bidirectional_attention") not in (None, "vision"):
        # Of images alone, where it is "vision".
        fields.fail("use_bidirectional_attention", "null or vision")
    if fields.values.get("rope_scaling") is not None:
        fields.fail("rope_scaling", "rope_parameters in its place")
    # The last layer sees all tokens, whatever its kind is said to be.
    kinds = [*kinds_by_pattern(fields, 6, fixed=True)[:-1], FULL]
    windows = windows_by_kind(fields, kinds, fields.optional_integer("sliding_window"))
    layer_heads = _heads(fields, kinds)
    norm, dense, kv_of = rms_norm(fields), mlp(fields, key=_HIDDEN_ACT), _kv_of(fields, kinds)
    wide = replace(dense, intermediate_size=2 * dense.intermediate_size)
    is_wide = fields.flag("use_double_wide_mlp")
    layers = [
        LayerSpec(
            replace(_attention(fields, heads, kind, norm, source), window=window),
            _feed_forward(fields, wide if is_wide and source is not None else dense, norm),
            norm,
            norm_after=True,
            has_scalar=True,
        )
        for heads, kind, window, source in zip(layer_heads, kinds, windows, kv_of, strict=True)
    ]
    spec = decoder(
        Fields(fields.path, {**fields.values, "per_layer_config": None}),
        layers,
        embedding_multiplier=fields.integer("hidden_size") ** 0.5,
        logits_soft_cap=fields.optional_number("final_logit_softcapping", positive=True),
    )
    return replace(spec, layer_inputs=_layer_inputs(fields))


def _feed_forward(fields: Fields, dense: Mlp, norm: RmsNorm) -> Mlp | Experts:
    """Read the experts beside a dense feed-forward, if there are some."""
    if not fields.flag("enable_moe_block"):
        return dense
    sparse = experts(fields, "softmax", top_k="top_k_experts", key=_HIDDEN_ACT)
    return replace(sparse, min_weight_sum=0.0, shared=dense, separate_norm=norm, has_factors=True)


def _attention(
    fields: Fields, heads: Mapping[str, Any], kind: str, norm: RmsNorm, source: int | None
) -> Attention:
    """Read the attention of a layer.

    Args:
        fields: Fields of config.json.
        heads: Values that replace the fields of these names.
        kind: Kind of the layer in `layer_types`.
        norm: The norm of queries and keys.
        source: The layer whose keys and values it sees; None is itself.
    """
    bias = fields.flag("attention_bias")
    layer_fields = Fields(fields.path, {**fields.values, **heads}, fields.prefix, fields.keys)
    read = attention(layer_fields, qk_norm=norm, qkv_bias=bias, out_bias=bias, kind=kind)
    return replace(
        read,
        multiplier=1.0,
        kv_of=source,
        keys_are_values=source is None and kind == FULL and fields.flag("attention_k_eq_v"),
        value_norm_eps=norm.eps,
    )


def _heads(fields: Fields, kinds: Sequence[str]) -> list[Mapping[str, Any]]:
    """Read the heads of each layer that are not those of all.

    They are in `per_layer_config`, as `transformers` writes it, or in fields of their own for the
    layers that see all tokens.
    """
    given = fields.values.get("per_layer_config")
    if given is not None:
        numbers = {str(number): number for number in range(len(kinds))}
        is_known = isinstance(given, dict) and all(
            key in numbers and isinstance(sizes, dict) and {*sizes} <= {*_HEADS}
            for key, sizes in given.items()
        )
        if not is_known:
            fields.fail("per_layer_config", f"{' and '.join(_HEADS)} by the numbers of layers")
        return [given.get(key, {}) for key in numbers]
    full = {"head_dim": fields.integer("global_head_dim", default=512)}
    num_kv_heads = fields.optional_integer("num_global_key_value_heads")
    if num_kv_heads is not None and fields.flag("attention_k_eq_v"):
        full["num_key_value_heads"] = num_kv_heads
    return [full if kind == FULL else {} for kind in kinds]


def _kv_of(fields: Fields, kinds: Sequence[str]) -> list[int | None]:
    """Read the layer whose keys and values each of the last layers sees: the last of its kind."""
    num_shared = fields.integer("num_kv_shared_layers", minimum=0)
    first = len(kinds) - num_shared
    last = {kind: number for number, kind in enumerate(kinds[: max(first, 0)])}
    if {*last} != {*kinds}:
        fields.fail("num_kv_shared_layers", "fewer, so that a layer of each kind has its own keys")
    return [None if number < first else last[kind] for number, kind in enumerate(kinds)]


def _layer_inputs(fields: Fields) -> LayerInputs | None:
    size = fields.integer("hidden_size_per_layer_input", minimum=0)
    if size == 0:
        return None
    num_tokens, vocab_size = (
        fields.integer("vocab_size_per_layer_input"),
        fields.integer("vocab_size"),
    )
    if num_tokens < vocab_size:
        fields.fail("vocab_size_per_layer_input", f"at least vocab_size, {vocab_size}")
    # The map is divided by the root of its inputs before its norm, which cancels but for `eps`.
    eps = rms_norm(fields).eps * fields.integer("hidden_size")
    return LayerInputs(num_tokens, size, size**0.5, eps, activation(fields, _HIDDEN_ACT))


GEMMA4 = Family(
    _gemma4,
    LLAMA_NAMES.with_parts(
        attention_norm_after="post_attention_layernorm",
        feed_forward_norm="pre_feedforward_layernorm",
        feed_forward_norm_after="post_feedforward_layernorm",
        scalar="layer_scalar",
        shared_gate_up=LLAMA_NAMES["gate_up"],
        shared_down=LLAMA_NAMES["down"],
        router="router.proj",
        router_norm="router",
        factors="router.per_expert_scale",
        expert_gate_up=("experts.{}.gate_proj", "experts.{}.up_proj"),
        expert_down="experts.{}.down_proj",
        experts_norm="pre_feedforward_layernorm_2",
        shared_norm_after="post_feedforward_layernorm_1",
        experts_norm_after="post_feedforward_layernorm_2",
        layer_embedding="model.embed_tokens_per_layer",
        layer_context="model.per_layer_model_projection",
        layer_context_norm="model.per_layer_projection_norm",
        input_gate="per_layer_input_gate",
        input_projection="per_layer_projection",
        input_norm="post_per_layer_input_norm",
    ),
    defaults={
        "head_dim": 256,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "tie_word_embeddings": True,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            FULL: {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        },
    },
)
_TEXT = "model.language_model."
_names = GEMMA4.names
GEMMA4_WITH_VISION = GEMMA4._replace(
    names=replace(
        _names.with_parts(
            layer_embedding=f"{_TEXT}embed_tokens_per_layer",
            layer_context=f"{_TEXT}per_layer_model_projection",
            layer_context_norm=f"{_TEXT}per_layer_projection_norm",
        ),
        embedding=f"{_TEXT}embed_tokens",
        final_norm=f"{_TEXT}norm",
        layers=f"{_TEXT}layers",
    ),
    text="text_config",
    ignored=(
        "model.vision_tower.",
        "model.audio_tower.",
        "model.embed_vision.",
        "model.embed_audio.",
    ),
)
