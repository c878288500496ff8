"""Metadata of the families of `converted`, as the converter of llama.cpp writes them."""

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter, RopeScalingType
from transformers import PreTrainedConfig

from tests.model.gguf.converted import delta_sizes


def add_metadata(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    """Write what the converter writes beside the values of all architectures."""
    if config.model_type != "nemotron_h":
        writer.add_feed_forward_length(config.intermediate_size)
    if (width := getattr(config, "moe_intermediate_size", None)) is not None:
        writer.add_expert_feed_forward_length(width)
    match config.model_type:
        case "lfm2" | "lfm2_moe":
            _add_kv_heads(writer, config, config.layer_types)
            writer.add_shortconv_l_cache(config.conv_L_cache)
        case "qwen3_5_text" | "qwen3_5_moe_text" | "qwen3_next":
            _add_delta(writer, config)
        case "nemotron_h":
            _add_nemotron(writer, config)
        case "granitemoehybrid" | "bamba" | "falcon_h1":
            _add_mamba(writer, config)
        case "gemma4_text":
            _add_gemma4(writer, config)
        case _:
            _add_decoder(writer, config)
    if config.model_type == "lfm2_moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)


def _add_decoder(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    kind, rope = config.model_type, config.rope_parameters
    writer.add_head_count_kv(config.num_key_value_heads)
    if kind in ("phi3", "cohere2", "olmo3"):
        writer.add_sliding_window(config.sliding_window or 0)
    if kind == "cohere2":
        writer.add_logit_scale(config.logit_scale)
        writer.add_rope_scaling_type(RopeScalingType.NONE)
    if kind == "olmo3":
        kinds = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_sliding_window_pattern(kinds)
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        yarn = rope["full_attention"]
        writer.add_rope_freq_base(yarn["rope_theta"])
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(yarn["factor"])
        writer.add_rope_scaling_orig_ctx_len(yarn["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(yarn["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(yarn["beta_slow"])
        if "attention_factor" in yarn:
            writer.add_rope_scaling_yarn_attn_factor(yarn["attention_factor"])
    if kind == "ernie4_5_moe":
        writer.add_expert_count(config.moe_num_experts)
        writer.add_expert_used_count(config.moe_k)
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_expert_shared_count(config.moe_num_shared_experts)
    if kind == "phi3":
        _add_phi3(writer, config)


def _add_gemma4(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    kinds, own = config.layer_types, getattr(config, "per_layer_config", None) or {}
    is_sliding = [kind == "sliding_attention" for kind in kinds]
    full = next(layer for layer in map(str, range(len(kinds))) if not is_sliding[int(layer)])
    own = {str(number): sizes for number, sizes in own.items()}.get(full, {})
    full_dim = own.get("head_dim") or config.global_head_dim
    full_heads = own.get("num_key_value_heads", config.num_key_value_heads)
    num_shared = config.num_kv_shared_layers
    for size, end in ((full_dim, ""), (config.head_dim, "_swa")):
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            writer.kv_data[0].pop(f"gemma4.{name}{end}", None)
            writer.add_uint32(f"gemma4.{name}{end}", size)
    heads = [config.num_key_value_heads if each else full_heads for each in is_sliding]
    writer.add_head_count_kv(heads)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(is_sliding)
    writer.add_uint32("gemma4.attention.shared_kv_layers", num_shared)
    writer.add_uint32(
        "gemma4.embedding_length_per_layer_input", config.hidden_size_per_layer_input or 0
    )
    if config.use_double_wide_mlp:
        widths = [
            config.intermediate_size * (1 + (n >= len(kinds) - num_shared))
            for n in range(len(kinds))
        ]
        writer.add_feed_forward_length(widths)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        writer.add_expert_used_count(config.top_k_experts)
    ropes = config.rope_parameters
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_float32("gemma4.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])
    rotated = int(full_dim * ropes["full_attention"]["partial_rotary_factor"] / 2)
    divisors = [1.0] * rotated + [1e30] * (full_dim // 2 - rotated)
    writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))


def _add_phi3(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    rope, head_dim = config.rope_parameters, config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] != "longrope":
        return
    length = config.original_max_position_embeddings
    scale = config.max_position_embeddings / length
    writer.add_rope_scaling_orig_ctx_len(length)
    grown = (1 + np.log(scale) / np.log(length)) ** 0.5 if scale > 1 else 1.0
    writer.add_rope_scaling_attn_factors(float(grown))
    for own in ("long", "short"):
        factors_of = np.array(rope[f"{own}_factor"], dtype=np.float32)
        writer.add_tensor(f"rope_factors_{own}.weight", factors_of)


def _add_kv_heads(writer: GGUFWriter, config: PreTrainedConfig, kinds: list[str]) -> None:
    heads = config.num_key_value_heads
    writer.add_head_count_kv([heads if k in ("attention", "full_attention") else 0 for k in kinds])


def _add_delta(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    heads, key, value, ratio = delta_sizes(config)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(key)
    writer.add_ssm_group_count(heads)
    writer.add_ssm_time_step_rank(heads * ratio)
    writer.add_ssm_inner_size(heads * ratio * value)
    recurrent = [kind == "linear_attention" for kind in config.layer_types]
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent)
    writer.add_rope_dimension_sections([2, 1, 1, 0])
    writer.add_rope_dimension_count(
        int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
    )
    if config.model_type != "qwen3_5_text":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _add_mamba(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    inner = config.mamba_n_heads * config.mamba_d_head
    _add_ssm(writer, config.mamba_d_conv, config.mamba_d_state, inner)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_ssm_group_count(config.mamba_n_groups)
    if config.model_type == "falcon_h1":
        writer.add_head_count_kv(config.num_key_value_heads)
        return
    _add_kv_heads(writer, config, config.layer_types)
    writer.add_rope_scaling_finetuned(config.model_type == "bamba")
    if config.model_type == "bamba":
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads // 2)
        return
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)


def _add_ssm(writer: GGUFWriter, kernel: int, state: int, inner: int) -> None:
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_state_size(state)
    writer.add_ssm_inner_size(inner)


def _add_nemotron(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    kinds, inner = config.layers_block_type, config.mamba_num_heads * config.mamba_head_dim
    _add_kv_heads(writer, config, kinds)
    _add_ssm(writer, config.conv_kernel, config.ssm_state_size, inner)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_expert_group_count(config.n_group)
    has_experts = "moe" in kinds
    width = config.moe_intermediate_size if has_experts else config.intermediate_size
    writer.add_feed_forward_length([width if kind in ("moe", "mlp") else 0 for kind in kinds])
    if has_experts:
        shared = config.moe_shared_expert_intermediate_size
        writer.add_expert_shared_feed_forward_length(shared)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
