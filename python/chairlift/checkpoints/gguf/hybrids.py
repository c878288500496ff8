"""The fields of config.json of architectures with a recurrent state."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from chairlift.checkpoints.gguf.metadata import Metadata

_FULL, _LINEAR, _CONV = "full_attention", "linear_attention", "conv"


def hybrid_fields(own: Metadata) -> Mapping[str, Any]:
    """Read the fields that an architecture has beside those of all."""
    match own.kind:
        case "lfm2" | "lfm2moe":
            return _lfm2(own)
        case "qwen35" | "qwen35moe" | "qwen3next":
            return _qwen(own)
        case "granitehybrid":
            return _granite(own)
        case "falcon-h1":
            return _falcon(own)
        case _:
            return _nemotron(own)


def _kinds(own: Metadata, other: str) -> list[str]:
    """Read the layers with attention, which have heads of keys."""
    counts = own.each_layer("attention.head_count_kv")
    return [_FULL if count else other for count in counts]


def _lfm2(own: Metadata) -> Mapping[str, Any]:
    return {
        "layer_types": _kinds(own, _CONV),
        "conv_L_cache": own.integer("shortconv.l_cache"),
        "conv_bias": own.has("shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
        "num_dense_layers": own.optional_integer("leading_dense_block_count"),
    }


def _qwen(own: Metadata) -> Mapping[str, Any]:
    num_values, inner = own.integer("ssm.time_step_rank"), own.integer("ssm.inner_size")
    if inner % num_values:
        own.fail("ssm.inner_size", f"a multiple of ssm.time_step_rank, {num_values}")
    values: dict[str, Any] = {
        "norms_are_whole": True,
        # The converter reorders the heads of values, but of Qwen3-Next.
        "linear_heads_in_turn": own.kind != "qwen3next",
        "linear_num_key_heads": own.integer("ssm.group_count"),
        "linear_num_value_heads": num_values,
        "linear_key_head_dim": own.integer("ssm.state_size"),
        "linear_value_head_dim": inner // num_values,
        "linear_conv_kernel_dim": own.integer("ssm.conv_kernel"),
    }
    if isinstance(own.fields.values.get(f"{own.kind}.attention.recurrent_layers"), np.ndarray):
        recurrent = own.each_layer("attention.recurrent_layers")
        values["layer_types"] = [_LINEAR if each else _FULL for each in recurrent]
    else:
        interval = own.optional_integer("full_attention_interval") or 4
        values["full_attention_interval"] = interval
    if own.kind != "qwen35":
        key = "expert_shared_feed_forward_length"
        values["shared_expert_intermediate_size"] = own.integer(key)
    return values


def _mamba(own: Metadata) -> dict[str, Any]:
    return {
        "mamba_d_ssm": own.integer("ssm.inner_size"),
        "mamba_n_heads": own.integer("ssm.time_step_rank"),
        "mamba_n_groups": own.integer("ssm.group_count"),
        "mamba_d_state": own.integer("ssm.state_size"),
        "mamba_d_conv": own.integer("ssm.conv_kernel"),
        "mamba_conv_bias": own.has("ssm_conv1d.bias"),
        "mamba_proj_bias": own.has("ssm_in.bias"),
    }


def _granite(own: Metadata) -> Mapping[str, Any]:
    """Read Granite 4, or Bamba, whose scores have the factor of the size of a head."""
    finetuned = f"{own.kind}.rope.scaling.finetuned"
    has_rope = own.fields.flag(finetuned) if finetuned in own.fields.values else True
    shared = own.optional_integer("expert_shared_feed_forward_length")
    num_experts = own.optional_integer("expert_count")
    size = own.head_size(own.num_heads()[0])
    return {
        **_mamba(own),
        "layer_types": _kinds(own, _LINEAR),
        "position_embedding_type": "rope" if has_rope else "nope",
        "rotates_a_part": True,
        "num_local_experts": num_experts,
        "shared_intermediate_size": shared or own.per_layer("feed_forward_length"),
        "attention_multiplier": size**-0.5,
    }


def _falcon(own: Metadata) -> Mapping[str, Any]:
    """Read Falcon-H1, whose factors are part of the weights: a tied head would have a wrong one."""
    return {
        **_mamba(own),
        "projectors_bias": own.has("ssm_in.bias"),
        "mamba_rms_norm": own.has("ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "tie_word_embeddings": False,
    }


def _nemotron(own: Metadata) -> Mapping[str, Any]:
    heads = own.each_layer("attention.head_count_kv")
    widths = own.each_layer("feed_forward_length")
    feed_forward = "moe" if own.kind == "nemotron_h_moe" else "mlp"
    kinds = [
        "attention" if count else feed_forward if width else "mamba"
        for count, width in zip(heads, widths, strict=True)
    ]
    num_heads, inner = own.integer("ssm.time_step_rank"), own.integer("ssm.inner_size")
    if inner % num_heads:
        own.fail("ssm.time_step_rank", f"a divisor of {inner}")
    values = {
        "layers_block_type": kinds,
        "mamba_num_heads": num_heads,
        "mamba_head_dim": inner // num_heads,
        "n_groups": own.integer("ssm.group_count"),
        "ssm_state_size": own.integer("ssm.state_size"),
        "conv_kernel": own.integer("ssm.conv_kernel"),
        "use_conv_bias": own.has("ssm_conv1d.bias"),
        "use_bias": own.has("ssm_in.bias"),
        "mlp_bias": own.has("ffn_up.bias") or own.has("ffn_up_shexp.bias"),
    }
    if own.kind != "nemotron_h_moe":
        return values
    return values | {
        "n_routed_experts": own.integer("expert_count"),
        "n_shared_experts": own.integer("expert_shared_count"),
        "n_group": own.optional_integer("expert_group_count") or 1,
        "moe_latent_size": own.optional_integer("moe_latent_size") or None,
        "moe_shared_expert_intermediate_size": own.integer("expert_shared_feed_forward_length"),
    }
