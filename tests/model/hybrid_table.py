"""The variants of families with a recurrent state; see `family_table`."""

from transformers import (
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    NemotronHConfig,
    OlmoHybridConfig,
    PreTrainedConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
}

EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
MAMBA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "shared_intermediate_size": 48,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.5,
    "attention_multiplier": 0.3,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 24,
}

BLOCKS = {
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 24,
    "n_groups": 2,
}

BESIDE = {
    "num_hidden_layers": 2,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 3,
    "mamba_d_head": 32,
    "mamba_d_state": 24,
}

HYBRIDS: dict[str, tuple[type[PreTrainedConfig], dict[str, object]]] = {
    "lfm2, tied": (
        Lfm2Config,
        {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    ),
    "lfm2, wide convolutions with biases": (
        Lfm2Config,
        {
            "full_attn_idxs": [2],
            "conv_L_cache": 5,
            "conv_bias": True,
            "block_multiple_of": 32,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2 moe, a bias of the choice": (
        Lfm2MoeConfig,
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "routed_scaling_factor": 1.5,
        },
    ),
    "qwen3.5, heads that share keys": (
        Qwen3_5TextConfig,
        {**DELTA, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    ),
    "qwen3.5, tied, attention last, biases": (
        Qwen3_5TextConfig,
        {
            **DELTA,
            "full_attention_interval": 3,
            "linear_num_value_heads": 2,
            "linear_value_head_dim": 48,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3.5 moe, a gated shared expert": (
        Qwen3_5MoeTextConfig,
        {**DELTA, **EXPERTS, "layer_types": MAMBA["layer_types"]},
    ),
    "qwen3-next, a layer without experts": (
        Qwen3NextConfig,
        {
            **DELTA,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            **EXPERTS,
            "norm_topk_prob": False,
            "mlp_only_layers": [1],
        },
    ),
    "granite hybrid, experts, groups": (
        GraniteMoeHybridConfig,
        {
            **MAMBA,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "mamba_n_groups": 2,
            "mamba_proj_bias": True,
            "residual_multiplier": 0.4,
        },
    ),
    "granite hybrid, dense, rope, tied": (
        GraniteMoeHybridConfig,
        {
            **MAMBA,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "bamba": (
        BambaConfig,
        {
            "attn_layer_indices": [0, 2],
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_d_state": 24,
            "mamba_n_groups": 2,
            "mamba_proj_bias": True,
            "pad_token_id": 0,
        },
    ),
    "nemotron h, mamba after mamba, feed-forward at both ends": (
        NemotronHConfig,
        {
            **BLOCKS,
            "layers_block_type": ["mlp", "mamba", "mamba", "attention", "mlp"],
            "mlp_bias": True,
            "use_bias": True,
        },
    ),
    "nemotron h, experts, attention last": (
        NemotronHConfig,
        {
            **BLOCKS,
            "layers_block_type": ["moe", "linear_attention", "full_attention"],
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "moe_shared_expert_intermediate_size": 40,
            "routed_scaling_factor": 2.5,
            "use_conv_bias": False,
        },
    ),
    "falcon h1, multipliers, tied": (
        FalconH1Config,
        {
            **BESIDE,
            "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.6,
            "key_multiplier": 0.7,
            "attention_in_multiplier": 1.3,
            "attention_out_multiplier": 0.8,
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.9,
            "ssm_multipliers": [0.8, 1.1, 0.7, 0.9, 1.3],
            "mlp_multipliers": [1.4, 0.6],
            "tie_word_embeddings": True,
        },
    ),
    "falcon h1, norms behind gates, biases": (
        FalconH1Config,
        {
            **BESIDE,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "mamba_conv_bias": False,
        },
    ),
    "olmo hybrid, no rope, heads that share keys": (
        OlmoHybridConfig,
        {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 32,
            "rope_parameters": {"rope_theta": None},
            "pad_token_id": 0,
        },
    ),
    "olmo hybrid, rope, attention last, shares up to 1": (
        OlmoHybridConfig,
        {
            "num_hidden_layers": 2,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_allow_neg_eigval": False,
            "attention_bias": True,
            "pad_token_id": 0,
        },
    ),
}
