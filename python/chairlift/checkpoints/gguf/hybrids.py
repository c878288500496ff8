"""The fields of config.json of architectures with a recurrent state."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from chairlift.checkpoints.gguf.metadata import Metadata

_FULL, _LINEAR, _CONV = "full_attention", "linear_attention", "conv"


def hybrid_fields(metadata: Metadata) -> Mapping[str, Any]:
    """Read the fields that an architecture has beside those of all."""
    match metadata.kind:
        case "lfm2" | "lfm2moe":
            return _lfm2(metadata)
        case "qwen35" | "qwen35moe" | "qwen3next":
            return _qwen(metadata)
        case "granitehybrid":
            return _granite(metadata)
        case "falcon-h1":
            return _falcon(metadata)
        case _:
            return _nemotron(metadata)


def _kinds(metadata: Metadata, other: str) -> list[str]:
    """Read the layers with attention, which have heads of keys."""
    counts = metadata.each_layer("attention.head_count_kv")
    return [_FULL if count else other for count in counts]


def _lfm2(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "layer_types": _kinds(metadata, _CONV),
        "conv_L_cache": metadata.integer("shortconv.l_cache"),
        "conv_bias": metadata.has("shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
        "num_dense_layers": metadata.optional_integer("leading_dense_block_count"),
    }


def _qwen(metadata: Metadata) -> Mapping[str, Any]:
    num_values, inner = metadata.integer("ssm.time_step_rank"), metadata.integer("ssm.inner_size")
    if inner % num_values:
        metadata.fail("ssm.inner_size", f"a multiple of ssm.time_step_rank, {num_values}")
    values: dict[str, Any] = {
        "norms_are_whole": True,
        # The converter reorders the heads of values, but of Qwen3-Next.
        "linear_heads_in_turn": metadata.kind != "qwen3next",
        "linear_num_key_heads": metadata.integer("ssm.group_count"),
        "linear_num_value_heads": num_values,
        "linear_key_head_dim": metadata.integer("ssm.state_size"),
        "linear_value_head_dim": inner // num_values,
        "linear_conv_kernel_dim": metadata.integer("ssm.conv_kernel"),
    }
    if isinstance(
        metadata.fields.values.get(f"{metadata.kind}.attention.recurrent_layers"), np.ndarray
    ):
        recurrent = metadata.each_layer("attention.recurrent_layers")
        values["layer_types"] = [_LINEAR if each else _FULL for each in recurrent]
    else:
        interval = metadata.optional_integer("full_attention_interval") or 4
        values["full_attention_interval"] = interval
    if metadata.kind != "qwen35":
        key = "expert_shared_feed_forward_length"
        values["shared_expert_intermediate_size"] = metadata.integer(key)
    return values


def _mamba(metadata: Metadata) -> dict[str, Any]:
    return {
        "mamba_d_ssm": metadata.integer("ssm.inner_size"),
        "mamba_n_heads": metadata.integer("ssm.time_step_rank"),
        "mamba_n_groups": metadata.integer("ssm.group_count"),
        "mamba_d_state": metadata.integer("ssm.state_size"),
        "mamba_d_conv": metadata.integer("ssm.conv_kernel"),
        "mamba_conv_bias": metadata.has("ssm_conv1d.bias"),
        "mamba_proj_bias": metadata.has("ssm_in.bias"),
    }


def _granite(metadata: Metadata) -> Mapping[str, Any]:
    """Read Granite 4, or Bamba, whose scores have the factor of the size of a head."""
    finetuned = f"{metadata.kind}.rope.scaling.finetuned"
    has_rope = metadata.fields.flag(finetuned) if finetuned in metadata.fields.values else True
    shared = metadata.optional_integer("expert_shared_feed_forward_length")
    num_experts = metadata.optional_integer("expert_count")
    size = metadata.head_size(metadata.num_heads()[0])
    return {
        **_mamba(metadata),
        "layer_types": _kinds(metadata, _LINEAR),
        "position_embedding_type": "rope" if has_rope else "nope",
        "rotates_a_part": True,
        "num_local_experts": num_experts,
        "shared_intermediate_size": shared or metadata.per_layer("feed_forward_length"),
        "attention_multiplier": size**-0.5,
    }


def _falcon(metadata: Metadata) -> Mapping[str, Any]:
    """Read Falcon-H1, whose factors are part of the weights: a tied head would have a wrong one."""
    return {
        **_mamba(metadata),
        "projectors_bias": metadata.has("ssm_in.bias"),
        "mamba_rms_norm": metadata.has("ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "tie_word_embeddings": False,
    }


def _nemotron(metadata: Metadata) -> Mapping[str, Any]:
    heads = metadata.each_layer("attention.head_count_kv")
    widths = metadata.each_layer("feed_forward_length")
    feed_forward = "moe" if metadata.kind == "nemotron_h_moe" else "mlp"
    kinds = [
        "attention" if count else feed_forward if width else "mamba"
        for count, width in zip(heads, widths, strict=True)
    ]
    num_heads, inner = metadata.integer("ssm.time_step_rank"), metadata.integer("ssm.inner_size")
    if inner % num_heads:
        metadata.fail("ssm.time_step_rank", f"a divisor of {inner}")
    values = {
        "layers_block_type": kinds,
        "mamba_num_heads": num_heads,
        "mamba_head_dim": inner // num_heads,
        "n_groups": metadata.integer("ssm.group_count"),
        "ssm_state_size": metadata.integer("ssm.state_size"),
        "conv_kernel": metadata.integer("ssm.conv_kernel"),
        "use_conv_bias": metadata.has("ssm_conv1d.bias"),
        "use_bias": metadata.has("ssm_in.bias"),
        "mlp_bias": metadata.has("ffn_up.bias") or metadata.has("ffn_up_shexp.bias"),
    }
    if metadata.kind != "nemotron_h_moe":
        return values
    return values | {
        "n_routed_experts": metadata.integer("expert_count"),
        "n_shared_experts": metadata.integer("expert_shared_count"),
        "n_group": metadata.optional_integer("expert_group_count") or 1,
        "moe_latent_size": metadata.optional_integer("moe_latent_size") or None,
        "moe_shared_expert_intermediate_size": metadata.integer(
            "expert_shared_feed_forward_length"
        ),
    }
