"""Hybrids, most of whose layers have a recurrent state: LFM2, Qwen 3.5, Qwen3-Next."""

from collections.abc import Sequence
from dataclasses import replace

from chairlift.checkpoints.files.fields import MAX_OF, Fields
from chairlift.model.families.family import (
    FULL,
    LLAMA_NAMES,
    Family,
    activation,
    attention,
    decoder,
    expect_silu,
    experts,
    mlp,
    norms_less_one,
    rms_norm,
    state_names,
)
from chairlift.model.families.mixtures import sparse_where
from chairlift.model.specs.layer_parts import Experts, Mlp, RmsNorm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.recurrence import GatedDelta, ShortConv

_CONV = "conv"
LINEAR = "linear_attention"


def mixer_kinds(fields: Fields, other: str, default: Sequence[str]) -> list[str]:
    """Read which layers have attention, and which the other mixer."""
    kinds, num_layers = fields.values.get("layer_types"), fields.integer("num_hidden_layers")
    if kinds is None:
        return list(default)
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.fail("layer_types", f"a list of {num_layers} names")
    if any(kind not in (FULL, other) for kind in kinds):
        fields.fail("layer_types", f"a list of {FULL} or {other} alone")
    if FULL not in kinds:
        fields.fail("layer_types", f"at least one {FULL}")
    return kinds


def _lfm2(fields: Fields) -> ModelSpec:
    num_layers = fields.integer("num_hidden_layers")
    full = fields.values.get("full_attn_idxs")
    if full is None:
        full = list(range(num_layers))
    if not isinstance(full, list) or any(type(n) is not int or n >= num_layers for n in full):
        fields.fail("full_attn_idxs", f"a list of numbers below {num_layers}")
    default = [FULL if number in full else _CONV for number in range(num_layers)]
    feed_forward = replace(mlp(fields), intermediate_size=_lfm2_intermediate_size(fields))
    return _lfm2_decoder(fields, mixer_kinds(fields, _CONV, default), [feed_forward] * num_layers)


def _lfm2_moe(fields: Fields) -> ModelSpec:
    num_layers, num_dense = (
        fields.integer("num_hidden_layers"),
        fields.integer("num_dense_layers", minimum=0),
    )
    sparse = replace(
        experts(fields, "sigmoid"),
        min_weight_sum=1e-6 if fields.flag("norm_topk_prob") else None,
        multiplier=fields.number("routed_scaling_factor"),
        has_choice_bias=fields.flag("use_expert_bias"),
    )
    if fields.values.get("layer_types") is None:
        fields.fail("layer_types", f"a list of {num_layers} names")
    dense = mlp(fields)
    feed_forwards = [dense if number < num_dense else sparse for number in range(num_layers)]
    return _lfm2_decoder(fields, mixer_kinds(fields, _CONV, []), feed_forwards)


def _lfm2_decoder(
    fields: Fields, kinds: Sequence[str], feed_forwards: Sequence[Mlp | Experts]
) -> ModelSpec:
    expect_silu(fields)
    norm = RmsNorm(fields.number("norm_eps"))
    conv = ShortConv(
        fields.integer("hidden_size"),
        fields.integer("conv_L_cache"),
        bias=fields.flag("conv_bias"),
    )
    attended = LayerSpec(attention(fields, qk_norm=norm), None, norm)
    by_kind = {FULL: attended, _CONV: attended.with_state(conv)}
    layers = [
        replace(by_kind[kind], feed_forward=feed_forward)
        for kind, feed_forward in zip(kinds, feed_forwards, strict=True)
    ]
    spec = decoder(fields, layers, final_norm=norm)
    if "tie_embedding" in fields.values:
        # The name in old files.
        spec = replace(spec, head=replace(spec.head, is_tied=fields.flag("tie_embedding")))
    return spec


def _lfm2_intermediate_size(fields: Fields) -> int:
    """Return the width of the feed-forward, which configurations give before it is adjusted."""
    size = fields.optional_integer("block_ff_dim") or fields.integer("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim"):
        return size
    share = fields.number("block_ffn_dim_multiplier", positive=True)
    step = fields.integer("block_multiple_of")
    max_size = MAX_OF["intermediate_size"]
    adjusted = -(-int(min(share * (2 * size // 3), max_size)) // step) * step
    if not 1 <= adjusted <= max_size:
        fields.fail("intermediate_size", f"one that is 1 to {max_size} when it is adjusted")
    return adjusted


def _qwen3_5(fields: Fields) -> ModelSpec:
    return _qwen_hybrid(fields, [mlp(fields)] * fields.integer("num_hidden_layers"))


def _qwen3_5_moe(fields: Fields) -> ModelSpec:
    return _qwen_hybrid(fields, [_qwen_experts(fields)] * fields.integer("num_hidden_layers"))


def _qwen3_next(fields: Fields) -> ModelSpec:
    sparse = replace(
        _qwen_experts(fields), min_weight_sum=0.0 if fields.flag("norm_topk_prob") else None
    )
    return _qwen_hybrid(fields, sparse_where(fields, sparse, mlp(fields)))


def _qwen_experts(fields: Fields) -> Experts:
    return replace(
        experts(fields, "softmax"),
        min_weight_sum=0.0,
        shared=Mlp(fields.integer("shared_expert_intermediate_size"), activation(fields)),
        shared_is_gated=True,
    )


def _qwen_hybrid(fields: Fields, feed_forwards: Sequence[Mlp | Experts]) -> ModelSpec:
    norm = rms_norm(fields, plus_one=norms_less_one(fields))
    bias, interval = fields.flag("attention_bias"), fields.integer("full_attention_interval")
    heads = attention(fields, qk_norm=norm, qkv_bias=bias, out_bias=bias, partial=True)
    num_layers = fields.integer("num_hidden_layers")
    default = [FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(num_layers)]
    attended = LayerSpec(replace(heads, has_gate=True), None, norm)
    by_kind = {FULL: attended, LINEAR: attended.with_state(delta(fields))}
    kinds = mixer_kinds(fields, LINEAR, default)
    layers = [
        replace(by_kind[kind], feed_forward=feed_forward)
        for kind, feed_forward in zip(kinds, feed_forwards, strict=True)
    ]
    return decoder(fields, layers, final_norm=norm)


def delta(fields: Fields) -> GatedDelta:
    """Read the sizes of the gated delta rule."""
    expect_silu(fields)
    num_keys = fields.integer("linear_num_key_heads")
    num_values = fields.integer("linear_num_value_heads")
    if num_values % num_keys:
        fields.fail("linear_num_key_heads", f"a divisor of {num_values}")
    return GatedDelta(
        num_key_heads=num_keys,
        num_value_heads=num_values,
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        num_taps=fields.integer("linear_conv_kernel_dim"),
        norm_eps=rms_norm(fields).eps,
        interleaved_heads=fields.flag("linear_heads_in_turn"),
    )


LFM2 = Family(
    _lfm2,
    replace(
        LLAMA_NAMES.with_parts(
            attention_norm="operator_norm",
            query_norm="self_attn.q_layernorm",
            key_norm="self_attn.k_layernorm",
            output="self_attn.out_proj",
            feed_forward_norm="ffn_norm",
            gate_up=("feed_forward.w1", "feed_forward.w3"),
            down="feed_forward.w2",
            projection="conv.in_proj",
            conv="conv.conv",
            mixed_output="conv.out_proj",
        ),
        final_norm="model.embedding_norm",
    ),
    defaults={
        "num_key_value_heads": 8,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
)
LFM2_MOE = Family(
    _lfm2_moe,
    replace(
        LFM2.names.with_parts(
            router="feed_forward.gate",
            choice_bias="feed_forward.expert_bias",
            expert_gate_up=("feed_forward.experts.{}.w1", "feed_forward.experts.{}.w3"),
            expert_down="feed_forward.experts.{}.w2",
        ),
        choice_bias_axes=1,
    ),
    defaults={
        **LFM2.defaults,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        "use_expert_bias": True,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
)
QWEN3_5 = Family(
    _qwen3_5,
    LLAMA_NAMES.with_parts(
        projection=("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
        beta_alpha=("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
        conv="linear_attn.conv1d",
        mixed_output="linear_attn.out_proj",
        **state_names("linear_attn"),
    ),
    ignored=("mtp.",),
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
)
QWEN3_5_MOE = Family(
    _qwen3_5_moe,
    QWEN3_5.names.with_parts(
        shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
        shared_down="mlp.shared_expert.down_proj",
    ),
    ignored=("mtp.",),
    defaults={
        **QWEN3_5.defaults,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
)
QWEN3_NEXT = Family(
    _qwen3_next,
    QWEN3_5_MOE.names.with_parts(
        projection="linear_attn.in_proj_qkvz", beta_alpha="linear_attn.in_proj_ba"
    ),
    ignored=("mtp.",),
    defaults={
        **QWEN3_5_MOE.defaults,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
)


def _with_vision(family: Family) -> Family:
    """Return the text model of a family whose checkpoints have a part for images."""
    names = replace(
        family.names,
        embedding="model.language_model.embed_tokens",
        final_norm="model.language_model.norm",
        layers="model.language_model.layers",
    )
    return family._replace(names=names, text="text_config", ignored=("mtp.", "model.visual."))


QWEN3_5_WITH_VISION = _with_vision(QWEN3_5)
QWEN3_5_MOE_WITH_VISION = _with_vision(QWEN3_5_MOE)
